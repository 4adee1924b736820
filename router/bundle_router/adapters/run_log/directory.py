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

from bundle_router.adapters.run_log.storage import Storage, failed, translated
from bundle_router.core.records.chain import FILES
from bundle_router.errors import RunInUse

DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LOCK: Final = "lock"
LOCKED: Final = FILES["routing"]
"""The file whose descriptor holds the lock of the run: an open run takes one descriptor, not two."""
_TRIES: Final = 5
_PAUSE_S: Final = 0.002


class Vanished(Exception):
    """The run directory was deleted or replaced while it was being opened: begin again."""


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
    except BaseException:
        storage.close(fd)
        raise
    return fd


def open_run(storage: Storage, runs_fd: int, run_id: str, path: str, *, durable: bool) -> int:
    """A descriptor of one run directory, made where absent."""
    with translated("open the run directory", path):
        try:
            storage.stat(run_id, dir_fd=runs_fd, follow_symlinks=False)
        except FileNotFoundError:
            make_private(storage, run_id, runs_fd)
        if durable:  # also for a directory that somebody else made, who may not have waited for the disk
            storage.fsync(runs_fd)
        try:
            fd = storage.open(run_id, DIRECTORY | os.O_NOFOLLOW, dir_fd=runs_fd)
        except FileNotFoundError as error:
            raise Vanished from error
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise failed(
                "open the run directory",
                path,
                "not_private",
                "it is a symbolic link or not a directory",
                advice="remove it, or choose another run id",
            ) from error
    try:
        with translated("look at", path):
            check_private(storage.fstat(fd), path, forbidden=stat.S_IWGRP | stat.S_IWOTH)
    except BaseException:
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
    except BaseException:
        storage.close(fd)
        raise
    return fd


def take_lock(storage: Storage, runs_fd: int, dir_fd: int, run_id: str, path: str) -> int:
    """Locks the run for this process; returns the descriptor of its first file, which holds the lock while it is open.

    The kernel lets go of it when the owner dies, however it dies; a stopped owner keeps it. The owner's pid stands in
    the file `lock`, for people. Raises RunInUse, or Vanished when the directory was pruned or replaced meanwhile.
    """
    try:
        fd = open_file(storage, dir_fd, LOCKED, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError as error:
        raise Vanished from error
    try:
        if not _locked(storage, fd):
            raise in_use(read_text(storage, dir_fd, LOCK, max_bytes=32) or "", run_id, path)
        if storage.fstat(fd).st_nlink == 0 or not _is_still_there(storage, runs_fd, dir_fd, run_id):
            raise Vanished
        note_owner(storage, dir_fd, b"%d\n" % os.getpid())
    except BaseException:
        storage.close(fd)
        raise
    return fd


def note_owner(storage: Storage, dir_fd: int, text: bytes) -> None:
    """Says in the file `lock` who writes the run; nothing when it is let go."""
    fd = open_file(storage, dir_fd, LOCK, os.O_WRONLY | os.O_TRUNC)
    try:
        storage.write(fd, text)
    finally:
        storage.close(fd)


def _locked(storage: Storage, fd: int) -> bool:
    """Tries more than once: a reader that asks whether the run is open holds the lock for an instant."""
    for _ in range(_TRIES):
        try:
            storage.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _is_still_there(storage: Storage, runs_fd: int, dir_fd: int, run_id: str) -> bool:
    try:
        now = storage.stat(run_id, dir_fd=runs_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = storage.fstat(dir_fd)
    return (now.st_dev, now.st_ino) == (ours.st_dev, ours.st_ino)


def in_use(pid_text: str, run_id: str, path: str) -> RunInUse:
    """The refusal for a run whose lock is held. The pid is 0 in the instant between locking and writing it."""
    digits = pid_text.strip()
    pid = int(digits) if digits.isdigit() else 0
    who = "this process (another Router of it)" if pid == os.getpid() else f"process {pid or '(pid not known yet)'}"
    return RunInUse(
        f"run {run_id!r} is being written by {who}: {path}",
        pid=pid,
        advice="send the step to that process, close the run there, or use another run id",
    )


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
