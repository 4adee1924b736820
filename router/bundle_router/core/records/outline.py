"""The outline of a run: its steps, and under each the calls and sub-runs that belong to it.

Rules:
1. Steps stand in the order of their decisions.
2. A call stands under the decision that it was made under, whatever was recorded in between: steps
   of different branches run side by side, and their calls are recorded as they end.
3. A sub-run stands under the decision that it names as its parent, before what was recorded after
   it began.
4. What names no decision, or one that is not known, stands under the step that was decided last
   before it; under a nameless one where there is none.
5. Where only a part of a run is outlined, a call of an earlier step stands under that step, which
   is marked as continued and comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, get_args

from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    SubRunOpened,
    TaintCleared,
    TaintPassed,
)
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.values.doubt import Certainty

if TYPE_CHECKING:
    from bundle_router.core.records.approval_records import ApprovalRecord

T_co = TypeVar("T_co", covariant=True)
EntryKind = Literal["step", "call", "sub-run"]
Mark = Literal["denied", "failed", "doubt"]
"""What a reader looks for first: a refused call, one that failed, a decision that may be wrong."""
MARKS: Final[tuple[Mark, ...]] = get_args(Mark)


@dataclass(frozen=True, slots=True)
class OutlineEntry(Generic[T_co]):
    """One step, call or sub-run, as far as an outline needs it."""

    kind: EntryKind
    value: T_co
    """The record, row or summary that the entry stands for."""
    seq: int
    """The number of its record; -1 for a sub-run, which is a run of its own."""
    time: str
    """When it was recorded, a sub-run: when it began (RFC 3339 in UTC); empty if not known."""
    decision_id: str = ""
    """A step's own decision; what a call was made under; a sub-run's parent."""
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class OutlineStep(Generic[T_co]):
    """A step, and what belongs to it in the order in which it was recorded."""

    step: OutlineEntry[T_co] | None
    """None for what was recorded before any step."""
    below: tuple[OutlineEntry[T_co], ...]
    continued: bool = False
    """Whether the step itself stands in an earlier part of the run."""


@dataclass(slots=True)
class _Group(Generic[T_co]):
    step: OutlineEntry[T_co] | None
    continued: bool = False
    below: list[OutlineEntry[T_co]] = field(default_factory=list)


def outline(
    entries: Iterable[OutlineEntry[T_co]], earlier: Iterable[OutlineEntry[T_co]] = ()
) -> tuple[OutlineStep[T_co], ...]:
    """Return the steps of a run, or of a part of it, each with its calls and sub-runs.

    `earlier` are steps before the part, of which calls in it may be.
    """
    outlining = _Outlining({step.decision_id: step for step in earlier})
    sub_runs: list[OutlineEntry[T_co]] = []
    recorded: list[OutlineEntry[T_co]] = []
    for entry in entries:
        if entry.kind == "sub-run":
            sub_runs.append(entry)
        else:
            recorded.append(entry)
    sub_runs.sort(key=lambda entry: entry.time)
    recorded.sort(key=lambda entry: entry.seq)

    for entry in recorded:
        while sub_runs and sub_runs[0].time < entry.time:
            outlining.place(sub_runs.pop(0))
        if entry.kind == "step":
            outlining.begin(entry)
        else:
            outlining.place(entry)
    for sub_run in sub_runs:
        outlining.place(sub_run)
    return outlining.steps()


class _Outlining(Generic[T_co]):
    """Builds one outline."""

    def __init__(self, earlier: Mapping[str, OutlineEntry[T_co]]) -> None:
        self._earlier = earlier
        self._groups: list[_Group[T_co]] = []
        self._by_decision: dict[str, _Group[T_co]] = {}
        self._latest: _Group[T_co] | None = None

    def begin(self, step: OutlineEntry[T_co]) -> None:
        self._latest = self._add(_Group(step))

    def place(self, entry: OutlineEntry[T_co]) -> None:
        self._group_of(entry).below.append(entry)

    def _group_of(self, entry: OutlineEntry[T_co]) -> _Group[T_co]:
        group = self._by_decision.get(entry.decision_id)
        if group is not None:
            return group
        earlier = self._earlier.get(entry.decision_id)
        if earlier is not None:
            return self._add(_Group(earlier, continued=True))
        if self._latest is None:
            self._latest = self._add(_Group(None))
        return self._latest

    def _add(self, group: _Group[T_co]) -> _Group[T_co]:
        self._groups.append(group)
        if group.step is not None and group.step.decision_id:
            self._by_decision[group.step.decision_id] = group
        return group

    def steps(self) -> tuple[OutlineStep[T_co], ...]:
        groups = sorted(self._groups, key=lambda group: group.step.seq if group.step else -1)
        return tuple(OutlineStep(g.step, tuple(g.below), g.continued) for g in groups)


def first_marks(entries: Iterable[OutlineEntry[T_co]]) -> dict[Mark, int]:
    """Return the number of the first record with each mark, in the order of `MARKS`."""
    first: dict[Mark, int] = {}
    for entry in entries:
        if entry.mark is not None:
            first[entry.mark] = min(entry.seq, first.get(entry.mark, entry.seq))
    return {mark: first[mark] for mark in MARKS if mark in first}


# --- entries --------------------------------------------------------------------------------------


def mark_of_call(outcome: str | None) -> Mark | None:
    """Return the mark of a call's outcome; None for a call that went well, or has no end yet."""
    if outcome == "denied":
        return "denied"
    return None if outcome in ("ok", None) else "failed"


