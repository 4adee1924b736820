"""Stores what the proxy hid, for as long as a conversation may go on: a small SQLite file, private
to its owner.

It holds only names and queries of answers, and which endpoints refused deferral for which models.
"""

from __future__ import annotations

import contextlib
import errno
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bundle_router.adapters.database_file import create_private, use_wal

from bundle_router_deferral.hiding import HiddenBlock

KEPT_S: Final = 30 * 86_400
REFUSED_S: Final = 86_400
MAX_ROWS: Final = 200_000
KEYS_A_QUERY: Final = 500
BUSY_S: Final = 2.0
"""Seconds that a query waits for another proxy's write."""


class HiddenStore:
    """Hidden blocks by key, and refusals.

    A failing store forgets: nothing is raised after it opened.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_symlink():
            raise OSError(errno.ELOOP, "is a symbolic link", str(path))
        create_private(path)
        path.chmod(0o600)
        self._now = now
        self.failures = 0
        self._database = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        use_wal(self._database, BUSY_S)
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS hidden (key TEXT PRIMARY KEY, blocks TEXT, time REAL)"
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS refused (key TEXT PRIMARY KEY, time REAL)"
        )
        self.prune()

    def prune(self) -> None:
        """Delete expired rows, and the oldest beyond the maximum."""
        with self._warn_once():
            self._database.execute("DELETE FROM hidden WHERE time < ?", (self._now() - KEPT_S,))
            self._database.execute("DELETE FROM refused WHERE time < ?", (self._now() - REFUSED_S,))
            self._database.execute(
                "DELETE FROM hidden WHERE key IN (SELECT key FROM hidden ORDER BY time DESC LIMIT"
                " -1 OFFSET ?)",
                (MAX_ROWS,),
            )

    def remember(self, notes: Mapping[str, Sequence[HiddenBlock]]) -> None:
        rows = [
            (key, json.dumps([asdict(block) for block in blocks]), self._now())
            for key, blocks in notes.items()
        ]
        with self._warn_once():
            self._database.executemany("INSERT OR REPLACE INTO hidden VALUES (?, ?, ?)", rows)

    def recall(self, keys: Sequence[str]) -> dict[str, tuple[HiddenBlock, ...]]:
        found: dict[str, tuple[HiddenBlock, ...]] = {}
        with self._warn_once():
            for first in range(0, len(keys), KEYS_A_QUERY):
                some = keys[first : first + KEYS_A_QUERY]
                marks = ",".join("?" * len(some))
                query = f"SELECT key, blocks FROM hidden WHERE time >= ? AND key IN ({marks})"  # noqa: S608 - marks only
                for key, blocks in self._database.execute(query, (self._now() - KEPT_S, *some)):
                    rows = (
                        dict(row, references=tuple(row["references"])) for row in json.loads(blocks)
                    )
                    found[key] = tuple(HiddenBlock(**row) for row in rows)
        return found

    def refuse(self, key: str) -> None:
        """Remember for a day that deferral was refused for a model or a conversation."""
        with self._warn_once():
            self._database.execute(
                "INSERT OR REPLACE INTO refused VALUES (?, ?)", (key, self._now())
            )

    def refused(self, *keys: str) -> bool:
        with self._warn_once():
            marks = ",".join("?" * len(keys))
            query = f"SELECT 1 FROM refused WHERE time >= ? AND key IN ({marks}) LIMIT 1"  # noqa: S608 - marks only
            return (
                self._database.execute(query, (self._now() - REFUSED_S, *keys)).fetchone()
                is not None
            )
        return False

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _warn_once(self) -> Iterator[None]:
        """Warn once: a store that can't be read or written counts as empty, and requests go on
        without it.
        """
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, KeyError):
            self.failures += 1
