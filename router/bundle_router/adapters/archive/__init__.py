"""The reader of run directories: lists, reads, verifies and prunes runs, beside their writers or long after.

Rules:
1. Reading never writes: a torn end is reported and left alone, an open run is read up to where it is now.
2. Order is the sequence. Neither file times nor the wall-clock times in records are trusted for it.
3. Reading is tolerant (unknown fields, unknown record types), and never silent about a line it can't read.
4. A run that some process writes is never pruned: its lock is tried, and held while the run is deleted.
"""

from __future__ import annotations

from bundle_router.adapters.archive.files import Torn
from bundle_router.adapters.archive.pruning import Pruned, prune
from bundle_router.adapters.archive.reader import UNKEYED, Archive, RunSummary, VerifyReport

__all__ = ["UNKEYED", "Archive", "Pruned", "RunSummary", "Torn", "VerifyReport", "prune"]
