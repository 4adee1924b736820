"""Text files of a project: read with a bound, and replaced atomically, never through a link.

Also tells who owns a folder and, by the kernel, who holds a lock.

A file is written to a temporary file, synced and renamed, and its folder synced, so a reader never
sees half of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bundle_router.adapters.descriptors import Opened
from bundle_router.errors import storage_error


def replace_texts(texts: Mapping[Path, str], *, follow: bool = True) -> None:
    """Write all files to temporary ones, creating folders, then rename each, so that a failing disk
    changes nothing.

    A folder is opened once: one that is swapped for a link meanwhile leads nowhere else; without
    `follow` none that is a link is opened. Raises StorageError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    folders: dict[Path, int] = {}
    temporary: dict[Path, str] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.parent not in folders:
                folders[path.parent] = os.open(path.parent, flags)
            name = f".{path.name}.{secrets.token_hex(8)}.tmp"
            at = folders[path.parent]
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at
            )
            temporary[path] = name
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                os.fchmod(descriptor, 0o644)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
        for path, name in list(temporary.items()):
            at = folders[path.parent]
            os.replace(name, path.name, src_dir_fd=at, dst_dir_fd=at)
            del temporary[path]
        for at in folders.values():
            os.fsync(at)
    except OSError as error:
        raise storage_error(f"{error.filename or path} can't be written", error) from error
    finally:
        for path, name in temporary.items():
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folders[path.parent])
        for at in folders.values():
            os.close(at)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against others who edit its files, in this process and others.

    Raises StorageError.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise storage_error(f"{folder} can't be opened", error) from error
    with Opened(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def read_bounded(path: Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """Return the bytes of a regular file, at most one more than the maximum.

    A FIFO without a writer is not waited for; without `follow` a link is refused. Raises
    OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a regular file")
        return file.read(max_bytes + 1)


def read_within(folder: Path, path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file as `read_bounded` does, if it lies in the folder: a link is
    followed within the folder, as a volume of Kubernetes needs, and never out of it.

    The folder itself may be a link. Raises OSError.
    """
    place = Path(os.path.realpath(path, strict=True))  # Path.resolve raises no OSError for a circle
    if not place.is_relative_to(folder.resolve()):
        raise OSError(0, "it is a link that leads out of its folder")
    return read_bounded(place, max_bytes, follow=False)


def delete(path: Path) -> None:
    """Delete a file if it exists. Raises StorageError."""
    try:
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)
    except OSError as error:
        raise storage_error(f"{error.filename or path} can't be deleted", error) from error


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder survive power loss. Raises OSError."""
    with Opened(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        os.fsync(descriptor)


def holders(fd: int, mode: str = "") -> tuple[int, ...]:
    """Return the pids of this machine's processes that hold a lock on an open file, our own
    included, by the kernel's table (Linux); empty if there is none. `mode`: only shared locks
    (READ), or exclusive ones (WRITE).
    """
    found = os.fstat(fd)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return ()

    pids = set()
    for line in lines:
        row = line.split()
        if "->" in row or len(row) < 6:
            continue  # one that waits for the lock above it
        _number, kind, _advisory, held_mode, pid, file = row[:6]
        if kind == "FLOCK" and file == wanted and mode in ("", held_mode):
            pids.add(int(pid))
    return tuple(sorted(pid for pid in pids if pid > 0))


def try_lock(fd: int, operation: int = fcntl.LOCK_EX) -> bool:
    """Return whether the lock of an open file was taken."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_ours(folder: Path) -> bool:
    """Return whether this user owns the folder and nobody else can write to it."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )
