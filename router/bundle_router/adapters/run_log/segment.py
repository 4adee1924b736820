"""The append-only files of a run, followed along their chain; and torn ends, healed.

Rules:
1. Bytes after the last newline are a torn record: they were never acknowledged. Under the run's lock they are saved
   beside, first, and then cut off. Without the lock they are left alone: somebody may be writing them.
2. A record is taken in only when it follows the one before it in the chain, whichever file it stands in. What a reader
   without the lock sees of one file and not yet of the other waits for the next look.
3. Anything else that does not add up is corruption: reported with the first bad record, never repaired or skipped.
4. What a writer could not commit is in the kernel's memory at best. Where power loss counts (`disk`) and the run was
   not closed, the last `_BLOCK` bytes are written once more before anything is built on them.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.run_log.directory import RunFolder, identity, open_file, write_all
from bundle_router.adapters.run_log.storage import Storage, failed, from_os, translated
from bundle_router.core.records.chain import (
    BadLine,
    Healed,
    boundary,
    check,
    genesis,
    lines_forward,
    link,
    parse,
    seal_text,
)
from bundle_router.errors import CorruptRun, StorageError

_BLOCK: Final = 1024 * 1024
_STRIDE: Final = 64
"""Records of a run between two places that are remembered."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Replaced(OSError):
    """Another file stands where one of the run's was, or a file became shorter: another program was at it."""


@dataclass(slots=True)
class Segment:
    """One file of a run. `fd` is -1 while it is closed; `identity` is its device and inode (None: not seen yet).

    `size` is how much of it was taken in, in bytes, up to a record's end; `end` is 1 more than that record's `seq`.
    """

    name: str
    fd: int = -1
    identity: tuple[int, int] | None = None
    size: int = 0
    end: int = 0
    marks: list[tuple[int, int]] = field(default_factory=list)
    """Where some of its records begin (`seq`, offset), so that any is found again without reading all of them."""

    def grow(self, seq: int, length: int) -> None:
        """A record stands at its end, of that many bytes."""
        if not self.marks or seq - self.marks[-1][0] >= _STRIDE:
            self.marks.append((seq, self.size))
        self.size += length
        self.end = seq + 1

    def between(self, seq: int) -> tuple[int, int] | None:
        """Return the bytes among which a record stands, if it stands in this file; None where it can't."""
        at = bisect_right(self.marks, (seq, self.size))
        if at == 0 or seq >= self.end:
            return None
        return self.marks[at - 1][1], self.marks[at][1] if at < len(self.marks) else self.size


