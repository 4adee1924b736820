"""Connections that only read an index's SQLite file, for many threads.

They are the standard library's, so that a list of runs does not wait for SQLAlchemy to load (0.8 s
of CPU).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.database_file import create_private
from bundle_router.adapters.index.database import BUSY_S, translate_read_errors
from bundle_router.errors import storage_error

KEPT: Final = 4
"""Connections that are kept open between uses."""


class ReadConnections:
    """The connections to one file. Each is lent to one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection in a transaction, in which all queries see one state of the index.

        Raises StorageError for a file that can't be read, BrokenIndex for one that is no database.
        """
        with translate_read_errors("read"):
            connection = self._take()
            try:
                connection.execute("BEGIN")
                yield connection
                connection.execute("ROLLBACK")
            except BaseException:  # whatever ended it, one in a transaction is not lent again
                connection.close()
                raise
            self._give_back(connection)

    def close(self) -> None:
        """Close the connections; those that are lent, when they come back."""
        with self._lock:
            self._is_closed = True
            idle = self._idle
            self._idle = []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            # SQLite writes beside a file that it only reads, too
            create_private(self.path)
        except OSError as error:
            raise storage_error(f"the index {self.path} can't be read", error) from None
        connection = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = _as_dict
            connection.execute("PRAGMA query_only=ON")
            connection.execute("PRAGMA cache_size=-32000")
        except BaseException:  # an interrupted caller must leave no connection open either
            connection.close()
            raise
        return connection


def _as_dict(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}
