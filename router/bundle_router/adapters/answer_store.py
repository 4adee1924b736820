"""Stores models' answers in a SQLite file beside the runs, for reuse by other processes.

The `AnswerStore` port.

Rules:
1. It is a cache (`disk_cache`): if anything is wrong with the file, there is no answer, and nothing
   is raised. That is reported once.
2. A stored answer has no authority: it is processed like any answer, and the core keeps only
   candidates.
3. It is as private as the runs beside it. It has one table; a file of another version is left alone
   and not used.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from bundle_router.adapters.disk_cache import DiskCache
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
_TABLES: Final = (
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
        path = Path(folder) / FILE

        def tell(cause: str) -> None:
            diagnostics.event("warning", "answers.unusable", path=str(path), cause=cause)

        self._cache = DiskCache(path, _TABLES, tell=tell)

    def get(self, key: str) -> str | None:
        """Return the stored answer; None if it is too old, or from the future because the clock was
        set back.
        """
        now = time.time()
        query = "SELECT text FROM answers_1 WHERE key = ? AND until > ? AND made <= ?"

        def look_up(connection: sqlite3.Connection) -> str | None:
            row = connection.execute(query, (key, now, now)).fetchone()
            if row is None:
                return None
            return str(row[0])

        return self._cache.read(GET_S, look_up)

    def put(self, key: str, text: str, ttl_s: float) -> None:
        """Store the text, and delete expired answers."""
        if len(text) > MAX_TEXT:
            return
        now = time.time()
        query = "INSERT OR REPLACE INTO answers_1 (key, text, made, until) VALUES (?, ?, ?, ?)"

        def store(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM answers_1 WHERE until <= ?", (now,))
            connection.execute(query, (key, text, now, now + ttl_s))

        self._cache.change(PUT_S, store)
