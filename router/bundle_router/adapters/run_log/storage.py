"""The calls to the operating system that a run directory rests on, behind one seam, and what their failures mean.

Tests pass a `Storage` that fails call number k, for all k; everything else uses `POSIX`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from bundle_router.errors import STORAGE_ADVICE, StorageError, storage_error


class Storage(Protocol):
    """A few calls of `os` and `fcntl`, with their arguments and errors."""

    def open(self, path: str, flags: int, mode: int = ..., *, dir_fd: int | None = ...) -> int: ...
    def close(self, fd: int, /) -> None: ...
    def mkdir(self, path: str, mode: int = ..., *, dir_fd: int | None = ...) -> None: ...
    def chmod(self, path: str, mode: int, *, dir_fd: int | None = ...) -> None: ...
    def fchmod(self, fd: int, mode: int, /) -> None: ...
    def fstat(self, fd: int, /) -> os.stat_result: ...
    def stat(self, path: str, *, dir_fd: int | None = ..., follow_symlinks: bool = ...) -> os.stat_result: ...
    def flock(self, fd: int, operation: int, /) -> None: ...
    def pread(self, fd: int, length: int, offset: int, /) -> bytes: ...
    def write(self, fd: int, data: bytes, /) -> int: ...
    def pwrite(self, fd: int, data: bytes, offset: int, /) -> int: ...
    def ftruncate(self, fd: int, length: int, /) -> None: ...
    def fdatasync(self, fd: int, /) -> None: ...
    def fsync(self, fd: int, /) -> None: ...
    def replace(self, source: str, target: str, *, src_dir_fd: int | None = ..., dst_dir_fd: int | None = ...) -> None:
        """Atomic, within one directory."""


class Posix:
    """The real calls. EINTR is retried by Python itself (PEP 475)."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    mkdir = staticmethod(os.mkdir)
    chmod = staticmethod(os.chmod)
    fchmod = staticmethod(os.fchmod)
    fstat = staticmethod(os.fstat)
    stat = staticmethod(os.stat)
    flock = staticmethod(fcntl.flock)
    pread = staticmethod(os.pread)
    write = staticmethod(os.write)
    pwrite = staticmethod(os.pwrite)
    ftruncate = staticmethod(os.ftruncate)
    fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has no fdatasync
    fsync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)


POSIX: Final[Storage] = Posix()

_ADVICE: Final = {
    "deleted": STORAGE_ADVICE[errno.ENOENT],
    "short_write": "free space on the disk; then try again, no restart is needed",
    "io_error": "check the disk and the system log",
    "not_private": "",
    "no_locks": "",
}


def failed(doing: str, path: str, kind: str, why: str, *, advice: str = "") -> StorageError:
    """Return a StorageError with the advice that fits its kind, unless the caller knows better."""
    return StorageError(f"can't {doing} {path}: {why}", kind=kind, advice=advice or _ADVICE[kind])


def from_os(doing: str, path: str, error: OSError) -> StorageError:
    """Return the StorageError for a failed call."""
    return storage_error(f"can't {doing} {path}", error)


KEPT_BACK: Final = 4
"""What an append, or a run's end, has open at a time: the folder, the lock, a file of records, one to replace."""


class Spare:
    """A few descriptors kept back, so that calls and runs can still be ended when the process has no other left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fds: list[int] = []

    def keep(self) -> None:
        """Called when a run is opened: it is refused before the spare ones are touched."""
        if len(self._fds) < KEPT_BACK:
            with self._lock, suppress(OSError):
                while len(self._fds) < KEPT_BACK:
                    self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def lent(self) -> Iterator[None]:
        with self._lock:
            while self._fds:
                os.close(self._fds.pop())
        try:
            yield
        finally:
            self.keep()


SPARE: Final = Spare()


@contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError that says what was being done, and where."""
    try:
        yield
    except OSError as error:
        raise from_os(doing, path, error) from error
