"""Arguments against a server's schema: without network, without its regular expressions, and with a budget.

Rules:
1. A schema is untrusted. References are resolved inside it only; a remote one is never fetched.
2. Its patterns are not run: a pattern may be written to take for ever. The server checks its own.
3. Checking stops after `BUDGET` keywords. What can't be checked (too big, broken, endless) is not refused: the server
   is the judge of its own schema, here is only the earlier and better-worded refusal.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

BUDGET: Final = 20_000
"""Keywords evaluated for one call; they take 7 to 35 µs each (measured), so 0.7 s at the worst."""
MAX_SENTENCES: Final = 20
MAX_DEPTH: Final = 64
_KEPT: Final = 512
_SKIPPED: Final = ("pattern", "patternProperties", "format", "contentEncoding", "contentMediaType", "contentSchema")


class _OutOfBudget(Exception):
    """The schema is too expensive for these arguments."""


class Checker:
    """Keeps the last validators it made, by the identity of the schema's text. Threads may share one."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], tuple[Mapping[str, Any], Any]] = OrderedDict()

    def check(self, server: str, tool: str, schema: Mapping[str, Any], value: Any) -> Sequence[str]:
        """What is wrong with the value, one sentence each; empty when it is fine, or can't be checked."""
        key = (server, tool)
        kept = self._made.get(key)
        if kept is None or kept[0] is not schema:
            kept = (schema, _validator(schema))
            self._made[key] = kept
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        return () if kept[1] is None else _sentences(kept[1], value)


def _validator(schema: Mapping[str, Any]) -> Any:
    """A validator that counts, or None for a schema that nests too deep."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
    from jsonschema.validators import extend, validator_for  # type: ignore[import-untyped]  # it ships no types
    from referencing import Registry

    if _depth(schema) > MAX_DEPTH:
        return None
    kind = validator_for(schema, default=Draft202012Validator)
    counted = {name: _counting(run) for name, run in kind.VALIDATORS.items()}
    counted.update(dict.fromkeys(_SKIPPED, _nothing))
    return extend(kind, counted)(schema, registry=Registry())


def _sentences(validator: Any, value: Any) -> Sequence[str]:
    found: list[str] = []
    try:
        _budget.left = BUDGET
        for error in validator.iter_errors(value):
            where = ".".join(str(part) for part in error.absolute_path) or "arguments"
            found.append(f"{where}: {_shortened(error.message)}")
            if len(found) >= MAX_SENTENCES:
                break
    except Exception:  # noqa: BLE001 - rule 3. The schema was not checked against its own schema first (that takes
        # seconds for a large one), so the library may trip over anything: its own errors, and TypeError to ZeroDivision
        return ()
    return found


class _Budget(threading.local):
    """What the check on this thread has left."""

    left = 0


_budget = _Budget()


def _counting(run: Any) -> Any:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        _budget.left -= 1
        if _budget.left < 0:
            raise _OutOfBudget
        yield from run(validator, value, instance, schema) or ()

    return counted


def _nothing(_validator: Any, _value: Any, _instance: Any, _schema: Any) -> Iterator[Any]:
    return iter(())


def _depth(value: Any) -> int:
    """How deep it nests, without recursion; stops counting at the limit."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            inner
            for item in level
            if isinstance(item, Mapping | list)
            for inner in (item.values() if isinstance(item, Mapping) else item)
        ]
    return depth


def _shortened(message: str) -> str:
    return message if len(message) <= 300 else message[:300] + " […]"
