"""The calls to the operating system that a run directory rests on, behind one seam, and what their failures mean.

Tests pass a `Storage` that fails call number k, for all k; everything else uses `POSIX`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from router.errors import STORAGE_KINDS, StorageError


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
    ftruncate = staticmethod(os.ftruncate)
    fdatasync = staticmethod(getattr(os, "fdatasync", os.fsync))  # macOS has no fdatasync
    fsync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)


POSIX: Final[Storage] = Posix()

_ADVICE: Final = {
    "disk_full": "free space (or raise the quota or file-size limit); then try again, no restart is needed",
    "read_only": "make the runs directory writable for this user, or choose another one",
    "deleted": "close this run; the next step of the same id starts a new, empty run directory",
    "short_write": "free space on the disk; then try again, no restart is needed",
    "io_error": "check the disk (and the limit of open files: `ulimit -n`) and the system log",
    "not_private": "",
}


def failed(doing: str, path: str, kind: str, why: str, *, advice: str = "") -> StorageError:
    """A StorageError with the advice that fits its kind, unless the caller knows better."""
    return StorageError(f"can't {doing} {path}: {why}", kind=kind, advice=advice or _ADVICE[kind])


def from_os(doing: str, path: str, error: OSError) -> StorageError:
    """The StorageError for a failed call. Anything that is not about space, rights or absence is `io_error`."""
    kind = STORAGE_KINDS.get(error.errno or 0, "io_error")
    return failed(doing, path, kind, f"{error.strerror or error} (errno {error.errno})")


@contextmanager
def translated(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError of the block into a StorageError that says what was being done, and where."""
    try:
        yield
    except OSError as error:
        raise from_os(doing, path, error) from error
