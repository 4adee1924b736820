"""Directories and small files of a run: private, never reached through a symbolic link, replaced
atomically.

Rules:
1. Directories have mode 0700 and files 0600, whatever the umask.
2. Everything inside a run is opened relative to the run directory's descriptor, so moving or
   swapping the directory can't redirect a write.
3. A directory that another user owns, or that others may write to, is refused and not repaired: its
   content may already be theirs.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Final

from bundle_router.adapters.artifact_files import ArtifactPool
from bundle_router.adapters.descriptors import ClosedOnError, Opened, refuse_links
from bundle_router.core.records.chain import FILES
from bundle_router.core.records.run_header import LISTS, RUN_SCHEMA, RunHeader
from bundle_router.core.values.canonical import decode
from bundle_router.errors import STORAGE_FAULTS, CorruptRun, StorageError, storage_error


class Storage:
    """The calls of `os` and `fcntl` that the store uses. Python itself retries EINTR (PEP 475)."""

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


POSIX: Final = Storage()

_VOLUME_ADVICE: Final = (
    "if Kubernetes' fsGroup does this at each mount, set fsGroupChangePolicy: OnRootMismatch"
)

_ADVICE: Final = {
    "deleted": STORAGE_FAULTS[errno.ENOENT][1],
    "short_write": "free space on the disk; then try again, no restart is needed",
    "io_error": "check the disk and the system log",
    "not_private": "",
    "no_locks": "",
}


def failed(doing: str, path: str, kind: str, why: str, *, advice: str = "") -> StorageError:
    """Return a StorageError with the default advice for its kind, unless `advice` is given."""
    return StorageError(f"can't {doing} {path}: {why}", kind=kind, advice=advice or _ADVICE[kind])


def from_os(doing: str, path: str, error: OSError) -> StorageError:
    """Return the StorageError for a failed call."""
    return storage_error(f"can't {doing} {path}", error)


KEPT_BACK: Final = 4
"""Descriptors that an append or the end of a run needs at a time: folder, lock, file of records,
file to replace.
"""


class SpareDescriptors:
    """Reserved descriptors, so that calls and runs can still be ended when the process has no other
    left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fds: list[int] = []

    def keep(self) -> None:
        """Open the reserve when a run is opened, so that opening fails before the reserve is
        needed.
        """
        if len(self._fds) < KEPT_BACK:
            with self._lock, suppress(OSError):
                while len(self._fds) < KEPT_BACK:
                    self._fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    @contextmanager
    def lend(self) -> Iterator[None]:
        with self._lock:
            while self._fds:
                os.close(self._fds.pop())
        try:
            yield
        finally:
            self.keep()


SPARE: Final = SpareDescriptors()


@contextmanager
def translate_errors(doing: str, path: str) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that names the operation and the path."""
    try:
        yield
    except OSError as error:
        raise from_os(doing, path, error) from error


DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
HEADER_FILE: Final = "run.json"
LOCK: Final = "lock"
"""The file that is locked around each append.

