"""Stores the heads of runs in a folder, one small file a run, rewritten after each record. See `core.records.heads`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bundle_router.core.models import RUN_ID
from bundle_router.core.records.chain import Appended, File, genesis
from bundle_router.core.records.heads import StoredHead
from bundle_router.core.records.run_header import RunHeader
from bundle_router.errors import CorruptRun, storage_error
from bundle_router.tools.descriptors import Opened

HEADS: Final = ".heads"
"""Default folder of heads, in the runs directory."""
_SUFFIX: Final = ".head"
_COUNTER: Final = ".count"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_MAX: Final = 4096


class FolderHeads:
    """Heads in a folder, signed if there is a key. Any number of processes may write them."""

    def __init__(self, folder: str | Path, key: bytes | None = None) -> None:
        self.folder = Path(folder)
        self.key = key

    def note(self, run_id: str, count: int, hash_: str, *, pruned: bool = False) -> None:
        """Store that the run holds at least these records. The count never falls. Raises StorageError, CorruptRun."""
        try:
            with self._lock_head(run_id + _SUFFIX) as fd:
                before = _read(fd, self.folder / run_id)
                if before is not None and (before.count, before.pruned) >= (count, pruned):
                    return
                number = before.number if before is not None else self._next_number()
                head = StoredHead(run_id, number, count, hash_, pruned).sign(self.key)
                line = head.to_line()
                os.pwrite(fd, line, 0)
                os.ftruncate(fd, len(line))
        except OSError as error:
            raise storage_error(f"can't keep the head of run {run_id!r} in {self.folder}", error) from error

    def prune(self, run_id: str) -> None:
        """Mark the head of a run that was deleted on purpose. Does nothing without a head."""
        if (head := self.read(run_id)) is not None:
            self.note(run_id, head.count, head.hash, pruned=True)

    def read(self, run_id: str) -> StoredHead | None:
        """Return the head of a run; None if there is none. Raises CorruptRun, StorageError."""
        path = self.folder / f"{run_id}{_SUFFIX}"
        try:
            fd = os.open(path, os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(f"can't read {path}", error) from error
        with Opened(fd):
            return _read(fd, path)

    def all(self) -> Mapping[str, StoredHead]:
        """Return all heads by run id. Raises CorruptRun, StorageError."""
        names = [path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}")]
        found = {name: self.read(name) for name in sorted(names) if RUN_ID.fullmatch(name)}
        return {name: head for name, head in found.items() if head is not None}

    def _next_number(self) -> int:
        with self._lock_head(_COUNTER) as fd:
            text = os.pread(fd, _MAX, 0).strip() or b"0"
            if not text.isdigit():
                raise CorruptRun(
                    f"{self.folder / _COUNTER} holds no number of runs: it was changed", advice="restore it"
                )
            number = int(text) + 1
            os.pwrite(fd, b"%d\n" % number, 0)
            return number

    @contextmanager
    def _lock_head(self, name: str) -> Iterator[int]:
        try:
            fd = os.open(self.folder / name, _FLAGS, 0o600)
        except FileNotFoundError:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.folder / name, _FLAGS, 0o600)
        with Opened(fd):
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd


def _read(fd: int, path: Path) -> StoredHead | None:
    """Return the head in a file; None for an empty file, whose writer died before it wrote."""
    text = os.pread(fd, _MAX, 0)
    if not text.strip():
        return None
    try:
        return StoredHead.from_line(text)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRun(f"{path} is not the head of a run: it was changed", advice="restore it") from error


class HeadKeepingStore:
    """A run store that also keeps each run's head. Wraps another store, to which it delegates everything else."""

    def __init__(self, store: Any, heads: FolderHeads) -> None:
        self._store, self._heads = store, heads

    def open(self, run_id: str) -> HeadKeepingLog | None:
        log = self._store.open(run_id)
        return None if log is None else HeadKeepingLog(log, run_id, self._heads)

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> HeadKeepingLog:
        log = self._store.create(run_id, header=header, catalog=catalog)
        self._heads.note(run_id, 0, genesis(run_id))
        return HeadKeepingLog(log, run_id, self._heads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class HeadKeepingLog:
    """A run log whose appends are acknowledged only after the head is stored."""

    def __init__(self, log: Any, run_id: str, heads: FolderHeads) -> None:
        self._log, self._run_id, self._heads = log, run_id, heads

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        """Append as the wrapped log does. If storing the head fails (StorageError), the record is in the run anyway."""
        done: Appended = self._log.append(file, record, only_at=only_at, wait_s=wait_s)
        if done.seq is not None:
            self._heads.note(self._run_id, done.seq + 1, done.hash)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
