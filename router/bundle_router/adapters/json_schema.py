"""JSON Schema, drafts 4 to 2020-12: what is wrong with a value, found in a bounded number of steps.

Why not a library: `jsonschema` compares and prints whole values at every keyword and runs patterns in `re`;
`jsonschema-rs` is linear in most keywords, but can't be stopped, and holds the interpreter for as long as it takes.

Rules:
1. A schema is untrusted. References are resolved inside it only; nothing is ever fetched.
2. Patterns are run by RE2, in linear time. One that RE2 does not take (look-around, back-references) is not checked.
3. Every keyword costs a step, and every name, item and character it looks at a share of one. Equality is that of
   canonical texts, so `uniqueItems`, `enum` and `const` are linear; what `unevaluatedProperties` and
   `unevaluatedItems` leave over is collected on the way and not found by evaluating again.
4. A check that needs more steps or time than it may have raises `Unchecked`. So does a schema that is none. Whoever
   asked leaves the verdict to the server, the judge of its own schema.
5. `format`, `contentEncoding` and their like say what a value is for and refuse nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from bundle_router.adapters.linear_patterns import LinearPattern, compile_linear
from bundle_router.adapters.workers import Workers
from bundle_router.core.tools.admission.references import anchors_in, target_of
from bundle_router.core.tools.admission.schemas import form_fault
from bundle_router.errors import ToolFailure

MAX_SENTENCES: Final = 20
CHECK_STEPS: Final = 1_200_000
"""What one check may take: about 0.6 s."""
CHECK_CPU_S: Final = 0.8
WAIT_S: Final = 2.0
"""How long a check may take with its waiting for others."""
INLINE_STEPS: Final = 2_000
"""Done on the caller's event loop, about 1 ms: what nearly every call needs. What needs more goes to a thread."""
KEPT: Final = 512
BYTES_TIMES_INSTRUCTIONS: Final = 100
"""What RE2 does at its slowest (5 ns each, measured) in the time that one step takes (about 0.5 µs)."""
PLAN_STEPS: Final = 40
"""For looking through a schema for the first time: about 20 µs."""
COMPILE_STEPS: Final = 2_500
"""For making a pattern ready: up to 3 ms, so never on the event loop."""
TEXT_PER_STEP: Final = 64
"""Characters of canonical text that one step pays for."""
CLOCK_EVERY: Final = 1_024
"""Steps between two looks at the clock."""
MANY_PARTS: Final = 256
_SHOWN: Final = 60

