"""The timeline of a run: each step with what it saw and why, and below it its calls with their
results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from bundle_router.cli.output import excerpt, heading, say, say_whole
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.records.approval_records import (
    ApprovalAsked,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRecord,
    ApprovalRefused,
    ApprovalWithdrawn,
)
from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    SubRunOpened,
    TaintCleared,
    TaintPassed,
)
from bundle_router.core.records.decision_record import DecisionRecord, policy_json
from bundle_router.core.records.outline import (
    Mark,
    OutlineEntry,
    OutlineStep,
    first_marks,
    outline,
    record_entries,
)
from bundle_router.core.values.doubt import Certainty
from bundle_router.errors import CorruptRun, UnknownRun
from bundle_router.review.sentences import certainty_line, exposure_line, selection_lines

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunArchive, RunSummary

    Shown = Record | RunSummary
    """What a timeline shows: a record of the run, or a run below it."""

APPROVALS: Final = (
    *(ApprovalAsked, ApprovalGranted, ApprovalRefused, ApprovalWithdrawn, ApprovalExpired),
)
MAX_EXCERPT: Final = 600
"""Maximum characters of the text that an agent got instead of a result: the reason first, then the
expected result.
"""
_MARK_WORDS: Final[Mapping[Mark, str]] = {
    "denied": "denial",
    "failed": "failure",
    "doubt": "doubt",
}


def show_records(
    records: Sequence[Record],
    sub_runs: Iterable[OutlineEntry[Shown]] = (),
    *,
    local_time: bool = False,
) -> None:
    """Print the steps of a run with their calls, and the sub-runs where they began.

    A call stands under the decision it was made under, at its end, or at its start if no end was
    recorded. Times are UTC, or with `local_time` those of this machine's zone.
    """
    entries: list[OutlineEntry[Shown]] = [*record_entries(records), *sub_runs]
    if local_time:
        zone = datetime.now().astimezone()
        say(f"times of day are {zone.tzname()} (UTC{zone:%z})")
    else:
        say("times of day are UTC")
    marks = first_marks(entries)
    if marks:
        say(" · ".join(f"first {_MARK_WORDS[mark]}: record {seq}" for mark, seq in marks.items()))
    printer = _Printer(records, local_time=local_time)
    for step in outline(entries):
        printer.show(step)


def sub_run_entries(
    archive: RunArchive, run_id: str, records: Iterable[Record]
) -> Iterator[OutlineEntry[Shown]]:
    """Yield the runs directly below a run, and those further below that it has a record of."""
    opened = {record.sub_run_id: record for record in records if isinstance(record, SubRunOpened)}
    for sub_run in archive.sub_runs(run_id):
        time, decision_id = _beginning_of(archive, sub_run)
        record = opened.pop(sub_run.run_id, None)
        if record is not None:
            time = record.time
        yield OutlineEntry("sub-run", sub_run, -1, time, decision_id)
    for record in opened.values():
        yield OutlineEntry("sub-run", record, record.seq, record.time)


def _beginning_of(archive: RunArchive, sub_run: RunSummary) -> tuple[str, str]:
    """Return when a sub-run was decided on first, and its parent's decision."""
    try:
        first = next(archive.decisions(sub_run.run_id), None)
    except (UnknownRun, CorruptRun):  # pruned meanwhile; its own timeline says what is wrong
        first = None
    if first is None:
        return sub_run.opened, ""
    return first.time, first.parent_decision_id


class _Printer:
    """Prints the outlined steps of one run."""

    def __init__(self, records: Iterable[Record], *, local_time: bool) -> None:
        self._local_time = local_time
        self._finished: dict[str, int] = {}
        self._started: dict[str, CallStarted] = {}
        for record in records:
            if isinstance(record, CallFinished):
                self._finished[record.call_id] = record.seq
            elif isinstance(record, CallStarted):
                self._started[record.call_id] = record

    def _clock(self, time: str) -> str:
        """Return the time of day of a record, to the millisecond."""
        if not time:
            return ""
        if self._local_time:
            with suppress(ValueError, OverflowError):  # digits that are no time stay as they are
                return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S.%f}"[:-3] + "  "
        return f"{time[11:23]}  "

    def show(self, step: OutlineStep[Shown]) -> None:
        branch = ""
        if step.step is not None and isinstance(step.step.value, DecisionRecord):
            decision = step.step.value
            _show_step(decision, self._clock(decision.time))
            if decision.branch:
                branch = f" (branch {decision.branch}, decision {step.step.seq})"
        for entry in step.below:
            self._show_below(entry, branch)

    def _show_below(self, entry: OutlineEntry[Shown], branch: str) -> None:
        record = entry.value
        if isinstance(record, CallFinished):
            self._show_call(record, branch)
        elif isinstance(record, RequestPassed):
            what = f"{record.method} of {record.server}{branch}"
            _show_ended(record, self._clock(record.time) + what, record.arguments)
        elif isinstance(record, CallStarted):
            line = f"call {record.name}{branch}  → started, and no end was recorded"
            say_whole(f"{record.seq:>6}  ", self._clock(record.time) + line, under=8)
            say(excerpt("        with ", record.arguments))
        elif isinstance(record, SubRunOpened):
            run_id = record.sub_run_id
            say(f"{record.seq:>6}  {self._clock(record.time)}sub-run {run_id} began further below")
        elif isinstance(record, TaintPassed | TaintCleared):
            say_whole(f"{record.seq:>6}  ", self._clock(record.time) + taint_words(record), under=8)
        elif isinstance(record, APPROVALS):
            line = approval_words(record) + branch
            say_whole(f"{record.seq:>6}  ", self._clock(record.time) + line, under=8)
            if isinstance(record, ApprovalAsked):
                say(excerpt("        with ", record.arguments))
        elif not isinstance(record, DecisionRecord):
            _show_sub_run(record, self._clock(entry.time).strip())

    def _show_call(self, record: CallFinished, branch: str) -> None:
        again = ""
        if record.cached_from:
            source = self._finished.get(record.cached_from, record.cached_from)
            again = f", the result of {source} again"
        noticed = ""
        if record.shaped is not None:
            noticed = "".join(f" ({flag.replace('_', ' ')})" for flag in record.shaped.flags)
        arguments = record.arguments
        started = self._started.get(record.call_id)
        if not arguments and started is not None:
            arguments = started.arguments
        what = f"{self._clock(record.time)}call {record.name}{branch}"
        _show_ended(record, what, arguments, noticed, again)


