"""A private folder for one program: its HOME and its temporary files, gone when it is."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_folder() -> Iterator[str]:
    """A fresh folder (mode 0700) with `home`, `tmp` and `var-tmp` in it. Its real path, without symlinks."""
    folder = Path(tempfile.mkdtemp(prefix="bundle-router-exec-")).resolve()
    try:
        for name in ("home", "tmp", "var-tmp"):
            (folder / name).mkdir()
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            _make_removable(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _make_removable(folder: Path) -> None:
    """A program may have taken its own folders' permissions away. Nothing of it runs any more, so nothing moves."""
    folder.chmod(0o700)
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            if not (path := Path(parent, name)).is_symlink():
                path.chmod(0o700)
