"""A schema made ready, and one check of one value against it, in a bounded number of steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bundle_router.adapters.linear_patterns import LinearPattern, compile_linear
from bundle_router.core.tools.admission.references import anchors_in, target_of
from bundle_router.core.tools.admission.schemas import form_fault

MAX_SENTENCES: Final = 20
CHECK_STEPS: Final = 1_200_000
"""What one check may take: about 0.5 s."""
CHECK_CPU_S: Final = 0.6
INLINE_STEPS: Final = 2_000
"""Done on the caller's event loop, about 1 ms: what nearly every call needs. What needs more goes to a thread."""
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
PAUSE_EVERY_S: Final = 0.004
"""RE2 lets go of the interpreter for each match. An event loop that waits for it is woken, comes too late every time,
and waits anew: for 320 ms, as measured. So a thread that checks waits for a turn of the loop now and then."""
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
    """The value could not be checked: too many steps, too much time, or a schema that is none."""


class OutOfSteps(Unchecked):
    """It needs more than it was given."""


class EnoughErrors(Exception):
    """As many sentences as anybody reads."""


class SeenParts:
    """Names and items of one value that some keyword has evaluated, for `unevaluated*`."""

    __slots__ = ("all_items", "all_names", "indexes", "names", "prefix")

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.indexes: set[int] = set()
        self.prefix = 0
        self.all_names = self.all_items = False

    def add(self, other: SeenParts) -> int:
        """Take over what another has; return how much that was."""
        self.names |= other.names
        self.indexes |= other.indexes
        self.prefix = max(self.prefix, other.prefix)
        self.all_names |= other.all_names
        self.all_items |= other.all_items
        return len(other.names) + len(other.indexes)


