"""Open file descriptors.

Imports nothing of ours, so that every room that opens files can use it.
"""

from __future__ import annotations

import os
from collections.abc import Callable


class Opened:
    """A descriptor that is closed at the end of its `with` block."""

    __slots__ = ("_close", "_fd")

    def __init__(self, fd: int, close: Callable[[int], None] = os.close) -> None:
        self._fd, self._close = fd, close

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self._close(self._fd)


class ClosedOnError(Opened):
    """A descriptor that is closed where its `with` block fails, also where whoever called was
    interrupted.
    """

    __slots__ = ()

    def __exit__(self, *failure: object) -> None:
        if failure[0] is not None:
            self._close(self._fd)
