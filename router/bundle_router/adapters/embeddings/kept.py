"""Vectors stored on disk between processes, by the digest of their text:
`$XDG_CACHE_HOME/bundle-router/embeddings`.

Rules:
1. It is a cache: if anything is wrong with it (no home, read-only, full, damaged, foreign), it
   counts as empty, and nothing is raised. A file that is not a whole database is deleted; an
   invalid vector is replaced by the next one of its text. The cache exists because embedding
   everything at every start would cost money.
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
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from bundle_router.adapters.database_file import create_private
from bundle_router.adapters.text_files import is_ours

MAX_KEPT: Final = 200_000
REVISIONS: Final = 4
LOAD_S: Final = 2.0
SAVE_S: Final = 10.0
"""Seconds to wait for other processes.

Vectors that are not saved would have to be paid for again.
"""
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
        name = hashlib.sha256(revision.encode()).hexdigest()[:32]
        self._file = folder / f"{name}.sqlite" if folder is not None else None

    def load(self, texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """Return the stored vectors of the texts."""
        by_digest = {_digest(text): text for text in texts}
        if self._file is None or not is_ours(self._file.parent) or not self._file.is_file():
            return {}
        vectors: dict[str, tuple[float, ...]] = {}
        digests = list(by_digest)
        try:
            with suppress(OSError):
                os.utime(self._file)  # age counts from the last use
            with closing(self._open(self._file, LOAD_S)) as base:
                for start in range(0, len(digests), _ASKED):
                    part = digests[start : start + _ASKED]
                    marks = ",".join("?" * len(part))
                    # Only question marks are inserted into the query's text.
                    query = f"SELECT digest, vector FROM kept WHERE digest IN ({marks})"  # noqa: S608
                    rows = base.execute(query, part)
                    for digest, vector in rows:
                        if isinstance(vector, bytes) and vector and len(vector) % 4 == 0:
                            vectors[by_digest[digest]] = tuple(array("f", vector))
        except (sqlite3.Error, OSError) as wrong:
            _make_room(self._file, wrong)
            return {}
        return vectors

    def save(self, vectors: Mapping[str, Sequence[float]]) -> bool:
        """Store the vectors of texts. Return whether they were stored."""
        if self._file is None:
            return False
        rows = [(_digest(text), array("f", vector).tobytes()) for text, vector in vectors.items()]
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(self._file.parent):
                return False
            with closing(self._open(self._file, SAVE_S)) as base, base:
                base.execute(
                    "CREATE TABLE IF NOT EXISTS kept (digest BLOB PRIMARY KEY, vector BLOB NOT"
                    " NULL)"
                )
                base.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
                base.execute(
                    "DELETE FROM kept WHERE rowid <= (SELECT max(rowid) FROM kept) - ?", (MAX_KEPT,)
                )
            with suppress(FileNotFoundError):  # another process prunes too
                self._prune(self._file.parent)
        except (sqlite3.Error, OSError) as wrong:
            _make_room(self._file, wrong)
            return False
        return True

    @staticmethod
    def _open(file: Path, wait_s: float) -> sqlite3.Connection:
        create_private(file)
        return sqlite3.connect(file, timeout=wait_s)

    @staticmethod
    def _prune(folder: Path) -> None:
        newest = sorted(
            folder.glob("*.sqlite"), key=lambda file: (-file.stat().st_mtime_ns, file.name)
        )
        for old in newest[REVISIONS:]:
            old.unlink(missing_ok=True)


def _make_room(file: Path, wrong: Exception) -> None:
    """Delete the file if its content is at fault.

    (OperationalError may be temporary: busy, full, read-only.)
    """
    if isinstance(wrong, sqlite3.DatabaseError) and not isinstance(wrong, sqlite3.OperationalError):
        with suppress(OSError):
            file.with_name(f"{file.name}-journal").unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