class ValuePlace:
    """A value under check. `reports`: whether sentences are wanted of it, or only a verdict. `parent` and `name` lead
    back to the root; `seen` collects what was evaluated, where somebody wants to know."""

    __slots__ = ("kind", "name", "parent", "reports", "seen", "value")

    def __init__(
        self, value: Any, parent: ValuePlace | None, name: str | int, reports: bool, seen: SeenParts | None, kind: str
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
"""By the kind of value; the empty one is there where somebody wants to know what was evaluated."""


class JsonSchema:
    """A schema made ready; threads may share one. Nothing of it is looked at before a value is checked."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root
        self.draft = _draft(root.get("$schema"))
        self.plans: dict[int, Plan] = {}
        self._patterns: dict[str, LinearPattern | None] = {}
        self._anchors: Mapping[str, Any] | None = None
        self._targets: dict[str, Any] = {}
        self._equals: dict[int, frozenset[str]] = {}

    def problems(self, value: Any, steps: int, pause: Callable[[], object] = bool) -> list[str]:
        """Return what is wrong with the value, one sentence each, at most 20. Raises Unchecked; at the latest when
        `CHECK_CPU_S` are spent. `pause` is called every few milliseconds, and may raise Unchecked, too."""
        check = ValueCheck(self, steps, pause)
        try:
            check.fits(self.root, ValuePlace(value, None, "", True, None, check.kind(value)))
        except EnoughErrors:
            pass
        except RecursionError:
            raise Unchecked("nested too deep") from None
        return check.sentences

    def plan(self, schema: Any, check: ValueCheck) -> Plan:
        """Return what has to be looked at for each kind of value, in order: `unevaluated*` last."""
        if not isinstance(schema, Mapping):
            raise Unchecked("a schema is an object, true or false")
        check.spend(PLAN_STEPS + len(schema))
        plan = self.plans[id(schema)] = _plan(schema, self.draft)
        return plan

    def target(self, reference: Any) -> Any:
        """Return the schema that a reference leads to. Raises Unchecked for one that leads nowhere inside this one."""
        if not isinstance(reference, str):
            raise Unchecked("a reference leads nowhere")
        found = self._targets.get(reference)
        if found is None:
            if self._anchors is None:
                self._anchors = anchors_in(self.root)
            found = self._targets[reference] = target_of(self.root, self._anchors, reference)
            if found is None:
                raise Unchecked("a reference leads nowhere")
        return found

    def pattern(self, text: str, check: ValueCheck) -> LinearPattern | None:
        """Return the pattern made ready, None where RE2 does not take it."""
        if text not in self._patterns:
            check.spend(COMPILE_STEPS + len(text))
            try:
                self._patterns[text] = compile_linear(text)
            except ValueError:
                self._patterns[text] = None
        return self._patterns[text]

    def equals(self, values: list[Any], check: ValueCheck) -> frozenset[str]:
        """Return the canonical texts of what an `enum` lists."""
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
        self._cpu_until = 0.0  # from the first look at the clock: most checks end before it
        self._pause_at = 0.0
        self._pause = pause
        self._texts: dict[int, str] = {}

    def spend(self, steps: int) -> None:
        """Pay for work before it is done. Raises Unchecked when there is nothing left to pay with."""
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
        """Return whether the value fits, with sentences for what does not where the place wants them."""
        if schema is True:
            self.spend(1)
            return True
        if schema is False:
            return self.report(place, f"{display_value(place.value)} is not allowed here")
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
        """Return whether the same value fits another schema; if so, what that evaluated counts as evaluated."""
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
        """Return a text that two values share exactly when JSON calls them equal: 1 is 1.0 and not true."""
        if isinstance(value, str):
            self.spend(1 + len(value) // TEXT_PER_STEP)
            return f'"{value}"'
        kept = self._texts.get(id(value)) if isinstance(value, dict | list) else None
        if kept is not None:
            return kept
        try:
            text = _canonical_text(self._whole_numbers(value))
        except (TypeError, ValueError):
            raise Unchecked("not JSON") from None
        self.spend(1 + len(text) // TEXT_PER_STEP)
        if isinstance(value, dict | list):
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
        """Return whether the pattern is found in the text; None where nobody can say."""
        if not isinstance(pattern, str):
            raise Unchecked("a pattern is a text")
        linear = self.schema.pattern(pattern, self)
        if linear is None:
            return None
        self.spend(1 + len(text) * linear.instructions // BYTES_TIMES_INSTRUCTIONS)
        return linear.is_in(text)


class KeywordRow(NamedTuple):
    """A keyword: the kind of values it is about (empty: all), and the drafts it is in (their years). `joint`: one look
    does for all keywords of the same function."""

    kind: str
    run: Keyword
    since: int = 4
    until: int = 2020
    joint: bool = False


KEYWORDS: Final[dict[str, KeywordRow]] = {}
"""All of them, in the order they are looked at: `keywords` says what each does."""


def _plan(schema: Mapping[str, Any], draft: int) -> Plan:
    plan: dict[str, list[tuple[Keyword, Any]]] = {kind: [] for kind in KINDS.values()}
    alone = draft <= 7 and "$ref" in schema  # there it silences everything beside it
    for name, row in KEYWORDS.items():
        if name not in schema or not row.since <= draft <= row.until or (alone and name != "$ref"):
            continue
        if form_fault(name, schema[name]):
            raise Unchecked(f"{name} is not as it must be")
        for kind in (row.kind,) if row.kind else plan:
            if not (row.joint and any(run is row.run for run, _ in plan[kind])):
                plan[kind].append((row.run, schema[name]))
        if name.startswith("unevaluated"):
            plan[""] = []
    return {kind: tuple(rows) for kind, rows in plan.items()}


def _draft(uri: Any) -> int:
    """4, 6, 7, 2019 or 2020; what names none, or one that nobody knows, is the newest."""
    for name, draft in (("draft-04", 4), ("draft-06", 6), ("draft-07", 7), ("2019-09", 2019)):
        if isinstance(uri, str) and name in uri:
            return draft
    return 2020


def _canonical_text(value: Any) -> str:
    """Sorted JSON, of many parts one after the other: the encoder holds the interpreter until it is through."""
    if isinstance(value, list) and len(value) > MANY_PARTS:
        return f"[{', '.join(map(_canonical_text, value))}]"
    if isinstance(value, dict) and len(value) > MANY_PARTS:
        return f"{{{', '.join(f'{_canonical_text(name)}: {_canonical_text(value[name])}' for name in sorted(value))}}}"
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def display_value(value: Any) -> str:
    """Return the value for a message. Never the whole of a large one."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        return repr(value) if len(value) <= MAX_SHOWN else repr(value[:MAX_SHOWN]) + "…"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of many digits"
    return repr(value)
