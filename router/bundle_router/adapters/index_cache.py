"""Search indexes that are stored on disk between processes: `$XDG_CACHE_HOME/bundle-router/index`
(default `~/.cache`).

Rules:
1. It is a cache: if anything is wrong with it (no home, read-only, full, foreign), it counts as
   empty; nothing is raised.
2. An index is written to a temporary folder and renamed, so a reader sees a whole one or none. Of
   two writers the first wins. An unreadable index is deleted, or every process would build it again
   without storing it.
3. It is read only from a folder that we own and that nobody else may write to, because its content
   ranks bundles.
4. The newest `KEPT` indexes stay. Half-written ones of killed writers are deleted after
   `ABANDONED_S`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from bundle_router.adapters.text_files import is_ours

T = TypeVar("T")

KEPT: Final = 8
ABANDONED_S: Final = 3_600.0
_HALF: Final = ".new-"


def cache_folder() -> Path | None:
    """Return the folder of this user's indexes; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):  # the XDG specification says to ignore a relative path
        return Path(named, "bundle-router", "index")
    home = os.environ.get("HOME", "")
    return Path(home, ".cache", "bundle-router", "index") if home.startswith("/") else None


class IndexCache:
    """Indexes by revision (`sha256:…`) in one folder, which the first `save` creates."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, revision: str, read: Callable[[Path], T | None]) -> T | None:
        """Return the result of `read` on the stored index of that revision, or None."""
        place = self._place(revision)
        if place is None or not is_ours(place.parent) or not is_ours(place):
            return None
        found = read(place)
        if found is None:
            shutil.rmtree(place, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(place)  # age counts from the last use
        return found

    def save(self, revision: str, write: Callable[[Path], None]) -> bool:
        """Store the index that `write` puts into a folder.

        Return whether there is one of that revision now.
        """
        place = self._place(revision)
        if place is None:
            return False
        temporary: Path | None = None
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(place.parent):
                return False
            temporary = Path(tempfile.mkdtemp(prefix=_HALF, dir=place.parent))
            write(temporary)
            if not place.exists():
                temporary.rename(place)
            self._prune(place.parent)
        except OSError:
            return place.is_dir()  # full, read-only, or another writer was first
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return True

    def _place(self, revision: str) -> Path | None:
        name = revision.rpartition(":")[2]
        return self._folder / name if self._folder is not None and name.isalnum() else None

    @staticmethod
    def _prune(folder: Path) -> None:
        kept = sorted(
            (entry for entry in folder.iterdir() if not entry.name.startswith(".")),
            key=lambda entry: (-entry.stat().st_mtime_ns, entry.name),
        )
        before = time.time() - ABANDONED_S
        halves = [entry for entry in folder.glob(f"{_HALF}*") if entry.stat().st_mtime < before]
        for old in (*kept[KEPT:], *halves):
            shutil.rmtree(old, ignore_errors=True)
