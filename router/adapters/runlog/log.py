"""The writer of one run. See `router.adapters.runlog` for the rules it keeps."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from router.adapters.runlog.directory import replace_text
from router.adapters.runlog.segment import Segment, last_of_type, recover
from router.adapters.runlog.storage import Storage, failed, from_os, translated
from router.core.catalog import Durability
from router.core.chain import FILES, File, encode_record, seal_text
from router.errors import StorageError
from router.ports import ArtifactStore, Clock, Healed, Redactor

HEADER_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Held:
    """The descriptors a log owns from the moment it exists: run directory, lock, and one per file, in `FILES` order."""

    directory: int
    lock: int
    files: tuple[int, ...]


class DiskRunLog:
    """Appends the records of one run to its two files, under one sequence and one chain.

    `append`, `next_seq` and `close` are for one thread at a time: the caller holds the run's lock around them.
    `sync` is for any number of threads, and is best called without that lock, so that they share one `fdatasync`.
    """

    def __init__(
        self,
        storage: Storage,
        held: Held,
        header: dict[str, Any],
        *,
        path: str,
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
        self._segments: dict[str, Segment] = {
            short: Segment(name, fd) for (short, name), fd in zip(FILES.items(), held.files, strict=True)
        }
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
        self._recover()
        with translated("read", path):
            self._last_decision = last_of_type(storage, self._segments["routing"], "route.decided")
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
        if self._interrupted:
            self._recover()
        segment = self._segments[file]
        if self._durable:
            self._settle_other_files(segment)
        line, hash_ = seal_text(self._encode(record), self._next_seq, self._head)
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
            advice = "close the run and open it again: the torn end is then healed"
            return self._refuse_from_now_on(StorageError(error.message, kind=error.kind, advice=advice))
        self._interrupted = False
        return error

    def _recover(self) -> None:
        with translated("read", self._path):
            at = recover(
                self._storage,
                self._held.directory,
                tuple(self._segments.values()),
                self._run_id,
                durable=self._durable,
            )
        self._next_seq, self._head = at.next_seq, at.head
        self.healed += at.healed
        self._interrupted = False

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
        or appended any more: the kernel may have dropped the pages and would report success the second time.
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
                    advice = "its last records may be lost; check the disk, then use a new run id"
                    why = f"the disk did not take it ({error.strerror}), and asking again would not be honest"
                    lost = failed("commit", self._where(segment), "io_error", why, advice=advice)
                    raise self._refuse_from_now_on(lost) from error
        return reached

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes the end of the run (`closed`, `head`, `count`) and lets go of the lock. Idempotent.

        Lets go even when it raises StorageError; the run then counts as one that did not end cleanly.
        """
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
            deleted = not self._fstat(self._held.lock).st_nlink
        if not deleted:
            healed = [{"file": h.file, "saved": h.saved, "bytes": h.bytes} for h in self.healed]
            end = {"closed": self._clock.now(), "head": self._head, "count": count}
            header = {**self._header, "healed": self._header["healed"] + healed, **end}
            write_header(self._storage, self._held.directory, header, self._path, durable=self._durable)

    def release(self) -> None:
        """Lets go of the descriptors, and so of the lock, without writing anything. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._refuse_from_now_on(
            StorageError(f"run {self._run_id!r} is closed", kind="io_error", advice="open it again")
        )
        _OPEN.discard(self)
        for fd in (*self._held.files, self._held.directory, self._held.lock):
            with contextlib.suppress(OSError):
                self._storage.close(fd)

    def __repr__(self) -> str:
        return f"DiskRunLog({self._path!r}, next_seq={self._next_seq})"


def write_header(storage: Storage, dir_fd: int, header: Mapping[str, Any], path: str, *, durable: bool) -> None:
    """Replaces `run.json`. Indented: people read it."""
    with translated("write", f"{path}/{HEADER_FILE}"):
        replace_text(storage, dir_fd, HEADER_FILE, json.dumps(header, indent=2) + "\n", durable=durable)


_OPEN: weakref.WeakSet[DiskRunLog] = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child shares the parent's lock and position: it must not write, nor keep the lock of a dead parent."""
    for log in list(_OPEN):
        log.release()


os.register_at_fork(after_in_child=_abandon_in_child)
