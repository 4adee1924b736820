"""The SQLite file of an index: where it lies, its connections, and what is done when it is broken.

Rules:
1. The file is a cache of the runs. If it is no usable database it is moved aside, not deleted;
   the next one that breaks replaces what was moved.
2. Another process may have moved it already: only the file that was found broken is moved.
3. If it can't be read at all (another program locks it), this process makes an index of its own.
4. `notice` says what happened.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from bundle_router.adapters.database_file import WRITTEN_BESIDE
from bundle_router.adapters.index.database import META, BrokenIndex, open_engine
from bundle_router.adapters.index.read_connections import ReadConnections
from bundle_router.errors import storage_error

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

FILE: Final = "index.sqlite"
"""File name of the index in the runs folder."""
FORMER_FILE: Final = ".index.sqlite"
"""What the index of lists and pages was called while `runs index` wrote another one."""
ASIDE: Final = ".broken"
"""What is put behind the name of a file that is moved aside."""
PRIVATE: Final = "sqlite://"
"""The URL of an index of this process alone."""


class IndexPlace(Protocol):
    """What tells where the index of an archive lies."""

    @property
    def where(self) -> str: ...

    @property
    def folder(self) -> Path | None: ...

    @property
    def is_shared(self) -> bool: ...


def index_url(archive: IndexPlace) -> str:
    """Return the URL of the index of an archive: a file in the runs folder; for a database, in the
    user's cache; in memory if that is not writable, or the runs are those of this process alone.
    """
    if not archive.is_shared:
        return PRIVATE
    if archive.folder is not None:
        path = archive.folder / FILE
    else:
        home = os.environ.get("XDG_CACHE_HOME", "") or str(
            Path(os.environ.get("HOME", "/nonexistent"), ".cache")
        )
        name = f"{sha256(archive.where.encode()).hexdigest()[:16]}.sqlite"
        path = Path(home, "bundle-router", "runs", name)
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.access(path if path.exists() else path.parent, os.W_OK):
        return f"sqlite:///{path}"
    return PRIVATE


class IndexFile:
    """The file of one index. Any number of threads may use it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._connections: ReadConnections | None = None
        self._inode = 0
        self.notice = ""
        """What happened to the file, in a sentence; empty if nothing did."""

    def close(self) -> None:
        with self._lock:
            if self._connections is not None:
                self._connections.close()
                self._connections = None
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    @property
    def is_private(self) -> bool:
        """Whether no other process uses it."""
        return self.url == PRIVATE

    def exists(self) -> bool:
        """Return whether there is a file to read."""
        return (self.is_private and self._engine is not None) or self._path().exists()

    def engine(self) -> Engine:
        """Return the engine that writes the file, opened on first use: it loads SQLAlchemy."""
        with self._lock:
            if self._engine is None:
                self._engine = open_engine(self.url)
                self._inode = self._path().stat().st_ino
                self._delete_former()
            return self._engine

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection in a transaction that only reads.

        Raises StorageError. A file that is no usable database raises it too, is moved aside, and
        the next refresh makes a new one.
        """
        with self._lock:
            if self._connections is None:
                path = self._path()
                self._inode = path.stat().st_ino if path.exists() else 0
                self._connections = ReadConnections(path)
            connections = self._connections
        try:
            with connections.reading() as connection:
                yield connection
        except BrokenIndex as error:
            self.move_aside(error.message)
            raise

    def move_aside(self, why: str) -> None:
        """Move the broken file aside, so that the next use makes a new one.

        Raises StorageError if that is impossible.
        """
        with self._lock:
            broken = self._inode
            path = self._path()
            self.close()
            if not path.exists() or path.stat().st_ino != broken:
                return

            aside_path = f"{path}{ASIDE}"
            try:
                for ending in WRITTEN_BESIDE:
                    with suppress(FileNotFoundError):
                        Path(f"{path}{ending}").replace(f"{aside_path}{ending}")
                path.replace(aside_path)
            except OSError as error:
                raise storage_error(f"the index {path} can't be moved aside", error) from None
            self.notice = f"{why}; it was moved to {aside_path}, and is made anew"

    def do_without(self, why: str) -> None:
        """Go on with an index of this process alone."""
        with self._lock:
            self.close()
            self.url = PRIVATE
            self.notice = f"{why}; an index of this process alone is used"

    def _path(self) -> Path:
        if self.is_private:
            return Path(str(self.engine().url.database))
        return Path(self.url.removeprefix("sqlite:///"))

    def _delete_former(self) -> None:
        path = self._path()
        if path.name == FILE:
            for ending in ("", *WRITTEN_BESIDE):
                with suppress(OSError):
                    path.with_name(FORMER_FILE + ending).unlink()


def version_in(connection: sqlite3.Connection) -> str:
    """Return the version of the tables in a database; empty if it has none of ours."""
    query = f"select value from {META} where name = 'version'"
    try:
        row = connection.execute(query).fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return ""  # there is no such table
    return str(row["value"]) if row is not None else ""
