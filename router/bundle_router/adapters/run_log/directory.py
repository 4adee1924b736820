"""Directories and small files of a run: private, never reached through a symbolic link, replaced atomically.

Rules:
1. Directories have mode 0700 and files 0600, whatever the umask.
2. Everything inside a run is opened relative to the run directory's descriptor, so moving or swapping the directory
   can't redirect a write.
3. A directory that another user owns, or that others may write to, is refused and not repaired: its content may already
   be theirs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bundle_router.adapters.text_files import holders
from bundle_router.core.models.canonical import decode
from bundle_router.core.records.chain import FILES
from bundle_router.core.records.run_header import LISTS, RUN_SCHEMA, RunHeader
from bundle_router.errors import STORAGE_FAULTS, CorruptRun, RunBusy, StorageError, storage_error


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
"""Descriptors that an append or the end of a run needs at a time: folder, lock, file of records, file to replace."""


class SpareDescriptors:
    """Reserved descriptors, so that calls and runs can still be ended when the process has no other left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fds: list[int] = []

    def keep(self) -> None:
        """Open the reserve when a run is opened, so that opening fails before the reserve is needed."""
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
"""The file that is locked around each append. Empty while the run is open, `CLOSED` after its end."""
CLOSED: Final = b"closed\n"
PRESENCE: Final = FILES["routing"]
"""The file on which every writer of a run holds a shared lock until it closes the run."""
_FIRST_PAUSE_S: Final = 0.00002
_LONGEST_PAUSE_S: Final = 0.002


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
    try:
        with translate_errors("look at", text):
            _refuse_foreign_link(storage, text)
            shared = bool(storage.stat("..", dir_fd=fd).st_mode & stat.S_IWOTH)
            check_private(storage.fstat(fd), text, forbidden=stat.S_IWOTH | (stat.S_IWGRP if shared else 0))
    except BaseException:  # an interrupted caller must release descriptors and locks too
        storage.close(fd)
        raise
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
        why = "it is a symbolic link or not a directory"
        raise failed(
            "open the run directory", path, "not_private", why, advice="remove it, or choose another run id"
        ) from error
    try:
        with translate_errors("look at", path):
            check_private(storage.fstat(fd), path, forbidden=stat.S_IWGRP | stat.S_IWOTH)
    except BaseException:  # an interrupted caller must release descriptors and locks too
        storage.close(fd)
        raise
    return fd


