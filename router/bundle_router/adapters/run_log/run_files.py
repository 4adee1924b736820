"""The open files of a run: `RunFolder`, its directory and lock, and `RunChain`, the chain over its
append-only files, which reads on, appends, and repairs torn ends. `log` says when.

1. Bytes after the last newline are a torn record, which was never acknowledged. Under the run's
   lock they are saved beside the file and then cut off. Without the lock they are left alone,
   because another process may be writing them.
2. A record is accepted only if it follows the last one in the chain, in either file. A reader
   without the lock may see a record before its predecessor in the other file; that record waits for
   the next read.
3. Any other mismatch is corruption: it is reported with the first bad record, never repaired or
   skipped.
4. Uncommitted bytes of an earlier writer may exist only in the kernel's memory. With durability
   `disk`, if the run was not closed, the last `_BLOCK` bytes are written again before anything is
   appended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Protocol

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.run_log.directory import (
    LOCK,
    Storage,
    failed,
    from_os,
    identity,
    open_file,
    open_run,
    open_to_write,
    translate_errors,
    write_all,
)
from bundle_router.adapters.text_files import holders
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
from bundle_router.errors import CorruptRun, RunBusy, StorageError

_BLOCK: Final = 1024 * 1024
_FIRST_PAUSE_S: Final = 0.00002
_LONGEST_PAUSE_S: Final = 0.002
_STRIDE: Final = 64
"""Records between two remembered offsets."""
_READ: Final = os.O_NOFOLLOW | os.O_NONBLOCK  # nothing waits on what another put in a file's place


class FileReplaced(OSError):
    """Another program replaced or shortened one of the run's files."""


@dataclass(slots=True)
class Segment:
    """One file of a run.

    `fd` is -1 while it is closed; `identity` is its device and inode (None: not seen yet).

    `size` is how many bytes were read, up to a record's end; `end` is 1 more than that record's
    `seq`.
    """

    name: str
    fd: int = -1
    identity: tuple[int, int] | None = None
    size: int = 0
    end: int = 0
    seqs: array[int] = field(default_factory=lambda: array("q"))
    """`seq` of some of its records, so that any record is found without reading all.

    Arrays, since an object kept for each, among those of a burst of calls, would hold their
    memory.
    """
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
        """Return start and end of the bytes that hold the record, if it is in this file; None if it
        can't be.
        """
        index = bisect_right(self.seqs, seq)
        if index == 0 or seq >= self.end:
            return None
        return self.offsets[index - 1], self.offsets[index] if index < len(
            self.offsets
        ) else self.size


def name_processes(pids: tuple[int, ...]) -> str:
    """Return a phrase that names the processes, with this process marked."""
    words = [
        "this process (another Router of it)" if pid == os.getpid() else f"process {pid}"
        for pid in pids
    ]
    return " and ".join(words) or "another process"


