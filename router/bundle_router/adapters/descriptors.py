"""Open file descriptors.

Imports nothing of ours, so that every room that opens files can use it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable


def refuse_links(name: str, found: os.stat_result) -> None:
    """Raise OSError for the status of an open file that has a second name: whoever writes to it
    changes the other one's content, wherever that lies.
    """
    if found.st_nlink > 1:
        raise OSError(errno.EMLINK, f"{name} is a hard link: the file has {found.st_nlink} names")


class Opened:
    """A descriptor that is closed at the end of its `with` block."""

    __slots__ = ("_close", "_fd")

    def __init__(self, fd: int, close: Callable[[int], None] = os.close) -> None:
        self._fd = fd
        self._close = close

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
