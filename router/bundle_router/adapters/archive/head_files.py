"""Stores the heads of runs in a folder, one small file a run, rewritten after each record.

See `core.records.heads`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.descriptors import Opened, refuse_links
from bundle_router.adapters.text_files import try_lock
from bundle_router.core.records.chain import Appended, File, genesis
from bundle_router.core.records.heads import StoredHead
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import RUN_ID
from bundle_router.errors import CorruptRun, RequestError, storage_error

HEADS: Final = ".heads"
"""Default folder of heads, in the runs directory."""
_SUFFIX: Final = ".head"
_COUNTER: Final = ".count"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
_MAX: Final = 4096
WAIT_S: Final = 5.0
"""Seconds to wait for another process that writes a head, which takes microseconds."""


class FolderHeads:
    """Heads in a folder, signed if there is a key. Any number of processes may write them."""

    def __init__(self, folder: str | Path, key: bytes | None = None) -> None:
        self.folder = Path(folder)
        self.key = key

    def note(self, run_id: str, count: int, hash_: str, *, pruned: bool = False) -> None:
        """Store that the run holds at least these records.

        The count never falls, unless a pruned run begins anew with none. A head that another key
        signed, or none, is left as it is. Raises StorageError, CorruptRun.
        """
        try:
            with self._lock_head(run_id + _SUFFIX) as fd:
                kept_head = _read(fd, self.folder / run_id)
                if kept_head is None:
                    self._write_first(fd, StoredHead(run_id, 0, count, hash_, pruned))
                    return
                if self.key is not None and not kept_head.is_signed_by(self.key):
                    return
                begins_anew = kept_head.pruned and not count
                if begins_anew or (kept_head.count, kept_head.pruned) < (count, pruned):
                    self._write(
                        fd,
                        replace(kept_head, count=count, hash=hash_, pruned=pruned),
                        kept_head.to_line(),
                    )
        except OSError as error:
            raise storage_error(
                f"can't keep the head of run {run_id!r} in {self.folder}", error
            ) from error

    def prune(self, run_id: str) -> None:
        """Mark the head of a run that is deleted on purpose.

        Does nothing without a head. Raises RequestError for a signed head without the key.
        """
        if (head := self.read(run_id)) is not None:
            if head.signature and self.key is None:
                raise RequestError(
                    f"the head of run {run_id!r} is signed", advice="name the --config with its key"
                )
            self.note(run_id, head.count, head.hash, pruned=True)

    def read(self, run_id: str) -> StoredHead | None:
        """Return the head of a run; None if there is none. Raises CorruptRun, StorageError."""
        path = self.folder / f"{run_id}{_SUFFIX}"
        try:
            with Opened(os.open(path, os.O_NOFOLLOW | os.O_NONBLOCK)) as fd:
                _wait_for_lock(
                    fd, path.name, fcntl.LOCK_SH
                )  # the kernel lets a reader see a half of what is written
                return _read(fd, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(f"can't read {path}", error) from error

    def run_ids(self) -> list[str]:
        """Return the ids of the runs that have a head, sorted."""
        names = sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))
        return [name for name in names if RUN_ID.fullmatch(name)]

    def _write_first(self, fd: int, head: StoredHead) -> None:
        """Write the first head of a run, under the next number.

        The count of runs is written last: a process that is killed before has its number given away
        again, and leaves no hole.
        """
        with self._lock_head(_COUNTER) as counter:
            text = os.pread(counter, _MAX, 0).strip() or b"0"
            if not text.isdigit():
                raise CorruptRun(
                    f"{self.folder / _COUNTER} holds no number of runs: it was changed",
                    advice="restore it",
                )
            number = int(text) + 1
            self._write(fd, replace(head, number=number))
            os.pwrite(counter, b"%d\n" % number, 0)

    def _write(self, fd: int, head: StoredHead, former: bytes = b"") -> None:
        line = head.sign(self.key).to_line()
        if os.pwrite(fd, line, 0) != len(line):
            os.pwrite(fd, former, 0)
            os.ftruncate(fd, len(former))
            raise OSError(errno.ENOSPC, "it was written in part")
        os.ftruncate(fd, len(line))

    @contextmanager
    def _lock_head(self, name: str) -> Iterator[int]:
        try:
            fd = os.open(self.folder / name, _FLAGS, 0o600)
        except FileNotFoundError:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.folder / name, _FLAGS, 0o600)
        with Opened(fd):
            refuse_links(name, os.fstat(fd))
            _wait_for_lock(fd, name, fcntl.LOCK_EX)
            yield fd


def _wait_for_lock(fd: int, name: str, operation: int) -> None:
    until_s = time.monotonic() + WAIT_S
    while not try_lock(fd, operation):
        if time.monotonic() >= until_s:
            raise OSError(errno.ETIMEDOUT, f"another process holds the lock of {name}")
        time.sleep(0.001)


def _read(fd: int, path: Path) -> StoredHead | None:
    """Return the head in a file; None for an empty file, whose writer died before it wrote."""
    text = os.pread(fd, _MAX, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b"no file"
    if not text.strip():
        return None
    try:  # a writer that was killed may have left the end of a longer line behind it
        return StoredHead.from_line(text.partition(b"\n")[0])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRun(
            f"{path} is not the head of a run: it was changed", advice="restore it"
        ) from error


class HeadKeepingStore:
    """A run store that also keeps each run's head.

    Wraps another store, to which it delegates everything else.
    """

    def __init__(self, store: Any, heads: FolderHeads) -> None:
        self._store = store
        self._heads = heads

    def open(self, run_id: str) -> HeadKeepingLog | None:
        log = self._store.open(run_id)
        if log is None:
            return None
        return HeadKeepingLog(log, run_id, self._heads)

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> HeadKeepingLog:
        log = self._store.create(run_id, header=header, catalog=catalog)
        with ExitStack() as on_error:
            on_error.callback(log.close)
            self._heads.note(run_id, 0, genesis(run_id))
            on_error.pop_all()
        return HeadKeepingLog(log, run_id, self._heads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class HeadKeepingLog:
    """A run log whose appends are acknowledged only after the head is stored."""

    def __init__(self, log: Any, run_id: str, heads: FolderHeads) -> None:
        self._log = log
        self._run_id = run_id
        self._heads = heads
        self._holds_head = False

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        """Append as the wrapped log does.

        If storing the head fails (StorageError), or the run lacks the record that the head names
        (CorruptRun), the new record is in the run anyway.
        """
        outcome: Appended = self._log.append(file, record, only_at=only_at, wait_s=wait_s)
        if outcome.seq is not None:
            if not self._holds_head:
                self._check_head()
            self._heads.note(self._run_id, outcome.seq + 1, outcome.hash)
        return outcome

    def _check_head(self) -> None:
        """Raise CorruptRun if the run does not go on from its kept head, which a newer head would
        hide.
        """
        head = self._heads.read(self._run_id)
        if head is not None and head.count and not head.pruned:
            try:
                hash_in_log = self._log.record(head.count - 1)["hash"]
            except KeyError:
                hash_in_log = ""
            if hash_in_log != head.hash:
                raise CorruptRun(
                    f"run {self._run_id!r} lacks record {head.count - 1} as its kept head names it",
                    advice=(
                        "records were taken away or rewritten: look at it with `bundle-router runs"
                        " verify`"
                    ),
                )
        self._holds_head = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
