"""The reader of recorded runs: lists, reads, verifies and prunes them, also while they are written.

Rules:
1. Reading never writes: a torn end is reported and left alone, and an open run is read up to its
   present end.
2. The order of records is their sequence. File times and the wall-clock times in records are not
   trusted for it.
3. Reading tolerates unknown fields and record types, but always reports a line it can't read.
4. An open run is never pruned: its lock is tried, and held while the run is deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

from bundle_router.adapters.archive.archive import UNKEYED, RunArchive, RunSummary, VerifyReport
from bundle_router.adapters.archive.directory import Archive
from bundle_router.adapters.archive.head_files import HEADS, FolderHeads
from bundle_router.adapters.archive.pruning import prune
from bundle_router.core.catalog import RecordSettings
from bundle_router.errors import RequestError

__all__ = [
    "UNKEYED",
    "Archive",
    "FolderHeads",
    "RunArchive",
    "RunSummary",
    "VerifyReport",
    "kept_heads",
    "prune",
]


def kept_heads(settings: RecordSettings, runs: str | Path) -> FolderHeads | None:
    """Return the store of run heads; None without `[records]`.

    Raises RequestError if the key's variable is unset.
    """
    if settings.heads is None and settings.key is None:
        return None
    return FolderHeads(settings.heads or Path(runs) / HEADS, _signing_key(settings.key))


def _signing_key(reference: str | None) -> bytes | None:
    """Return the content of the variable that `${NAME}` names; None without a reference."""
    if not reference:
        return None
    name = reference.removeprefix("${").removesuffix("}")
    key = os.environ.get(name, "")
    if not key.strip():
        raise RequestError(
            f"[records] key names {name}, which is not set", advice="set it, or take the key out"
        )
    return key.encode()
