"""The writer of one run. See `bundle_router.adapters.run_log` for the rules it keeps."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from bundle_router.adapters.run_log.directory import DIRECTORY, note_owner, replace_text
from bundle_router.adapters.run_log.segment import Segment, recover
from bundle_router.adapters.run_log.storage import SPARE, Storage, failed, from_os, translated
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import FILES, File, encode_record, seal_text
from bundle_router.core.records.header import opening_digest, sealed
from bundle_router.errors import StorageError
from bundle_router.ports import ArtifactStore, Clock, Healed, Redactor

HEADER_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Held:
    """What a log owns from the moment it exists. `directory` is its device and inode; `files` are in `FILES` order.

    A file with a descriptor keeps it open; the first does always, since it holds the lock of the run. One without
    (-1) is opened for each append, so that an open run takes one descriptor: with `ulimit -n 1024`, about 1,000 runs.
    """

    directory: tuple[int, int]
    files: tuple[Segment, ...]


class DiskRunLog:
    """Appends the records of one run to its two files, under one sequence and one chain.

    `append`, `next_seq` and `close` are for one thread at a time: the caller holds the run's lock around them. `turn`
    orders the end of this log and the next opening of the same run; `dir_fd` is used while opening only.
    `sync` is for any number of threads, and is best called without that lock, so that they share one `fdatasync`.
    """

    def __init__(
        self,
        storage: Storage,
        held: Held,
        header: dict[str, Any],
        *,
        path: str,
        dir_fd: int,
        turn: AbstractContextManager[object],
        durability: Durability,
        clock: Clock,
        artifacts: Callable[[str], ArtifactStore],
        redactor: Redactor | None,
    ) -> None:
        self._storage = storage
        self._write = storage.write
        self._fstat = storage.fstat
        self._held = held
        self._header = header
        self._path = path
        self._durable = durability == "disk"
        self._clock = clock
        self._make_artifacts = artifacts
        self._redactor = redactor
        self._artifacts: ArtifactStore | None = None
        self._run_id: str = header["run_id"]
        self._turn = turn
        self._opening = opening_digest(header)
        self._segments: dict[str, Segment] = dict(zip(FILES, held.files, strict=True))
        self._lock = held.files[0].fd
        self._refusal: tuple[str, str, str] | None = None
        self._closed = False
        self._interrupted = False
        self._next_seq = 0
        self._head = ""
        self._committed = 0
        self._commit = threading.Condition(threading.Lock())
        self._committing = False
        self.healed: tuple[Healed, ...] = ()
        """Torn ends that were cut off when this log was opened (or, rarely, after an append was interrupted)."""
        self._last_decision: Mapping[str, Any] | None = None
        self._recover(dir_fd, uncommitted=self._durable and "closed" not in header)
        _OPEN.add(self)

    # --- what the caller may know -----------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        return self._path

    @property
    def header(self) -> Mapping[str, Any]:
        """What `run.json` says of the run, as it was when the run was first opened and ever since."""
        return self._header

    @property
    def next_seq(self) -> int:
        """The sequence number the next record will carry. Stable while the caller holds the run's lock."""
        if self._interrupted:
            self._recover()
        return self._next_seq

    @property
    def head(self) -> str:
        """The hash of the last record; of the run's genesis when there is none."""
        return self._head

    def last_decision(self) -> Mapping[str, Any] | None:
        """The last `route.decided` record found when the directory was opened, if any."""
        return self._last_decision

    def artifacts(self) -> ArtifactStore:
        """The artifact store of this run, by the factory that wiring gave."""
        if self._artifacts is None:
            self._artifacts = self._make_artifacts(self._path)
        return self._artifacts

    # --- appending --------------------------------------------------------------------------------------------------

    def append(self, file: File, record: dict[str, Any]) -> tuple[int, str]:
        """Writes one record with `seq`, `prev` and `hash` added, and returns its `seq` and `hash`.

        When this raises StorageError the record is not in the run: the file was cut back to the last record, and a
        later append may succeed (except after `deleted`, or where cutting back or an fdatasync failed: then the
        error says so, and so does every later one). Raises ValueError or TypeError for what can't be a record.
        """
        if self._refusal is not None:
            raise self._refused()
        segment = self._segments[file]
        if segment.fd >= 0:
            return self._append(segment, record)
        try:
            with self._opened():
                return self._append(segment, record)
        except StorageError as error:
            if error.kind != "out_of_files":
                raise
        with SPARE.lent(), self._opened():  # a call that took the last descriptor still gets its end
            return self._append(segment, record)

    def _append(self, segment: Segment, record: dict[str, Any]) -> tuple[int, str]:
        if self._interrupted:
            self._recover()
        if self._durable:
            self._settle_other_files(segment)
        text = self._encode(record)
        if self._next_seq == 0:
            text = f'{text[:-1]},"run_json":"{self._opening}"}}'  # so that the chain covers the opening
        line, hash_ = seal_text(text, self._next_seq, self._head)
        length = len(line)
        # A signal handler may raise between any two steps below; the next append then reads the truth from disk.
        self._interrupted = True
        try:
            written = self._write(segment.fd, line)
            found = self._fstat(segment.fd)
        except OSError as error:
            raise self._undo(segment, from_os("write a record to", self._where(segment), error)) from error
        if written != length or found.st_size != segment.size + length or not found.st_nlink:
            raise self._misfit(segment, written, length, found)
        seq = self._next_seq
        segment.size += length
        segment.end = self._next_seq = seq + 1
        self._head = hash_
        self._interrupted = False
        return seq, hash_

    def _encode(self, record: dict[str, Any]) -> str:
        """The record's JSON without secrets. What the engine redacted is clean; this is for what it missed, so the
        common case is one look at the whole text. A secret could hide behind an escape (`\\"`): then value by value.
        """
        text = encode_record(record)
        if self._redactor is None or ("\\" not in text and self._redactor.is_clean(text)):
            return text
        return encode_record(self._redactor.redact_value(record))

    def _misfit(self, segment: Segment, written: int, length: int, found: os.stat_result) -> StorageError:
        """What is wrong after a write that did not fail: the file is gone, part was written, or somebody else wrote."""
        where = self._where(segment)
        if not found.st_nlink:
            error = failed("write a record to", where, "deleted", "the file was deleted while the run was open")
            return self._refuse_from_now_on(error)
        expected = segment.size + written
        lowest = segment.size if written < length else expected  # a short write is told by its return value alone
        if not lowest <= found.st_size <= expected:
            why = f"it has {found.st_size} bytes where {expected} were expected: another program changed it"
            advice = "find out which; `bundle-router runs verify` tells what is damaged. Use a new run id"
            return self._refuse_from_now_on(failed("write a record to", where, "io_error", why, advice=advice))
        why = f"{found.st_size - segment.size} of {length} bytes were written"
        return self._undo(segment, failed("write a record to", where, "short_write", why))

    def _undo(self, segment: Segment, error: StorageError) -> StorageError:
        """Cuts the file back to its last record. Where even that fails, nothing more is appended by this log."""
        try:
            if self._fstat(segment.fd).st_size > segment.size:
                self._storage.ftruncate(segment.fd, segment.size)
        except OSError as second:
            error.message += f"; and it could not be cut back to the last record ({second.strerror})"
            advice = "close the run and open it again: it goes on from what is on disk then, maybe with this record"
            return self._refuse_from_now_on(StorageError(error.message, kind=error.kind, advice=advice))
        self._interrupted = False
        return error

    def _recover(self, dir_fd: int = -1, *, uncommitted: bool = False) -> None:
        with self._opened(dir_fd) as folder, translated("read", self._path):
            at = recover(
                self._storage,
                folder,
                self._held.files,
                self._run_id,
                durable=self._durable,
                uncommitted=uncommitted,
            )
        self._next_seq, self._head, self._last_decision = at.next_seq, at.head, at.last_decision
        self.healed += at.healed
        self._interrupted = False

    @contextmanager
    def _opened(self, dir_fd: int = -1) -> Iterator[int]:
        """Opens the files that are closed, for the block; gives the run directory's descriptor (`dir_fd`, if given).

        The directory and the files have to be those that the log was opened on: nothing is made again here.
        """
        if dir_fd < 0:
            with self._folder() as folder, self._opened(folder):
                yield folder
            return
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.ExitStack() as opened:
            for segment in self._held.files:
                if segment.fd < 0:
                    opened.callback(setattr, segment, "fd", -1)
                    segment.fd = opened.enter_context(self._found(segment.name, flags, segment.identity, dir_fd))
            yield dir_fd

    def _folder(self) -> AbstractContextManager[int]:
        return self._found(self._path, DIRECTORY | os.O_NOFOLLOW, self._held.directory, None)

    @contextmanager
    def _found(self, name: str, flags: int, identity: tuple[int, int], dir_fd: int | None) -> Iterator[int]:
        """Opens what the log was opened on, for the block. Where it is gone, nothing more is appended by this log."""
        fd = -1
        try:
            with translated("open", self._path if dir_fd is None else f"{self._path}/{name}"):
                fd = self._storage.open(name, flags, dir_fd=dir_fd)
                found = self._fstat(fd)
                if (found.st_dev, found.st_ino) != identity:
                    raise FileNotFoundError(errno.ENOENT, "something else stands in its place")
            yield fd
        except StorageError as error:
            if error.kind == "deleted":
                self._refuse_from_now_on(error)
            raise
        finally:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    self._storage.close(fd)

    def _where(self, segment: Segment) -> str:
        return f"{self._path}/{segment.name}"

    def _refuse_from_now_on(self, error: StorageError) -> StorageError:
        self._refusal = (error.message, error.kind, error.advice)
        return error

    def _refused(self) -> StorageError:
        message, kind, advice = self._refusal or ("the run is closed", "io_error", "open it again")
        return StorageError(message, kind=kind, advice=advice)

    # --- power loss -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Returns when everything appended before this call survives power loss; at once with durability `process`.

        Callers that come while an `fdatasync` runs share the next one. After a failed one nothing is acknowledged
        or appended by this log any more: the kernel may have dropped the pages and would report success the second
        time. Opening the run again finds which records are there, and writes them once more (see `segment`, rule 4).
        """
        if self._durable:
            self._commit_up_to(self._next_seq)

    def _settle_other_files(self, segment: Segment) -> None:
        """No record is written to one file while another holds records that power loss could take: whatever is lost,
        is lost from the end of the sequence."""
        for other in self._segments.values():
            if other is not segment and other.end > self._committed:
                self._commit_up_to(other.end)

    def _commit_up_to(self, target: int) -> None:
        with self._commit:
            self._commit.wait_for(lambda: not self._committing or self._committed >= target)
            if self._committed >= target:
                return
            if self._refusal is not None:
                raise self._refused()
            self._committing = True
        reached = 0
        try:
            reached = self._sync_files()
        finally:
            with self._commit:
                self._committed = max(self._committed, reached)
                self._committing = False
                self._commit.notify_all()

    def _sync_files(self) -> int:
        """One `fdatasync` for each file with records that are not on disk yet. Returns the `seq` they reach to."""
        reached = self._next_seq  # read before syncing: appends that come meanwhile wait for the next round
        for segment in self._segments.values():
            if segment.end > self._committed:
                try:
                    self._storage.fdatasync(segment.fd)
                except OSError as error:
                    raise self._refuse_from_now_on(self._uncommitted(segment, error)) from error
        return reached

    def _uncommitted(self, segment: Segment, error: OSError) -> StorageError:
        trouble = from_os("commit", self._where(segment), error)
        why = f"the disk did not take it ({error.strerror}), and asking again would not be honest"
        advice = "close the run and open it again: it goes on from what is on disk then, with or without this record"
        more = "check the disk" if trouble.kind == "io_error" else trouble.advice
        return failed("commit", self._where(segment), trouble.kind, why, advice=f"{advice}. First: {more}")

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the end of the run (`closed`, `head`, `count`) and lets go of the lock. Idempotent.

        Lets go even when it raises StorageError; the run then counts as one that did not end cleanly.
        """
        with self._turn:
            if self._closed:
                return
            try:
                if self._refusal is None:
                    self._write_end()
            finally:
                self.release()

    def _write_end(self) -> None:
        count = self.next_seq
        self.sync()
        with translated("look at", self._path):
            deleted = not self._fstat(self._lock).st_nlink
        if deleted:
            return
        healed = [{"file": h.file, "saved": h.saved, "bytes": h.bytes} for h in self.healed]
        end = {"closed": self._clock.now(), "head": self._head, "count": count}
        header = {**self._header, "healed": self._header["healed"] + healed, **end}
        try:
            self._put_end(header)
        except StorageError as error:
            if error.kind != "out_of_files":
                raise
            with SPARE.lent():
                self._put_end(header)

    def _put_end(self, header: Mapping[str, Any]) -> None:
        with self._folder() as folder:
            write_header(self._storage, folder, header, self._path, durable=self._durable)
            with contextlib.suppress(OSError):  # a pid that stays is only out of date
                note_owner(self._storage, folder, b"")

    def release(self) -> None:
        """Lets go of the descriptors, and so of the lock, without writing anything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._refuse_from_now_on(
            StorageError(f"run {self._run_id!r} is closed", kind="io_error", advice="open it again")
        )
        _OPEN.discard(self)
        for segment in reversed(self._held.files):  # the one that holds the lock comes last
            if segment.fd >= 0:
                with contextlib.suppress(OSError):
                    self._storage.close(segment.fd)
                segment.fd = -1

    def __repr__(self) -> str:
        return f"DiskRunLog({self._path!r}, next_seq={self._next_seq})"


def write_header(storage: Storage, dir_fd: int, header: Mapping[str, Any], path: str, *, durable: bool) -> None:
    """Replaces `run.json`, with its seal. Indented: people read it."""
    with translated("write", f"{path}/{HEADER_FILE}"):
        replace_text(storage, dir_fd, HEADER_FILE, json.dumps(sealed(header), indent=2) + "\n", durable=durable)


_OPEN: weakref.WeakSet[DiskRunLog] = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child shares the parent's lock and position: it must not write, nor keep the lock of a dead parent."""
    for log in list(_OPEN):
        log.release()


os.register_at_fork(after_in_child=_abandon_in_child)
