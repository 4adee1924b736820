"""Compiled schemas, and the check of one value in a bounded number of steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bundle_router.adapters.linear_patterns import LinearPattern, compile_linear
from bundle_router.core.servers.admission.references import anchors_in, target_of
from bundle_router.core.servers.admission.schemas import form_fault

MAX_SENTENCES: Final = 20
CHECK_STEPS: Final = 1_200_000
"""Maximum steps of one check: about 0.5 s."""
CHECK_CPU_S: Final = 0.6
INLINE_STEPS: Final = 2_000
"""Maximum steps on the caller's event loop, about 1 ms: enough for nearly every call.

Longer checks use a thread.
"""
BYTES_TIMES_INSTRUCTIONS: Final = 100
"""Bytes times instructions that RE2 handles at its slowest (5 ns each, measured) in one step (about
0.5 µs).
"""
PLAN_STEPS: Final = 40
"""Steps for planning a schema on first use: about 20 µs."""
COMPILE_STEPS: Final = 2_500
"""Steps for compiling a pattern, or finding all anchors: up to 3 ms, or 30, so never on the event
loop.
"""
TEXT_PER_STEP: Final = 64
"""Characters of canonical text per step."""
BITS_PER_STEP: Final = 32
"""Bits of a number per step of writing it in decimal."""
CLOCK_EVERY: Final = 1_024
"""Steps between two readings of the clock."""
PAUSE_EVERY_S: Final = 0.004
"""Seconds between pauses.