_KINDS: Final[dict[type, str]] = {
    dict: "object",
    list: "array",
    tuple: "array",
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


class Unchecked(Exception):
    """The value could not be checked: too many steps, too much time, or a schema that is none."""


class OutOfSteps(Unchecked):
    """It needs more than it was given."""


class _Enough(Exception):
    """As many sentences as anybody reads."""


class _Seen:
    """Names and items of one value that some keyword has evaluated, for `unevaluated*`."""

    __slots__ = ("all_items", "all_names", "indexes", "names", "prefix")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.indexes: set[int] = set()
        self.prefix = 0
        self.all_names = self.all_items = False

    def add(self, other: _Seen) -> int:
        """Takes over what another has; returns how much that was."""
        self.names |= other.names
        self.indexes |= other.indexes
        self.prefix = max(self.prefix, other.prefix)
        self.all_names |= other.all_names
        self.all_items |= other.all_items
        return len(other.names) + len(other.indexes)


class _Place:
    """A value under check. `reports`: whether sentences are wanted of it, or only a verdict. `parent` and `name` lead
    back to the root; `seen` collects what was evaluated, where somebody wants to know."""

    __slots__ = ("kind", "name", "parent", "reports", "seen", "value")

    def __init__(
        self, value: Any, parent: _Place | None, name: str | int, reports: bool, seen: _Seen | None, kind: str
    ) -> None:
        self.value = value
        self.parent = parent
        self.name = name
        self.reports = reports
        self.seen = seen
        self.kind = kind

    def path(self) -> str:
        names: list[str] = []
        place: _Place | None = self
        while place is not None and place.parent is not None:
            names.append(str(place.name)[:_SHOWN])
            place = place.parent
        return ".".join(reversed(names)) or "arguments"


class SchemaChecker:
    """Checks values for any event loop and keeps the last schemas made ready. What can't be checked counts as fine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, JsonSchema] = OrderedDict()
        # One thread: several would take the interpreter from the event loop in turn.
        self._worker = Workers(1)

    async def problems(self, name: str, schema: Mapping[str, Any], value: Any) -> Sequence[str]:
        """What is wrong with the value, one sentence each. `name` is whose schema it is, for keeping it."""
        ready = self._ready(name, schema)
        try:
            return ready.problems(value, INLINE_STEPS)
        except OutOfSteps:
            pass
        except Unchecked:
            return ()
        until = time.monotonic() + WAIT_S  # nobody waits for it any longer, so it ends then by itself
        with contextlib.suppress(TimeoutError, ToolFailure):  # no thread to be had: it can't be checked
            return await asyncio.wait_for(self._worker.submit(lambda: _verdict(ready, value, until)), WAIT_S)
        return ()

    def _ready(self, name: str, schema: Mapping[str, Any]) -> JsonSchema:
        with self._lock:
            ready = self._kept.pop(name, None)
            if ready is None or ready.root is not schema:
                ready = JsonSchema(schema)
            self._kept[name] = ready
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return ready

    def close(self) -> None:
        self._worker.close(WAIT_S)


def _verdict(schema: JsonSchema, value: Any, until: float) -> Sequence[str]:
    try:
        return schema.problems(value, CHECK_STEPS, until)
    except Unchecked:
        return ()


Keyword = Callable[["_Check", Any, Mapping[str, Any], _Place], bool]


class JsonSchema:
    """A schema made ready; threads may share one. Nothing of it is looked at before a value is checked."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.draft = _draft(root.get("$schema"))
        self._plans: dict[int, Mapping[str, tuple[tuple[Keyword, Any], ...]]] = {}
        self._patterns: dict[str, LinearPattern | None] = {}
        self._anchors: Mapping[str, Any] | None = None
        self._equals: dict[int, frozenset[str]] = {}

    def problems(self, value: Any, steps: int, until: float = math.inf) -> list[str]:
        """What is wrong with the value, one sentence each, at most 20. Raises Unchecked; at the latest when
        `CHECK_CPU_S` are spent, or the monotonic clock says `until`."""
        check = _Check(self, steps, until)
        try:
            check.fits(self.root, _Place(value, None, "", True, None, check.kind(value)))
        except _Enough:
            pass
        except RecursionError:
            raise Unchecked("nested too deep") from None
        return check.sentences

    def plan(self, schema: Mapping[str, Any], check: _Check) -> Mapping[str, tuple[tuple[Keyword, Any], ...]]:
        """What has to be looked at for each kind of value, in order: `unevaluated*` last."""
        plan = self._plans.get(id(schema))
        if plan is None:
            check.spend(PLAN_STEPS + len(schema))
            plan = self._plans[id(schema)] = _plan(schema, self.draft)
        return plan

    def target(self, reference: Any) -> Any:
        """The schema that a reference leads to. Raises Unchecked for one that leads nowhere inside this one."""
        if self._anchors is None:
            self._anchors = anchors_in(self.root)
        found = target_of(self.root, self._anchors, reference) if isinstance(reference, str) else None
        if found is None:
            raise Unchecked("a reference leads nowhere")
        return found

    def pattern(self, text: str, check: _Check) -> LinearPattern | None:
        """The pattern made ready, None where RE2 does not take it."""
        if text not in self._patterns:
            check.spend(COMPILE_STEPS + len(text))
            try:
                self._patterns[text] = compile_linear(text)
            except ValueError:
                self._patterns[text] = None
        return self._patterns[text]

    def equals(self, values: list[Any], check: _Check) -> frozenset[str]:
        """The canonical texts of what an `enum` lists."""
        texts = self._equals.get(id(values))
        if texts is None:
            texts = self._equals[id(values)] = frozenset(check.canonical(value) for value in values)
        return texts


class _Check:
    """One check of one value."""

    def __init__(self, schema: JsonSchema, steps: int, until: float) -> None:
        self.schema = schema
        self.sentences: list[str] = []
        self._steps = steps
        self._look_at = steps - CLOCK_EVERY
        self._cpu_until = time.thread_time() + CHECK_CPU_S
        self._until = until
        self._texts: dict[int, str] = {}

    def spend(self, steps: int) -> None:
        """Pays for work before it is done. Raises Unchecked when there is nothing left to pay with."""
        self._steps -= steps
        if self._steps < self._look_at:
            self._look_at = self._steps - CLOCK_EVERY
            if self._steps < 0:
                raise OutOfSteps("too many steps")
            if time.thread_time() > self._cpu_until or time.monotonic() > self._until:
                raise OutOfSteps("too slow")

    def kind(self, value: Any) -> str:
        kind = _KINDS.get(type(value))
        if kind is not None:
            return kind
        for base, name in _KINDS.items():
            if isinstance(value, base):
                return name
        raise Unchecked(f"a {type(value).__name__} is no JSON")

    def fits(self, schema: Any, place: _Place) -> bool:
        """Whether the value fits, with sentences for what does not where the place wants them."""
        if schema is True:
            self.spend(1)
            return True
        if schema is False:
            return self.wrong(place, f"{_shown(place.value)} is not allowed here")
        if not isinstance(schema, Mapping):
            raise Unchecked("a schema is an object, true or false")
        plan = self.schema.plan(schema, self)[place.kind]
        self.spend(1 + len(plan))
        outer = place.seen
        if outer is None and ("unevaluatedProperties" in schema or "unevaluatedItems" in schema):
            place.seen = _Seen()
        fine = True
        try:
            for keyword, argument in plan:
                if not keyword(self, argument, schema, place):
                    fine = False
                    if not place.reports:
                        break
        finally:
            place.seen = outer
        return fine

    def fits_inside(self, schema: Any, place: _Place, name: str | int, value: Any) -> bool:
        """Whether a part of the place's value fits."""
        return self.fits(schema, _Place(value, place, name, place.reports, None, self.kind(value)))

    def fits_too(self, schema: Any, place: _Place, *, quietly: bool = False) -> bool:
        """Whether the same value fits another schema; if so, what that evaluated counts as evaluated."""
        seen = _Seen() if place.seen is not None else None
        reports = place.reports and not quietly
        same = _Place(place.value, place.parent, place.name, reports, seen, place.kind)
        if not self.fits(schema, same):
            return False
        if seen is not None and place.seen is not None:
            self.spend(place.seen.add(seen))
        return True

    def wrong(self, place: _Place, sentence: str) -> bool:
        if place.reports:
            self.sentences.append(f"{place.path()}: {sentence}")
            if len(self.sentences) >= MAX_SENTENCES:
                raise _Enough
        return False

    def canonical(self, value: Any) -> str:
        """A text that two values share exactly when JSON calls them equal: 1 is 1.0 and not true, and the order of
        names says nothing."""
        if isinstance(value, str):
            self.spend(1 + len(value) // TEXT_PER_STEP)
            return f'"{value}"'
        container = isinstance(value, dict | list)
        if container and (kept := self._texts.get(id(value))) is not None:
            return kept
        try:
            text = _written(self._whole_numbers(value))
        except (TypeError, ValueError):
            raise Unchecked("not JSON") from None
        self.spend(1 + len(text) // TEXT_PER_STEP)
        if container:
            self._texts[id(value)] = text
        return text

    def _whole_numbers(self, value: Any) -> Any:
        self.spend(1)
        if isinstance(value, float):
            return int(value) if value.is_integer() else value
        if isinstance(value, list):
            return [self._whole_numbers(item) for item in value]
        if isinstance(value, dict):
            return {name: self._whole_numbers(item) for name, item in value.items()}
        return value

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether the pattern is found in the text; None where nobody can say."""
        if not isinstance(pattern, str):
            raise Unchecked("a pattern is a text")
        linear = self.schema.pattern(pattern, self)
        if linear is None:
            return None
        self.spend(1 + len(text) * linear.instructions // BYTES_TIMES_INSTRUCTIONS)
        return linear.is_in(text)


# --- keywords: any value ---------------------------------------------------------------------------------------------


def _type(check: _Check, names: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    value, kind = place.value, place.kind
    for name in names if isinstance(names, list) else (names,):
        if name == kind or (name == "integer" and kind == "number" and (isinstance(value, int) or value.is_integer())):
            return True
    wanted = ", ".join(repr(name) for name in names[:20]) if isinstance(names, list) else repr(names)
    return check.wrong(place, f"{_shown(value)} is not of type {wanted}")


def _enum(check: _Check, values: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if check.canonical(place.value) in check.schema.equals(values, check):
        return True
    some = ", ".join(_shown(value) for value in values[:20]) + (", …" if len(values) > 20 else "")
    return check.wrong(place, f"{_shown(place.value)} is not one of [{some}]")


def _const(check: _Check, wanted: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if check.canonical(place.value) == check.canonical(wanted):
        return True
    return check.wrong(place, f"{_shown(wanted)} was expected")


def _reference(check: _Check, reference: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    check.spend(1)
    return check.fits_too(check.schema.target("#" if reference is True else reference), place)


def _all_of(check: _Check, schemas: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    fine = True
    for schema in schemas:
        if not check.fits_too(schema, place):
            fine = False
            if not place.reports:
                break
    return fine


def _any_of(check: _Check, schemas: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    fine = False
    for schema in schemas:
        if check.fits_too(schema, place, quietly=True):
            fine = True
            if place.seen is None:
                break
    return fine or check.wrong(place, f"{_shown(place.value)} is not valid under any of the given schemas")


def _one_of(check: _Check, schemas: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    fitting = 0
    for schema in schemas:
        fitting += check.fits_too(schema, place, quietly=True)
        if fitting > 1:
            return check.wrong(place, f"{_shown(place.value)} is valid under more than one of the given schemas")
    return fitting == 1 or check.wrong(place, f"{_shown(place.value)} is not valid under any of the given schemas")


def _not(check: _Check, schema: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    refused = not check.fits(schema, _Place(place.value, place.parent, place.name, False, None, place.kind))
    return refused or check.wrong(place, f"{_shown(place.value)} is what it should not be")


def _if(check: _Check, condition: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    branch = "then" if check.fits_too(condition, place, quietly=True) else "else"
    return branch not in schema or check.fits_too(schema[branch], place)


# --- keywords: numbers and texts -------------------------------------------------------------------------------------


def _number(limit: Any) -> int | float:
    if isinstance(limit, bool) or not isinstance(limit, int | float):
        raise Unchecked("a limit is a number")
    return limit


def _minimum(check: _Check, limit: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    if schema.get("exclusiveMinimum") is True:  # draft 4
        return _exclusive_minimum(check, limit, schema, place)
    return place.value >= _number(limit) or check.wrong(
        place, f"{_shown(place.value)} is less than the minimum of {_shown(limit)}"
    )


def _maximum(check: _Check, limit: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    if schema.get("exclusiveMaximum") is True:  # draft 4
        return _exclusive_maximum(check, limit, schema, place)
    return place.value <= _number(limit) or check.wrong(
        place, f"{_shown(place.value)} is greater than the maximum of {_shown(limit)}"
    )


def _exclusive_minimum(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if isinstance(limit, bool) or place.value > _number(limit):
        return True
    return check.wrong(place, f"{_shown(place.value)} is less than or equal to the minimum of {_shown(limit)}")


def _exclusive_maximum(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if isinstance(limit, bool) or place.value < _number(limit):
        return True
    return check.wrong(place, f"{_shown(place.value)} is greater than or equal to the maximum of {_shown(limit)}")


def _multiple_of(check: _Check, divisor: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if _number(divisor) == 0:
        raise Unchecked("nothing is a multiple of 0")
    check.spend(4)
    try:
        # As the numbers are written, not as they are stored: 0.0075 is a multiple of 0.0001.
        fine = Fraction(repr(place.value)) % Fraction(repr(divisor)) == 0
    except ValueError:
        raise Unchecked("a number that is none, or is too long") from None
    return fine or check.wrong(place, f"{_shown(place.value)} is not a multiple of {_shown(divisor)}")


def _min_length(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) >= _number(limit) or check.wrong(place, f"{_shown(place.value)} is too short")


def _max_length(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) <= _number(limit) or check.wrong(place, f"{_shown(place.value)} is too long")


def _pattern(check: _Check, pattern: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if check.matches(pattern, place.value) is False:
        return check.wrong(place, f"{_shown(place.value)} does not match {_shown(pattern)}")
    return True


# --- keywords: arrays ------------------------------------------------------------------------------------------------


def _items(check: _Check, _argument: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    """`prefixItems`, `items` and `additionalItems` together: what stands at which place."""
    items, rest = schema.get("items", True), schema.get("items")
    prefix = schema.get("prefixItems", ()) if check.schema.draft >= 2020 else ()
    if isinstance(items, list):
        prefix, rest = items, schema.get("additionalItems")
    fine = True
    for index, item in enumerate(place.value):
        inner = prefix[index] if index < len(prefix) else rest
        if inner is None:
            break
        if not check.fits_inside(inner, place, index, item):
            fine = False
            if not place.reports:
                return False
    if place.seen is not None:
        place.seen.prefix = max(place.seen.prefix, len(prefix))
        place.seen.all_items |= rest is not None
    return fine


def _contains(check: _Check, wanted: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    quiet = _Place(place.value, place.parent, place.name, False, None, place.kind)
    found = [index for index, item in enumerate(place.value) if check.fits_inside(wanted, quiet, index, item)]
    if place.seen is not None and check.schema.draft >= 2020:
        place.seen.indexes.update(found)
    counted = check.schema.draft >= 2019
    least, most = (schema.get("minContains", 1), schema.get("maxContains")) if counted else (1, None)
    if len(found) < _number(least):
        return check.wrong(place, f"{len(found)} of its items are as {_number(least)} of them must be")
    if most is not None and len(found) > _number(most):
        return check.wrong(place, f"{len(found)} of its items are as {_number(most)} of them may be")
    return True


def _unique_items(check: _Check, unique: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    if unique is not True:
        return True
    met: set[str] = set()
    for item in place.value:
        text = check.canonical(item)
        if text in met:
            return check.wrong(place, f"{_shown(item)} is in it more than once: its items must be unique")
        met.add(text)
    return True


def _min_items(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) >= _number(limit) or check.wrong(
        place, f"it has {len(place.value)} items, at least {limit} are expected"
    )


def _max_items(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) <= _number(limit) or check.wrong(
        place, f"it has {len(place.value)} items, at most {limit} are allowed"
    )


def _unevaluated_items(check: _Check, inner: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    seen = place.seen
    assert seen is not None  # noqa: S101 - `fits` made one, since the keyword is there
    if seen.all_items:
        return True
    check.spend(len(place.value))
    left = [index for index in range(seen.prefix, len(place.value)) if index not in seen.indexes]
    fine = _each(check, place, inner, ((index, place.value[index]) for index in left), "Unevaluated items")
    seen.all_items = True
    return fine


# --- keywords: objects -----------------------------------------------------------------------------------------------


def _properties(check: _Check, _argument: Any, schema: Mapping[str, Any], place: _Place) -> bool:
    """`properties`, `patternProperties` and `additionalProperties` together: which schemas each name must fit."""
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    additional = schema.get("additionalProperties")
    extra: list[str] = []
    fine = True
    for name, value in place.value.items():
        check.spend(1)
        inner = [properties[name]] if name in properties else []
        unsure = False
        for pattern, other in patterns.items():
            matched = check.matches(pattern, name)
            unsure |= matched is None
            if matched:
                inner.append(other)
        if not inner and not unsure and additional is not None:
            extra.append(name)
        elif place.seen is not None and (inner or unsure):
            place.seen.names.add(name)
        for other in inner:
            if not check.fits_inside(other, place, name, value):
                fine = False
                if not place.reports:
                    return False
    if additional is not None:
        fine &= _each(check, place, additional, ((name, place.value[name]) for name in extra), "Additional properties")
        if place.seen is not None:
            place.seen.all_names = True
    return fine


def _each(check: _Check, place: _Place, schema: Any, parts: Iterable[tuple[Any, Any]], what: str) -> bool:
    """Whether each part fits; where none may be, one sentence names the first of them."""
    if schema is False:
        names = [name for name, _ in parts]
        some = ", ".join(_shown(name) for name in names[:5]) + (", …" if len(names) > 5 else "")
        was = "was" if len(names) == 1 else "were"
        return not names or check.wrong(place, f"{what} are not allowed ({some} {was} unexpected)")
    fine = True
    for name, value in parts:
        if not check.fits_inside(schema, place, name, value):
            fine = False
            if not place.reports:
                break
    return fine


def _unevaluated_properties(check: _Check, inner: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    seen = place.seen
    assert seen is not None  # noqa: S101 - `fits` made one, since the keyword is there
    if seen.all_names:
        return True
    check.spend(len(place.value))
    left = ((name, value) for name, value in place.value.items() if name not in seen.names)
    fine = _each(check, place, inner, left, "Unevaluated properties")
    seen.all_names = True
    return fine


def _property_names(check: _Check, inner: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    fine = True
    for name in place.value:
        if not check.fits_inside(inner, place, name, name):
            fine = False
            if not place.reports:
                break
    return fine


def _required(check: _Check, names: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    check.spend(len(names) // 8)
    missing = [name for name in names if name not in place.value]
    for name in missing[:MAX_SENTENCES]:
        check.wrong(place, f"{_shown(name)} is a required property")
    return not missing


def _dependencies(check: _Check, needs: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    """`dependentRequired`, `dependentSchemas`, and what both were called before."""
    check.spend(len(needs))
    fine = True
    for name, needed in needs.items():
        if name not in place.value:
            continue
        if isinstance(needed, list):
            check.spend(len(needed) // 8)
            missing = [other for other in needed if other not in place.value]
            fits = not missing or check.wrong(place, f"{_shown(missing[0])} is a dependency of {_shown(name)}")
        else:
            fits = check.fits_too(needed, place)
        fine &= fits
    return fine


def _min_properties(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) >= _number(limit) or check.wrong(place, "it has too few properties")


def _max_properties(check: _Check, limit: Any, _schema: Mapping[str, Any], place: _Place) -> bool:
    return len(place.value) <= _number(limit) or check.wrong(place, "it has too many properties")


# --- which keyword counts where --------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A keyword: the kind of values it is about (empty: all), and the drafts it is in (their years)."""

    kind: str
    run: Keyword
    since: int = 4
    until: int = 2020


_KEYWORDS: Final[dict[str, _Row]] = {
    "type": _Row("", _type),
    "enum": _Row("", _enum),
    "const": _Row("", _const, since=6),
    "$ref": _Row("", _reference),
    "$dynamicRef": _Row("", _reference, since=2020),
    "$recursiveRef": _Row("", _reference, since=2019, until=2019),
    "allOf": _Row("", _all_of),
    "anyOf": _Row("", _any_of),
    "oneOf": _Row("", _one_of),
    "not": _Row("", _not),
    "if": _Row("", _if, since=7),
    "minimum": _Row("number", _minimum),
    "maximum": _Row("number", _maximum),
    "exclusiveMinimum": _Row("number", _exclusive_minimum),
    "exclusiveMaximum": _Row("number", _exclusive_maximum),
    "multipleOf": _Row("number", _multiple_of),
    "minLength": _Row("string", _min_length),
    "maxLength": _Row("string", _max_length),
    "pattern": _Row("string", _pattern),
    "minItems": _Row("array", _min_items),
    "maxItems": _Row("array", _max_items),
    "uniqueItems": _Row("array", _unique_items),
    "contains": _Row("array", _contains, since=6),
    "minProperties": _Row("object", _min_properties),
    "maxProperties": _Row("object", _max_properties),
    "required": _Row("object", _required),
    "propertyNames": _Row("object", _property_names, since=6),
    "dependencies": _Row("object", _dependencies, until=7),
    "dependentRequired": _Row("object", _dependencies, since=2019),
    "dependentSchemas": _Row("object", _dependencies, since=2019),
    "prefixItems": _Row("array", _items, since=2020),
    "items": _Row("array", _items),
    "properties": _Row("object", _properties),
    "patternProperties": _Row("object", _properties),
    "additionalProperties": _Row("object", _properties),
    "unevaluatedItems": _Row("array", _unevaluated_items, since=2019),
    "unevaluatedProperties": _Row("object", _unevaluated_properties, since=2019),
}
"""In the order they are looked at: `unevaluated*` are about what all others left."""


def _plan(schema: Mapping[str, Any], draft: int) -> dict[str, tuple[tuple[Keyword, Any], ...]]:
    plan: dict[str, list[tuple[Keyword, Any]]] = {kind: [] for kind in _KINDS.values()}
    for name, row in _in_force(schema, draft):
        if form_fault(name, schema[name]):
            raise Unchecked(f"{name} is not as it must be")
        for kind in (row.kind,) if row.kind else plan:
            if all(run is not row.run or run is _dependencies or run is _reference for run, _ in plan[kind]):
                plan[kind].append((row.run, schema[name]))
    return {kind: tuple(rows) for kind, rows in plan.items()}


def _in_force(schema: Mapping[str, Any], draft: int) -> Iterator[tuple[str, _Row]]:
    if draft <= 7 and "$ref" in schema:  # there it silences everything beside it
        yield "$ref", _KEYWORDS["$ref"]
        return
    for name, row in _KEYWORDS.items():
        if name in schema and row.since <= draft <= row.until:
            yield name, row


def _draft(uri: Any) -> int:
    """4, 6, 7, 2019 or 2020; what names none, or one that nobody knows, is the newest."""
    for name, draft in (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if isinstance(uri, str) and name in uri:
            return draft
    return 2020


def _written(value: Any) -> str:
    """Sorted JSON, of many parts one after the other: the encoder holds the interpreter until it is through."""
    if isinstance(value, list) and len(value) > MANY_PARTS:
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, dict) and len(value) > MANY_PARTS:
        return f"{{{', '.join(f'{_written(name)}: {_written(value[name])}' for name in sorted(value))}}}"
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _shown(value: Any) -> str:
    """The value for a message. Never the whole of a large one."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= _SHOWN else repr(value[:_SHOWN]) + "…"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of many digits"
    return repr(value)