def record_entries(records: Iterable[Record]) -> list[OutlineEntry[Record]]:
    """Return the entries of a run's records: decisions, ended calls and requests, calls without an
    end, and what was said of held calls, each under the decision of its question.
    """
    listed = list(records)
    ended_ids = {record.call_id for record in listed if isinstance(record, CallFinished)}
    asked_under: dict[str, str] = {}
    entries = [_record_entry(record, ended_ids, asked_under) for record in listed]
    return list(filter(None, entries))


def _record_entry(
    record: Record, ended_ids: set[str], asked_under: dict[str, str]
) -> OutlineEntry[Record] | None:
    """`asked_under`: the decisions of the questions so far."""
    if isinstance(record, DecisionRecord):
        decision = record.decision
        mark: Mark | None = "doubt" if Certainty.of(decision).doubt else None
        return OutlineEntry("step", record, decision.seq, record.time, decision.decision_id, mark)
    if isinstance(record, CallFinished | RequestPassed):
        mark = mark_of_call(record.outcome)
        return OutlineEntry("call", record, record.seq, record.time, record.decision_id, mark)
    if isinstance(record, TaintPassed | TaintCleared):
        return OutlineEntry("call", record, record.seq, record.time)
    if isinstance(record, CallStarted) and record.call_id not in ended_ids:
        return OutlineEntry("call", record, record.seq, record.time, record.decision_id)
    if isinstance(record, CallStarted | SubRunOpened):
        return None
    return _approval_entry(record, asked_under)


def _approval_entry(record: ApprovalRecord, asked_under: dict[str, str]) -> OutlineEntry[Record]:
    """Return the entry of what was said of a held call."""
    decision_id = getattr(record, "decision_id", "") or asked_under.get(record.approval_id, "")
    asked_under.setdefault(record.approval_id, decision_id)
    mark: Mark | None = "denied" if record.type == "approval.refused" else None
    return OutlineEntry("call", record, record.seq, record.time, decision_id, mark)


def step_row_entry(row: Mapping[str, Any]) -> OutlineEntry[Mapping[str, Any]]:
    """Return the entry of a row of `decisions` (see `tables`)."""
    mark: Mark | None = "doubt" if row["doubt"] else None
    return OutlineEntry("step", row, row["seq"], row["time"] or "", row["decision_id"] or "", mark)


def call_row_entry(row: Mapping[str, Any]) -> OutlineEntry[Mapping[str, Any]]:
    """Return the entry of a row of `calls` (see `tables`)."""
    mark = mark_of_call(row["outcome"])
    return OutlineEntry("call", row, row["seq"], row["time"] or "", row["decision_id"] or "", mark)
