"""One run as one process reads and appends it, by the rules of `bundle_router.adapters.run_log`:
when its lock is taken, when records are on disk, and how the run is ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.run_log.directory import (
    CLOSED,
    PRESENCE,
    SPARE,
    CatalogFiles,
    Storage,
    failed,
    from_os,
    identity,
    open_to_write,
    read_header,
    translate_errors,
    write_header,
)
from bundle_router.adapters.run_log.run_files import (
    PRESENCES,
    RunChain,
    RunFolder,
    Segment,
    name_processes,
    release_kept,
    try_lock,
)
from bundle_router.adapters.text_files import holders
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import (
    FILES,
    Appended,
    File,
    Head,
    Record,
    RepairedTail,
    Writer,
    encode_record,
    with_opening,
)
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import time_text
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.ports import ArtifactStore, Clock


class GroupCommit:
    """Durability of one run: the records up to `reached` survive power loss.

    Waiting callers share one `fdatasync`.
    """

    def __init__(self, storage: Storage, folder: RunFolder, chain: RunChain) -> None:
        self._storage = storage
        self._folder = folder
        self._chain = chain
        self.reached = 0
        self._changed = threading.Condition(threading.Lock())
        self._is_syncing = False

    def sync_others(self, segment: Segment) -> None:
        """Sync the other file before a record is written to this one, so that power loss only takes
        the end of the sequence.
        """
        for other_segment in self._chain.segments:
            if other_segment is not segment:
                self.up_to(other_segment.end)

    def up_to(self, target: int) -> None:
        """Return when `target` records are on disk. Raises StorageError."""
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

    def is_done(self) -> bool:
        """Return whether every record is on disk, and nobody is syncing."""
        with self._changed:
            return not self._is_syncing and self.reached >= self._chain.next_seq

    def _sync_files(self) -> int:
        """Sync each file that has unsynced records, once.

        Return the number of records that are on disk then.
        """
        reached = self._chain.next_seq  # read before syncing: later appends wait for the next round
        for segment in self._chain.segments:
            if segment.end > self.reached:
                try:
                    self._storage.fdatasync(segment.fd)
                except OSError as error:
                    raise self._folder.refuse(self._not_committed(segment, error)) from error
        return reached

    def _not_committed(self, segment: Segment, error: OSError) -> StorageError:
        place = f"{self._folder.path}/{segment.name}"
        trouble = from_os("commit", place, error)
        detail = (
            f"the disk could not sync it ({error.strerror}), and a second sync may report success"
            " for lost data"
        )
        advice = (
            "close the run and open it again: it continues from what is on disk then, with or"
            " without this record"
        )
        first_advice = "check the disk" if trouble.kind == "io_error" else trouble.advice
        return failed(
            "commit", place, trouble.kind, detail, advice=f"{advice}. First: {first_advice}"
        )


WAIT_S: Final = 5.0
"""Seconds that an append waits for the run's lock, which others hold for microseconds."""
ALONE_S: Final = 0.01
"""Seconds that `close` checks for other writers: a reader that makes the same check holds the lock
for an instant.
"""
ID_DIGITS: Final = 8
"""Digits of a run's `nonce` that are part of its decision and call ids."""


@dataclass(frozen=True, slots=True)
class RunLogSetting:
    """The settings that all logs of one store share.

    `artifacts` makes a run's artifact store from its path.
    """

    storage: Storage
    clock: Clock
    durability: Durability
    artifacts: Callable[[str], ArtifactStore]
    catalogs: CatalogFiles

    @property
    def durable(self) -> bool:
        return self.durability == "disk"


