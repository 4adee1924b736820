"""The journal of a config folder: what was changed in it, and why (`core.config.config_changes`).

An edit that has its line in the journal is made by `make_edit`, in this order:
1. The folder is locked, against other editors of this machine.
2. The edit is judged by what the files say now. What that raises leaves everything as it was.
3. The line is on disk.
4. The files are written. A crash, or a full disk, between 3 and 4 leaves a line of a change that
   the files do not show, never a change without a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from bundle_router.adapters.descriptors import refuse_links
from bundle_router.adapters.text_files import lock_folder, read_within
from bundle_router.core.config.config_changes import FILE_NAME, ConfigChange, changes_from
from bundle_router.errors import RequestError, storage_error

MAX_BYTES: Final = 256 * 1024 * 1024
Written = TypeVar("Written")
"""What an edit's `write` returns."""


@dataclass(frozen=True, slots=True)
class JournaledEdit(Generic[Written]):
    """An edit that was judged, and may be made."""

    change: ConfigChange
    """Its line in the journal."""
    write: Callable[[], Written]
    """Writes the files, and returns what the caller of `make_edit` gets."""


def make_edit(folder: Path, judge: Callable[[], JournaledEdit[Written]]) -> Written:
    """Make the edit that `judge` returns, with its line in the folder's journal; return what its
    `write` returned.

    Raises what the two raise, and StorageError.
    """
    with lock_folder(folder):
        edit = judge()
        append_change(folder / FILE_NAME, edit.change)
        return edit.write()


def append_change(path: Path, change: ConfigChange) -> None:
    """Add a line to a journal, and wait until it is on disk. Raises StorageError."""
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
        with os.fdopen(descriptor, "wb") as file:
            refuse_links(path.name, os.fstat(descriptor))
            file.write(change.to_line().encode())
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise storage_error(f"{path}: can't be written", error) from error


def read_changes(folder: Path, name: str = FILE_NAME) -> list[ConfigChange]:
    """Return the recorded changes, oldest first. Raises RequestError if a line can't be read."""
    try:
        text = read_within(folder, folder / name, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{folder / name} can't be read: {error}") from None
    try:
        return changes_from(text)
    except ValueError as error:
        raise RequestError(str(error), advice="put the line right, or take it out") from None
