"""The chain over a run's append-only files: reads on, appends, and repairs torn ends. `log` says when.

1. Bytes after the last newline are a torn record, which was never acknowledged. Under the run's lock they are saved
   beside the file and then cut off. Without the lock they are left alone, because another process may be writing them.
2. A record is accepted only if it follows the last one in the chain, in either file. A reader without the lock may see
   a record before its predecessor in the other file; that record waits for the next read.
3. Any other mismatch is corruption: it is reported with the first bad record, never repaired or skipped.
4. Uncommitted bytes of an earlier writer may exist only in the kernel's memory. With durability `disk`, if the run was
   not closed, the last `_BLOCK` bytes are written again before anything is appended.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.run_log.directory import (
    RunFolder,
    Storage,
    failed,
    from_os,
    identity,
    open_file,
    translate_errors,
    write_all,
)
from bundle_router.core.records.chain import (
    BadLine,
    Link,
    RepairedTail,
    boundary,
    check,
    genesis,
    lines_forward,
    link,
    parse,
    seal_text,
)
from bundle_router.dataclass import dataclass, field
from bundle_router.errors import CorruptRun, StorageError

_BLOCK: Final = 1024 * 1024
_STRIDE: Final = 64
"""Records between two remembered offsets."""
_READ: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # nothing waits on what another put in a file's place


class FileReplaced(OSError):
    """Another program replaced or shortened one of the run's files."""


@dataclass(slots=True)
class Segment:
    """One file of a run. `fd` is -1 while it is closed; `identity` is its device and inode (None: not seen yet).

    `size` is how many bytes were read, up to a record's end; `end` is 1 more than that record's `seq`.
    """

    name: str
    fd: int = -1
    identity: tuple[int, int] | None = None
    size: int = 0
    end: int = 0
    seqs: array[int] = field(default_factory=lambda: array("q"))
    """`seq` of some of its records, so that any record is found without reading all. Arrays, since an object kept for
    each, among those of a burst of calls, would hold their memory."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """Where these records begin."""

    def grow(self, seq: int, length: int) -> None:
        """Note that a record of `length` bytes was added at the end."""
        if not self.seqs or seq - self.seqs[-1] >= _STRIDE:
            self.seqs.append(seq)
            self.offsets.append(self.size)
        self.size += length
        self.end = seq + 1

    def bytes_of(self, seq: int) -> tuple[int, int] | None:
        """Return start and end of the bytes that hold the record, if it is in this file; None if it can't be."""
        at = bisect_right(self.seqs, seq)
        if at == 0 or seq >= self.end:
            return None
        return self.offsets[at - 1], self.offsets[at] if at < len(self.offsets) else self.size


