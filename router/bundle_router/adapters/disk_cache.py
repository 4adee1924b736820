"""A SQLite file that processes of this machine share, and that may be lost: it is a cache.

Rules:
1. Nothing is raised. Where the file can't be used, or holds something else, a use of it gives None,
   and its user is told once.
2. The file, and its folder where that is missing, are private to their owner. A file is made with
   the first change.
3. Each use opens the file, makes the tables that are missing, and closes it: what is cached costs
   far more than that, and nothing is left to close. A change holds the lock for writing from before
   it reads, so what it adds to can't change meanwhile.

Its three users, and what each needs differently:
- models' answers (`answer_store`): a text by its question, until a time. Expired ones are dropped
  with each change. A look-up waits for less time than a change, since a question has a deadline.
- models' costs (`model_costs`): a sum by day. A change reads, compares with a limit, and adds.
  Where the file is unusable, the process counts for itself.
- vectors of texts (`embeddings.kept`): hundreds of rows at once, by their texts' digests, in a file
  of the user's for each revision of an embedder. It is used only in a folder of our own, since it
  ranks bundles; a damaged file is deleted, since vectors that can't be stored are paid for again;
  and it has no write-ahead log, so that a file that is old can be deleted at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from bundle_router.adapters.database_file import WRITTEN_BESIDE, create_private, use_wal
from bundle_router.adapters.text_files import is_ours

Found = TypeVar("Found")
"""What a use of the file gives."""
Work = Callable[[sqlite3.Connection], Found]


class DiskCache:
    """One such file. For threads."""

    def __init__(
        self,
        path: Path,
        tables: Sequence[str],
        *,
        tell: Callable[[str], None] | None = None,
        wal: bool = True,
        own_folder: bool = False,
        delete_damaged: bool = False,
    ) -> None:
        """`tables`: the statements that make what is missing. `tell` is told, once, why the file
        can't be used. `own_folder`: use it only in a folder that nobody else may write to.
        `delete_damaged`: delete a file that is no database, to begin a new one.
        """
        self.path = path
        self._tables = tables
        self._tell = tell
        self._wal = wal
        self._own_folder = own_folder
        self._delete_damaged = delete_damaged
        self._told = False

    def read(self, wait_s: float, work: Work[Found]) -> Found | None:
        """Return what `work` finds; None where there is no file, or it can't be used.

        Others are waited for for `wait_s` seconds.
        """
        return self._use(wait_s, work, changes=False)

    def change(self, wait_s: float, work: Work[Found]) -> Found | None:
        """Return what `work` gives, after its changes are committed: all of them, or none.

        None where the file can't be used.
        """
        return self._use(wait_s, work, changes=True)

    def _use(self, wait_s: float, work: Work[Found], *, changes: bool) -> Found | None:
        try:
            if changes:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            elif not self.path.is_file():
                return None
            if self._own_folder and not is_ours(self.path.parent):
                return None
            create_private(self.path)
            opened = sqlite3.connect(self.path, timeout=wait_s, isolation_level=None)
            with closing(opened) as connection:
                if self._wal:
                    use_wal(connection, wait_s)
                if changes:
                    connection.execute("BEGIN IMMEDIATE")
                for statement in self._tables:
                    connection.execute(statement)
                found = work(connection)
                if changes:
                    connection.execute("COMMIT")
                return found
        # The last two are raised for a value of another type than ours.
        except (sqlite3.Error, OSError, TypeError, ValueError) as error:
            self._note(error)
            return None

    def _note(self, error: Exception) -> None:
        if self._tell is not None and not self._told:
            self._told = True
            self._tell(f"{type(error).__name__}: {error}".splitlines()[0])

        # An OperationalError may pass: busy, full, read-only.
        is_damaged = isinstance(error, sqlite3.DatabaseError)
        if self._delete_damaged and is_damaged and not isinstance(error, sqlite3.OperationalError):
            with suppress(OSError):
                for ending in (*WRITTEN_BESIDE, ""):
                    self.path.with_name(f"{self.path.name}{ending}").unlink(missing_ok=True)
