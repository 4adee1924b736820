"""The reader of recorded runs: lists, reads, verifies and prunes them, beside their writers or long after.

Rules:
1. Reading never writes: a torn end is reported and left alone, an open run is read up to where it is now.
2. Order is the sequence. Neither file times nor the wall-clock times in records are trusted for it.
3. Reading is tolerant (unknown fields, unknown record types), and never silent about a line it can't read.
4. A run that some process works on is never pruned: its lock is tried, and held while the run is deleted.
"""

from __future__ import annotations

from pathlib import Path

from bundle_router.adapters.archive.archive import UNKEYED, RunArchive, RunSummary, Torn, VerifyReport
from bundle_router.adapters.archive.directory import Archive
from bundle_router.adapters.archive.pruning import Pruned, prune
from bundle_router.errors import needs_extra

__all__ = ["UNKEYED", "Archive", "Pruned", "RunArchive", "RunSummary", "Torn", "VerifyReport", "open_archive", "prune"]


def open_archive(place: str | Path) -> RunArchive:
    """Return the archive of a runs directory, or of a database (`postgresql://…`). Raises RequestError."""
    if str(place).startswith(("postgresql:", "postgresql+psycopg:", "postgres:")):
        with needs_extra("a PostgreSQL store", "postgresql"):
            from bundle_router.adapters.archive.database import PostgresArchive

        return PostgresArchive(str(place))
    return Archive(place)