class RunChain:
    """One process's position in a run: it has read the records below `next_seq`, and the last one's hash is `head`.
    Reads on from there, and appends there."""

    def __init__(self, storage: Storage, folder: RunFolder, segments: tuple[Segment, ...]) -> None:
        self._storage = storage
        self._folder = folder
        self._paths = [(segment, f"{folder.path}/{segment.name}") for segment in segments]
        self.segments = segments
        self.run_id = Path(folder.path).name
        self.next_seq = 0
        self.head = genesis(self.run_id)

    def has_unread(self) -> bool:
        """Return whether the files have grown since they were read. Looks at two file sizes, by the run's path, so that
        it notices a run that was moved or deleted."""
        for segment, path in self._paths:
            try:
                found = self._storage.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                if segment.identity is None:
                    continue
                raise self._folder.refuse_gone(segment.name) from None
            except OSError as error:
                raise from_os("look at", path, error) from error
            if found.st_size != segment.size or (found.st_dev, found.st_ino) != segment.identity:
                return True
        return False

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Open the run's folder. Turn errors of reading it into the errors of the run (CorruptRun, StorageError)."""
        with translate_errors("read", self._folder.path), self._folder.opened() as folder:
            try:
                with translate_errors("read", self._folder.path):
                    yield folder
            except BadLine as error:
                raise self.corrupt(folder, str(error)) from error
            except StorageError as error:
                if isinstance(error.__cause__, FileReplaced):
                    advice = "find out which; `bundle-router runs verify` names what is damaged. Use a new run id"
                    message = f"can't read {self._folder.path}: {error.__cause__}, so another program changed it"
                    raise self._folder.refuse(StorageError(message, kind="io_error", advice=advice)) from error
                if error.kind == "deleted":  # runs are created with all their files, so one is missing
                    raise self._folder.refuse(error) from None
                raise

    def grown_sizes(self, dir_fd: int) -> dict[str, int]:
        """Return the sizes of the files that have grown since they were read. Raises OSError, FileReplaced."""
        found: dict[str, int] = {}
        for segment in self.segments:
            size = self._size(segment, dir_fd)
            if size < segment.size:
                raise FileReplaced(f"{segment.name} has {size} bytes where {segment.size} were")
            if size > segment.size:
                found[segment.name] = size
        return found

    def _size(self, segment: Segment, dir_fd: int) -> int:
        try:
            found = self._storage.stat(segment.name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            if segment.identity is None:
                return 0  # a run of an early version, which created its files one by one
            raise
        if segment.identity is None:
            segment.identity = identity(found)
        elif segment.identity != identity(found):
            raise FileReplaced(f"{segment.name} is not the file it was")
        return found.st_size

    def holds_a_line(self, dir_fd: int, sizes: Mapping[str, int]) -> bool:
        """Return whether one of the files, of these sizes, holds a whole line that was not read yet."""
        for segment in (one for one in self.segments if one.name in sizes):
            fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
            try:
                if b"\n" in self._storage.pread(fd, sizes[segment.name] - segment.size, segment.size):
                    return True
            finally:
                self._storage.close(fd)
        return False

    def take(self, dir_fd: int, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the records that follow, as far as the files hold them without a gap. Raises BadLine, OSError."""
        waiting: dict[int, tuple[Segment, Iterator[bytes], bytes, Link]] = {}

        def wait(segment: Segment, lines: Iterator[bytes]) -> None:
            if (line := next(lines, None)) is not None:
                found = link(line)
                waiting[found.seq] = segment, lines, line, found

        with ExitStack() as opened:
            for segment in self.segments:
                if segment.name in sizes:
                    fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
                    opened.callback(self._storage.close, fd)
                    wait(segment, self._lines(fd, segment.size, sizes[segment.name]))
            while self.next_seq in waiting:
                segment, lines, line, found = waiting.pop(self.next_seq)
                if found.prev != self.head:
                    raise BadLine(f"record {found.seq} does not follow the one before it")
                record = parse(line)
                segment.grow(found.seq, len(line))
                self.next_seq, self.head = found.seq + 1, found.hash
                yield record
                wait(segment, lines)

    def _lines(self, fd: int, start: int, end: int) -> Iterator[bytes]:
        def read(offset: int, length: int) -> bytes:
            return self._storage.pread(fd, length, start + offset)

        return lines_forward(read, boundary(read, end - start))

    def append(self, segment: Segment, fd: int, text: str) -> int:
        """Write the next record, and return its `seq`. Raises StorageError after cutting the file back."""
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
        """Cut the file back to its last record. If even that fails, this log appends nothing more."""
        try:
            self._storage.ftruncate(fd, segment.size)
        except OSError as second:
            error.message += f"; and it could not be cut back to the last record ({second.strerror})"
            advice = "close the run and open it again: it continues from what is on disk then, maybe with this record"
            return self._folder.refuse(StorageError(error.message, kind=error.kind, advice=advice))
        return error

    def record(self, dir_fd: int, seq: int) -> dict[str, Any]:
        """Read again one record that was read or written before. Raises KeyError."""
        for segment in self.segments:
            found = segment.bytes_of(seq)
            if found is None:
                continue
            fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
            try:
                for line in self._lines(fd, *found):
                    if link(line).seq == seq:
                        return parse(line)
            finally:
                self._storage.close(fd)
        raise KeyError(seq)

    def heal(self, dir_fd: int, sizes: Mapping[str, int], *, durable: bool) -> tuple[RepairedTail, ...]:
        """Cut off the bytes after the last record of each file that is larger, and save them beside it. The caller
        holds the run's lock and has read everything."""
        torn = [segment for segment in self.segments if segment.name in sizes]
        return tuple(self._heal(dir_fd, segment, sizes[segment.name], durable=durable) for segment in torn)

    def _heal(self, dir_fd: int, segment: Segment, size: int, *, durable: bool) -> RepairedTail:
        fd = self._storage.open(segment.name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            saved = self._save_beside(dir_fd, fd, segment, size, durable=durable)
            self._storage.ftruncate(fd, segment.size)
            if durable:
                self._storage.fsync(fd)
        finally:
            self._storage.close(fd)
        return RepairedTail(segment.name, saved, size - segment.size)

    def _save_beside(self, dir_fd: int, fd: int, segment: Segment, size: int, *, durable: bool) -> str:
        for number in count(1):
            name = f"{segment.name}.torn-{number}"
            try:
                saved_fd = open_file(self._storage, dir_fd, name, os.O_WRONLY | os.O_EXCL)
            except FileExistsError:
                continue
            break
        try:
            for offset in range(segment.size, size, _BLOCK):
                write_all(self._storage, saved_fd, self._storage.pread(fd, min(_BLOCK, size - offset), offset))
            if durable:
                self._storage.fsync(saved_fd)
        finally:
            self._storage.close(saved_fd)
        return name

    def write_again(self, dir_fd: int) -> None:
        """Write the same bytes to the same place (rule 4). A page that the disk refused counts as clean, so a further
        sync would not write it."""
        for segment in self.segments:
            start = max(0, segment.size - _BLOCK)
            if segment.size == start:
                continue
            fd = self._storage.open(segment.name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=dir_fd)
            try:  # opened without O_APPEND: the bytes are written over themselves
                data = self._storage.pread(fd, _BLOCK, start)
                while data:
                    written = self._storage.pwrite(fd, data, start)
                    data, start = data[written:], start + written
                self._storage.fdatasync(fd)
            finally:
                self._storage.close(fd)

    def corrupt(self, dir_fd: int, why: str) -> CorruptRun:
        """Return the error for a run whose chain is broken, with its first bad record. Reads the whole run."""
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
