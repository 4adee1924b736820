"""Files that one call passes to its tool: read-only copies of artifacts in a folder of their own.

Rules:
1. The folder is new, has an unguessable name, and is private to this user (0700). Its files have mode 0400 and are
   written once. Their names come from the router, never from a tool or a server.
2. `close` deletes the folder with its files. It never raises: what can't be deleted is left to the system's clean-up of
   temporary files.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from bundle_router.errors import storage_error

PREFIX = ".bundle-router-"


class ScratchFolder:
    """Implements `ports.Scratch`. For one thread at a time."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}

    def put(self, name: str, data: bytes, *, within: str = "") -> str:
        """Write a file with these bytes, and return its path for a tool. Raises StorageError."""
        try:
            if within not in self._folders:
                self._folders[within] = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=within or None))
            path = os.path.join(self._folders[within], name)  # noqa: PTH118 - a string is what a tool gets
            if not Path(path).exists():
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
        except OSError as error:
            raise storage_error(f"can't hand a file to a tool in {within or tempfile.gettempdir()}", error) from error
        return path

    def close(self) -> None:
        for folder in self._folders.values():
            shutil.rmtree(folder, ignore_errors=True)
        self._folders.clear()
