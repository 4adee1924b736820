"""Open file descriptors. Imports nothing, so that every room that opens files can use it."""

from __future__ import annotations

import os


class Opened:
    """A descriptor that is closed at the end of its `with` block."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
