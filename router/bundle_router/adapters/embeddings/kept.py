"""Vectors stored on disk between processes, by the digest of their text:
`$XDG_CACHE_HOME/bundle-router/embeddings`.

Rules:
1. It is a cache (`disk_cache`): if anything is wrong with it (no home, read-only, full, damaged,
   foreign), it counts as empty, and nothing is raised. A file that is not a whole database is
   deleted; an invalid vector is replaced by the next one of its text. The cache exists because
   embedding everything at every start would cost money.
2. There is one file per revision of an embedder, so that revisions never mix. An unchanged text is
   never embedded again, whatever changes around it. The newest `REVISIONS` files stay.
3. It is read only from a folder that we own and that nobody else may write to, because its content
   ranks bundles.
4. At most `MAX_KEPT` texts per revision; the oldest are deleted first. The texts themselves are not
   stored.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from bundle_router.adapters.disk_cache import DiskCache

MAX_KEPT: Final = 200_000
REVISIONS: Final = 4
LOAD_S: Final = 2.0
SAVE_S: Final = 10.0
"""Seconds to wait for other processes.

Vectors that are not saved would have to be paid for again.
"""
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS kept (digest BLOB PRIMARY KEY, vector BLOB NOT NULL)",
)
_ASKED: Final = 500
"""Digests per query; SQLite takes 999 in its oldest builds."""


def cache_folder() -> Path | None:
    """Return the folder of this user's vectors; None for a user without a home."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if folder.startswith("/"):  # the XDG specification says to ignore a relative path
        return Path(folder, "bundle-router", "embeddings")
    home = os.environ.get("HOME", "")
    if not home.startswith("/"):
        return None
    return Path(home, ".cache", "bundle-router", "embeddings")


class VectorStore:
    """Vectors by text, for one revision of an embedder.

    The file is created on first use; many threads may use it.
    """

    def __init__(self, folder: Path | None, revision: str) -> None:
        self._cache: DiskCache | None = None
        if folder is not None:
            name = hashlib.sha256(revision.encode()).hexdigest()[:32]
            self._cache = DiskCache(
                folder / f"{name}.sqlite",
                _TABLES,
                wal=False,  # one file a revision, which may be deleted at any time
                own_folder=True,
                delete_damaged=True,
            )

    def load(self, texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """Return the stored vectors of the texts."""
        if self._cache is None:
            return {}
        by_digest = {_digest(text): text for text in texts}
        digests = list(by_digest)

        def look_up(connection: sqlite3.Connection) -> dict[str, tuple[float, ...]]:
            vectors = {}
            for start in range(0, len(digests), _ASKED):
                for digest, value in _rows_of(connection, digests[start : start + _ASKED]):
                    vector = _vector_from(value)
                    if vector:
                        vectors[by_digest[digest]] = vector
            return vectors

        vectors = self._cache.read(LOAD_S, look_up)
        if vectors is None:
            return {}
        with suppress(OSError):
            os.utime(self._cache.path)  # age counts from the last use
        return vectors

    def save(self, vectors: Mapping[str, Sequence[float]]) -> bool:
        """Store the vectors of texts. Return whether they were stored."""
        if self._cache is None:
            return False
        rows = [(_digest(text), array("f", vector).tobytes()) for text, vector in vectors.items()]

        def store(connection: sqlite3.Connection) -> bool:
            connection.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
            oldest = "DELETE FROM kept WHERE rowid <= (SELECT max(rowid) FROM kept) - ?"
            connection.execute(oldest, (MAX_KEPT,))
            return True

        if not self._cache.change(SAVE_S, store):
            return False
        with suppress(OSError):  # another process prunes too
            self._prune(self._cache.path.parent)
        return True

    @staticmethod
    def _prune(folder: Path) -> None:
        newest = sorted(
            folder.glob("*.sqlite"), key=lambda file: (-file.stat().st_mtime_ns, file.name)
        )
        for old in newest[REVISIONS:]:
            old.unlink(missing_ok=True)


def _rows_of(connection: sqlite3.Connection, digests: Sequence[bytes]) -> sqlite3.Cursor:
    marks = ",".join("?" * len(digests))
    # Only question marks are inserted into the query's text.
    query = f"SELECT digest, vector FROM kept WHERE digest IN ({marks})"  # noqa: S608
    return connection.execute(query, digests)


def _vector_from(value: object) -> tuple[float, ...]:
    """Return a stored vector; an empty one where the value is none."""
    if not isinstance(value, bytes) or len(value) % 4 != 0:
        return ()
    return tuple(array("f", value))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
