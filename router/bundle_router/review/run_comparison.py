"""What differs between two runs: their steps aligned, and in each pair what was shown and called.

Rules:
1. Steps are aligned by the key that the engine gave them; those left by branch, address and goal;
   then by branch and address; then by address alone (see `alignment`).
2. Calls of two aligned steps are aligned by key, by tool and arguments, by tool.
3. What has no counterpart is told as being in one run only.
4. Time is told beside a pair and never makes it differ: no two runs take the same time. A time is
   notably longer where it is longer by half, and by at least `NOTABLE_MS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.records.read_model import RunRow, duration_text
from bundle_router.review.alignment import align, in_order
from bundle_router.review.config_edits import config_edits
from bundle_router.review.privileges import privilege_diff, sentence

NOTABLE_MS: Final = 100.0
NOTABLE_RATIO: Final = 1.5
_SIGNS: Final = {"widening": "+", "narrowing": "-", "neutral": "~"}


@dataclass(frozen=True, slots=True)
class ComparedCall:
    """A call, as far as runs are compared by it."""

    seq: int
    tool: str
    """Its canonical name."""
    arguments: str
    outcome: str
    """Empty for a call without an end."""
    code: str = ""
    result: str = ""
    """What the model saw."""
    elapsed_ms: float = 0.0
    key: str = ""


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A step, as far as runs are compared by it."""

    seq: int
    address: tuple[str, ...]
    goal: str = ""
    branch: str = ""
    key: str = ""
    source: str = ""
    degraded: bool = False
    doubt: str = ""
    bundles: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = ()
    """The tools that the model saw; None where the run does not hold the config to tell."""
    tokens: int = 0
    """Tokens of the definitions that it saw."""
    revision: str = ""
    """The revision of the config that it was decided under."""
    elapsed_ms: float = 0.0
    """How long its decision and its calls took together."""
    calls: tuple[ComparedCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """One thing that differs: its name, and its value in each run."""

    field: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class SetDifference:
    """Names that one of two sides has and the other has not."""

    field: str
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallPair:
    """Two aligned calls, or one that is in one run only."""

    a: ComparedCall | None
    b: ComparedCall | None
    by: str
    """What they share: `key`, or a name of their alignment; empty for what is in one run only."""
    differences: tuple[ValueDifference, ...] = ()
    time: ValueDifference | None = None
    """How long each took; None for what is in one run only."""
    longer: str = ""
    """`A` or `B`, where that one took notably longer."""

    @property
    def differs(self) -> bool:
        return self.a is None or self.b is None or bool(self.differences)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        return {**asdict(self), "differs": self.differs}


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two aligned steps, or one that is in one run only."""

    a: ComparedStep | None
    b: ComparedStep | None
    by: str
    """What they share: `key`, or a name of their alignment; empty for what is in one run only."""
    differences: tuple[ValueDifference, ...] = ()
    sets: tuple[SetDifference, ...] = ()
    calls: tuple[CallPair, ...] = ()
    time: ValueDifference | None = None
    """How long the decision and its calls took together; None for what is in one run only."""
    longer: str = ""
    """`A` or `B`, where that one took notably longer."""

    @property
    def differs(self) -> bool:
        if self.a is None or self.b is None:
            return True
        return bool(self.differences or self.sets) or any(call.differs for call in self.calls)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values."""
        calls = [call.to_json() for call in self.calls]
        return {**asdict(self), "calls": calls, "differs": self.differs}


def compare_steps(a: Sequence[ComparedStep], b: Sequence[ComparedStep]) -> tuple[StepPair, ...]:
    """Return the steps of two runs as pairs, in the order of the first run.

    Steps of the second run alone stand behind the one that they follow there.
    """
    pairs = align(
        a,
        b,
        {
            "goal": lambda step: (step.branch, step.address, step.goal),
            "branch": lambda step: (step.branch, step.address),
            "address": lambda step: step.address,
        },
    )
    return tuple(_step_pair(step_a, step_b, by) for step_a, step_b, by in in_order(a, b, pairs))


# --- differences ----------------------------------------------------------------------------------


def _step_pair(a: ComparedStep | None, b: ComparedStep | None, by: str) -> StepPair:
    if a is None or b is None:
        return StepPair(a, b, by)
    pairs = align(
        a.calls,
        b.calls,
        {"arguments": lambda call: (call.tool, call.arguments), "tool": lambda call: call.tool},
    )
    calls = tuple(_call_pair(*row) for row in in_order(a.calls, b.calls, pairs))
    return StepPair(
        a,
        b,
        by,
        _step_differences(a, b),
        _set_differences(a, b),
        calls,
        time=_time(a.elapsed_ms, b.elapsed_ms),
        longer=_notably_longer(a.elapsed_ms, b.elapsed_ms),
    )


def _step_differences(a: ComparedStep, b: ComparedStep) -> tuple[ValueDifference, ...]:
    rows = [
        ("step", " / ".join(a.address), " / ".join(b.address)),
        ("goal", a.goal, b.goal),
        ("branch", a.branch, b.branch),
        ("decided by", a.source, b.source),
        ("degraded", _yes(a.degraded), _yes(b.degraded)),
        ("doubt", a.doubt, b.doubt),
        ("tokens", f"{a.tokens:,}", f"{b.tokens:,}"),
    ]
    return _differing(rows)


def _call_pair(a: ComparedCall | None, b: ComparedCall | None, by: str) -> CallPair:
    if a is None or b is None:
        return CallPair(a, b, by)
    rows = [
        ("tool", a.tool, b.tool),
        ("arguments", a.arguments, b.arguments),
        ("outcome", a.outcome or "no end", b.outcome or "no end"),
        ("code", a.code, b.code),
        ("result", a.result, b.result),
    ]
    return CallPair(
        a,
        b,
        by,
        _differing(rows),
        time=_time(a.elapsed_ms, b.elapsed_ms),
        longer=_notably_longer(a.elapsed_ms, b.elapsed_ms),
    )


def _differing(rows: Sequence[tuple[str, str, str]]) -> tuple[ValueDifference, ...]:
    return tuple(ValueDifference(field, a, b) for field, a, b in rows if a != b)


def _set_differences(a: ComparedStep, b: ComparedStep) -> tuple[SetDifference, ...]:
    differences = [_set_difference("bundles", a.bundles, b.bundles)]
    if a.tools is not None and b.tools is not None:
        differences.append(_set_difference("tools", a.tools, b.tools))
    return tuple(row for row in differences if row.only_a or row.only_b)


def _set_difference(field: str, a: Sequence[str], b: Sequence[str]) -> SetDifference:
    only_a = [name for name in a if name not in set(b)]
    only_b = [name for name in b if name not in set(a)]
    return SetDifference(field, tuple(only_a), tuple(only_b))


def _time(a_ms: float, b_ms: float) -> ValueDifference:
    return ValueDifference("time", duration_text(a_ms), duration_text(b_ms))


def _notably_longer(a_ms: float, b_ms: float) -> str:
    shorter, longer = sorted((a_ms, b_ms))
    if longer - shorter < NOTABLE_MS or longer < shorter * NOTABLE_RATIO:
        return ""
    return "A" if a_ms > b_ms else "B"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


# --- whole runs -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConfigDifference:
    """What differs between the two configs that aligned steps were decided under."""

    a_revision: str
    b_revision: str
    steps: int
    """How many pairs of steps were decided under these two."""
    edits: tuple[str, ...] = ()
    """The entries that were added, removed or changed."""
    powers: tuple[str, ...] = ()
    """What that newly allows (`+`), or takes away (`-`)."""
    unknown: str = ""
    """Why neither is known; empty where they are."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs beside each other."""

    a: RunRow
    b: RunRow
    pairs: tuple[StepPair, ...]
    configs: tuple[ConfigDifference, ...]
    """One for each two revisions; empty where all aligned steps were decided under the same."""

    @property
    def aligned(self) -> tuple[StepPair, ...]:
        """The pairs of which both runs have a step."""
        return tuple(pair for pair in self.pairs if pair.a is not None and pair.b is not None)

    @property
    def differing(self) -> tuple[StepPair, ...]:
        """The pairs that differ, and the steps that are in one run only."""
        return tuple(pair for pair in self.pairs if pair.differs)

    def totals(self) -> tuple[ValueDifference, ...]:
        """Return what the runs come to, also where that is the same."""
        rows = (
            ("state", self.a.state, self.b.state),
            ("workflow", self.a.workflow, self.b.workflow),
            ("principal", self.a.principal, self.b.principal),
            ("steps", f"{self.a.decisions:,}", f"{self.b.decisions:,}"),
            ("calls", f"{self.a.calls:,}", f"{self.b.calls:,}"),
            ("denied", f"{self.a.denied:,}", f"{self.b.denied:,}"),
            ("failed", f"{self.a.failed:,}", f"{self.b.failed:,}"),
            ("degraded", f"{self.a.degraded:,}", f"{self.b.degraded:,}"),
            ("tokens shown", f"{self.a.tokens:,}", f"{self.b.tokens:,}"),
            ("cost of the router's model", f"${self.a.cost_usd:.4f}", f"${self.b.cost_usd:.4f}"),
            ("took", duration_text(self.a.took_ms), duration_text(self.b.took_ms)),
        )
        return tuple(ValueDifference(*row) for row in rows)

    def to_json(self) -> dict[str, Any]:
        """Return this as JSON values: all pairs, with the records' numbers."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "configs": [asdict(config) for config in self.configs],
            "steps": [pair.to_json() for pair in self.pairs],
        }


def config_difference(
    revisions: tuple[str, str], steps: int, old: Catalog | None, new: Catalog | None
) -> ConfigDifference:
    """Return what differs between the configs of two revisions; a config is None where its run
    does not hold it.
    """
    if old is None or new is None:
        catalogs = (old, new)
        missing = [
            name for name, catalog in zip(revisions, catalogs, strict=True) if catalog is None
        ]
        unknown = f"the config {' and '.join(missing)} is not kept with its run"
        return ConfigDifference(*revisions, steps, unknown=unknown)
    edits = tuple(map(str, config_edits(old, new)))
    rows = privilege_diff(old, new).rows
    powers = tuple(f"{_SIGNS[row.kind]} {sentence(row)}" for row in rows)
    return ConfigDifference(*revisions, steps, edits, powers)