RE2 releases the GIL for each match, so a waiting event loop wakes up too late every time and waits
again: 320 ms as measured. So a checking thread regularly waits until the loop has run.
"""
MANY_PARTS: Final = 256
MAX_SHOWN: Final = 60

KINDS: Final[dict[type, str]] = {
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
    """The value could not be checked: too many steps, too much time, or an invalid schema."""


class OutOfSteps(Unchecked):
    """The check needs more steps than it was given."""


class EnoughErrors(Exception):
    """The maximum number of error sentences is reached."""


class SeenParts:
    """Names and items of one value that some keyword has evaluated, for `unevaluated*`."""

    __slots__ = ("all_items", "all_names", "indexes", "names", "prefix")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.indexes: set[int] = set()
        self.prefix = 0
        self.all_names = self.all_items = False

    def add(self, other: SeenParts) -> int:
        """Add the names and items of another; return how many they are."""
        self.names |= other.names
        self.indexes |= other.indexes
        self.prefix = max(self.prefix, other.prefix)
        self.all_names |= other.all_names
        self.all_items |= other.all_items
        return len(other.names) + len(other.indexes)


class ValuePlace:
    """A value under check.

    `reports`: whether to report sentences or only a verdict. `parent` and `name` lead to the root.
    `seen` collects the evaluated names and items, if a keyword needs them.
    """

    __slots__ = ("kind", "name", "parent", "reports", "seen", "value")

    def __init__(
        self,
        value: Any,
        parent: ValuePlace | None,
        name: str | int,
        reports: bool,
        seen: SeenParts | None,
        kind: str,
    ) -> None:
        self.value = value
        self.parent = parent
        self.name = name
        self.reports = reports
        self.seen = seen
        self.kind = kind

    def path(self) -> str:
        names: list[str] = []
        place: ValuePlace | None = self
        while place is not None and place.parent is not None:
            names.append(str(place.name)[:MAX_SHOWN])
            place = place.parent
        return ".".join(reversed(names)) or "arguments"


Keyword = Callable[["ValueCheck", Any, Mapping[str, Any], ValuePlace], bool]
Plan = Mapping[str, tuple[tuple[Keyword, Any], ...]]
"""Keywords by kind of value; the kind "" is present if a keyword needs the evaluated names and
items.
"""


class JsonSchema:
    """A compiled schema, which threads may share.

    It is compiled while the first values are checked.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.draft = _draft(root.get("$schema"))
        self.plans: dict[int, Plan] = {}
        self._patterns: dict[str, LinearPattern | None] = {}
        self._anchors: Mapping[str, Any] | None = None
        self._targets: dict[str, Any] = {}
        self._equals: dict[int, frozenset[str]] = {}
        self._flat = _flat(root)

    def accepts(self, value: Any) -> bool:
        """Return True only if `problems` finds none.

        That is quick to tell of objects whose parts have plain types.
        """
        if self._flat is None or type(value) is not dict or len(value) > MANY_PARTS:
            return False
        required, allowed, others = self._flat
        if not value.keys() >= required:
            return False
        for name, part in value.items():
            fitting = allowed.get(name, others)
            if type(part) not in fitting and (type(part) is not str or part not in fitting):
                return False
        return True

    def problems(self, value: Any, steps: int, pause: Callable[[], object] = bool) -> list[str]:
        """Return the errors of the value, one sentence each, at most 20.

        Raises Unchecked, at the latest after `CHECK_CPU_S`. `pause` is called every few
        milliseconds, and may raise Unchecked too.
        """
        check = ValueCheck(self, steps, pause)
        try:
            check.fits(self.root, ValuePlace(value, None, "", True, None, check.kind(value)))
        except EnoughErrors:
            pass
        except RecursionError:
            raise Unchecked("nested too deep") from None
        return check.sentences

    def plan(self, schema: Any, check: ValueCheck) -> Plan:
        """Return the keywords to evaluate for each kind of value, in order: `unevaluated*` last."""
        if not isinstance(schema, Mapping):
            raise Unchecked("a schema is an object, true or false")
        check.spend(PLAN_STEPS + len(schema))
        plan = self.plans[id(schema)] = _plan(schema, self.draft)
        return plan

    def target(self, reference: Any, check: ValueCheck) -> Any:
        """Return the schema that a reference points to.

        Raises Unchecked if it points to nothing inside this schema.
        """
        if not isinstance(reference, str):
            raise Unchecked("a reference has no target")
        found = self._targets.get(reference)
        if found is None:
            if self._anchors is None and reference[:2] not in ("#", "#/"):
                check.spend(COMPILE_STEPS)  # it looks at the whole schema
                self._anchors = anchors_in(self.root)
            found = self._targets[reference] = target_of(self.root, self._anchors or {}, reference)
            if found is None:
                raise Unchecked("a reference has no target")
        return found

    def pattern(self, text: str, check: ValueCheck) -> LinearPattern | None:
        """Return the compiled pattern, or None if RE2 rejects it."""
        if text not in self._patterns:
            check.spend(COMPILE_STEPS + len(text))
            try:
                self._patterns[text] = compile_linear(text)
            except ValueError:
                self._patterns[text] = None
        return self._patterns[text]

    def equals(self, values: list[Any], check: ValueCheck) -> frozenset[str]:
        """Return the canonical texts of the values of an `enum`."""
        texts = self._equals.get(id(values))
        if texts is None:
            texts = self._equals[id(values)] = frozenset(check.canonical(value) for value in values)
        return texts


