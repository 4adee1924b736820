"""The runs directory: creates a run, continues one, or refuses."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.run_log.directory import (
    LOCKED,
    Vanished,
    open_file,
    open_run,
    open_runs,
    read_text,
    replace_text,
    take_lock,
)
from bundle_router.adapters.run_log.log import HEADER_FILE, DiskRunLog, Held, write_header
from bundle_router.adapters.run_log.segment import Segment
from bundle_router.adapters.run_log.storage import POSIX, SPARE, Storage, failed, from_os, translated
from bundle_router.core.catalog import Durability
from bundle_router.core.models import RUN_ID
from bundle_router.core.records.chain import FILES, BadLine, File, boundary, lines_backward, unseal
from bundle_router.core.records.header import SCHEMA, is_edited
from bundle_router.errors import CorruptRun, RequestError, UnknownRun
from bundle_router.ports import ArtifactStore, Clock, Redactor

_ATTEMPTS: Final = 20


class _Turn:
    """A lock that can be forgotten once no log and no opening holds it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class DiskRunStore:
    """Opens the runs of one directory for writing.

    `durability`: `process` survives kill -9; `disk` also power loss, for records that `sync()` returned for.
    `artifacts` makes the artifact store of a run from its path. `redactor` looks at every record once more before it
    is written. Nothing is created before the first `open`.

    Runs are opened and closed side by side. One run is not: opening it waits until a `close` of it that another thread
    is at has let go, so that a run closed here is never refused as our own.
    """

    def __init__(
        self,
        runs: str | Path,
        *,
        clock: Clock,
        artifacts: Callable[[str], ArtifactStore],
        redactor: Redactor | None = None,
        durability: Durability = "process",
        storage: Storage = POSIX,
    ) -> None:
        self._runs = Path(runs).absolute()
        self._clock = clock
        self._artifacts = artifacts
        self._redactor = redactor
        self._durability = durability
        self._durable = durability == "disk"
        self._storage = storage
        self._turns: weakref.WeakValueDictionary[str, _Turn] = weakref.WeakValueDictionary()
        self._handing_out = threading.Lock()

    def open(self, run_id: str, *, header: Mapping[str, Any], catalog: str) -> DiskRunLog:
        """Creates or continues a run, and locks it for this process until the log is closed.

        `header` goes into `run.json` and names at least `catalog_revision`; `catalog` is the text of that revision.
        A run that is continued keeps its header; under another revision its text is added as `catalog-<digest>.json`.
        Raises RequestError for an id that is none, RunInUse, CorruptRun when the run can't be continued, StorageError.
        """
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(f"{run_id!r} is not a run id", advice=f"it must match {RUN_ID.pattern}")
        path = str(self._runs / run_id)
        SPARE.keep()
        with self._handing_out:
            turn = self._turns.setdefault(run_id, _Turn())
        with turn:
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(Vanished):
                    return self._open(run_id, path, header, catalog, turn)
        raise failed("open the run directory", path, "deleted", f"it was deleted {_ATTEMPTS} times while it was opened")

    def _open(
        self, run_id: str, path: str, header: Mapping[str, Any], catalog: str, turn: AbstractContextManager[object]
    ) -> DiskRunLog:
        storage = self._storage
        with contextlib.ExitStack() as always, contextlib.ExitStack() as undo:
            runs_fd = open_runs(storage, self._runs, durable=self._durable)
            try:
                directory = open_run(storage, runs_fd, run_id, path, durable=self._durable)
                always.callback(self._drop, directory)
                with translated("lock", path):
                    lock = take_lock(storage, runs_fd, directory, run_id, path)
                undo.callback(self._drop, lock)
            finally:
                self._drop(runs_fd)
            kept = self._read_header(directory, run_id, path)
            with translated("open the files of", path):
                held = self._hold(directory, lock, undo)
            begun = kept or {"schema": SCHEMA, "run_id": run_id, **header, "opened": self._clock.now()}
            lists: dict[str, Any] = {"catalogs": [], "healed": [], "reopened": []}
            head = {**begun, "durability": self._durability, **lists, **{k: begun[k] for k in lists if k in begun}}
            log = DiskRunLog(
                storage,
                held,
                head,
                path=path,
                dir_fd=directory,
                turn=turn,
                durability=self._durability,
                clock=self._clock,
                artifacts=self._artifacts,
                redactor=self._redactor,
            )
            undo.pop_all()  # they are the log's now
            try:
                self._write_start(directory, path, log, head, kept, header, catalog)
            except BaseException:
                log.release()
                raise
        return log

    def _hold(self, directory: int, lock: int, undo: contextlib.ExitStack) -> Held:
        """Makes the files that are not there yet. Those that power loss counts for are kept open: only a descriptor
        that was open all along is sure to be told of a failed write-back."""
        segments = []
        for name in FILES.values():
            if name == LOCKED:
                segments.append(Segment(name, lock, _identity(self._storage.fstat(lock))))
                continue
            with contextlib.ExitStack() as opened:
                fd = open_file(self._storage, directory, name, os.O_RDWR | os.O_APPEND)
                opened.callback(self._drop, fd)
                segments.append(Segment(name, fd if self._durable else -1, _identity(self._storage.fstat(fd))))
                if self._durable:
                    undo.enter_context(opened.pop_all())
        if self._durable:
            self._storage.fsync(directory)
        return Held(_identity(self._storage.fstat(directory)), tuple(segments))

    def _drop(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            self._storage.close(fd)

    def _read_header(self, directory: int, run_id: str, path: str) -> dict[str, Any] | None:
        """What `run.json` says; None where there is none yet (or an empty one, which power loss may leave)."""
        where = f"{path}/{HEADER_FILE}"
        with translated("read", where):
            text = read_text(self._storage, directory, HEADER_FILE)
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
            if not isinstance(header.get(name, []), list):
                raise CorruptRun(f"{where}: {name!r} is not a list", advice="restore it, or use a new run id")
        return header

    def _write_start(
        self,
        directory: int,
        path: str,
        log: DiskRunLog,
        head: dict[str, Any],
        kept: dict[str, Any] | None,
        header: Mapping[str, Any],
        catalog: str,
    ) -> None:
        """The catalog, where it is not there yet; then `run.json`. Changes `head`, which the log writes at the end."""
        clean, revision = "closed" in head, header["catalog_revision"]
        if kept is not None and clean and (head.get("count"), head.get("head")) != (log.next_seq, log.head):
            advice = "look at it with `bundle-router runs verify`, and use a new run id"
            raise CorruptRun(f"{path} does not end as it did when it was closed", advice=advice)
        for name in ("closed", "head", "count"):
            head.pop(name, None)
        if kept is None and log.next_seq:  # power loss took it; the first record still has the digest of the lost one
            head["restored"] = self._clock.now()
        if all(entry.get("revision") != revision for entry in head["catalogs"]):
            name = "catalog.json" if not head["catalogs"] else f"catalog-{revision.rpartition(':')[2][:16]}.json"
            with translated("write", f"{path}/{name}"):
                replace_text(self._storage, directory, name, catalog, durable=self._durable)
            head["catalogs"] = [*head["catalogs"], {"revision": revision, "file": name}]
        if kept is not None:
            again = {"time": self._clock.now(), "clean": clean, "seq": log.next_seq, "catalog_revision": revision}
            again |= {"workspace": header["workspace"]} if "workspace" in header else {}  # its folders lie there now
            head["reopened"] = [*head["reopened"], again]
        healed = [{"file": h.file, "saved": h.saved, "bytes": h.bytes} for h in log.healed]
        write_header(self._storage, directory, {**head, "healed": head["healed"] + healed}, path, durable=self._durable)

    def header(self, run_id: str) -> Mapping[str, Any] | None:
        """What `run.json` says of a run, read without locking; None if there is no such run."""
        if not RUN_ID.fullmatch(run_id):
            return None
        path = str(self._runs / run_id)
        try:
            fd = self._storage.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise from_os("read", path, error) from error
        try:
            return self._read_header(fd, run_id, path)
        finally:
            self._drop(fd)

    def last_decision(self, run_id: str) -> Mapping[str, Any] | None:
        """The last decision of a run, read from the end of its file without locking; None if there is no such run."""
        with contextlib.closing(self._backward(run_id, "routing")) as records:
            return next((record for record in records if record.get("type") == "route.decided"), None)

    def calls_since(self, run_id: str, seq: int) -> Sequence[Mapping[str, Any]]:
        """The records of a run's calls after that number, in their order, read from the end of their file."""
        with contextlib.closing(self._backward(run_id, "calls")) as records:
            return list(itertools.takewhile(lambda record: record["seq"] > seq, records))[::-1]

    def read_artifact(self, run_id: str, sha256: str) -> bytes:
        """The bytes of an artifact of any run, open or not, checked against their digest; takes no lock.

        Raises UnknownRun, KeyError (the run has none of that digest), RequestError, CorruptRun, StorageError.
        """
        path = self._runs / run_id
        if not RUN_ID.fullmatch(run_id) or path.is_symlink() or not path.is_dir():
            raise UnknownRun(
                f"there is no run {run_id!r} in {self._runs}", advice="`bundle-router runs list` lists them"
            )
        return self._artifacts(str(path)).get(sha256)

    def _backward(self, run_id: str, file: File) -> Generator[dict[str, Any]]:
        """The records of one file of a run, last first; none where there is no such file. Takes no lock."""
        if not RUN_ID.fullmatch(run_id):
            return
        path = self._runs / run_id / FILES[file]
        try:
            fd = self._storage.open(str(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            raise from_os("read", str(path), error) from error
        try:
            with translated("read", str(path)):
                yield from self._records(fd, path)
        finally:
            self._drop(fd)

    def _records(self, fd: int, path: Path) -> Iterator[dict[str, Any]]:
        def read(offset: int, length: int) -> bytes:
            return self._storage.pread(fd, length, offset)

        found = self._storage.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise CorruptRun(f"{path} is not a regular file", advice="remove the run directory")
        try:
            for line in lines_backward(read, boundary(read, found.st_size)):
                yield unseal(line).record
        except BadLine as error:
            advice = "look at it with `bundle-router runs verify`"
            raise CorruptRun(f"{path}: near its end is a line that is no record: {error}", advice=advice) from error
