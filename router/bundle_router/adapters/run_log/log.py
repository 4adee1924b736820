"""One run, as one process reads and appends it. See `bundle_router.adapters.run_log` for the rules it keeps."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.file_owners import holders
from bundle_router.adapters.run_log.directory import (
    CLOSED,
    LOCK,
    PRESENCE,
    identity,
    named,
    open_file,
    open_run,
    read_text,
    replace_text,
    try_lock,
    write_all,
)
from bundle_router.adapters.run_log.segment import ChainReader, Replaced, Segment
from bundle_router.adapters.run_log.storage import SPARE, Storage, failed, from_os, translated
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import FILES, BadLine, File, encode_clean, seal_text, with_opening
from bundle_router.core.records.header import SCHEMA, is_edited, opening_digest, sealed
from bundle_router.errors import CorruptRun, RunBusy, StorageError
from bundle_router.ports import Appended, ArtifactStore, Clock, Healed, Record, Redactor, Writer

HEADER_FILE: Final = "run.json"
WAIT_S: Final = 5.0
"""How long an append waits for the run's lock, which others hold for microseconds."""
_LOCKING: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
ALONE_S: Final = 0.01
"""How long who closes a run looks whether others have it open: a reader that asks the same holds it for an instant."""
ID_DIGITS: Final = 8
"""Digits of a run's `nonce` that stand in the ids of its decisions and calls."""


@dataclass(frozen=True, slots=True)
class RunLogSetting:
    """What all logs of one store share. `artifacts` makes the artifact store of a run from its path."""

    storage: Storage
    clock: Clock
    durability: Durability
    artifacts: Callable[[str], ArtifactStore]
    redactor: Redactor | None

    @property
    def durable(self) -> bool:
        return self.durability == "disk"


