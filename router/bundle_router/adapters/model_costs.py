"""Stores what models cost in a day in a SQLite file beside the runs. The `DayCosts` port.

Rules:
1. All processes that share the folder of runs add to one sum, which outlives them.
2. If the file can't be used (`disk_cache`), the sum is this process's own, which is reported once.
3. Sums are kept for `KEPT_DAYS`.
"""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Final

from bundle_router.adapters.disk_cache import DiskCache
from bundle_router.ports import Diagnostics

FILE: Final = "model-costs.sqlite"
WAIT_S: Final = 0.5
"""Seconds that a change waits for other processes."""
KEPT_DAYS: Final = 31
_TABLES: Final = ("CREATE TABLE IF NOT EXISTS costs_1 (day TEXT NOT NULL PRIMARY KEY, usd REAL)",)
_EXPIRE: Final = "DELETE FROM costs_1 WHERE day < date(?, ?)"


class SqlDayCosts:
    """Sums by day, in `folder/model-costs.sqlite`, created with the first question. For threads."""

    def __init__(self, folder: str | Path, diagnostics: Diagnostics) -> None:
        path = Path(folder) / FILE

        def tell(cause: str) -> None:
            diagnostics.event("warning", "model.costs_unusable", path=str(path), cause=cause)

        self._cache = DiskCache(path, _TABLES, tell=tell)
        self._lock = threading.Lock()
        self._own: dict[str, float] = {}
        """The sums of this process alone (rule 2)."""

    def add_within(self, day: str, usd: float, limit_usd: float) -> bool:
        """See `DayCosts`."""
        with self._lock:
            stored = self._change(day, usd, limit_usd)
            spent = self._own.get(day, 0.0)
            fits = stored if stored is not None else _fits(spent, usd, limit_usd)
            if fits:
                self._own = {day: spent + usd}
            return fits

    def add(self, day: str, usd: float) -> None:
        """See `DayCosts`."""
        with self._lock:
            self._change(day, usd, None)
            self._own[day] = self._own.get(day, 0.0) + usd

    def _change(self, day: str, usd: float, limit_usd: float | None) -> bool | None:
        """Add to a day's sum, and return whether it fitted; None where the file is unusable."""

        def add(connection: sqlite3.Connection) -> bool:
            row = connection.execute("SELECT usd FROM costs_1 WHERE day = ?", (day,)).fetchone()
            spent = 0.0
            if row is not None:
                spent = float(row[0])
            if limit_usd is not None and not _fits(spent, usd, limit_usd):
                return False
            connection.execute("INSERT OR REPLACE INTO costs_1 VALUES (?, ?)", (day, spent + usd))
            connection.execute(_EXPIRE, (day, f"-{KEPT_DAYS} day"))
            return True

        return self._cache.change(WAIT_S, add)


def _fits(spent: float, usd: float, limit_usd: float) -> bool:
    return spent < limit_usd and spent + usd <= limit_usd
