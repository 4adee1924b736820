"""One run, as one process reads and appends it. See `bundle_router.adapters.run_log` for the rules it keeps."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.file_owners import holders
from bundle_router.adapters.run_log.directory import (
    CLOSED,
    PRESENCE,
    RunFolder,
    identity,
    let_go_of_all,
    named,
    read_header,
    replace_text,
    try_lock,
    write_header,
)
from bundle_router.adapters.run_log.segment import GroupCommit, RunChain, Segment
from bundle_router.adapters.run_log.storage import SPARE, Storage, from_os, translated
from bundle_router.core.catalog import Durability
from bundle_router.core.records.chain import (
    FILES,
    Appended,
    File,
    Healed,
    Record,
    Writer,
    encode_clean,
    opening_digest,
    with_opening,
)
from bundle_router.errors import CorruptRun, StorageError
from bundle_router.ports import ArtifactStore, Clock, Redactor

WAIT_S: Final = 5.0
"""How long an append waits for the run's lock, which others hold for microseconds."""
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
        nonce = header.get("nonce")
        self.id_prefix = f"{path.name}.{nonce[:ID_DIGITS]}" if isinstance(nonce, str) else path.name
        """What the ids of decisions and calls begin with: unique over machines, for runs that have a nonce."""
        self._header = header
        self._folder = RunFolder(setting.storage, self.path, folder)
        self._segments = {file: Segment(name) for file, name in FILES.items()}
        self._chain = RunChain(setting.storage, self._folder, tuple(self._segments.values()))
        self._read_once = False
        self._writing = False
        self._uncommitted = False
        self._has_end = False
        self._artifacts: ArtifactStore | None = None
        self._commits = GroupCommit(setting.storage, self._folder, self._chain)
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
        """Return the artifact store of this run."""
        if self._artifacts is None:
            self._artifacts = self._setting.artifacts(str(self._path))
        return self._artifacts

    # --- reading ----------------------------------------------------------------------------------------------------

    def news(self) -> Iterator[Record]:
        """Yield the records that came since the last look, in order; all of them the first time. Takes no lock.

        Raises CorruptRun, StorageError."""
        self._folder.check_usable()
        if self._read_once and not self._chain.has_grown():
            return
        with translated("read", self.path), self._folder.opened() as folder:
            stalls = 0
            while True:
                before = self.next_seq
                with self._chain.explained(folder):
                    yield from self._chain.take(folder, self._chain.grown(folder))
                    left = self._chain.grown(folder)
                if self.next_seq > before and self._read_once:
                    break  # what comes meanwhile is for the next look
                if not self._chain.holds_a_line(folder, left):
                    break
                stalls = stalls + 1 if self.next_seq == before else 0
                if stalls == 3:  # a record is there without the one before it, also when we look once more
                    raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
            if not self._read_once:
                self._check_end(folder)
                self._read_once = True

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
        """Return one record that was read before, read again. Raises KeyError."""
        with translated("read", self.path), self._folder.opened() as folder, self._chain.explained(folder):
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
        self._folder.check_usable()
        text = encode_clean(record, self._setting.redactor)
        until_s = time.monotonic() + wait_s
        try:
            try:
                return self._append(file, text, only_at, until_s)
            except OSError as error:  # what `translated` does, at less than its price: every decision passes here
                raise from_os("write to", self.path, error) from error
        except StorageError as error:
            if error.kind != "out_of_files" or not self._writing:
                raise
        let_go_of_all()
        with SPARE.lent(), translated("write to", self.path):  # who took the last descriptor still gets its end
            return self._append(file, text, only_at, until_s)

    def _append(self, file: File, text: str, only_at: int | None, until_s: float) -> Appended:
        if not self._writing:
            self.begin_writing(until_s)
        was_closed = self._folder.lock(until_s)
        try:
            appended = self._append_locked(file, text, only_at, was_closed=was_closed)
        except BaseException:
            self._folder.let_go()
            raise
        self._folder.unlock()
        return appended

    def _append_locked(self, file: File, text: str, only_at: int | None, *, was_closed: bool) -> Appended:
        news: tuple[Record, ...] = ()
        if not self._read_once or self._chain.has_grown():
            with self._folder.opened() as folder:
                news = self._take_in(folder)
        if only_at is not None and (news or only_at != self.next_seq):
            return Appended(news, None)
        if was_closed or self._uncommitted:
            with self._folder.opened() as folder:
                self._prepare(folder, was_closed=was_closed)
        segment = self._segments[file]
        if self._setting.durable:
            self._commits.settle_others(segment)
        if self.next_seq == 0:
            text = with_opening(text, opening_digest(self._header))  # so the chain covers it
        fd = segment.fd if segment.fd >= 0 else self._folder.kept_file(segment.name)
        return Appended(news, self._chain.append(segment, fd, text), self.head)

    def _prepare(self, folder: int, *, was_closed: bool) -> None:
        """What comes before the first record after an end, or after records that power loss could have taken."""
        if was_closed:
            self._reopen(folder)
        if self._uncommitted:
            with translated("read", self.path):
                self._chain.write_again(folder)
            self._uncommitted, self._commits.reached = False, self.next_seq

    def _take_in(self, folder: int) -> tuple[Record, ...]:
        """Return what others wrote; a torn end behind it is cut off. The caller holds the lock, so nobody is
        writing."""
        try:
            if not self._chain.grown(folder):
                return ()
        except OSError:
            pass  # looked at once more below, where it is explained
        with self._chain.explained(folder):
            sizes = self._chain.grown(folder)
            news = tuple(self._chain.take(folder, sizes))
            left = self._chain.grown(folder)
        if left:
            with translated("read", self.path):
                if self._chain.holds_a_line(folder, left):
                    raise self._chain.corrupt(folder, f"record {self.next_seq} is missing")
                healed = self._chain.heal(folder, durable=self._setting.durable)
            self.healed += healed
            header = self._header_now(folder)
            rows = [{"file": one.file, "saved": one.saved, "bytes": one.bytes} for one in healed]
            self._put_header(folder, {**header, "healed": [*header.get("healed", []), *rows]})
        return news

    def put_catalog(self, revision: str, text: str) -> None:
        """Keep the text of a catalog revision with the run, and name it in `run.json`; nothing where it is known."""
        if _has_catalog(self._header, revision):
            return
        until_s = time.monotonic() + WAIT_S
        if not self._writing:
            self.begin_writing(until_s)
        with self._folder.locked(until_s) as folder:
            self._header = header = self._header_now(folder)
            if _has_catalog(header, revision):
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
        with self._folder.opened() as folder, translated("open the files of", self.path):
            self._folder.open_lock(folder)
            flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = self._storage.open(PRESENCE, flags, dir_fd=folder)
            try:
                if not try_lock(self._storage, fd, fcntl.LOCK_SH, until_s):
                    raise self._folder.busy(fd, "is ending or deleting it")
                found = self._storage.fstat(fd)
                there = self._storage.stat(PRESENCE, dir_fd=folder, follow_symlinks=False)
                moved = segment.identity not in (None, identity(found))
                if moved or identity(there) != identity(found) or not self._folder.is_there():
                    raise self._folder.gone(PRESENCE)
                if self._setting.durable:  # only a descriptor that was open all along is told of a failed write-back
                    calls = self._segments["calls"]
                    calls.fd = self._storage.open(calls.name, flags, dir_fd=folder)
            except BaseException:  # who is interrupted keeps no lock, too
                self._folder.let_go()
                self._storage.close(fd)
                raise
        segment.fd, segment.identity = fd, identity(found)
        self._writing = True
        self._uncommitted = self._setting.durable and "closed" not in self._header
        if not self._uncommitted:
            self._commits.reached = self.next_seq

    # --- run.json ---------------------------------------------------------------------------------------------------

    def _header_now(self, folder: int) -> dict[str, Any]:
        """Return what `run.json` says now; what is known of it, where power loss took it. The caller holds the lock."""
        found = read_header(self._storage, folder, self._path)
        return found if found is not None else {**self._header, "restored": self._setting.clock.now()}

    def _put_header(self, folder: int, header: dict[str, Any]) -> None:
        write_header(self._storage, folder, self._path, header, durable=self._setting.durable)
        self._header = header

    def _reopen(self, folder: int) -> None:
        """Take back the end of the run that `run.json` states, as records follow."""
        header = self._header_now(folder)
        self._put_header(folder, {k: v for k, v in header.items() if k not in ("closed", "head", "count")})
        self._folder.mark(b"")

    # --- the end ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Return when everything appended before this call survives power loss; at once with durability `process`.

        Callers that come while an `fdatasync` runs share the next one. After a failed one nothing is acknowledged
        or appended by this log any more: the kernel may have dropped the pages and would report success the second
        time. Opening the run again finds which records are there, and writes them once more (see `segment`, rule 4).
        """
        if self._setting.durable and self._writing:
            self._commits.up_to(self.next_seq)

    def close(self) -> tuple[Writer, ...]:
        """Let go of the run; write its end (`closed`, `head`, `count`) if it was written to here and nobody else has it
        open, else give those others. Idempotent. Lets go even when it raises StorageError or RunBusy; the run then
        counts as one that did not end cleanly.
        """
        if self._has_end:
            return ()
        try:
            with translated("end", self.path):
                return self._leave() if self._writing and self._folder.is_usable else ()
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
        with self._folder.locked(time.monotonic() + WAIT_S) as folder:
            self._take_in(folder)
            if self._setting.durable:
                self.sync()
            end = {"closed": self._setting.clock.now(), "head": self.head, "count": self.next_seq}
            self._put_header(folder, {**self._header_now(folder), **end})
            self._folder.mark(CLOSED)

    def release(self) -> None:
        """Let go of the descriptors, and so of the locks, without writing anything. Idempotent."""
        if self._has_end:
            return
        self._has_end = True
        self._folder.refuse(StorageError(f"run {self._path.name!r} is closed", kind="io_error", advice="open it again"))
        _OPEN.discard(self)
        self._folder.let_go()
        for segment in self._segments.values():
            if segment.fd >= 0:
                with contextlib.suppress(OSError):
                    self._storage.close(segment.fd)
                segment.fd = -1

    def __repr__(self) -> str:
        return f"DiskRunLog({self.path!r}, next_seq={self.next_seq})"


def _has_catalog(header: Mapping[str, Any], revision: str) -> bool:
    return any(entry.get("revision") == revision for entry in header["catalogs"])


_OPEN: weakref.WeakSet[DiskRunLog] = weakref.WeakSet()


def _abandon_in_child() -> None:
    """A forked child shares the parent's locks: it must not write, nor keep the lock of a dead parent."""
    for log in list(_OPEN):
        log.release()


os.register_at_fork(after_in_child=_abandon_in_child)

__all__ = ["DiskRunLog", "RunLogSetting"]