class DiskRunLog:
    """Reads and appends the records of one run, in its two files, under one sequence and one chain.

    For one thread at a time: the caller holds its own lock of the run. `sync` is for any number of threads, and is best
    called without that lock, so that they share one `fdatasync`.
    """

    def __init__(self, setting: RunLogSetting, path: Path, header: dict[str, Any], folder: tuple[int, int]) -> None:
        self._setting = setting
        self._storage = setting.storage
        self._path = path
        self.path = str(path)
        self._lock_path = f"{self.path}/{LOCK}"
        self._lock: tuple[int, int] | None = None
        nonce = header.get("nonce")
        self.id_prefix = f"{path.name}.{nonce[:ID_DIGITS]}" if isinstance(nonce, str) else path.name
        """What the ids of decisions and calls begin with: unique over machines, for runs that have a nonce."""
        self._header = header
        self._folder = folder
        self._segments = {file: Segment(name) for file, name in FILES.items()}
        self._chain = ChainReader(setting.storage, path.name, tuple(self._segments.values()))
        self._read_once = False
        self._writing = False
        self._uncommitted = False
        self._has_end = False
        self._refusal: tuple[str, str, str] | None = None
        self._artifacts: ArtifactStore | None = None
        self._committed = 0
        self._commit = threading.Condition(threading.Lock())
        self._committing = False
        self.healed: tuple[Healed, ...] = ()
        """Torn ends that this log cut off."""
        _OPEN.add(self)

    # --- what the caller may know -----------------------------------------------------------------------------------

    @property
    def header(self) -> Record:
        """What `run.json` said of the run when it was opened here."""
        return self._header

    @property
    def next_seq(self) -> int:
        """The number of records that were read or written here: the `seq` of the next, if no news come first."""
        return self._chain.next_seq

    @property
    def head(self) -> str:
        """The hash of the last record that was read or written here; of the run's genesis when there is none."""
        return self._chain.head

    def artifacts(self) -> ArtifactStore:
        """The artifact store of this run."""
        if self._artifacts is None:
            self._artifacts = self._setting.artifacts(str(self._path))
        return self._artifacts

    # --- reading ----------------------------------------------------------------------------------------------------

    def news(self) -> Iterator[Record]:
        """Yield the records that came since the last look, in order; all of them the first time. Takes no lock.

        Raises CorruptRun, StorageError."""
        self._refuse_ended()
        if self._read_once and not self._has_grown():
            return
        with translated("read", self.path), self._opened_folder() as folder:
            stalls = 0
            while True:
                before = self.next_seq
                with self._explained(folder):
                    yield from self._chain.take(folder, self._chain.grown(folder))
                    left = self._chain.grown(folder)
                if self.next_seq > before and self._read_once:
                    break  # what comes meanwhile is for the next look
                if not any(self._holds_a_line(folder, name, size) for name, size in left.items()):
                    break
                stalls = stalls + 1 if self.next_seq == before else 0
                if stalls == 3:  # a record is there without the one before it, also when we look once more
                    raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
            if not self._read_once:
                self._check_end(folder)
                self._read_once = True

    def _has_grown(self) -> bool:
        """Whether there is more than was read. Two looks at file sizes, by the run's path: one that was moved away or
        deleted is noticed."""
        for segment in self._segments.values():
            try:
                found = self._storage.stat(f"{self.path}/{segment.name}", follow_symlinks=False)
            except FileNotFoundError:
                if segment.identity is None:
                    continue
                raise self._refuse_from_now_on(self._gone(segment.name)) from None
            except OSError as error:
                raise from_os("look at", f"{self._path}/{segment.name}", error) from error
            if found.st_size != segment.size or identity(found) != segment.identity:
                return True
        return False

    def _holds_a_line(self, folder: int, name: str, size: int) -> bool:
        """Whether a file holds a whole line that was not taken in."""
        segment = next(one for one in self._segments.values() if one.name == name)
        fd = self._storage.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
        try:
            return b"\n" in self._storage.pread(fd, size - segment.size, segment.size)
        finally:
            self._storage.close(fd)

    def _check_end(self, folder: int) -> None:
        """Raise CorruptRun where the run does not end as it did when it was closed."""
        for _ in range(2):
            header = read_header(self._storage, folder, self._path) or {}
            if "closed" not in header or (header.get("count"), header.get("head")) == (self.next_seq, self.head):
                return
            if header == self._header:
                break
            self._header = header  # it was closed, or opened again, while we read
        advice = "look at it with `bundle-router runs verify`, and use a new run id"
        raise CorruptRun(f"{self._path} does not end as it did when it was closed", advice=advice)

    def record(self, seq: int) -> Record:
        """One record that was read before, read again. Raises KeyError."""
        with translated("read", self.path), self._opened_folder() as folder, self._explained(folder):
            found = self._chain.record(folder, seq)
        if found is None:
            raise KeyError(seq)
        return found

    # --- appending --------------------------------------------------------------------------------------------------

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = WAIT_S
    ) -> Appended:
        """Write one record with `seq`, `prev` and `hash` added, behind everything that is there; give what came before.

        `only_at`: nothing is written unless the run holds exactly that many records, all of which were read here.
        Raises RunBusy (nothing was written), StorageError (nothing was written: the file was cut back to the last
        record, and a later append may succeed, except where the error says otherwise), CorruptRun; ValueError or
        TypeError for what can't be a record.
        """
        self._refuse_ended()
        text = encode_clean(record, self._setting.redactor)
        until_s = time.monotonic() + wait_s
        try:
            with translated("write to", self.path):
                return self._append(file, text, only_at, until_s)
        except StorageError as error:
            if error.kind != "out_of_files" or not self._writing:
                raise
        with SPARE.lent(), translated("write to", self.path):  # who took the last descriptor still gets its end
            return self._append(file, text, only_at, until_s)

    def _append(self, file: File, text: str, only_at: int | None, until_s: float) -> Appended:
        if not self._writing:
            self.begin_writing(until_s)
        try:  # what `_locked` does, at a part of the price: every decision and call passes here
            lock = self._storage.open(self._lock_path, _LOCKING)
        except FileNotFoundError:
            raise self._refuse_from_now_on(self._gone("")) from None
        try:
            if not try_lock(self._storage, lock, fcntl.LOCK_EX, until_s):
                raise self._busy(lock, "holds its lock")
            found = self._storage.fstat(lock)
            if identity(found) != self._lock:  # the run that was opened has this file, and no other
                raise self._refuse_from_now_on(self._gone(""))
            return self._append_locked(file, text, only_at, was_closed=found.st_size > 0)
        finally:
            with contextlib.suppress(OSError):
                self._storage.close(lock)

    def _append_locked(self, file: File, text: str, only_at: int | None, *, was_closed: bool) -> Appended:
        news: tuple[Record, ...] = ()
        if not self._read_once or self._has_grown():
            with self._opened_folder() as folder:
                news = self._take_in(folder)
        if only_at is not None and (news or only_at != self.next_seq):
            return Appended(news, None)
        if was_closed or self._uncommitted:
            with self._opened_folder() as folder:
                self._prepare(folder, was_closed=was_closed)
        segment = self._segments[file]
        if self._setting.durable:
            self._settle_other_files(segment)
        if self.next_seq == 0:
            text = with_opening(text, opening_digest(self._header))  # so the chain covers it
        line, hash_ = seal_text(text, self.next_seq, self.head)
        self._write(segment, line)
        seq = self.next_seq
        segment.grow(seq, len(line))
        self._chain.next_seq = seq + 1
        self._chain.head = hash_
        return Appended(news, seq, hash_)

    def _prepare(self, folder: int, *, was_closed: bool) -> None:
        """What comes before the first record after an end, or after records that power loss could have taken."""
        if was_closed:
            self._reopen(folder)
        if self._uncommitted:
            with translated("read", self.path):
                self._chain.write_again(folder)
            self._uncommitted, self._committed = False, self.next_seq

    def _take_in(self, folder: int) -> tuple[Record, ...]:
        """What others wrote; a torn end behind it is cut off. The caller holds the lock, so nobody is writing."""
        try:
            if not self._chain.grown(folder):
                return ()
        except OSError:
            pass  # looked at once more below, where it is explained
        with self._explained(folder):
            sizes = self._chain.grown(folder)
            news = tuple(self._chain.take(folder, sizes))
            left = self._chain.grown(folder)
        if left:
            with translated("read", self.path):
                if any(self._holds_a_line(folder, name, size) for name, size in left.items()):
                    raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
                healed = self._chain.heal(folder, durable=self._setting.durable)
            self.healed += healed
            header = self._header_now(folder)
            rows = [{"file": one.file, "saved": one.saved, "bytes": one.bytes} for one in healed]
            self._put_header(folder, {**header, "healed": [*header.get("healed", []), *rows]})
        return news

    def _write(self, segment: Segment, line: bytes) -> None:
        where = f"{self.path}/{segment.name}"
        fd = segment.fd
        if fd < 0:
            with self._opened_folder() as folder, translated("open", where):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                fd = self._storage.open(segment.name, flags, dir_fd=folder)
        try:
            written = self._storage.write(fd, line)
            if written != len(line):
                why = f"{max(written, 0)} of {len(line)} bytes were written"
                raise self._undo(segment, fd, failed("write a record to", where, "short_write", why))
        except OSError as error:
            raise self._undo(segment, fd, from_os("write a record to", where, error)) from error
        finally:
            if fd != segment.fd:
                with contextlib.suppress(OSError):
                    self._storage.close(fd)

    def _undo(self, segment: Segment, fd: int, error: StorageError) -> StorageError:
        """Cut the file back to its last record. Where even that fails, nothing more is appended by this log."""
        try:
            self._storage.ftruncate(fd, segment.size)
        except OSError as second:
            error.message += f"; and it could not be cut back to the last record ({second.strerror})"
            advice = "close the run and open it again: it goes on from what is on disk then, maybe with this record"
            return self._refuse_from_now_on(StorageError(error.message, kind=error.kind, advice=advice))
        return error

    def put_catalog(self, revision: str, text: str) -> None:
        """Keep the text of a catalog revision with the run, and name it in `run.json`; nothing where it is known."""
        if _knows(self._header, revision):
            return
        until_s = time.monotonic() + WAIT_S
        if not self._writing:
            self.begin_writing(until_s)
        with self._locked(until_s) as (folder, _):
            self._header = header = self._header_now(folder)
            if _knows(header, revision):
                return
            name = "catalog.json" if not header["catalogs"] else f"catalog-{revision.rpartition(':')[2][:16]}.json"
            with translated("write", f"{self._path}/{name}"):
                replace_text(self._storage, folder, name, text, durable=self._setting.durable)
            self._put_header(
                folder, {**header, "catalogs": [*header["catalogs"], {"revision": revision, "file": name}]}
            )

    # --- the lock ---------------------------------------------------------------------------------------------------

    def begin_writing(self, until_s: float | None = None) -> None:
        """Show that this process writes the run, by a shared lock on its first file, until it closes it."""
        until_s = time.monotonic() + WAIT_S if until_s is None else until_s
        SPARE.keep()
        segment = self._segments["routing"]
        with self._opened_folder() as folder, translated("open the files of", self.path):
            lock = open_file(self._storage, folder, LOCK, os.O_RDWR)  # runs of earlier versions have none yet
            try:
                self._lock = identity(self._storage.fstat(lock))
            finally:
                self._storage.close(lock)
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = self._storage.open(PRESENCE, flags, dir_fd=folder)
            try:
                if not try_lock(self._storage, fd, fcntl.LOCK_SH, until_s):
                    raise self._busy(fd, "is ending or deleting it")
                found = self._storage.fstat(fd)
                there = self._storage.stat(PRESENCE, dir_fd=folder, follow_symlinks=False)
                moved = segment.identity not in (None, identity(found))
                if moved or identity(there) != identity(found) or not self._is_there():
                    raise self._refuse_from_now_on(self._gone(PRESENCE))
                if self._setting.durable:  # only a descriptor that was open all along is told of a failed write-back
                    calls = self._segments["calls"]
                    calls.fd = self._storage.open(calls.name, flags, dir_fd=folder)
            except BaseException:  # who is interrupted keeps no lock, too
                self._storage.close(fd)
                raise
        segment.fd, segment.identity = fd, identity(found)
        self._writing = True
        self._uncommitted = self._setting.durable and "closed" not in self._header
        if not self._uncommitted:
            self._committed = self.next_seq

    def _is_there(self) -> bool:
        """Whether the run's path still leads to the folder that this log was opened on."""
        try:
            return identity(self._storage.stat(self.path, follow_symlinks=False)) == self._folder
        except FileNotFoundError:
            return False

    @contextmanager
    def _locked(self, until_s: float) -> Iterator[tuple[int, bool]]:
        """Hold the run's lock for the block; gives the run directory's descriptor, and whether the run was closed."""
        with self._opened_folder() as folder:
            with translated("lock", self.path):
                fd = open_file(self._storage, folder, LOCK, os.O_RDWR)
            try:
                with translated("lock", self.path):
                    if not try_lock(self._storage, fd, fcntl.LOCK_EX, until_s):
                        raise self._busy(fd, "holds its lock")
                    was_closed = self._storage.fstat(fd).st_size > 0
                yield folder, was_closed
            finally:
                with contextlib.suppress(OSError):
                    self._storage.close(fd)

    def _busy(self, fd: int, doing: str) -> RunBusy:
        pids = holders(fd)
        return RunBusy(
            f"run {self._path.name!r}: {named(pids)} {doing}, and did not let go of it in time",
            pid=pids[0] if pids else 0,
            advice="if that process is stopped let it go on, or end it: nothing of the run is lost by either",
        )

    @contextmanager
    def _opened_folder(self) -> Iterator[int]:
        """A descriptor of the run directory, which has to be the one that this log was opened on."""
        try:
            fd = open_run(self._storage, self.path)
        except FileNotFoundError:
            raise self._refuse_from_now_on(self._gone("")) from None
        except OSError as error:
            raise from_os("open the run directory", self.path, error) from error
        try:
            if identity(self._storage.fstat(fd)) != self._folder:
                raise self._refuse_from_now_on(self._gone(""))
            yield fd
        finally:
            with contextlib.suppress(OSError):
                self._storage.close(fd)

    @contextmanager
    def _explained(self, folder: int) -> Iterator[None]:
        try:
            with translated("read", self.path):
                yield
        except BadLine as error:
            raise self._chain.corrupt(folder, str(error)) from error
        except StorageError as error:
            if isinstance(error.__cause__, Replaced):
                advice = "find out which; `bundle-router runs verify` tells what is damaged. Use a new run id"
                message = f"can't read {self._path}: {error.__cause__.strerror}"
                raise self._refuse_from_now_on(StorageError(message, kind="io_error", advice=advice)) from error
            if error.kind == "deleted":  # a file of a run that was made with all of them
                raise self._refuse_from_now_on(error) from None
            raise

    def _gone(self, name: str) -> StorageError:
        where = f"{self._path}/{name}".rstrip("/")
        return failed("use", where, "deleted", "it was deleted, moved or replaced while the run was open")

    def _refuse_from_now_on(self, error: StorageError) -> StorageError:
        self._refusal = (error.message, error.kind, error.advice)
        return error

    def _refuse_ended(self) -> None:
        if self._refusal is not None:
            message, kind, advice = self._refusal
            raise StorageError(message, kind=kind, advice=advice)

    # --- run.json ---------------------------------------------------------------------------------------------------

    def _header_now(self, folder: int) -> dict[str, Any]:
        """What `run.json` says now; what is known of it, where power loss took it. The caller holds the lock."""
        found = read_header(self._storage, folder, self._path)
        return found if found is not None else {**self._header, "restored": self._setting.clock.now()}

    def _put_header(self, folder: int, header: dict[str, Any]) -> None:
        text = json.dumps(sealed(header), indent=2) + "\n"  # indented: people read it
        with translated("write", f"{self._path}/{HEADER_FILE}"):
            replace_text(self._storage, folder, HEADER_FILE, text, durable=self._setting.durable)
        self._header = header

    def _reopen(self, folder: int) -> None:
        """Take back the end of the run that `run.json` states, as records follow."""
        header = self._header_now(folder)
        self._put_header(folder, {k: v for k, v in header.items() if k not in ("closed", "head", "count")})
        self._mark(folder, b"")

    def _mark(self, folder: int, text: bytes) -> None:
        """Say in the lock file whether the run is closed, for whoever holds it open meanwhile."""
        with translated("write", f"{self._path}/{LOCK}"):
            fd = self._storage.open(LOCK, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
            try:
                write_all(self._storage, fd, text)
            finally:
                self._storage.close(fd)

    # --- power loss -------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when everything appended before this call survives power loss; at once with durability `process`.

        Callers that come while an `fdatasync` runs share the next one. After a failed one nothing is acknowledged
        or appended by this log any more: the kernel may have dropped the pages and would report success the second
        time. Opening the run again finds which records are there, and writes them once more (see `segment`, rule 4).
        """
        if self._setting.durable and self._writing:
            self._commit_up_to(self.next_seq)

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
            self._refuse_ended()
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
        reached = self.next_seq  # read before syncing: appends that come meanwhile wait for the next round
        for segment in self._segments.values():
            if segment.end > self._committed:
                try:
                    self._storage.fdatasync(segment.fd)
                except OSError as error:
                    raise self._refuse_from_now_on(self._not_committed(segment, error)) from error
        return reached

    def _not_committed(self, segment: Segment, error: OSError) -> StorageError:
        where = f"{self._path}/{segment.name}"
        trouble = from_os("commit", where, error)
        why = f"the disk did not take it ({error.strerror}), and asking again would not be honest"
        advice = "close the run and open it again: it goes on from what is on disk then, with or without this record"
        more = "check the disk" if trouble.kind == "io_error" else trouble.advice
        return failed("commit", where, trouble.kind, why, advice=f"{advice}. First: {more}")

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> tuple[Writer, ...]:
        """Let go of the run; write its end (`closed`, `head`, `count`) if it was written to here and nobody else has it
        open, else give those others. Idempotent. Lets go even when it raises StorageError or RunBusy; the run then
        counts as one that did not end cleanly.
        """
        if self._has_end:
            return ()
        try:
            with translated("end", self.path):
                return self._leave() if self._writing and self._refusal is None else ()
        except StorageError as error:
            if error.kind != "deleted":  # a run that is gone has no end to be written
                raise
            return ()
        finally:
            self.release()

    def _leave(self) -> tuple[Writer, ...]:
        self.sync()
        fd = self._segments["routing"].fd
        with translated("look at", self.path):
            if not self._storage.fstat(fd).st_nlink:
                return ()
            if not try_lock(self._storage, fd, fcntl.LOCK_EX, time.monotonic() + ALONE_S):
                others = tuple(pid for pid in holders(fd) if pid != os.getpid())
                return tuple(Writer(pid, f"process {pid}") for pid in others) or (Writer(0, named(())),)
        try:
            self._write_end()
        except StorageError as error:
            if error.kind != "out_of_files":
                raise
            with SPARE.lent():
                self._write_end()
        return ()

    def _write_end(self) -> None:
        with self._locked(time.monotonic() + WAIT_S) as (folder, _):
            self._take_in(folder)
            if self._setting.durable:
                self.sync()
            end = {"closed": self._setting.clock.now(), "head": self.head, "count": self.next_seq}
            self._put_header(folder, {**self._header_now(folder), **end})
            self._mark(folder, CLOSED)

    def release(self) -> None:
        """Let go of the descriptors, and so of the locks, without writing anything. Idempotent."""
        if self._has_end:
            return
        self._has_end = True
        self._refuse_from_now_on(
            StorageError(f"run {self._path.name!r} is closed", kind="io_error", advice="open it again")
        )
        _OPEN.discard(self)
        for segment in self._segments.values():
            if segment.fd >= 0:
                with contextlib.suppress(OSError):
                    self._storage.close(segment.fd)
                segment.fd = -1

    def __repr__(self) -> str:
        return f"DiskRunLog({self.path!r}, next_seq={self.next_seq})"


def _knows(header: Mapping[str, Any], revision: str) -> bool:
    return any(entry.get("revision") == revision for entry in header["catalogs"])


def read_header(storage: Storage, dir_fd: int, path: Path) -> dict[str, Any] | None:
    """What `run.json` says; None where there is none yet (or an empty one, which power loss may leave)."""
    where, run_id = path / HEADER_FILE, path.name
    with translated("read", str(where)):
        text = read_text(storage, dir_fd, HEADER_FILE)
    if not text:
        return None
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRun(f"{where} is not JSON", advice="restore it, or use a new run id") from error
    if not isinstance(header, dict) or header.get("schema") != SCHEMA:
        stated = header.get("schema") if isinstance(header, dict) else None
        advice = f"this version writes {SCHEMA}; use a new run id"
        raise CorruptRun(f"{where} has schema {stated!r}", advice=advice)
    if header.get("run_id") != run_id:
        advice = "the directory was renamed or copied: give it its old name, or use a new run id"
        raise CorruptRun(f"{where} belongs to run {header.get('run_id')!r}", advice=advice)
    if is_edited(header):
        advice = "restore it, or use a new run id; `bundle-router runs verify` looks at the records"
        raise CorruptRun(f"{where} was changed after it was written", advice=advice)
    for name in ("catalogs", "healed", "reopened"):
        if not isinstance(header.setdefault(name, []), list):
            raise CorruptRun(f"{where}: {name!r} is not a list", advice="restore it, or use a new run id")
    return header


_OPEN: weakref.WeakSet[DiskRunLog] = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child shares the parent's locks: it must not write, nor keep the lock of a dead parent."""
    for log in list(_OPEN):
        log.release()


os.register_at_fork(after_in_child=_abandon_in_child)

__all__ = ["HEADER_FILE", "DiskRunLog", "RunLogSetting", "read_header"]
