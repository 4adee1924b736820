"""The append-only files of a run as they are found on disk: torn ends healed, and where the chain stands.

Rules:
1. Bytes after the last newline are a torn record: they were never acknowledged. They are saved beside, first, and
   then cut off.
2. Anything else that does not add up at the ends of the files is corruption: reported, never repaired or skipped.
3. Only the ends are read, so that opening a run of any length is quick. Checked are the last record of each file
   against its own hash, and that the newest record follows the one before it, wherever that is.
   What happened further up, `verify` finds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Final

from router.adapters.runlog.directory import open_file, write_all
from router.adapters.runlog.storage import Storage
from router.core.chain import BadLine, Sealed, boundary, genesis, lines_backward, unseal
from router.errors import CorruptRun
from router.ports import Healed

_BLOCK: Final = 1024 * 1024


@dataclass(slots=True)
class Segment:
    """One open file. `size` is its length in bytes, up to the last record; `end` is 1 more than that record's `seq`."""

    name: str
    fd: int
    size: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """Where the chain of a run stands."""

    next_seq: int
    head: str
    healed: tuple[Healed, ...]


def recover(storage: Storage, dir_fd: int, segments: tuple[Segment, ...], run_id: str, *, durable: bool) -> Position:
    """Heals torn ends, sets each segment's `size` and `end`, and returns where the chain stands.

    Raises CorruptRun when the ends of the files do not fit together, OSError when they can't be read or healed.
    """
    healed = tuple(h for s in segments if (h := _heal(storage, dir_fd, s, durable=durable)) is not None)
    tails = {segment.name: list(islice(_sealed_backward(storage, segment), 2)) for segment in segments}
    newest: tuple[Sealed, Segment] | None = None
    for segment in segments:
        tail = tails[segment.name]
        segment.end = tail[0].seq + 1 if tail else 0
        if tail and (newest is None or tail[0].seq > newest[0].seq):
            newest = tail[0], segment
    if newest is None:
        return Position(0, genesis(run_id), healed)
    last, segment = newest
    before = {genesis(run_id): -1} | {line.hash: line.seq for tail in tails.values() for line in tail}
    if before.get(last.prev) != last.seq - 1:
        raise _corrupt(storage, segment, f"record {last.seq} does not follow record {last.seq - 1} of this run")
    return Position(last.seq + 1, last.hash, healed)


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


def _sealed_backward(storage: Storage, segment: Segment) -> Iterator[Sealed]:
    """The records of a segment, last first. Raises CorruptRun at the first line that is not one."""
    lines = lines_backward(lambda offset, length: storage.pread(segment.fd, length, offset), segment.size)
    for back, line in enumerate(lines):
        try:
            yield unseal(line)
        except BadLine as error:
            raise _corrupt(storage, segment, str(error), back=back) from error


def last_of_type(storage: Storage, segment: Segment, type_: str) -> dict[str, object] | None:
    """The last record of that `type` in a recovered segment."""
    return next((s.record for s in _sealed_backward(storage, segment) if s.record.get("type") == type_), None)


def _corrupt(storage: Storage, segment: Segment, why: str, *, back: int = 0) -> CorruptRun:
    lines = sum(
        storage.pread(segment.fd, min(_BLOCK, segment.size - offset), offset).count(b"\n")
        for offset in range(0, segment.size, _BLOCK)
    )
    return CorruptRun(
        f"{segment.name}:{lines - back}: {why}",
        advice="the run can't be continued; look at it with `bundle-router runs verify`, and use a new run id",
    )
