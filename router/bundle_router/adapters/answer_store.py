"""Stores models' answers in a SQLite file beside the runs, for reuse by other processes.

The `AnswerStore` port.

Rules:
1. It is a cache: if anything is wrong with the file, there is no answer, and nothing is raised.
   That is reported once.
2. A stored answer has no authority: it is processed like any answer, and the core keeps only
   candidates.
3. It is as private as the runs beside it. It has one table; a file of another version is left alone
   and not used.
4. Each look-up opens the file: a question costs a model's answer, so that is little, and nothing is
   left to close.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from bundle_router.adapters.database_file import create_private, use_wal
from bundle_router.ports import Diagnostics

FILE: Final = "answers.sqlite"
MAX_TEXT: Final = 65_536
"""Maximum characters of an answer that is stored."""
GET_S: Final = 0.5
"""Seconds that a look-up waits for others, since a question has a deadline."""
PUT_S: Final = 4.0
"""Seconds that a write waits for others: the question is answered by then, but a closing router
waits for it.
"""
_PREPARE: Final = (
    (
        "CREATE TABLE IF NOT EXISTS answers_1 (key TEXT NOT NULL PRIMARY KEY, text TEXT NOT NULL,"
        " made REAL, until REAL)"
    ),
    "CREATE INDEX IF NOT EXISTS ix_answers_1_until ON answers_1 (until)",
)


class SqlAnswers:
    """Answers by question key, in `folder/answers.sqlite`.

    The file is created with the first answer. For threads.
    """

    def __init__(self, folder: str | Path, diagnostics: Diagnostics) -> None:
        self._path = Path(folder) / FILE
        self._diagnostics = diagnostics
        self._warned = False

    def get(self, key: str) -> str | None:
        """Return the stored answer; None if it is too old, or from the future because the clock was
        set back.
        """
        now = time.time()
        query = "SELECT text FROM answers_1 WHERE key = ? AND until > ? AND made <= ?"
        row = self._execute(GET_S, (query, (key, now, now))) if self._path.exists() else None
        return str(row[0]) if row is not None else None

    def put(self, key: str, text: str, ttl_s: float) -> None:
        """Store the text, and delete expired answers."""
        now = time.time()
        query = "INSERT OR REPLACE INTO answers_1 (key, text, made, until) VALUES (?, ?, ?, ?)"
        if len(text) <= MAX_TEXT:
            expired = ("DELETE FROM answers_1 WHERE until <= ?", (now,))
            self._execute(PUT_S, expired, (query, (key, text, now, now + ttl_s)))

    def _execute(
        self, wait_s: float, *queries: tuple[str, tuple[object, ...]]
    ) -> tuple[Any, ...] | None:
        """Run the queries in one transaction, and return the first row of the last; None where the
        file is unusable.
        """
        row: tuple[Any, ...] | None = None
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            create_private(self._path)
            with closing(sqlite3.connect(self._path, timeout=wait_s)) as connection, connection:
                use_wal(connection, wait_s)
                for query, values in (*((statement, ()) for statement in _PREPARE), *queries):
                    row = connection.execute(query, values).fetchone()
        except (sqlite3.Error, OSError) as error:
            if not self._warned:
                self._warned = True
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                self._diagnostics.event(
                    "warning", "answers.unusable", path=str(self._path), cause=cause
                )
            return None
        return row
