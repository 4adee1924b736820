"""A private folder for one program: its HOME and its temporary files, gone when it is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def private_folder() -> Iterator[str]:
    """A fresh folder (mode 0700) with `home` and `tmp` in it. Its real path, without symlinks."""
    folder = Path(tempfile.mkdtemp(prefix="bundle-router-exec-")).resolve()
    try:
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        yield str(folder)
    finally:
        shutil.rmtree(folder, onerror=_open_and_retry)


def _open_and_retry(remove: Callable[[str], object], path: str, _: object) -> None:
    """A program may have taken its own folders' permissions away. What still can't be removed is left to the system."""
    with suppress(OSError):
        Path(path).parent.chmod(0o700)
        if not Path(path).is_symlink():
            Path(path).chmod(0o700)
        remove(path)
