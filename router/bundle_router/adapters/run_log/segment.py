"""The append-only files of a run as they are found on disk: torn ends healed, and where the chain stands.

Rules:
1. Bytes after the last newline are a torn record: they were never acknowledged. They are saved beside, first, and
   then cut off.
2. Anything else that does not add up at the ends of the files is corruption: reported, never repaired or skipped.
3. Opening a run of any length is quick: the chain is walked from the newest record back to the last decision, and
   over at least `CHECKED` bytes. So a small run is checked as a whole, and what happened further up in a large one,
   `verify` finds. When something is wrong, the whole run is walked to name the first bad record.
4. What a writer could not commit is in the kernel's memory at best. Where power loss counts (`disk`) and the run was
   not closed, the last `_BLOCK` bytes are written once more before anything is built on them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from bundle_router.adapters.run_log.directory import open_file, write_all
from bundle_router.adapters.run_log.storage import Storage
from bundle_router.core.records.chain import (
    FILES,
    BadLine,
    Link,
    boundary,
    check,
    genesis,
    lines_backward,
    lines_forward,
    link,
    parse,
)
from bundle_router.errors import CorruptRun
from bundle_router.ports import Healed

_BLOCK: Final = 1024 * 1024
CHECKED: Final = 1024 * 1024


@dataclass(slots=True)
class Segment:
    """One file of an open run. `fd` is -1 while it is closed; `identity` is its device and inode.

    `size` is its length in bytes, up to the last record; `end` is 1 more than that record's `seq`.
    """

    name: str
    fd: int
    identity: tuple[int, int]
    size: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """Where the chain of a run stands, and the last decision on it."""

    next_seq: int
    head: str
    last_decision: dict[str, Any] | None
    healed: tuple[Healed, ...]


def recover(
    storage: Storage, dir_fd: int, segments: tuple[Segment, ...], run_id: str, *, durable: bool, uncommitted: bool
) -> Position:
    """Heals torn ends, sets each segment's `size` and `end`, and returns where the chain stands.

    `uncommitted`: the ends may not be on disk; they are written once more (see rule 4).
    Raises CorruptRun when the records do not add up, OSError when they can't be read or healed.
    """
    healed = tuple(h for s in segments if (h := _heal(storage, dir_fd, s, durable=durable)) is not None)
    try:
        newest, decision = _walk_back(storage, segments, run_id)
    except BadLine as error:
        raise _corrupt(storage, segments, run_id, str(error)) from error
    if uncommitted:
        for segment in segments:
            _write_again(storage, dir_fd, segment)
    if newest is None:
        return Position(0, genesis(run_id), None, healed)
    return Position(newest.seq + 1, newest.hash, decision, healed)


class _Backward:
    """The lines of one segment, last first, each checked against its hash. `at` is None behind the first."""

    def __init__(self, storage: Storage, segment: Segment) -> None:
        self.decides = segment.name == FILES["routing"]
        self._lines = lines_backward(lambda offset, length: storage.pread(segment.fd, length, offset), segment.size)
        self.at: Link | None = None
        self.advance()
        segment.end = self.at.seq + 1 if self.at is not None else 0

    def advance(self) -> None:
        line = next(self._lines, None)
        self.at = link(line) if line is not None else None


def _walk_back(
    storage: Storage, segments: tuple[Segment, ...], run_id: str
) -> tuple[Link | None, dict[str, Any] | None]:
    """The newest record and the last decision, with every link between and behind them checked as far as rule 3 says.

    Raises BadLine.
    """
    walks = [_Backward(storage, segment) for segment in segments]
    newest: Link | None = None
    after: Link | None = None
    decision: dict[str, Any] | None = None
    seen = 0
    while live := [(walk.at.seq, -at, walk, walk.at) for at, walk in enumerate(walks) if walk.at is not None]:
        _, _, walk, found = max(live, key=lambda entry: entry[:2])
        if after is None:
            newest = found
        elif (found.seq, found.hash) != (after.seq - 1, after.prev):
            raise BadLine(f"record {after.seq} does not follow record {after.seq - 1} of this run")
        if decision is None and walk.decides:
            record = parse(found.line)
            decision = record if record.get("type") == "route.decided" else None
        decided = decision is not None or not any(w.decides and w.at is not None for w in walks)
        if seen >= CHECKED and decided:
            return newest, decision
        seen += len(found.line)
        after = found
        walk.advance()
    if after is not None and (after.seq, after.prev) != (0, genesis(run_id)):
        raise BadLine(f"record {after.seq} does not follow the start of this run")
    return newest, decision


def _write_again(storage: Storage, dir_fd: int, segment: Segment) -> None:
    """The same bytes to the same place: a page that the disk refused counts as clean, and would never reach it."""
    start = max(0, segment.size - _BLOCK)
    data = storage.pread(segment.fd, segment.size - start, start)
    if not data:
        return
    fd = storage.open(segment.name, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)  # not for appending
    try:
        while data:
            written = storage.pwrite(fd, data, start)
            data, start = data[written:], start + written
        storage.fdatasync(fd)
    finally:
        storage.close(fd)


def _heal(storage: Storage, dir_fd: int, segment: Segment, *, durable: bool) -> Healed | None:
    size = storage.fstat(segment.fd).st_size
    segment.size = boundary(lambda offset, length: storage.pread(segment.fd, length, offset), size)
    if segment.size == size:
        return None
    saved = _save_beside(storage, dir_fd, segment, size, durable=durable)
    storage.ftruncate(segment.fd, segment.size)
    if durable:
        storage.fsync(segment.fd)
    return Healed(segment.name, saved, size - segment.size)


def _save_beside(storage: Storage, dir_fd: int, segment: Segment, size: int, *, durable: bool) -> str:
    for number in count(1):
        name = f"{segment.name}.torn-{number}"
        try:
            fd = open_file(storage, dir_fd, name, os.O_WRONLY | os.O_EXCL)
        except FileExistsError:
            continue
        break
    try:
        for offset in range(segment.size, size, _BLOCK):
            write_all(storage, fd, storage.pread(segment.fd, min(_BLOCK, size - offset), offset))
        if durable:
            storage.fsync(fd)
    finally:
        storage.close(fd)
    return name


def _corrupt(storage: Storage, segments: tuple[Segment, ...], run_id: str, why: str) -> CorruptRun:
    """The error for a run whose records do not add up: names the first bad one, for which it reads them all."""

    def lines(segment: Segment) -> Iterator[bytes]:
        return lines_forward(lambda offset, length: storage.pread(segment.fd, length, offset), segment.size)

    broken = check({segment.name: lines(segment) for segment in segments}, run_id, None).broken
    where = f"{broken.file}:{broken.line}: record {broken.seq} {broken.kind}: {broken.detail}" if broken else why
    return CorruptRun(
        f"run {run_id!r}: {where}",
        advice="the run can't be continued; look at it with `bundle-router runs verify`, and use a new run id",
    )
