"""Directories and small files of a run: private, never through a symbolic link, replaced whole or not at all.

Rules:
1. Directories are 0700 and files 0600 whatever the umask.
2. Everything inside a run is opened relative to the run directory's descriptor, so a directory that is moved or
   swapped while we work can't redirect a write.
3. A directory that another user owns, or that others may write to, is refused and not repaired: what is in it may
   already be theirs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Final

from bundle_router.adapters.run_log.storage import Storage, failed, from_os, translated
from bundle_router.core.records.chain import FILES

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LOCK: Final = "lock"
"""The file that is locked around each append. Empty while the run is open, `CLOSED` after its end."""
CLOSED: Final = b"closed\n"
PRESENCE: Final = FILES["routing"]
"""The file on which everybody who writes a run holds a shared lock until they close it."""
_FIRST_PAUSE_S: Final = 0.00002
_LONGEST_PAUSE_S: Final = 0.002


def open_runs(storage: Storage, path: Path, *, durable: bool) -> int:
    """A descriptor of the runs directory, made with its parents where absent."""
    text = str(path)
    with translated("open the runs directory", text):
        missing = [p for p in (path, *path.parents) if not p.exists() and not p.is_symlink()]
        for folder in reversed(missing):
            make_private(storage, str(folder), None)
            if durable:
                sync_directory(storage, str(folder.parent))
        fd = storage.open(text, DIRECTORY)
    try:
        with translated("look at", text):
            _refuse_foreign_link(storage, text)
            shared = bool(storage.stat("..", dir_fd=fd).st_mode & stat.S_IWOTH)
            check_private(storage.fstat(fd), text, forbidden=stat.S_IWOTH | (stat.S_IWGRP if shared else 0))
    except BaseException:  # who is interrupted keeps no descriptor, and no lock
        storage.close(fd)
        raise
    return fd


def open_run(storage: Storage, path: str) -> int:
    """Return a descriptor of a run directory that is there. Raises FileNotFoundError where it is not."""
    try:
        fd = storage.open(path, DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not Path(path).parent.is_dir():
            raise from_os("open the run directory", path, error) from error
        why = "it is a symbolic link or not a directory"
        advice = "remove it, or choose another run id"
        raise failed("open the run directory", path, "not_private", why, advice=advice) from error
    try:
        with translated("look at", path):
            check_private(storage.fstat(fd), path, forbidden=stat.S_IWGRP | stat.S_IWOTH)
    except BaseException:  # who is interrupted keeps no descriptor, and no lock
        storage.close(fd)
        raise
    return fd


def make_private(storage: Storage, path: str, dir_fd: int | None) -> None:
    """mkdir with mode 0700. The second call is for umasks that take the owner's bits."""
    try:
        storage.mkdir(path, 0o700, dir_fd=dir_fd)
    except FileExistsError:
        return  # another process made it just now; it is checked like any other
    storage.chmod(path, 0o700, dir_fd=dir_fd)


def check_private(found: os.stat_result, path: str, *, forbidden: int) -> None:
    """Raises StorageError (`not_private`) for a directory of someone else, or with one of the `forbidden` mode bits."""
    if found.st_uid != os.geteuid():
        raise failed(
            "use",
            path,
            "not_private",
            f"it belongs to user {found.st_uid}, and this process runs as {os.geteuid()}",
            advice="choose another runs directory, or give it to this user with chown",
        )
    if found.st_mode & forbidden:
        raise failed(
            "use",
            path,
            "not_private",
            f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})",
            advice=f"look at what is in it, then `chmod 700 {path}`",
        )


def _refuse_foreign_link(storage: Storage, path: str) -> None:
    """A runs directory may be a link (to a larger disk, say), but not one that somebody else put there."""
    found = storage.stat(path, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        raise failed(
            "use",
            path,
            "not_private",
            f"it is a symbolic link made by user {found.st_uid}",
            advice="choose another runs directory",
        )


def open_file(storage: Storage, dir_fd: int, name: str, flags: int) -> int:
    """Opens or creates a private regular file of the run."""
    fd = storage.open(name, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=dir_fd)
    try:
        found = storage.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if stat.S_IMODE(found.st_mode) != 0o600:
            storage.fchmod(fd, 0o600)
    except BaseException:  # who is interrupted keeps no descriptor, and no lock
        storage.close(fd)
        raise
    return fd


def named(pids: tuple[int, ...]) -> str:
    """Words for those processes, ours among them."""
    words = ["this process (another Router of it)" if pid == os.getpid() else f"process {pid}" for pid in pids]
    return " and ".join(words) or "another process"


def try_lock(storage: Storage, fd: int, operation: int, until_s: float) -> bool:
    """Take a file lock, trying until a time on the monotonic clock; True when it is ours. Who holds it, holds it for
    microseconds, so it is tried often at first."""
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
    """What tells one file from any other: its device and inode."""
    return found.st_dev, found.st_ino


def read_text(storage: Storage, dir_fd: int, name: str, *, max_bytes: int = 64 * 1024 * 1024) -> str | None:
    """The text of a small file of the run; None if absent. Undecodable bytes come as U+FFFD."""
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
    """Writes a whole file beside and renames it over `name`: readers see the old text or the new, never a part."""
    beside = f"{name}.new"
    fd = open_file(storage, dir_fd, beside, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(storage, fd, text.encode("utf-8", "surrogatepass"))
        if durable:
            storage.fsync(fd)
    finally:
        storage.close(fd)
    storage.replace(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    if durable:
        storage.fsync(dir_fd)


def write_all(storage: Storage, fd: int, data: bytes) -> None:
    """Writes everything or raises OSError: the write that follows a short one gives the reason of it."""
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