def make_private(storage: Storage, path: str, dir_fd: int | None) -> None:
    """Create a directory with mode 0700. The second call is for umasks that remove the owner's bits."""
    try:
        storage.mkdir(path, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        return  # another process created it just now; it is checked like any other
    storage.chmod(path, 0o700, dir_fd=dir_fd)


def check_private(found: os.stat_result, path: str, *, forbidden: int) -> None:
    """Raise StorageError (`not_private`) for another user's directory, or one with any of the `forbidden` mode bits."""
    if found.st_uid != os.geteuid():
        why = f"it belongs to user {found.st_uid}, and this process runs as {os.geteuid()}"
        raise failed(
            "use", path, "not_private", why, advice="choose another runs directory, or give it to this user with chown"
        )
    if found.st_mode & forbidden:
        why = f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
        raise failed("use", path, "not_private", why, advice=f"look at what is in it, then `chmod 700 {path}`")


def _refuse_foreign_link(storage: Storage, path: str) -> None:
    """Refuse a runs directory that is another user's link. (The user's own link, say to a larger disk, is fine.)"""
    found = storage.stat(path, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        why = f"it is a symbolic link made by user {found.st_uid}"
        raise failed("use", path, "not_private", why, advice="choose another runs directory")


def open_file(storage: Storage, dir_fd: int, name: str, flags: int) -> int:
    """Open or create a private regular file of the run."""
    fd = storage.open(name, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)
    try:
        found = storage.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if stat.S_IMODE(found.st_mode) != 0o600:
            storage.fchmod(fd, 0o600)
    except BaseException:  # an interrupted caller must release descriptors and locks too
        storage.close(fd)
        raise
    return fd


def name_processes(pids: tuple[int, ...]) -> str:
    """Return a phrase that names the processes, with this process marked."""
    words = ["this process (another Router of it)" if pid == os.getpid() else f"process {pid}" for pid in pids]
    return " and ".join(words) or "another process"


def try_lock(storage: Storage, fd: int, operation: int, until_s: float) -> bool:
    """Take a file lock, trying until a time on the monotonic clock; return whether it was taken. Locks are held for
    microseconds, so the first attempts follow each other quickly."""
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            storage.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        else:
            return True


def identity(found: os.stat_result) -> tuple[int, int]:
    """Return the device and inode, which identify a file."""
    return found.st_dev, found.st_ino


def read_text(storage: Storage, dir_fd: int, name: str, *, max_bytes: int = 64 * 1024 * 1024) -> str | None:
    """Return the text of a small file of the run; None if absent. Undecodable bytes become U+FFFD."""
    try:
        fd = storage.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd)
    except FileNotFoundError:
        return None
    try:
        size = min(storage.fstat(fd).st_size, max_bytes)
        return storage.pread(fd, size, 0).decode("utf-8", "replace")
    finally:
        storage.close(fd)


def replace_text(storage: Storage, dir_fd: int, name: str, text: str, *, durable: bool) -> None:
    """Write a temporary file and rename it over `name`: readers see the old text or the new, never a part."""
    temporary = f"{name}.new"
    fd = open_file(storage, dir_fd, temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(storage, fd, text.encode("utf-8", "surrogatepass"))
        if durable:
            storage.fsync(fd)
    finally:
        storage.close(fd)
    storage.replace(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    if durable:
        storage.fsync(dir_fd)


def write_all(storage: Storage, fd: int, data: bytes) -> None:
    """Write all data or raise OSError: after a short write, the next write raises the reason."""
    while data:
        written = storage.write(fd, data)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        data = data[written:]


def sync_directory(storage: Storage, path: str) -> None:
    fd = storage.open(path or ".", DIRECTORY)
    try:
        storage.fsync(fd)
    finally:
        storage.close(fd)


def write_header(storage: Storage, dir_fd: int, path: Path, header: RunHeader, *, durable: bool) -> None:
    """Write `run.json` with its seal."""
    with translate_errors("write", f"{path}/{HEADER_FILE}"):
        replace_text(storage, dir_fd, HEADER_FILE, header.sealed().to_text(), durable=durable)


def read_header(storage: Storage, dir_fd: int, path: Path) -> RunHeader | None:
    """Return the content of `run.json`; None if it is absent, or empty after power loss."""
    where, run_id = path / HEADER_FILE, path.name
    with translate_errors("read", str(where)):
        text = read_text(storage, dir_fd, HEADER_FILE)
    if not text:
        return None
    try:
        fields = decode(text)
    except (ValueError, RecursionError) as error:
        raise CorruptRun(f"{where} is not JSON", advice="restore it, or use a new run id") from error
    if not isinstance(fields, dict) or fields.get("schema") != RUN_SCHEMA:
        stated = fields.get("schema") if isinstance(fields, dict) else None
        raise CorruptRun(f"{where} has schema {stated!r}", advice=f"this version writes {RUN_SCHEMA}; use a new run id")
    header = RunHeader(fields)
    if header.run_id != run_id:
        raise CorruptRun(
            f"{where} belongs to run {fields.get('run_id')!r}",
            advice="the directory was renamed or copied: give it its old name, or use a new run id",
        )
    if header.is_edited:
        raise CorruptRun(
            f"{where} was changed after it was written",
            advice="restore it, or use a new run id; `bundle-router runs verify` looks at the records",
        )
    for name in LISTS:
        if not isinstance(fields.get(name, []), list):
            raise CorruptRun(f"{where}: {name!r} is not a list", advice="restore it, or use a new run id")
    return header


class RunFolder:
    """The directory of a run, as it was when the log was opened. If it was deleted, moved or replaced since, every use
    is refused from then on. For one thread at a time.

    The lock and the file of calls stay open between appends, as long as the run is among the last appended to. `lock`
    takes their descriptors out of the shared cache, so that nobody else closes them meanwhile; `unlock` puts them back.
    """

    def __init__(self, storage: Storage, path: str, found: tuple[int, int]) -> None:
        self.path = path
        self._storage = storage
        self._identity = found
        self._refusal: tuple[str, str, str] | None = None
        self._lock_path = f"{path}/{LOCK}"
        self._lock_identity: tuple[int, int] | None = None
        self._lock = -1
        self._files: dict[str, int] = {}

    @property
    def is_usable(self) -> bool:
        return self._refusal is None

    def check_usable(self) -> None:
        """Raise the StorageError with which the run was refused, if it was."""
        if self._refusal is not None:
            message, kind, advice = self._refusal
            raise StorageError(message, kind=kind, advice=advice)

    def refuse(self, error: StorageError) -> StorageError:
        """Refuse every later use with this error, and return it."""
        self._refusal = (error.message, error.kind, error.advice)
        return error

    def refuse_gone(self, name: str = "") -> StorageError:
        """Refuse every later use, because the run or one of its files is gone; return the error."""
        where = f"{self.path}/{name}".rstrip("/")
        return self.refuse(failed("use", where, "deleted", "it was deleted, moved or replaced while the run was open"))

    def busy_error(self, fd: int, doing: str) -> RunBusy:
        """Return the error that names who holds the lock on a file."""
        pids = holders(fd)
        return RunBusy(
            f"run {Path(self.path).name!r}: {name_processes(pids)} {doing}, and did not release it in time",
            pid=pids[0] if pids else 0,
            advice="if that process is suspended, resume or end it: the run loses nothing by either",
        )

    def is_same_folder(self) -> bool:
        """Return whether the run's path still leads to the folder that the log opened."""
        try:
            return identity(self._storage.stat(self.path, follow_symlinks=False)) == self._identity
        except FileNotFoundError:
            return False

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor of the run directory, which must be the one that the log opened."""
        try:
            fd = open_run(self._storage, self.path)
        except FileNotFoundError:
            raise self.refuse_gone() from None
        except OSError as error:
            raise from_os("open the run directory", self.path, error) from error
        try:
            with translate_errors("look at", self.path):
                found = identity(self._storage.fstat(fd))
            if found != self._identity:
                raise self.refuse_gone()
            yield fd
        finally:
            with suppress(OSError):
                self._storage.close(fd)

    # --- the lock ---------------------------------------------------------------------------------------------------

    def open_lock(self, folder: int) -> None:
        """Open the lock file, or create it for a run of an early version. From now on it must be this file."""
        self._lock = open_file(self._storage, folder, LOCK, os.O_RDWR)
        self._lock_identity = identity(self._storage.fstat(self._lock))

    def lock(self, until_s: float) -> bool:
        """Take the run's lock, until `unlock` or `let_go`. Return whether the run was closed."""
        self._lock, self._files = _KEPT.pop(self, (self._lock, self._files))
        try:
            if self._lock < 0:
                self._lock = self._storage.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            if not try_lock(self._storage, self._lock, fcntl.LOCK_EX, until_s):
                raise self.busy_error(self._lock, "holds its lock")
            found = self._storage.stat(self._lock_path, follow_symlinks=False)
            if identity(found) != self._lock_identity:  # another lock file means another run
                raise self.refuse_gone()
        except BaseException as error:
            self.let_go()
            if isinstance(error, FileNotFoundError):
                raise self.refuse_gone() from None
            raise
        return found.st_size > 0

    def unlock(self) -> None:
        """Release the lock but keep the descriptors; close the oldest of other runs."""
        try:
            self._storage.flock(self._lock, fcntl.LOCK_UN)
        except OSError:
            self.let_go()
            return
        _KEPT[self] = self._lock, self._files
        self._lock, self._files = -1, {}
        if len(_KEPT) > _KEPT_AT_MOST:
            release_kept(but=_KEPT_AT_MOST)

    def let_go(self) -> None:
        """Close the kept descriptors, which releases the lock. Idempotent."""
        lock, files = _KEPT.pop(self, (self._lock, self._files))
        self._lock, self._files = -1, {}
        self.close_all(lock, files)

    def close_all(self, lock: int, files: Mapping[str, int]) -> None:
        """Close descriptors that were opened for this run."""
        for fd in (lock, *files.values()):
            if fd >= 0:
                with suppress(OSError):
                    self._storage.close(fd)

    def kept_file(self, name: str) -> int:
        """Return a descriptor of a file for appending, kept open like the lock. Call it only while holding the lock."""
        if name not in self._files:
            with self.opened() as folder, translate_errors("open", f"{self.path}/{name}"):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._files[name] = self._storage.open(name, flags, dir_fd=folder)
        return self._files[name]

    @contextmanager
    def locked(self, until_s: float) -> Iterator[int]:
        """Hold the run's lock for the block; yields the run directory's descriptor."""
        with self.opened() as folder:
            with translate_errors("lock", self.path):
                self.lock(until_s)
            try:
                yield folder
            finally:
                self.unlock()

    def mark(self, text: bytes) -> None:
        """Write into the lock file whether the run is closed, for other processes. Only while the lock is held."""
        with translate_errors("write", self._lock_path):
            self._storage.ftruncate(self._lock, 0)
            if text and self._storage.pwrite(self._lock, text, 0) != len(text):
                raise OSError(errno.ENOSPC, "it was written in part")


_KEPT: OrderedDict[RunFolder, tuple[int, dict[str, int]]] = OrderedDict()
"""Unused descriptors of lock and files of the last used runs, the latest last. Taking a row out is one atomic step,
after which the taker owns the descriptors."""
_LIMIT: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_KEPT_AT_MOST: Final = 64 if _LIMIT < 0 else min(64, _LIMIT // 16)


def release_kept(*, but: int = 0) -> None:
    """Close the kept descriptors of all runs without an append in progress, or of all but the latest `but`."""
    with suppress(KeyError):
        while len(_KEPT) > but:
            folder, kept = _KEPT.popitem(last=False)
            folder.close_all(*kept)
