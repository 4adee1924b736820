"""Vectors kept on disk between processes, by the digest of their text: `$XDG_CACHE_HOME/bundle-router/embeddings`.

Rules:
1. A cache: whatever is wrong with it (no home, read-only, full, damaged, another's), there is nothing in it, and
   nothing is raised. A file that is no database, or no longer a whole one, makes room for another; a vector that was
   unsound is replaced by the next one of its text. Embedding everything anew at every start would cost money.
2. One file for each revision of an embedder, so that a new one never meets an old one's vectors. A text that is
   unchanged is never embedded again, whatever changed around it. The newest `REVISIONS` files stay.
3. It is read only from a folder that is ours and that nobody else may write: what is in it ranks bundles.
4. At most `MAX_KEPT` texts of a revision: those that were kept first go first. Texts themselves are not in it.
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

from bundle_router.adapters.text_files import is_ours

MAX_KEPT: Final = 200_000
REVISIONS: Final = 4
BUSY_S: Final = 2.0
_ASKED: Final = 500
"""Digests in one query; SQLite takes 999 in its oldest builds."""


class VectorStore:
    """Vectors by text, for one revision of an embedder. Made on first use; may be used from many threads."""

    def __init__(self, folder: Path | None, revision: str) -> None:
        name = hashlib.sha256(revision.encode()).hexdigest()[:32]
        self._file = folder / f"{name}.sqlite" if folder is not None else None

    def load(self, texts: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """Return what is known of the texts."""
        by_digest = {_digest(text): text for text in texts}
        if self._file is None or not is_ours(self._file.parent) or not self._file.is_file():
            return {}
        found: dict[str, tuple[float, ...]] = {}
        digests = list(by_digest)
        try:
            with suppress(OSError):
                os.utime(self._file)  # age is time since use
            with closing(self._open(self._file)) as base:
                for start in range(0, len(digests), _ASKED):
                    part = digests[start : start + _ASKED]
                    marks = ",".join("?" * len(part))
                    # Only question marks are put into the text of the query.
                    rows = base.execute(f"SELECT digest, vector FROM kept WHERE digest IN ({marks})", part)  # noqa: S608
                    for digest, vector in rows:
                        if isinstance(vector, bytes) and vector and len(vector) % 4 == 0:
                            found[by_digest[digest]] = tuple(array("f", vector))
        except (sqlite3.Error, OSError) as wrong:
            _make_room(self._file, wrong)
            return {}
        return found

    def save(self, vectors: Mapping[str, Sequence[float]]) -> bool:
        """Keep the vectors of texts. Return whether they are kept."""
        if self._file is None:
            return False
        rows = [(_digest(text), array("f", vector).tobytes()) for text, vector in vectors.items()]
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(self._file.parent):
                return False
            with closing(self._open(self._file)) as base, base:
                base.execute("CREATE TABLE IF NOT EXISTS kept (digest BLOB PRIMARY KEY, vector BLOB NOT NULL)")
                base.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?)", rows)
                base.execute("DELETE FROM kept WHERE rowid <= (SELECT max(rowid) FROM kept) - ?", (MAX_KEPT,))
            self._prune(self._file.parent)
        except (sqlite3.Error, OSError) as wrong:
            _make_room(self._file, wrong)
            return False
        return True

    @staticmethod
    def _open(file: Path) -> sqlite3.Connection:
        if not file.exists():
            os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        return sqlite3.connect(file, timeout=BUSY_S)

    @staticmethod
    def _prune(folder: Path) -> None:
        kept = sorted(folder.glob("*.sqlite"), key=lambda file: (-file.stat().st_mtime_ns, file.name))
        for old in kept[REVISIONS:]:
            old.unlink(missing_ok=True)


def _make_room(file: Path, wrong: Exception) -> None:
    """Delete the file where its content is at fault. (Operational is what may be over soon: busy, full, read-only.)"""
    if isinstance(wrong, sqlite3.DatabaseError) and not isinstance(wrong, sqlite3.OperationalError):
        with suppress(OSError):
            file.with_name(f"{file.name}-journal").unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
