"""Search indexes kept on disk between processes: `$XDG_CACHE_HOME/bundle-router/index` (`~/.cache` by default).

Rules:
1. A cache: whatever is wrong with it (no home, read-only, full, half written, another's), there is nothing in it, and
   nothing is raised.
2. An index is written beside and renamed, so a reader sees a whole one or none. Two writers: the first one's stays.
   One that can't be read makes room, or it would be built anew, and not kept, by every process from then on.
3. It is read only from a folder that is ours and that nobody else may write: what is in it ranks bundles.
4. The newest `KEPT` stay. What a writer that was killed left half written goes after `ABANDONED_S`.
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
    """Return where this user's indexes are kept; None for a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):  # the specification: a relative path is to be ignored
        return Path(named, "bundle-router", "index")
    home = os.environ.get("HOME", "")
    return Path(home, ".cache", "bundle-router", "index") if home.startswith("/") else None


class IndexCache:
    """Indexes by revision (`sha256:…`) in one folder, made when the first is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def load(self, revision: str, read: Callable[[Path], T | None]) -> T | None:
        """Return what `read` makes of the index of that revision, or None."""
        place = self._place(revision)
        if place is None or not is_ours(place.parent) or not is_ours(place):
            return None
        found = read(place)
        if found is None:
            shutil.rmtree(place, ignore_errors=True)
            return None
        with suppress(OSError):
            os.utime(place)  # age is time since use
        return found

    def save(self, revision: str, write: Callable[[Path], None]) -> bool:
        """Keep what `write` puts into the folder it is given. Return whether there is one of that revision now."""
        place = self._place(revision)
        if place is None:
            return False
        beside: Path | None = None
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not is_ours(place.parent):
                return False
            beside = Path(tempfile.mkdtemp(prefix=_HALF, dir=place.parent))
            write(beside)
            if not place.exists():
                beside.rename(place)
            self._prune(place.parent)
        except OSError:
            return place.is_dir()  # full, read-only, or another writer was first
        finally:
            if beside is not None:
                shutil.rmtree(beside, ignore_errors=True)
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