class DiskRunLog:
    """Reads and appends the records of one run, in its two files, under one sequence and one chain.

    For one thread at a time: the caller holds its own lock of the run. Any number of threads may
    call `sync`, best without that lock, so that they share one `fdatasync`.
    """

    def __init__(
        self, setting: RunLogSetting, path: Path, header: RunHeader, folder: tuple[int, int]
    ) -> None:
        self._setting = setting
        self._storage = setting.storage
        self._path = path
        self.path = str(path)
        self.id_prefix = f"{path.name}.{header.nonce[:ID_DIGITS]}" if header.nonce else path.name
        """Prefix of decision and call ids.

        It makes them unique over machines, for runs that have a nonce.
        """
        self.header = header
        """Content of `run.json` when the run was opened here."""
        self._catalogs = {entry.revision for entry in header.catalogs}
        self._folder = RunFolder(setting.storage, self.path, folder)
        self._segments = {file: Segment(name) for file, name in FILES.items()}
        self._chain = RunChain(setting.storage, self._folder, tuple(self._segments.values()))
        self._read_once = False
        self._writing = False
        """Whether this log shows, by its lock, that it writes the run."""
        self._has_written = False
        self._opening_digest = ""
        self._uncommitted = False
        self._has_end = False
        self._artifacts: ArtifactStore | None = None
        self._commits = GroupCommit(setting.storage, self._folder, self._chain)
        self.healed: tuple[RepairedTail, ...] = ()
        """The torn ends that this log cut off."""
        _OPEN.add(self)

    # --- what the caller may know -----------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """Number of records read or written here: the next record's `seq`, unless another process
        appends first.
        """
        return self._chain.next_seq

    @property
    def head(self) -> str:
        """Hash of the last record read or written here; the run's genesis hash if there is none."""
        return self._chain.head

    def artifacts(self) -> ArtifactStore:
        """Return the artifact store of this run."""
        if self._artifacts is None:
            self._artifacts = self._setting.artifacts(str(self._path))
        return self._artifacts

    # --- reading ----------------------------------------------------------------------------------

    def news(self) -> Iterator[Record]:
        """Yield the records since the last call, in order; the first time all.

        Takes no lock. Raises CorruptRun, StorageError.
        """
        self._folder.check_usable()
        if self._read_once and not self._chain.has_unread():
            return
        with self._chain.reading() as folder:
            stalls = 0
            while True:
                seq_before = self.next_seq
                yield from self._chain.take(folder, self._chain.grown_sizes(folder))
                if self.next_seq > seq_before and self._read_once:
                    break  # records that arrive meanwhile are for the next call
                if self._chain.holds_a_line(folder, self._chain.grown_sizes(folder)):
                    stalls = stalls + 1 if self.next_seq == seq_before else 0
                    if stalls == 3:  # a record's predecessor is missing, after several reads
                        raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
                elif self._ends_as_stated(folder):
                    break
            self._read_once = True

    def _ends_as_stated(self, folder: int) -> bool:
        """Return whether a closed run ends where `run.json` says; False if it was closed or
        reopened while we read. Raises CorruptRun.
        """
        header = read_header(self._storage, folder, self._path)
        if (
            header is None
            or not header.closed
            or header.head == Head(self.next_seq, self._chain.head)
        ):
            return True
        if header == self.header:
            raise CorruptRun(
                f"{self._path} does not end as it did when it was closed",
                advice="look at it with `bundle-router runs verify`, and use a new run id",
            )
        self.header = header
        return False

    def record(self, seq: int) -> Record:
        """Read again one record that was read or written before. Raises KeyError."""
        with self._chain.reading() as folder:
            return self._chain.record(folder, seq)

    # --- appending --------------------------------------------------------------------------------

    def append(
        self,
        file: File,
        record: dict[str, Any],
        *,
        only_at: int | None = None,
        wait_s: float = WAIT_S,
    ) -> Appended:
        """Append one record behind all others, with `seq`, `prev` and `hash` added; return what
        others wrote before it.

        With `only_at`, write only if the run holds exactly that many records, all of which this log
        has read. Raises RunBusy (nothing was written), CorruptRun; StorageError (nothing was
        written: the file was cut back to the last record; a later append may succeed unless the
        error says otherwise); ValueError or TypeError for a value that can't be a record.
        """
        self._folder.check_usable()
        PRESENCES.take(self)
        try:
            text = encode_record(record)
            until_s = time.monotonic() + wait_s
            return self._append(file, text, only_at, until_s)
        except StorageError as error:
            if error.kind != "out_of_files" or not self._has_written:
                raise
            release_kept()
            with SPARE.lend():  # a call that took the last descriptor can end
                return self._append(file, text, only_at, until_s)
        finally:
            if self._writing and not self._has_end:
                PRESENCES.put(self)

    def _append(self, file: File, text: str, only_at: int | None, until_s: float) -> Appended:
        try:
            if not self._writing:
                self.begin_writing(until_s)
            was_closed = self._folder.lock(until_s)
            try:
                appended = self._append_locked(file, text, only_at, was_closed)
            except BaseException:
                self._folder.let_go()
                raise
            self._folder.unlock()
        except OSError as error:  # as `translate_errors`, but cheaper: every decision passes here
            raise from_os("write to", self.path, error) from error
        return appended

    def _append_locked(
        self, file: File, text: str, only_at: int | None, was_closed: bool
    ) -> Appended:
        new_records = self._take_in() if self._chain.has_unread() else ()
        if only_at is not None and (new_records or only_at != self._chain.next_seq):
            return Appended(new_records, None)
        if was_closed or self._uncommitted:
            with self._folder.opened() as folder:
                if was_closed:  # records follow its end
                    self._put_header(folder, self._header_now(folder).reopen())
                    self._folder.mark(b"")
                if self._uncommitted:  # power loss could have taken them
                    self._chain.write_again(folder)
                    self._uncommitted = False
                    self._commits.reached = self.next_seq
        segment = self._segments[file]
        if self._setting.durable:
            self._commits.sync_others(segment)
        if self._chain.next_seq == 0:
            text = with_opening(text, self._opening_digest)  # so the chain covers it
        fd = segment.fd if segment.fd >= 0 else self._folder.kept_file(segment.name)
        return Appended(new_records, self._chain.append(segment, fd, text), self._chain.head)

    def _take_in(self) -> tuple[Record, ...]:
        """Return the records of other processes, and cut off a torn end.

        The caller holds the lock, so nobody is writing.
        """
        with self._chain.reading() as folder:
            new_records = tuple(self._chain.take(folder, self._chain.grown_sizes(folder)))
            if unread := self._chain.grown_sizes(folder):
                if self._chain.holds_a_line(folder, unread):
                    raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
                healed = self._chain.heal(folder, unread, durable=self._setting.durable)
                self.healed += healed
                self._put_header(folder, self._header_now(folder).with_healed(healed))
        return new_records

    def put_catalog(self, revision: str, text: str, *, wait_s: float = WAIT_S) -> None:
        """Store the text of a catalog revision with the run, and name it in `run.json`, unless it
        is stored already.
        """
        if revision in self._catalogs:
            return
        until_s = time.monotonic() + wait_s
        PRESENCES.take(self)
        try:
            if not self._writing:
                self.begin_writing(until_s)
            self._name_catalog(revision, text, until_s)
        finally:
            if self._writing and not self._has_end:
                PRESENCES.put(self)
        self._catalogs.add(revision)

    def _name_catalog(self, revision: str, text: str, until_s: float) -> None:
        with self._folder.locked(until_s) as folder:
            header = self._header_now(folder)
            if revision not in {entry.revision for entry in header.catalogs}:
                header = header.with_catalogs([revision])
                name = header.catalogs[-1].file
                with translate_errors("write", f"{self._path}/{name}"):
                    self._setting.catalogs.put(folder, name, text)
                self._put_header(folder, header)

    # --- the lock ---------------------------------------------------------------------------------

    def begin_writing(self, until_s: float | None = None) -> None:
        """Hold a shared lock on the run's first file until `close`, which shows that this process
        writes the run; or until many other runs were written to since (`run_files.Presences`).
        """
        until_s = time.monotonic() + WAIT_S if until_s is None else until_s
        SPARE.keep()
        segment = self._segments["routing"]
        with self._folder.opened() as folder, translate_errors("open the files of", self.path):
            self._folder.open_lock(folder)
            flags = os.O_RDWR | os.O_APPEND
            fd = open_to_write(self._storage, folder, PRESENCE, flags)
            try:
                if not try_lock(self._storage, fd, fcntl.LOCK_SH, until_s):
                    raise self._folder.busy_error(fd, "is ending or deleting it")
                status = self._storage.fstat(fd)
                status_by_name = self._storage.stat(PRESENCE, dir_fd=folder, follow_symlinks=False)
                was_replaced = segment.identity not in (None, identity(status))
                if (
                    was_replaced
                    or identity(status_by_name) != identity(status)
                    or not self._folder.is_same_folder()
                ):
                    raise self._folder.refuse_gone(PRESENCE)
                if (
                    self._setting.durable
                ):  # the kernel reports a failed write-back only to descriptors open meanwhile
                    calls = self._segments["calls"]
                    calls.fd = open_to_write(self._storage, folder, calls.name, flags)
            except BaseException:  # an interrupted caller must release its lock too
                self._folder.let_go()
                self._storage.close(fd)
                raise
        segment.fd, segment.identity = fd, identity(status)
        self._writing = self._has_written = True
        self._opening_digest = self.header.opening_digest
        self._uncommitted = self._setting.durable and not self.header.closed
        if not self._uncommitted:
            self._commits.reached = self.next_seq

    def give_up_presence(self) -> bool:
        """Close the files until the run is written to again, or closed. Return False where records
        are not on disk yet: the kernel tells only who has a file open that it could not write it.

        For `run_files.Presences`, while the log is in no use.
        """
        if self._setting.durable and not self._commits.is_done():
            return False
        self._writing = False
        self._close_files()
        return True

    def _close_files(self) -> None:
        self._folder.let_go()
        for segment in self._segments.values():
            if segment.fd >= 0:
                with contextlib.suppress(OSError):
                    self._storage.close(segment.fd)
                segment.fd = -1

    # --- run.json ---------------------------------------------------------------------------------

    def _header_now(self, folder: int) -> RunHeader:
        """Return the content of `run.json` now; the known one if power loss took it.

        The caller holds the lock.
        """
        header = read_header(self._storage, folder, self._path)
        if header is not None:
            return header
        return self.header.restore(time_text(self._setting.clock.time_ns()))

    def _put_header(self, folder: int, header: RunHeader) -> None:
        write_header(self._storage, folder, self._path, header, durable=self._setting.durable)
        self.header = header

    # --- the end ----------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when everything appended before this call survives power loss; at once with
        durability `process`.

        Callers that arrive while an `fdatasync` runs share the next one. After a failed one this
        log acknowledges and appends nothing more: the kernel may have dropped the pages and would
        report success the second time. Opening the run again finds which records are there, and
        writes them again (rule 4 of `run_files`).
        """
        if self._setting.durable and self._writing:
            self._commits.up_to(self.next_seq)

    def close(self) -> tuple[Writer, ...]:
        """Close the run.

        Write its end (`closed`, `head`, `count`) if it was written to here and no other process has
        it open; else return those writers. Idempotent. Releases everything even if it raises
        StorageError or RunBusy; the run then counts as not cleanly ended.
        """
        if self._has_end:
            return ()
        PRESENCES.take(self)
        try:
            if self._has_written and self._folder.refusal is None:
                return self._leave_run()
            return ()
        except StorageError as error:
            if error.kind != "deleted":  # the end of a deleted run can't be written
                raise
            return ()
        finally:
            self.release()

    def _leave_run(self) -> tuple[Writer, ...]:
        if not self._writing:
            self._begin_again()
        self.sync()
        fd = self._segments["routing"].fd
        with translate_errors("look at", self.path):
            if not self._storage.fstat(fd).st_nlink:
                return ()
            if not try_lock(self._storage, fd, fcntl.LOCK_EX, time.monotonic() + ALONE_S):
                return self._other_writers(fd)
        try:
            self._write_end()
        except StorageError as error:
            if error.kind != "out_of_files":
                raise
            with SPARE.lend():
                self._write_end()
        return ()

    def _other_writers(self, fd: int) -> tuple[Writer, ...]:
        """Return who else has the run open. The kernel names this process for our own lock too."""
        own = os.getpid()
        pids = set(holders(fd)) - {own}
        for log in list(_OPEN):
            if log is not self and log.path == self.path:
                pids.add(own)

        if not pids:
            return (Writer(0, name_processes(())),)
        return tuple(Writer(pid, name_processes((pid,))) for pid in sorted(pids))

    def _begin_again(self) -> None:
        """Take up the presence that was given up, also where no other descriptor is left."""
        try:
            self.begin_writing()
        except StorageError as error:
            if error.kind != "out_of_files":
                raise
            release_kept()
            with SPARE.lend():
                self.begin_writing()

    def _write_end(self) -> None:
        with self._folder.locked(time.monotonic() + WAIT_S) as folder:
            self._take_in()
            self.sync()
            end = Head(self.next_seq, self._chain.head)
            self._put_header(
                folder, self._header_now(folder).end(time_text(self._setting.clock.time_ns()), end)
            )
            self._folder.mark(CLOSED)

    def release(self) -> None:
        """Close the descriptors, which releases the locks, without writing. Idempotent."""
        if self._has_end:
            return
        self._has_end = True
        PRESENCES.take(self)
        self._folder.refuse(
            StorageError(
                f"run {self._path.name!r} is closed", kind="io_error", advice="open it again"
            )
        )
        self._close_files()


_OPEN: weakref.WeakSet[DiskRunLog] = weakref.WeakSet()
"""The logs of this process. Of no router: a handler of forks can't be unregistered, so that there
is one for all, which holds none.
"""


def _abandon_in_child() -> None:
    """Release the logs in a forked child, which must neither write under the parent's locks nor
    keep them.
    """
    PRESENCES.forget()
    for log in list(_OPEN):
        log.release()


os.register_at_fork(after_in_child=_abandon_in_child)