def try_lock(storage: Storage, fd: int, operation: int, until_s: float) -> bool:
    """Take a file lock, trying until a time on the monotonic clock; return whether it was taken.

    Locks are held for microseconds, so the first attempts follow each other quickly.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            storage.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        else:
            return True


class RunFolder:
    """The directory of a run, as it was when the log was opened.

    If it was deleted, moved or replaced since, every use is refused from then on. For one thread at
    a time.

    The lock and the file of calls stay open between appends, as long as the run is among the last
    appended to. `lock` takes their descriptors out of the shared cache, so that nobody else closes
    them meanwhile; `unlock` puts them back.
    """

    def __init__(self, storage: Storage, path: str, found: tuple[int, int]) -> None:
        self.path = path
        self._storage = storage
        self._identity = found
        self.refusal: tuple[str, str, str] | None = None
        self._lock_path = f"{path}/{LOCK}"
        self._lock_identity: tuple[int, int] | None = None
        self._lock = -1
        self._files: dict[str, int] = {}

    def check_usable(self) -> None:
        """Raise the StorageError with which the run was refused, if it was."""
        if self.refusal is not None:
            message, kind, advice = self.refusal
            raise StorageError(message, kind=kind, advice=advice)

    def refuse(self, error: StorageError) -> StorageError:
        """Refuse every later use with this error, and return it."""
        self.refusal = (error.message, error.kind, error.advice)
        return error

    def refuse_gone(self, name: str = "") -> StorageError:
        """Refuse every later use, because the run or one of its files is gone; return the error."""
        place = f"{self.path}/{name}".rstrip("/")
        return self.refuse(
            failed(
                "use", place, "deleted", "it was deleted, moved or replaced while the run was open"
            )
        )

    def busy_error(self, fd: int, doing: str) -> RunBusy:
        """Return the error that names who holds the lock on a file."""
        pids = holders(fd)
        return RunBusy(
            f"run {Path(self.path).name!r}: {name_processes(pids)} {doing}, and did not release it"
            " in time",
            pid=pids[0] if pids else 0,
            advice=(
                "if that process is suspended, resume or end it: the run loses nothing by either"
            ),
        )

    def is_same_folder(self) -> bool:
        """Return whether the run's path still leads to the folder that the log opened."""
        try:
            return identity(self._storage.stat(self.path, follow_symlinks=False)) == self._identity
        except FileNotFoundError:
            return False

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of the run directory, which must be the one that the log opened."""
        try:
            fd = open_run(self._storage, self.path)
        except FileNotFoundError:
            raise self.refuse_gone() from None
        try:
            with translate_errors("look at", self.path):
                folder_identity = identity(self._storage.fstat(fd))
            if folder_identity != self._identity:
                raise self.refuse_gone()
            yield fd
        finally:
            with suppress(OSError):
                self._storage.close(fd)

    # --- the lock ---------------------------------------------------------------------------------

    def open_lock(self, folder: int) -> None:
        """Open the lock file, or create it for a run of an early version.

        From now on it must be this file.
        """
        self._lock = open_file(self._storage, folder, LOCK, os.O_RDWR)
        self._lock_identity = identity(self._storage.fstat(self._lock))

    def lock(self, until_s: float) -> bool:
        """Take the run's lock, until `unlock` or `let_go`. Return whether the run was closed."""
        self._lock, self._files = _KEPT.pop(self, (self._lock, self._files))
        try:
            if self._lock < 0:
                self._lock = self._storage.open(
                    self._lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
                )
            if not try_lock(self._storage, self._lock, fcntl.LOCK_EX, until_s):
                raise self.busy_error(self._lock, "holds its lock")
            status = self._storage.stat(self._lock_path, follow_symlinks=False)
            if identity(status) != self._lock_identity:  # another lock file means another run
                raise self.refuse_gone()
        except BaseException as error:
            self.let_go()
            if isinstance(error, FileNotFoundError):
                raise self.refuse_gone() from None
            raise
        return status.st_size > 0

    def unlock(self) -> None:
        """Release the lock but keep the descriptors; close the oldest of other runs."""
        try:
            self._storage.flock(self._lock, fcntl.LOCK_UN)
        except OSError:
            self.let_go()
            return
        _KEPT[self] = self._lock, self._files
        self._lock = -1
        self._files = {}
        if len(_KEPT) > _KEPT_AT_MOST:
            release_kept(but=_KEPT_AT_MOST)

    def let_go(self) -> None:
        """Close the kept descriptors, which releases the lock. Idempotent."""
        lock, files = _KEPT.pop(self, (self._lock, self._files))
        self._lock = -1
        self._files = {}
        self.close_all(lock, files)

    def close_all(self, lock: int, files: Mapping[str, int]) -> None:
        """Close descriptors that were opened for this run."""
        for fd in (lock, *files.values()):
            if fd >= 0:
                with suppress(OSError):
                    self._storage.close(fd)

    def kept_file(self, name: str) -> int:
        """Return a descriptor of a file for appending, kept open like the lock.

        Call it only while holding the lock.
        """
        if name not in self._files:
            with self.opened() as folder, translate_errors("open", f"{self.path}/{name}"):
                flags = os.O_WRONLY | os.O_APPEND
                self._files[name] = open_to_write(self._storage, folder, name, flags)
        return self._files[name]

    @contextmanager
    def locked(self, until_s: float) -> Iterator[int]:
        """Hold the run's lock for the block; yields the run directory's descriptor."""
        with self.opened() as folder:
            with translate_errors("lock", self.path):
                self.lock(until_s)
            try:
                yield folder
            finally:
                self.unlock()

    def mark(self, text: bytes) -> None:
        """Write into the lock file whether the run is closed, for other processes.

        Only while the lock is held.
        """
        with translate_errors("write", self._lock_path):
            self._storage.ftruncate(self._lock, 0)
            if text and self._storage.pwrite(self._lock, text, 0) != len(text):
                raise OSError(errno.ENOSPC, "it was written in part")