class ValueCheck:
    """One check of one value."""

    def __init__(self, schema: JsonSchema, steps: int, pause: Callable[[], object]) -> None:
        self.schema = schema
        self.sentences: list[str] = []
        self._steps = steps
        self._look_at = steps - CLOCK_EVERY
        self._cpu_until = 0.0  # set when the clock is first read: most checks end before
        self._pause_at = 0.0
        self._pause = pause
        self._texts: dict[int, str] = {}

    def spend(self, steps: int) -> None:
        """Count steps before they are done. Raises Unchecked if none are left."""
        self._steps -= steps
        if self._steps < self._look_at:
            self._look_at = self._steps - CLOCK_EVERY
            if self._steps < 0:
                raise OutOfSteps("too many steps")
            now = time.thread_time()
            self._cpu_until = self._cpu_until or now + CHECK_CPU_S
            if now > self._cpu_until:
                raise OutOfSteps("too slow")
            if now > self._pause_at:
                self._pause_at = now + PAUSE_EVERY_S
                self._pause()

    def kind(self, value: Any) -> str:
        for base in type(value).__mro__:
            if base in KINDS:
                return KINDS[base]
        raise Unchecked(f"a {type(value).__name__} is no JSON")

    def fits(self, schema: Any, place: ValuePlace) -> bool:
        """Return whether the value fits, and report its errors if the place wants them."""
        if schema is True or schema is False:
            self.spend(1)
            return schema or self.report(place, f"{display_value(place.value)} is not allowed here")
        plan = self.schema.plans.get(id(schema)) or self.schema.plan(schema, self)
        keywords = plan[place.kind]
        self.spend(1 + len(keywords))
        outer = place.seen
        if outer is None and "" in plan:
            place.seen = SeenParts()
        fine = True
        for keyword, argument in keywords:
            if not keyword(self, argument, schema, place):
                fine = False
                if not place.reports:
                    break
        place.seen = outer
        return fine

    def part_fits(self, schema: Any, place: ValuePlace, name: str | int, value: Any) -> bool:
        """Return whether a part of the place's value fits."""
        kind = KINDS.get(type(value)) or self.kind(value)
        return self.fits(schema, ValuePlace(value, place, name, place.reports, None, kind))

    def fits_other(self, schema: Any, place: ValuePlace, *, quietly: bool = False) -> bool:
        """Return whether the value fits another schema too.

        If so, that schema's evaluated parts count here.
        """
        seen = SeenParts() if place.seen is not None else None
        reports = place.reports and not quietly
        same = ValuePlace(place.value, place.parent, place.name, reports, seen, place.kind)
        if not self.fits(schema, same):
            return False
        if seen is not None and place.seen is not None:
            self.spend(place.seen.add(seen))
        return True

    def report(self, place: ValuePlace, sentence: str) -> bool:
        if place.reports:
            self.sentences.append(f"{place.path()}: {sentence}")
            if len(self.sentences) >= MAX_SENTENCES:
                raise EnoughErrors
        return False

    def canonical(self, value: Any) -> str:
        """Return a text that is equal for two values exactly if JSON calls them equal: 1 equals
        1.0, but not true.
        """
        if isinstance(value, str):
            self.spend(1 + len(value) // TEXT_PER_STEP)
            return f'"{value}"'
        kept = self._texts.get(id(value)) if isinstance(value, dict | list) else None
        if kept is not None:
            return kept
        try:
            text = self._sorted_json(self._whole_numbers(value))
        except (TypeError, ValueError):
            raise Unchecked("not JSON") from None
        self.spend(1 + len(text) // TEXT_PER_STEP)
        if isinstance(value, dict | list):
            self._texts[id(value)] = text
        return text

    def _whole_numbers(self, value: Any) -> Any:
        self.spend(1)
        if isinstance(value, list):
            return [self._whole_numbers(item) for item in value]
        if isinstance(value, dict):
            return {name: self._whole_numbers(item) for name, item in value.items()}
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int):
            self.spend(value.bit_length() // BITS_PER_STEP)
        return value

    def _sorted_json(self, value: Any) -> str:
        """Return the value as sorted JSON, encoded piece by piece: the encoder holds the GIL until
        it has finished.
        """
        self.spend(2)
        if isinstance(value, list) and len(value) > MANY_PARTS:
            return f"[{', '.join(map(self._sorted_json, value))}]"
        if isinstance(value, dict) and len(value) > MANY_PARTS:
            parts = (
                f"{self._sorted_json(name)}: {self._sorted_json(value[name])}"
                for name in sorted(value)
            )
            return f"{{{', '.join(parts)}}}"
        return json.dumps(value, sort_keys=True, ensure_ascii=False)

    def matches(self, pattern: str, text: str) -> bool | None:
        """Return whether the text contains a match of the pattern; None if RE2 rejects the
        pattern.
        """
        if not isinstance(pattern, str):
            raise Unchecked("a pattern is a text")
        linear = self.schema.pattern(pattern, self)
        self.spend(
            1 + (len(text) * linear.instructions // BYTES_TIMES_INSTRUCTIONS if linear else 0)
        )
        return linear.is_in(text) if linear is not None else None


class KeywordRow(NamedTuple):
    """A keyword: the kind of values it applies to (empty: all), and the years of its drafts.

    `joint`: one evaluation covers all keywords of the same function.
    """

    kind: str
    run: Keyword
    since: int = 4
    until: int = 2020
    joint: bool = False


KEYWORDS: Final[dict[str, KeywordRow]] = {}
"""All keywords, in the order of evaluation. See `keywords` for their functions."""


def _plan(schema: Mapping[str, Any], draft: int) -> Plan:
    plan: dict[str, list[tuple[Keyword, Any]]] = {kind: [] for kind in KINDS.values()}
    alone = (
        draft <= 7 and "$ref" in schema
    )  # in these drafts `$ref` disables all keywords beside it
    for name, row in KEYWORDS.items():
        if name not in schema or not row.since <= draft <= row.until or (alone and name != "$ref"):
            continue
        if form_fault(name, schema[name]):
            raise Unchecked(f"the value of {name} has the wrong form")
        for kind in (row.kind,) if row.kind else plan:
            if not (row.joint and any(run is row.run for run, _ in plan[kind])):
                plan[kind].append((row.run, schema[name]))
        if name.startswith("unevaluated"):
            plan[""] = []
    return {kind: tuple(rows) for kind, rows in plan.items()}


_TYPES: Final[Mapping[Any, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_FLAT: Final = frozenset(("type", "properties", "required", "additionalProperties"))


def _flat(
    schema: Mapping[str, Any],
) -> tuple[frozenset[str], dict[str, frozenset[Any]], frozenset[Any]] | None:
    """Return the required names, and what each property and any other may be without a further
    check: types, and texts of an `enum`. None if another keyword of the schema applies.
    """
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    rest = schema.get("additionalProperties", True)
    is_flat = schema.get("type") == "object" and not (KEYWORDS.keys() & schema.keys()) - _FLAT
    if (
        not is_flat
        or type(properties) is not dict
        or type(required) is not list
        or type(rest) is not bool
    ):
        return None
    if len(properties) > MANY_PARTS or not all(isinstance(name, str) for name in required):
        return None
    others = frozenset(kind for kinds in _TYPES.values() for kind in kinds) if rest else frozenset()
    return (
        frozenset(required),
        {name: _plainly_fine(inner) for name, inner in properties.items()},
        others,
    )


def _plainly_fine(schema: Any) -> frozenset[Any]:
    """Return the types, or the texts, the schema permits; none if it has keywords beside `type` and
    `enum`.
    """
    used_keywords = KEYWORDS.keys() & schema.keys() if isinstance(schema, dict) else {""}
    if used_keywords <= {"type", "enum"}:
        names, texts = (schema.get("type"), schema.get("enum"))
    else:
        names, texts = (None, None)
    if texts is not None:
        is_plain = (
            names == "string"
            and isinstance(texts, list)
            and all(isinstance(text, str) for text in texts)
        )
        return frozenset(texts if is_plain else ())
    kinds = [
        _TYPES.get(name, ())
        for name in (names if isinstance(names, list) else (names,))
        if isinstance(name, str)
    ]
    return frozenset(kind for found in kinds for kind in found)


def _draft(uri: Any) -> int:
    """Return 4, 6, 7, 2019 or 2020; the newest if the schema names no draft or an unknown one."""
    older = (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019))
    return next((draft for name, draft in older if isinstance(uri, str) and name in uri), 2020)


def display_value(value: Any) -> str:
    """Return the value for a message, shortened if it is large."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_SHOWN else repr(value[:MAX_SHOWN]) + "…"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of many digits"
    return repr(value)
