"""The timeline of a run: each step with what it saw and why, and below it its calls with their
results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from bundle_router.cli.output import excerpt, heading, say, say_whole
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.records.call_records import (
    CallFinished,
    CallStarted,
    Record,
    RequestPassed,
    SubRunOpened,
)
from bundle_router.core.records.decision_record import DecisionRecord, policy_json
from bundle_router.review.sentences import exposure_line, selection_lines

if TYPE_CHECKING:
    from bundle_router.adapters.archive import RunSummary

MAX_EXCERPT: Final = 600
"""Maximum characters of the text that an agent got instead of a result: the reason first, then the
expected result.
"""


def show_records(records: Sequence[Record], sub_runs: Sequence[RunSummary] = ()) -> None:
    """Print decisions, calls and passed-on requests with their times, and between them the sub-runs
    that began. A call is listed at its end, or at its start if no end was recorded.
    """
    waiting = list(sub_runs)
    finished = {
        record.call_id: record.seq for record in records if isinstance(record, CallFinished)
    }
    started = {record.call_id: record for record in records if isinstance(record, CallStarted)}
    for record in records:
        while waiting and waiting[0].opened and record.time and waiting[0].opened < record.time:
            _show_sub_run(waiting.pop(0))
        if isinstance(record, DecisionRecord):
            _show_step(record)
        elif isinstance(record, CallFinished):
            _show_call(record, finished, started.get(record.call_id))
        elif isinstance(record, RequestPassed):
            _show_ended(record, f"{record.method} of {record.server}", record.arguments)
        elif isinstance(record, SubRunOpened):
            say(f"{record.seq:>6}  {_clock(record)}sub-run {record.sub_run_id} began")
        elif record.call_id not in finished:
            line = f"{_clock(record)}call {record.name}  → started, and no end was recorded"
            say_whole(f"{record.seq:>6}  ", line, under=8)
            say(excerpt("        with ", record.arguments))
    for sub_run in waiting:
        _show_sub_run(sub_run)


def _clock(record: Record) -> str:
    """Return the time of day of a record (UTC), to the millisecond."""
    return f"{record.time[11:23]}  " if record.time else ""


def _show_sub_run(run: RunSummary) -> None:
    say(
        f"        ↳ sub-run {run.run_id} began at {run.opened[11:19]} ({run.state}): runs show"
        f" {run.run_id}"
    )


def _show_step(record: DecisionRecord) -> None:
    step = record.step
    decision = record.decision
    say()
    degraded = " (degraded)" if decision.degraded else ""
    heading(f"{decision.seq:>4}  {_clock(record)}{address_of(step)}  ← {decision.source}{degraded}")
    for name, text in _asked_rows(record):
        say(excerpt(f"      {name}: ", text))
    for line in (decision.justification, *selection_lines(decision.search, decision.model)):
        say_whole("      ", line, under=8)
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
    if record.branch:
        yield "branch", record.branch
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


def _show_call(record: CallFinished, finished: dict[str, int], started: CallStarted | None) -> None:
    again = ""
    if record.cached_from:
        source = finished.get(record.cached_from, record.cached_from)
        again = f", the result of {source} again"
    noticed = ""
    if record.shaped is not None:
        noticed = "".join(f" ({flag.replace('_', ' ')})" for flag in record.shaped.flags)
    arguments = record.arguments
    if not arguments and started is not None:
        arguments = started.arguments
    _show_ended(record, f"call {record.name}", arguments, noticed, again)


def _show_ended(
    record: CallFinished | RequestPassed,
    what: str,
    arguments: str,
    noticed: str = "",
    again: str = "",
) -> None:
    code = f" {record.code}" if record.code not in ("", record.outcome) else ""
    line = (
        f"{_clock(record)}{what}  → {record.outcome}{code}{noticed}, {record.elapsed_ms:.1f}"
        f" ms{again}"
    )
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