def taint_words(record: TaintPassed | TaintCleared) -> str:
    """Return what a record says of taints, for people."""
    taints = ", ".join(record.taints)
    branch = f"branch {record.branch}" if record.branch else "the default branch"
    if isinstance(record, TaintCleared):
        return f"{taints} of {branch} cleared by {record.by}: {record.reason}"
    form = f", in the form {record.form}" if record.form else ""
    return f"{taints} came into {branch} from run {record.from_run}, by {record.tool}{form}"


def approval_words(record: ApprovalRecord) -> str:
    """Return what a record says of a held call, in a line."""
    if isinstance(record, ApprovalAsked):
        rows = ", ".join(f"{row.name!r} ({row.persons})" for row in record.rows)
        return f"held {record.name}: waits for {rows} until {record.answer_by[:16]}Z"
    if isinstance(record, ApprovalExpired):
        return f"approval {record.approval_id} expired: {record.code.replace('_', ' ')}"
    verbs = {"approval.granted": "granted", "approval.refused": "refused"}
    reason = f": {record.reason}" if record.reason else ""
    by = f"{record.by.name} ({record.by.how})"
    return f"approval {record.approval_id} {verbs.get(record.type, 'withdrawn')} by {by}{reason}"


def _show_sub_run(run: RunSummary, began_at: str) -> None:
    say(f"        ↳ sub-run {run.run_id} began at {began_at} ({run.state}): runs show {run.run_id}")


def _show_step(record: DecisionRecord, clock: str) -> None:
    step = record.step
    decision = record.decision
    say()
    branch = f" (branch {record.branch})" if record.branch else ""
    degraded = " (degraded)" if decision.degraded else ""
    heading(f"{decision.seq:>4}  {clock}{address_of(step)}{branch}  ← {decision.source}{degraded}")
    for name, text in _asked_rows(record):
        say(excerpt(f"      {name}: ", text))
    for line in (decision.justification, *selection_lines(decision.search, decision.model)):
        say_whole("      ", line, under=8)
    certainty = certainty_line(Certainty.of(decision))
    if certainty:
        say_whole("      ", certainty, under=8)
    for bundle in decision.bundles:
        if bundle.id in decision.offered:
            say_whole("      ~ ", f"{bundle.id}  (offered: {bundle.evidence})", under=10)
        else:
            say_whole("      + ", f"{bundle.id}  ({bundle.reason}: {bundle.evidence})", under=10)
    for row in decision.left_out:
        say_whole("      - ", f"{row.tool or row.id}  ({row.code}: {row.detail})", under=10)
    say_whole("      ", exposure_line(decision.exposure), under=8)


def _asked_rows(record: DecisionRecord) -> Iterator[tuple[str, str]]:
    """Yield the engine's fields of the step besides its address, if it set any."""
    step = record.step
    if step.goal:
        yield "goal", step.goal
    yield from (("constraint", constraint) for constraint in step.constraints)
    if (policy := policy_json(step.policy)) is not None:
        yield (
            "its own policy",
            json.dumps({k: v for k, v in policy.items() if v}, ensure_ascii=False),
        )
    if step.principal:
        yield "principal", step.principal
    if step.labels:
        yield "labels", " ".join(f"{name}={step.labels[name]}" for name in sorted(step.labels))


def _show_ended(
    record: CallFinished | RequestPassed,
    what: str,
    arguments: str,
    noticed: str = "",
    again: str = "",
) -> None:
    code = f" {record.code}" if record.code not in ("", record.outcome) else ""
    line = f"{what}  → {record.outcome}{code}{noticed}, {record.elapsed_ms:.1f} ms{again}"
    say_whole(f"{record.seq:>6}  ", line, under=8)
    if arguments:
        say(excerpt("        with ", arguments))
    text = record.result or ""
    if record.outcome == "ok" and text:
        say(excerpt("        gave ", text))
    elif text:  # no result, but the text that the agent got instead
        if len(text) <= MAX_EXCERPT:
            shown = text
        else:
            shown = f"{text[:MAX_EXCERPT].rstrip()} … ({len(text):,} characters)"
        say_whole("        gave ", shown, under=13)
    for artifact in record.artifacts:
        say(
            f"        artifact {artifact.mime_type} {artifact.bytes:,} bytes "
            f" {artifact.sha256[:16]}…"
        )
