"""Edits of the config that a running service met and no journal has: they were made in git or in an
editor.

Rules:
1. The service tells each config that it takes up, and the one before (`note`). A change that the
   journal of the config folder has as its last one was made by the router, and is there already.
2. What is found is kept beside the runs, never in the config folder, which may be a checkout or
   read-only. Where there is no folder of runs, it is kept in memory, as long as the process lives.
3. Where a change is known, an edit made while no service ran is found when the next one starts: the
   config is another one than that change led to. What it widened is not known then.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bundle_router.adapters.config_journal import append_change, read_changes
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_changes import ConfigChange
from bundle_router.errors import RequestError, StorageError
from bundle_router.review.privileges import privilege_diff
from bundle_router.review.privileges.privilege_rows import widening_words

FILE: Final = "config-changes.jsonl"
"""The name of the file beside the runs."""
NOT_COMPARED: Final = "not compared: no service ran when it was made"


class FoundEdits:
    """The found edits of one config folder. Any number of threads may use it."""

    def __init__(self, config: Path, runs: Path | None) -> None:
        self._config = config
        self._runs = runs
        self._lock = threading.Lock()
        self._unwritten: list[ConfigChange] = []

    def note_start(self, catalog: Catalog) -> None:
        """Note that a service starts with this config."""
        with self._lock:
            last = self._last_revision()
            if last and last != catalog.revision:
                self._add(last, catalog.revision, (NOT_COMPARED,), "")

    def note(self, old: Catalog, new: Catalog) -> None:
        """Note that the service took up the new config in place of the old one."""
        with self._lock:
            if self._last_revision() == new.revision:
                return
            diff = privilege_diff(old, new)
            digest = diff.widening_digest if diff.widens else ""
            self._add(old.revision, new.revision, widening_words(diff), digest)

    def changes(self) -> list[ConfigChange]:
        """Return the found edits, oldest first. Raises RequestError if the file can't be read."""
        written_changes = read_changes(self._runs, FILE) if self._runs is not None else []
        return [*written_changes, *self._unwritten]

    def _last_revision(self) -> str:
        """Return the revision that the last recorded or found change led to; empty if none is."""
        try:
            all_changes = [*read_changes(self._config), *self.changes()]
        except RequestError:  # the page of the changes says which line can't be read
            return ""
        edits = [change for change in all_changes if change.type != "risks.accepted"]
        by_time = sorted(edits, key=lambda change: change.time)
        return by_time[-1].new_revision if by_time else ""

    def _add(self, old: str, new: str, widening: tuple[str, ...], digest: str) -> None:
        change = ConfigChange(
            type="edit.found",
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            by="",
            reason="",
            old_revision=old,
            new_revision=new,
            widening=widening,
            widening_digest=digest,
        )
        try:
            if self._runs is None:
                raise StorageError("there is no folder", kind="io_error")
            append_change(self._runs / FILE, change)
        except StorageError:
            self._unwritten.append(change)
