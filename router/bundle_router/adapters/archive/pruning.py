"""Deleting runs by age or size, never one that is open, never through a link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from bundle_router.adapters.archive.reader import Archive, RunSummary
from bundle_router.core.records.chain import FILES
from bundle_router.errors import CorruptRun, StorageError, UnknownRun

_DELETING: Final = ".deleting-"
"""Before the id of a run that is being deleted; no run id starts with a dot."""

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` deleted (or would), and what it kept although a limit asked for it, with the reason."""

    deleted: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    freed_bytes: int


def prune(
    archive: Archive,
    *,
    now: str,
    older_than_s: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Deletes runs that ended more than `older_than_s` before `now` (RFC 3339), then the oldest until all runs together
    have at most `max_bytes`. Never one that is open; one without a readable time is kept and named.

    A run ended when it was closed, else at its last decision, else when it was opened, by the records' own times.
    Raises ValueError for a `now` that is no time or when no limit is given, StorageError when a run can't be deleted.
    """
    instant = _instant(now)
    if instant is None or (older_than_s is None and max_bytes is None):
        raise ValueError("prune needs an RFC 3339 time, and older_than_s or max_bytes")
    if not dry_run:
        _finish_deletions(archive.root)
    aged = sorted(((_ended(archive, run), run) for run in archive.runs()), key=lambda pair: (pair[0], pair[1].run_id))
    left = sum(run.bytes for _, run in aged)
    deleted: list[RunSummary] = []
    kept: list[tuple[str, str]] = []
    for ended, run in aged:
        too_old = older_than_s is not None and 0 < ended < instant - older_than_s
        if not too_old and (max_bytes is None or left <= max_bytes):
            continue
        reason = "it is open" if run.state == "open" else "its time can't be read" if ended <= 0 else ""
        if not reason and not dry_run and not _delete(archive.root, run.run_id):
            reason = "it is open"
        if reason:
            kept.append((run.run_id, reason))
        else:
            deleted.append(run)
            left -= run.bytes
    return Pruned(tuple(run.run_id for run in deleted), tuple(kept), sum(run.bytes for run in deleted))


def _ended(archive: Archive, run: RunSummary) -> float:
    """Seconds since the epoch; 0 where no time can be read."""
    times = [run.closed, run.opened]
    if run.closed is None:
        with contextlib.suppress(CorruptRun, UnknownRun):
            last = archive.last_decision(run.run_id)
            times.insert(0, str(last.get("time")) if last else None)
    return next((found for text in times if text and (found := _instant(text)) is not None), 0.0)


def _instant(text: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time with its offset; None for anything else."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


def _delete(root: Path, run_id: str) -> bool:
    """Deletes a run while holding its lock; False when it has a writer.

    It is renamed first: a run that is half deleted when the power goes is no run any more, and the next prune ends it.
    """
    path = root / run_id
    with _explained(path):
        try:
            lock = os.open(path / FILES["routing"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_still(lock, path / FILES["routing"]):
                return True  # another prune was here before the lock was ours: what lies there now is a new run
            doomed = root / f"{_DELETING}{run_id}"
            path.rename(doomed)
            _remove(doomed)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
    return True


def _is_still(file: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _finish_deletions(root: Path) -> None:
    for left in sorted(root.glob(f"{_DELETING}*")):
        with _explained(left):
            _remove(left)


def _remove(path: Path) -> None:
    """Deletes a directory that is no run any more; more than once where a writer, which was opening the run before it
    was renamed, still puts a file into it (it will notice, and begin a new run)."""
    for attempt in range(_TRIES):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return  # another prune is at it
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _TRIES - 1:
                raise
        else:
            return


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = "look at its owner and modes; a second prune goes on where this one stopped"
        raise StorageError(f"can't delete {path}: {error.strerror}", kind="io_error", advice=advice) from error
