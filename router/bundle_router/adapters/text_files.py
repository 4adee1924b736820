"""Text files of a project that a command changes: replaced whole or not at all, and never through a link."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bundle_router.errors import STORAGE_KINDS, StorageError


def replace_texts(texts: Mapping[Path, str]) -> None:
    """Writes each file beside its place, then moves them there, so that a failing disk changes nothing.

    Raises StorageError.
    """
    beside: dict[Path, str] = {}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
            beside[path] = name
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
                os.fchmod(descriptor, 0o644)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
        for path in list(beside):
            Path(beside[path]).replace(path)
            del beside[path]
    except OSError as error:
        kind = STORAGE_KINDS.get(error.errno or 0, "io_error")
        raise StorageError(f"{error.filename or path}: can't be written ({error.strerror})", kind=kind) from error
    finally:
        for name in beside.values():
            Path(name).unlink(missing_ok=True)
