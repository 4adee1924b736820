"""Reads and writes JSON of any size without blocking other threads: Python's codec holds the GIL until it has finished.

Reading passes each object and each number through a Python function, where the GIL can be released. Writing gives the
codec pieces of at most a few thousand values. Still undivided: a single text, and a list of only texts, `true`s or
empty lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_json

LARGE: Final = 128 * 1024
"""Characters from which a text is read that way, which takes a third longer."""
_LEVELS: Final = 200
"""Levels of a value that are divided; deeper parts are one piece."""
_BATCH: Final = 2_048
_CONTAINERS: Final = (dict, list, tuple)
encode_small: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `dumps` makes one each time


def parse(text: str) -> Any:
    """Return the JSON object or array in the text; None if it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text) if len(text) <= LARGE else _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_finite(text: str) -> Any:
    """Return the JSON value of a large text, with null for NaN and infinities. Raises ValueError, RecursionError."""
    return _FINITE.decode(text)


def dump(value: Any, *, indented: bool = False) -> str:
    """Return the value as JSON in its own order: compact, or `indented` by a space a level."""
    return "".join(pieces(value, indented=indented))


def pieces(value: Any, level: int = 0, *, indented: bool = False) -> Iterator[str]:
    """Yield the pieces that `dump` joins: none holds more than one text, or a few thousand values."""
    line = "\n" + " " * level if indented else ""
    if level >= _LEVELS or _weight(value) < _BATCH:
        yield _written(value, line)
    elif isinstance(value, dict):
        before = "{" + line + " " * indented
        for name, part in value.items():
            yield before + encode_small({name: 0})[1:-2] + " " * indented
            yield from pieces(part, level + 1, indented=indented)
            before = "," + line + " " * indented
        yield line + "}"
    else:
        before = "["
        group: list[Any] = []
        weight = 0
        for part in value:
            heavy = (added := 1 + _weight(part)) >= _BATCH
            if group and (heavy or weight + added >= _BATCH):
                yield before + _written(group, line)[1 : -1 - len(line)]
                before, group, weight = ",", [], 0
            if heavy:
                yield before + line + " " * indented
                before = ","
                yield from pieces(part, level + 1, indented=indented)
            else:
                group.append(part)
                weight += added
        yield (before + _written(group, line)[1 : -1 - len(line)] if group else "") + line + "]"


def _written(value: Any, line: str) -> str:
    """Return the JSON of a value in one go: compact, or indented for its place."""
    if not line:
        return encode_small(value)
    try:  # Python's own encoder takes ten times as long with indentation
        text = to_json(value, indent=1, inf_nan_mode="constants").decode()
    except ValueError:  # a lone surrogate
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return text.replace("\n", line)


def _weight(value: Any) -> int:
    """Return the number of values inside a value; counting stops at the maximum of a piece."""
    if not isinstance(value, _CONTAINERS):
        return 0
    todo, weight = [value], 0
    while todo:
        one = todo.pop()
        weight += len(one)
        if weight >= _BATCH:
            return weight
        todo.extend(
            [part for part in (one.values() if isinstance(one, dict) else one) if isinstance(part, _CONTAINERS)]
        )
    return weight


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def no_number(_constant: str) -> None:
    """Return null for NaN and the infinities, which are no JSON, as JavaScript does."""


decode_small: Final = json.JSONDecoder(parse_constant=no_number).decode
_DECODER: Final = json.JSONDecoder(
    object_hook=lambda value: value, parse_int=lambda text: int(text), parse_float=lambda text: float(text)
)
_FINITE: Final = json.JSONDecoder(
    object_hook=lambda value: value, parse_int=lambda text: int(text), parse_float=_finite, parse_constant=no_number
)
