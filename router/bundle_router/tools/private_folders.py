"""Folders in the system's temporary one that hold what no other user may see, and that go with who made them.

Each is locked while it is used. So those of processes that were killed are known: whoever makes the next deletes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_ABANDONED_S: Final = 600.0


@contextmanager
def private_folder(prefix: str) -> Iterator[str]:
    """Give a fresh folder (mode 0700) by its real path, and delete it afterwards. Raises OSError."""
    _delete_abandoned(Path(tempfile.gettempdir()), prefix)
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix)).resolve(), os.getpid()
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks: there nothing is taken for abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield str(folder)
    finally:
        if os.getpid() == owner:  # a forked process that ends has this generator, too
            _delete(folder)
        os.close(lock)


def _delete_abandoned(parent: Path, prefix: str) -> None:
    """Delete the folders whose process is gone. One that was just made may not be locked yet: it stays."""
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # others delete them too, and some are another user's
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                about = os.fstat(lock)
                if about.st_uid == os.geteuid() and about.st_mtime < time.time() - _ABANDONED_S:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _delete(folder)
            finally:
                os.close(lock)


def _delete(folder: Path) -> None:
    """Delete it, after giving back the permissions that a program took. Nothing of it runs now, so nothing moves."""
    with suppress(OSError):
        folder.chmod(0o700)
        for parent, folders, _ in os.walk(folder):
            for name in folders:
                if not (path := Path(parent, name)).is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