_KEPT: OrderedDict[RunFolder, tuple[int, dict[str, int]]] = OrderedDict()
"""Unused descriptors of lock and files of the last used runs, the latest last.

Taking a row out is one atomic step, after which the taker owns the descriptors.
"""
_LIMIT: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_KEPT_AT_MOST: Final = 64 if _LIMIT < 0 else min(64, _LIMIT // 16)


def release_kept(*, but: int = 0) -> None:
    """Close the kept descriptors of all runs without an append in progress, or of all but the
    latest `but`.
    """
    with suppress(KeyError):
        while len(_KEPT) > but:
            folder, descriptors = _KEPT.popitem(last=False)
            folder.close_all(*descriptors)


PRESENT_AT_MOST: Final = 256
"""Runs not in use that keep their presence; fewer where the process may have few descriptors."""
OF_DESCRIPTORS: Final = 4
"""They have at most one of so many descriptors."""
TRIED: Final = 8
"""Runs that are asked at a time. Those whose records are not on disk yet keep their presence."""


class Presence(Protocol):
    """A run that shows, by a lock and the files that hold it, that it is being written."""

    def give_up_presence(self) -> bool:
        """Release the lock and close the files. Return whether that could be done."""


class Presences:
    """Bounds how many runs of this process show that they are being written: those written to last
    do, as far as they are not in use at the moment. One that gave its presence up takes it again
    when it is written to next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: OrderedDict[Presence, None] = OrderedDict()
        """The runs that are present and not in use, the latest last."""

    def take(self, run: Presence) -> None:
        """Begin to use a run, which gives nothing up until it is put back."""
        with self._lock:
            self._idle.pop(run, None)

    def put(self, run: Presence) -> None:
        """End the use of a run. It, or others, may have to give their presence up."""
        with self._lock:
            self._idle[run] = None
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            at_most = PRESENT_AT_MOST
            if limit >= 0:
                at_most = min(at_most, limit // OF_DESCRIPTORS)
            if len(self._idle) > at_most:
                self._give_up(at_most)

    def _give_up(self, at_most: int) -> None:
        oldest = list(islice(self._idle, min(TRIED, len(self._idle) - 1)))
        for run in oldest:
            if len(self._idle) <= at_most:
                return
            if run.give_up_presence():
                del self._idle[run]

    def forget(self) -> None:
        """Forget all runs, in a child of a fork: another thread may have had the lock then."""
        self._lock = threading.Lock()
        self._idle = OrderedDict()


PRESENCES: Final = Presences()
"""Those of this process, of no store: descriptors are the process's."""


class RunChain:
    """One process's position in a run: it has read the records below `next_seq`, and the last one's
    hash is `head`. Reads on from there, and appends there.
    """

    def __init__(self, storage: Storage, folder: RunFolder, segments: tuple[Segment, ...]) -> None:
        self._storage = storage
        self._folder = folder
        self._paths = [(segment, f"{folder.path}/{segment.name}") for segment in segments]
        self.segments = segments
        self.run_id = Path(folder.path).name
        self.next_seq = 0
        self.head = genesis(self.run_id)

    def has_unread(self) -> bool:
        """Return whether the files have grown since they were read.

        Looks at two file sizes, by the run's path, so that it notices a run that was moved or
        deleted.
        """
        for segment, path in self._paths:
            try:
                status = self._storage.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                if segment.identity is None:
                    continue
                raise self._folder.refuse_gone(segment.name) from None
            except OSError as error:
                raise from_os("look at", path, error) from error
            if status.st_size != segment.size or identity(status) != segment.identity:
                return True
        return False

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Open the run's folder.

        Turn errors of reading it into the errors of the run (CorruptRun, StorageError).
        """
        with translate_errors("read", self._folder.path), self._folder.opened() as folder:
            try:
                with translate_errors("read", self._folder.path):
                    yield folder
            except BadLine as error:
                raise self.corrupt(folder, str(error)) from error
            except StorageError as error:
                if isinstance(error.__cause__, FileReplaced):
                    advice = (
                        "find out which; `bundle-router runs verify` names what is damaged. Use a"
                        " new run id"
                    )
                    message = (
                        f"can't read {self._folder.path}: {error.__cause__}, so another program"
                        " changed it"
                    )
                    raise self._folder.refuse(
                        StorageError(message, kind="io_error", advice=advice)
                    ) from error
                if (
                    error.kind == "deleted"
                ):  # runs are created with all their files, so one is missing
                    raise self._folder.refuse(error) from None
                raise

    def grown_sizes(self, dir_fd: int) -> dict[str, int]:
        """Return the sizes of the files that have grown since they were read.

        Raises OSError, FileReplaced.
        """
        sizes: dict[str, int] = {}
        for segment in self.segments:
            size = self._size(segment, dir_fd)
            if size < segment.size:
                raise FileReplaced(f"{segment.name} has {size} bytes where {segment.size} were")
            if size > segment.size:
                sizes[segment.name] = size
        return sizes

    def _size(self, segment: Segment, dir_fd: int) -> int:
        try:
            status = self._storage.stat(segment.name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            if segment.identity is None:
                return 0  # a run of an early version, which created its files one by one
            raise
        if segment.identity is None:
            segment.identity = identity(status)
        elif segment.identity != identity(status):
            raise FileReplaced(f"{segment.name} is not the file it was")
        return status.st_size

    def holds_a_line(self, dir_fd: int, sizes: Mapping[str, int]) -> bool:
        """Return whether one of the files, of these sizes, holds a whole line that was not read
        yet.
        """
        for segment in (candidate for candidate in self.segments if candidate.name in sizes):
            with Opened(
                self._storage.open(segment.name, _READ, dir_fd=dir_fd), self._storage.close
            ) as fd:
                if b"\n" in self._storage.pread(
                    fd, sizes[segment.name] - segment.size, segment.size
                ):
                    return True
        return False

    def take(self, dir_fd: int, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        """Yield the records that follow, as far as the files hold them without a gap.

        Raises BadLine, OSError.
        """
        waiting: dict[int, tuple[Segment, Iterator[bytes], bytes, Link]] = {}

        def wait(segment: Segment, lines: Iterator[bytes]) -> None:
            if (line := next(lines, None)) is not None:
                fields = link(line)
                waiting[fields.seq] = segment, lines, line, fields

        with ExitStack() as opened:
            for segment in self.segments:
                if segment.name in sizes:
                    fd = self._storage.open(segment.name, _READ, dir_fd=dir_fd)
                    opened.callback(self._storage.close, fd)
                    wait(segment, self._lines(fd, segment.size, sizes[segment.name]))
            while self.next_seq in waiting:
                segment, lines, line, record_link = waiting.pop(self.next_seq)
                if record_link.prev != self.head:
                    raise BadLine(f"record {record_link.seq} does not follow the one before it")
                record = parse(line)
                segment.grow(record_link.seq, len(line))
                self.next_seq = record_link.seq + 1
                self.head = record_link.hash
                yield record
                wait(segment, lines)

    def _lines(self, fd: int, start: int, end: int) -> Iterator[bytes]:
        def read(offset: int, length: int) -> bytes:
            return self._storage.pread(fd, length, start + offset)

        return lines_forward(read, boundary(read, end - start))

    def append(self, segment: Segment, fd: int, text: str) -> int:
        """Write the next record, and return its `seq`.

        Raises StorageError after cutting the file back.
        """
        seq = self.next_seq
        line, hash_ = seal_text(text, seq, self.head)
        try:
            count = self._storage.write(fd, line)
        except OSError as error:
            trouble = from_os("write a record to", f"{self._folder.path}/{segment.name}", error)
            raise self._undo(segment, fd, trouble) from error
        if count != len(line):
            detail = f"{max(count, 0)} of {len(line)} bytes were written"
            place = f"{self._folder.path}/{segment.name}"
            raise self._undo(segment, fd, failed("write a record to", place, "short_write", detail))
        segment.grow(seq, len(line))
        self.next_seq = seq + 1
        self.head = hash_
        return seq

    def _undo(self, segment: Segment, fd: int, error: StorageError) -> StorageError:
        """Cut the file back to its last record.

        If even that fails, this log appends nothing more.
        """
        try:
            self._storage.ftruncate(fd, segment.size)
        except OSError as second:
            error.message += (
                f"; and it could not be cut back to the last record ({second.strerror})"
            )
            advice = (
                "close the run and open it again: it continues from what is on disk then, maybe"
                " with this record"
            )
            return self._folder.refuse(StorageError(error.message, kind=error.kind, advice=advice))
        return error

    def record(self, dir_fd: int, seq: int) -> dict[str, Any]:
        """Read again one record that was read or written before. Raises KeyError."""
        for segment in self.segments:
            span = segment.bytes_of(seq)
            if span is None:
                continue
            with Opened(
                self._storage.open(segment.name, _READ, dir_fd=dir_fd), self._storage.close
            ) as fd:
                for line in self._lines(fd, *span):
                    if link(line).seq == seq:
                        return parse(line)
        raise KeyError(seq)

    def heal(
        self, dir_fd: int, sizes: Mapping[str, int], *, durable: bool
    ) -> tuple[RepairedTail, ...]:
        """Cut off the bytes after the last record of each file that is larger, and save them beside
        it. The caller holds the run's lock and has read everything.
        """
        torn = [segment for segment in self.segments if segment.name in sizes]
        return tuple(
            self._heal(dir_fd, segment, sizes[segment.name], durable=durable) for segment in torn
        )

    def _heal(self, dir_fd: int, segment: Segment, size: int, *, durable: bool) -> RepairedTail:
        opened = open_to_write(self._storage, dir_fd, segment.name, os.O_RDWR)
        with Opened(opened, self._storage.close) as fd:
            saved = self._save_beside(dir_fd, fd, segment, size, durable=durable)
            self._storage.ftruncate(fd, segment.size)
            if durable:
                self._storage.fsync(fd)
        return RepairedTail(segment.name, saved, size - segment.size)

    def _save_beside(
        self, dir_fd: int, fd: int, segment: Segment, size: int, *, durable: bool
    ) -> str:
        for number in count(1):
            name = f"{segment.name}.torn-{number}"
            try:
                saved_fd = open_file(self._storage, dir_fd, name, os.O_WRONLY | os.O_EXCL)
            except FileExistsError:
                continue
            break
        with Opened(saved_fd, self._storage.close):
            for offset in range(segment.size, size, _BLOCK):
                write_all(
                    self._storage,
                    saved_fd,
                    self._storage.pread(fd, min(_BLOCK, size - offset), offset),
                )
            if durable:
                self._storage.fsync(saved_fd)
        return name

    def write_again(self, dir_fd: int) -> None:
        """Write the same bytes to the same place (rule 4).

        A page that the disk refused counts as clean, so a further sync would not write it.
        """
        for segment in self.segments:
            start = max(0, segment.size - _BLOCK)
            if segment.size == start:
                continue
            opened = open_to_write(self._storage, dir_fd, segment.name, os.O_RDWR)
            with Opened(
                opened, self._storage.close
            ) as fd:  # without O_APPEND: the bytes are written over themselves
                data = self._storage.pread(fd, _BLOCK, start)
                while data:
                    count = self._storage.pwrite(fd, data, start)
                    data = data[count:]
                    start = start + count
                self._storage.fdatasync(fd)

    def corrupt(self, dir_fd: int, why: str) -> CorruptRun:
        """Return the error for a run whose chain is broken, with its first bad record.

        Reads the whole run.
        """
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
        if broken:
            trouble = (
                f"{broken.file}:{broken.line}: record {broken.seq} {broken.kind}: {broken.detail}"
            )
        else:
            trouble = why
        return CorruptRun(
            f"run {self.run_id!r}: {trouble}",
            advice=(
                "the run can't be continued; look at it with `bundle-router runs verify`, and use a"
                " new run id"
            ),
        )