Empty while the run is open, `CLOSED` after its end.
"""
CLOSED: Final = b"closed\n"
PRESENCE: Final = FILES["routing"]
"""The file on which every writer of a run holds a shared lock until it closes the run."""


def open_runs(storage: Storage, path: Path, *, durable: bool) -> int:
    """Return a descriptor of the runs directory; create it and its parents if absent."""
    text = str(path)
    with translate_errors("open the runs directory", text):
        missing = [p for p in (path, *path.parents) if not p.exists() and not p.is_symlink()]
        for folder in reversed(missing):
            make_private(storage, str(folder), None)
            if durable:
                sync_directory(storage, str(folder.parent))
        fd = storage.open(text, DIRECTORY)
    with ClosedOnError(fd, storage.close), translate_errors("look at", text):
        _refuse_foreign_link(storage, text)
        shared = bool(storage.stat("..", dir_fd=fd).st_mode & stat.S_IWOTH)
        check_private(
            storage.fstat(fd), text, forbidden=stat.S_IWOTH | (stat.S_IWGRP if shared else 0)
        )
    return fd


def open_run(storage: Storage, path: str) -> int:
    """Return a descriptor of an existing run directory. Raises FileNotFoundError."""
    try:
        fd = storage.open(path, DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not Path(path).parent.is_dir():
            raise from_os("open the run directory", path, error) from error
        detail = "it is a symbolic link or not a directory"
        raise failed(
            "open the run directory",
            path,
            "not_private",
            detail,
            advice="remove it, or choose another run id",
        ) from error
    try:
        with translate_errors("look at", path):
            check_private(storage.fstat(fd), path, forbidden=stat.S_IWGRP | stat.S_IWOTH)
    except BaseException:  # an interrupted caller must release descriptors and locks too
        storage.close(fd)
        raise
    return fd


def make_private(storage: Storage, path: str, dir_fd: int | None) -> None:
    """Create a directory with mode 0700.

    The second call is for umasks that remove the owner's bits.
    """
    try:
        storage.mkdir(path, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        return  # another process created it just now; it is checked like any other
    storage.chmod(path, 0o700, dir_fd=dir_fd)


def check_private(status: os.stat_result, path: str, *, forbidden: int) -> None:
    """Raise StorageError (`not_private`) for another user's directory, or one with any of the
    `forbidden` mode bits.
    """
    if status.st_uid != os.geteuid():
        detail = f"it belongs to user {status.st_uid}, and this process runs as {os.geteuid()}"
        raise failed(
            "use",
            path,
            "not_private",
            detail,
            advice=(
                "choose a folder below it, which is then created private, or another runs"
                " directory, or give it to this user with chown"
            ),
        )
    if status.st_mode & forbidden:
        detail = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
        advice = f"look at what is in it, then `chmod 700 {path}`"
        if status.st_mode & stat.S_ISGID:
            advice += f"; {_VOLUME_ADVICE}"
        raise failed("use", path, "not_private", detail, advice=advice)


def _refuse_foreign_link(storage: Storage, path: str) -> None:
    """Refuse a runs directory that is another user's link.

    (The user's own link, say to a larger disk, is fine.)
    """
    status = storage.stat(path, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
        detail = f"it is a symbolic link made by user {status.st_uid}"
        raise failed("use", path, "not_private", detail, advice="choose another runs directory")


def open_file(storage: Storage, dir_fd: int, name: str, flags: int) -> int:
    """Open or create a private regular file of the run. A hard link is refused, unchanged."""
    opening = (flags & ~os.O_TRUNC) | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = storage.open(name, opening, 0o600, dir_fd=dir_fd)
    with ClosedOnError(fd, storage.close):
        status = storage.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        refuse_links(name, status)
        if flags & os.O_TRUNC and status.st_size:
            storage.ftruncate(fd, 0)
        if stat.S_IMODE(status.st_mode) != 0o600:
            storage.fchmod(fd, 0o600)
    return fd


def open_to_write(storage: Storage, dir_fd: int, name: str, flags: int) -> int:
    """Open a file of the run that exists, for writing. A link of either kind is refused."""
    fd = storage.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=dir_fd)
    try:
        status = storage.fstat(fd)
        if status.st_nlink > 1:
            refuse_links(name, status)
    except BaseException:
        storage.close(fd)
        raise
    return fd


identity: Final = attrgetter("st_dev", "st_ino")
"""Returns the device and inode of an `os.stat_result`, which identify a file."""


def read_text(
    storage: Storage, dir_fd: int, name: str, *, max_bytes: int = 64 * 1024 * 1024
) -> str | None:
    """Return the text of a small file of the run; None if absent.

    Undecodable bytes become U+FFFD.
    """
    try:
        fd = storage.open(
            name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd
        )
    except FileNotFoundError:
        return None
    with Opened(fd, storage.close):
        return storage.pread(fd, min(storage.fstat(fd).st_size, max_bytes), 0).decode(
            "utf-8", "replace"
        )


def replace_text(storage: Storage, dir_fd: int, name: str, text: str, *, durable: bool) -> None:
    """Write a temporary file and rename it over `name`: readers see the old text or the new, never
    a part.
    """
    temporary = f"{name}.new"
    with Opened(
        open_file(storage, dir_fd, temporary, os.O_WRONLY | os.O_TRUNC), storage.close
    ) as fd:
        write_all(storage, fd, text.encode("utf-8", "surrogatepass"))
        if durable:
            storage.fsync(fd)
    storage.replace(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    if durable:
        storage.fsync(dir_fd)


class CatalogFiles:
    """Puts catalogs into the folders of one folder of runs: as links to the file that the runs of a
    catalog share, or, where the file system has no links, as files of each run's own.
    """

    def __init__(self, storage: Storage, runs: Path, *, durable: bool) -> None:
        self._storage = storage
        self._pool = ArtifactPool(runs)
        self._durable = durable
        self._last = ("", b"", "")
        """The last text with its bytes and their digest: runs follow each other under one
        catalog.
        """

    def put(self, folder: int, name: str, text: str) -> None:
        """Put a catalog's text into the open folder of a run. Raises OSError."""
        if self._last[0] is not text:
            data = text.encode("utf-8", "surrogatepass")
            self._last = (text, data, hashlib.sha256(data).hexdigest())
        _, data, sha256 = self._last
        storage = self._storage
        if not self._pool.link_into(folder, sha256, data, name):
            replace_text(storage, folder, name, text, durable=self._durable)
            self._pool.take(folder, sha256, name)
        elif self._durable:
            with Opened(storage.open(name, os.O_RDONLY, dir_fd=folder), storage.close) as fd:
                storage.fsync(fd)
            storage.fsync(folder)


def write_all(storage: Storage, fd: int, data: bytes) -> None:
    """Write all data or raise OSError: after a short write, the next write raises the reason."""
    while data:
        count = storage.write(fd, data)
        if count <= 0:
            raise OSError(errno.EIO, "nothing was written")
        data = data[count:]


def sync_directory(storage: Storage, path: str) -> None:
    with Opened(storage.open(path or ".", DIRECTORY), storage.close) as fd:
        storage.fsync(fd)


def write_header(
    storage: Storage, dir_fd: int, path: Path, header: RunHeader, *, durable: bool
) -> None:
    """Write `run.json` with its seal."""
    with translate_errors("write", f"{path}/{HEADER_FILE}"):
        replace_text(storage, dir_fd, HEADER_FILE, header.sealed().to_text(), durable=durable)


def read_header(storage: Storage, dir_fd: int, path: Path) -> RunHeader | None:
    """Return the content of `run.json`; None if it is absent, or empty after power loss."""
    file = path / HEADER_FILE
    run_id = path.name
    with translate_errors("read", str(file)):
        text = read_text(storage, dir_fd, HEADER_FILE)
    if not text:
        return None
    try:
        fields = decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRun(f"{file} is not JSON", advice="restore it, or use a new run id") from error
    if not isinstance(fields, dict) or fields.get("schema") != RUN_SCHEMA:
        stated = fields.get("schema") if isinstance(fields, dict) else None
        raise CorruptRun(
            f"{file} has schema {stated!r}",
            advice=f"this version writes {RUN_SCHEMA}; use a new run id",
        )
    header = RunHeader(fields)
    if header.run_id != run_id:
        raise CorruptRun(
            f"{file} belongs to run {fields.get('run_id')!r}",
            advice="the directory was renamed or copied: give it its old name, or use a new run id",
        )
    if header.is_edited:
        raise CorruptRun(
            f"{file} was changed after it was written",
            advice=(
                "restore it, or use a new run id; `bundle-router runs verify` looks at the records"
            ),
        )
    for name in LISTS:
        if not isinstance(fields.get(name, []), list):
            raise CorruptRun(
                f"{file}: {name!r} is not a list", advice="restore it, or use a new run id"
            )
    return header
