"""Private folders, usually in the system's temporary one, which are deleted with the process that
made them.

Each is locked while it is used. An unlocked one belonged to a killed process, and the next process
deletes it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.errors import StorageError, storage_error

_ABANDONED_S: Final = 600.0


def temporary_root() -> Path:
    """Return the folder for temporary files: TMPDIR's, else the system's.

    Raises StorageError if none can be written, as in a container whose root is read-only.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise StorageError(
            f"there is no folder for temporary files: {error.strerror}",
            kind="read_only",
            advice="set TMPDIR to a folder that this process can write in, or mount one at /tmp",
        ) from error


@contextmanager
def private_folder(prefix: str, within: Path | None = None) -> Iterator[str]:
    """Create a folder (mode 0700), yield its real path, and delete it afterwards, unless it was
    renamed. Raises StorageError if it can't be created.
    """
    parent = within or temporary_root()
    _delete_abandoned(parent, prefix)
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    except OSError as error:
        raise storage_error(f"can't create a folder in {parent}", error) from error
    owner = os.getpid()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks, where no folder counts as abandoned
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield str(folder)
    finally:
        if os.getpid() == owner:  # a forked process has this generator too
            delete_folder(folder)
        os.close(lock)


def _delete_abandoned(parent: Path, prefix: str) -> None:
    """Delete the folders whose process is gone. A new one may not be locked yet, and is kept."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    for folder in parent.glob(f"{prefix}*"):
        # another process may delete it first, or it is another user's
        with suppress(OSError), Opened(os.open(folder, flags)) as lock:
            about = os.fstat(lock)
            if about.st_uid == os.geteuid() and about.st_mtime < time.time() - _ABANDONED_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                delete_folder(folder)


def delete_folder(folder: Path) -> None:
    """Delete it, with restored permissions and at any depth: what is inside an inner folder is
    moved up, then deleted. No process uses it, so nothing moves.
    """
    with suppress(OSError):
        folder.chmod(0o700)
        while entries := list(folder.iterdir()):
            for entry in entries:
                if not _is_folder(entry):
                    entry.unlink()
                    continue
                entry.chmod(0o700)
                for below in list(entry.iterdir()):
                    if _is_folder(below):
                        below.chmod(0o700)  # else it can't be moved
                    below.rename(folder / secrets.token_hex(16))
                entry.rmdir()
        folder.rmdir()


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