class RunChain:
    """The place of one process in a run: the records up to `next_seq`, the last of which has the hash `head`. Reads on
    from there, and writes behind it."""

    def __init__(self, storage: Storage, folder: RunFolder, segments: tuple[Segment, ...]) -> None:
        self._storage = storage
        self._folder = folder
        self._paths = [(segment, f"{folder.path}/{segment.name}") for segment in segments]
        self.segments = segments
        self.run_id = Path(folder.path).name
        self.next_seq = 0
        self.head = genesis(self.run_id)

    def has_grown(self) -> bool:
        """Return whether there is more than was taken in. Two looks at file sizes, by the run's path: one that was
        moved away or deleted is noticed."""
        for segment, path in self._paths:
            try:
                found = self._storage.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                if segment.identity is None:
                    continue
                raise self._folder.gone(segment.name) from None
            except OSError as error:
                raise from_os("look at", path, error) from error
            if found.st_size != segment.size or (found.st_dev, found.st_ino) != segment.identity:
                return True
        return False

    @contextmanager
    def explained(self, dir_fd: int) -> Iterator[None]:
        """Say in the run's own errors what reading it failed of."""
        try:
            with translated("read", self._folder.path):
                yield
        except BadLine as error:
            raise self.corrupt(dir_fd, str(error)) from error
        except StorageError as error:
            if isinstance(error.__cause__, Replaced):
                advice = "find out which; `bundle-router runs verify` tells what is damaged. Use a new run id"
                message = f"can't read {self._folder.path}: {error.__cause__.strerror}"
                raise self._folder.refuse(StorageError(message, kind="io_error", advice=advice)) from error
            if error.kind == "deleted":  # a file of a run that was made with all of them
                raise self._folder.refuse(error) from None
            raise

    def grown(self, dir_fd: int) -> dict[str, int]:
        """Return the sizes of the files that hold more than was taken in. Raises OSError, Replaced."""
        found: dict[str, int] = {}
        for segment in self.segments:
            size = self._size(segment, dir_fd)
            if size < segment.size:
                raise Replaced(
                    0, f"{segment.name} has {size} bytes where {segment.size} were: another program was at it"
                )
            if size > segment.size:
                found[segment.name] = size
        return found

    def _size(self, segment: Segment, dir_fd: int) -> int:
        try:
            found = self._storage.stat(segment.name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            if segment.identity is None:
                return 0  # a run of before both files were made with it
            raise
        if segment.identity is None:
            segment.identity = identity(found)
        elif segment.identity != identity(found):
            raise Replaced(0, f"{segment.name} is not the file it was: another program was at it")
        return found.st_size

    def holds_a_line(self, dir_fd: int, sizes: Mapping[str, int]) -> bool:
        """Return whether one of the files, of these sizes, holds a whole line that was not taken in."""
        for segment in (one for one in self.segments if one.name in sizes):
            fd = self._storage.open(segment.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
            try:
                if b"\n" in self._storage.pread(fd, sizes[segment.name] - segment.size, segment.size):
                    return True
            finally:
                self._storage.close(fd)
        return False

    def take(self, dir_fd: int, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the records that follow, as far as the files hold them one after the other. Raises BadLine, OSError."""
        with ExitStack() as opened:
            waiting: list[tuple[Segment, Iterator[bytes], bytes]] = []
            for segment in self.segments:
                if segment.name in sizes:
                    fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
                    opened.callback(self._storage.close, fd)
                    lines = self._lines(fd, segment.size, sizes[segment.name])
                    if (line := next(lines, None)) is not None:
                        waiting.append((segment, lines, line))
            while (at := self._following(waiting)) is not None:
                segment, lines, line = waiting[at]
                yield self._taken(segment, line)
                following = next(lines, None)
                if following is None:
                    del waiting[at]
                else:
                    waiting[at] = (segment, lines, following)

    def _following(self, waiting: list[tuple[Segment, Iterator[bytes], bytes]]) -> int | None:
        """Return which of the files has the record that follows next; None where none has."""
        return next((at for at, (_, _, line) in enumerate(waiting) if link(line).seq == self.next_seq), None)

    def _taken(self, segment: Segment, line: bytes) -> dict[str, Any]:
        found = link(line)
        if found.prev != self.head:
            raise BadLine(f"record {found.seq} does not follow record {found.seq - 1} of this run")
        record = parse(line)
        segment.grow(found.seq, len(line))
        self.next_seq = found.seq + 1
        self.head = found.hash
        return record

    def _lines(self, fd: int, start: int, end: int) -> Iterator[bytes]:
        def read(offset: int, length: int) -> bytes:
            return self._storage.pread(fd, length, start + offset)

        return lines_forward(read, boundary(read, end - start))

    def append(self, segment: Segment, fd: int, text: str) -> int:
        """Write the record that follows, and return its `seq`. Raises StorageError: the file is cut back then."""
        seq, where = self.next_seq, f"{self._folder.path}/{segment.name}"
        line, hash_ = seal_text(text, seq, self.head)
        try:
            written = self._storage.write(fd, line)
            if written != len(line):
                why = f"{max(written, 0)} of {len(line)} bytes were written"
                raise self._undo(segment, fd, failed("write a record to", where, "short_write", why))
        except OSError as error:
            raise self._undo(segment, fd, from_os("write a record to", where, error)) from error
        segment.grow(seq, len(line))
        self.next_seq, self.head = seq + 1, hash_
        return seq

    def _undo(self, segment: Segment, fd: int, error: StorageError) -> StorageError:
        """Cut the file back to its last record. Where even that fails, nothing more is appended by this log."""
        try:
            self._storage.ftruncate(fd, segment.size)
        except OSError as second:
            error.message += f"; and it could not be cut back to the last record ({second.strerror})"
            advice = "close the run and open it again: it goes on from what is on disk then, maybe with this record"
            return self._folder.refuse(StorageError(error.message, kind=error.kind, advice=advice))
        return error

    def record(self, dir_fd: int, seq: int) -> dict[str, Any] | None:
        """Return one record that was taken in, read again; None where there is none."""
        for segment in self.segments:
            found = segment.between(seq)
            if found is None:
                continue
            fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
            try:
                for line in self._lines(fd, *found):
                    at = link(line).seq
                    if at >= seq:
                        if at == seq:
                            return parse(line)
                        break
            finally:
                self._storage.close(fd)
        return None

    def heal(self, dir_fd: int, *, durable: bool) -> tuple[Healed, ...]:
        """Cut off what follows the last record of each file, and keep it beside. The caller holds the run's lock and
        has taken in everything."""
        return tuple(
            self._heal(dir_fd, segment, size, durable=durable)
            for segment in self.segments
            for size in (self._size(segment, dir_fd),)
            if size > segment.size
        )

    def _heal(self, dir_fd: int, segment: Segment, size: int, *, durable: bool) -> Healed:
        fd = self._storage.open(segment.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            saved = self._save_beside(dir_fd, fd, segment, size, durable=durable)
            self._storage.ftruncate(fd, segment.size)
            if durable:
                self._storage.fsync(fd)
        finally:
            self._storage.close(fd)
        return Healed(segment.name, saved, size - segment.size)

    def _save_beside(self, dir_fd: int, fd: int, segment: Segment, size: int, *, durable: bool) -> str:
        for number in count(1):
            name = f"{segment.name}.torn-{number}"
            try:
                beside = open_file(self._storage, dir_fd, name, os.O_WRONLY | os.O_EXCL)
            except FileExistsError:
                continue
            break
        try:
            for offset in range(segment.size, size, _BLOCK):
                write_all(self._storage, beside, self._storage.pread(fd, min(_BLOCK, size - offset), offset))
            if durable:
                self._storage.fsync(beside)
        finally:
            self._storage.close(beside)
        return name

    def write_again(self, dir_fd: int) -> None:
        """The same bytes to the same place (rule 4): a page that the disk refused counts as clean, and would never
        reach it."""
        for segment in self.segments:
            start = max(0, segment.size - _BLOCK)
            if segment.size == start:
                continue
            fd = self._storage.open(segment.name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
            try:  # not for appending: the bytes go where they are
                data = self._storage.pread(fd, segment.size - start, start)
                while data:
                    written = self._storage.pwrite(fd, data, start)
                    data, start = data[written:], start + written
                self._storage.fdatasync(fd)
            finally:
                self._storage.close(fd)

    def corrupt(self, dir_fd: int, why: str) -> CorruptRun:
        """Return the error for a run whose records do not add up: names the first bad one. Reads all."""
        with ExitStack() as opened:
            files: dict[str, Iterator[bytes]] = {}
            for segment in self.segments:
                try:
                    fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
                except FileNotFoundError:
                    continue
                opened.callback(self._storage.close, fd)
                files[segment.name] = self._lines(fd, 0, self._storage.fstat(fd).st_size)
            broken = check(files, self.run_id, None).broken
        where = f"{broken.file}:{broken.line}: record {broken.seq} {broken.kind}: {broken.detail}" if broken else why
        return CorruptRun(
            f"run {self.run_id!r}: {where}",
            advice="the run can't be continued; look at it with `bundle-router runs verify`, and use a new run id",
        )


class GroupCommit:
    """What of a run survives power loss: up to `reached`. Who waits while an `fdatasync` runs shares the next one."""

    def __init__(self, storage: Storage, folder: RunFolder, chain: RunChain) -> None:
        self._storage = storage
        self._folder = folder
        self._chain = chain
        self.reached = 0
        self._changed = threading.Condition(threading.Lock())
        self._is_syncing = False

    def settle_others(self, segment: Segment) -> None:
        """No record is written to one file while another holds records that power loss could take: whatever is lost,
        is lost from the end of the sequence."""
        for other in self._chain.segments:
            if other is not segment and other.end > self.reached:
                self.up_to(other.end)

    def up_to(self, target: int) -> None:
        """Return when so many records are on disk. Raises StorageError."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_syncing or self.reached >= target)
            if self.reached >= target:
                return
            self._folder.check_usable()
            self._is_syncing = True
        reached = 0
        try:
            reached = self._sync_files()
        finally:
            with self._changed:
                self.reached = max(self.reached, reached)
                self._is_syncing = False
                self._changed.notify_all()

    def _sync_files(self) -> int:
        """Sync each file with records that are not on disk yet, once. Returns the `seq` they reach to."""
        reached = self._chain.next_seq  # read before syncing: appends that come meanwhile wait for the next round
        for segment in self._chain.segments:
            if segment.end > self.reached:
                try:
                    self._storage.fdatasync(segment.fd)
                except OSError as error:
                    raise self._folder.refuse(self._not_committed(segment, error)) from error
        return reached

    def _not_committed(self, segment: Segment, error: OSError) -> StorageError:
        where = f"{self._folder.path}/{segment.name}"
        trouble = from_os("commit", where, error)
        why = f"the disk did not take it ({error.strerror}), and asking again would not be honest"
        advice = "close the run and open it again: it goes on from what is on disk then, with or without this record"
        more = "check the disk" if trouble.kind == "io_error" else trouble.advice
        return failed("commit", where, trouble.kind, why, advice=f"{advice}. First: {more}")
