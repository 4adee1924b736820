"""The journal of a config folder: what was changed in it, and why (see `review.config_changes`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import refuse_links
from bundle_router.adapters.text_files import read_within
from bundle_router.core.config.config_changes import FILE_NAME, ConfigChange, changes_from
from bundle_router.errors import RequestError, storage_error

MAX_BYTES: Final = 256 * 1024 * 1024


def append_change(folder: Path, change: ConfigChange) -> Path:
    """Append a line, and return the journal's path.

    It is on disk when this returns. Raises StorageError.
    """
    path = folder / FILE_NAME
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
        with os.fdopen(descriptor, "wb") as file:
            refuse_links(FILE_NAME, os.fstat(descriptor))
            file.write(change.to_line().encode())
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise storage_error(f"{path}: can't be written", error) from error
    return path


def read_changes(folder: Path) -> list[ConfigChange]:
    """Return the recorded changes, oldest first. Raises RequestError if a line can't be read."""
    try:
        text = read_within(folder, folder / FILE_NAME, MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{folder / FILE_NAME} can't be read: {error}") from None
    try:
        return changes_from(text)
    except ValueError as error:
        raise RequestError(str(error), advice="put the line right, or take it out") from None
