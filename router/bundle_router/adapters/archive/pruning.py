"""Deletes runs by age or size, never an open one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime

from bundle_router.adapters.archive.archive import RunArchive, RunSummary
from bundle_router.errors import CorruptRun, StorageError, UnknownRun


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The runs that `prune` deleted (or would), and those that it kept beyond a limit, with the
    reason.
    """

    deleted: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    freed_bytes: int


def prune(
    archive: RunArchive,
    *,
    now: str,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> PruneResult:
    """Delete runs that ended more than `older_than_s` before `now` (RFC 3339), then the oldest
    until all runs together have at most `max_bytes`. An open run is never deleted; a run without a
    readable time is kept and named.

    By the records' own times, a run ended when it was closed, else at its last decision, else when
    it was opened. Raises ValueError for an invalid `now` or if no limit is given, StorageError at
    the end if a run can't be deleted.
    """
    instant = _instant(now)
    if instant is None or (older_than_s is None and max_bytes is None):
        raise ValueError("prune needs an RFC 3339 time, and older_than_s or max_bytes")
    if not dry_run:
        archive.finish_deletions()
    aged = sorted(
        ((_ended(archive, run), run) for run in archive.runs()),
        key=lambda pair: (pair[0], pair[1].run_id),
    )
    bytes_left = sum(run.bytes for _, run in aged)
    deleted: list[RunSummary] = []
    kept_runs: list[tuple[str, str]] = []
    failed: StorageError | None = None
    for end_s, run in aged:
        too_old = older_than_s is not None and 0 < end_s < instant - older_than_s
        if not too_old and (max_bytes is None or bytes_left <= max_bytes):
            continue
        if run.state == "open":
            reason = "it is open"
        elif end_s <= 0:
            reason = "its time can't be read"
        else:
            reason = ""
        try:
            if not reason and not dry_run and not archive.delete(run.run_id):
                reason = "it is open"
        except StorageError as error:
            if error.kind == "unreachable":
                raise
            failed = failed or error
            reason = error.message
        if reason:
            kept_runs.append((run.run_id, reason))
        else:
            deleted.append(run)
            bytes_left -= run.bytes
    if deleted and not dry_run:
        archive.finish_deletions()
    if failed is not None:
        raise failed
    return PruneResult(
        tuple(run.run_id for run in deleted), tuple(kept_runs), sum(run.bytes for run in deleted)
    )


def _ended(archive: RunArchive, run: RunSummary) -> float:
    """Return when a run ended, in seconds since the epoch; 0 if no time can be read."""
    end = run.closed
    if end is None:
        end = _last_decision(archive, run.run_id)
    for text in (end, run.opened):
        instant = _instant(text) if text else None
        if instant is not None:
            return instant
    return 0.0


def _last_decision(archive: RunArchive, run_id: str) -> str | None:
    """Return the time of a run's last decision that can be read; None if there is none."""
    time = None
    with contextlib.suppress(CorruptRun, UnknownRun):
        for record in archive.records(run_id):
            if record.get("type") == "route.decided":
                time = str(record.get("time"))
    return time


def _instant(text: str) -> float | None:
    """Parse an RFC 3339 time with its offset into seconds since the epoch; None for anything
    else.
    """
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time.timestamp() if time.tzinfo is not None else None
