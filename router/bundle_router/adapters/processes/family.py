"""What a process of ours knows of the processes below it, and how it ends them.

For the supervisor of stdio servers and the launcher of sandboxed programs, which adopt the orphans
below them: whatever group, session or parent a process has moved to, it is a descendant still.
Standard library only, and none of its slow half.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final

KILL_FOR_S: Final = 5.0
"""Seconds for which what does not end is killed again and again."""
POLL_S: Final = 0.02
"""Seconds between two looks at what is still there, while it is being ended."""


def watch_children() -> int:
    """Return a descriptor that becomes readable when a child ends; `clear` it then."""
    readable, writable = os.pipe()
    for descriptor in (readable, writable):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def clear(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 4096)


def reap(ended: Callable[[int, int], None]) -> bool:
    """Collect every child that has ended, and call `ended` with its pid and exit status (`-n` if
    signal `n` ended it).

    Return False if there are no children left at all.
    """
    try:
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return True
            ended(child, os.waitstatus_to_exitcode(status))
    except ChildProcessError:
        return False


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signal the processes that are still there and that we may signal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def descendants(root: int) -> list[int]:
    """Return the pids of all descendants of `root`, nearest first, as /proc shows them now.

    Empty without /proc.
    """
    return descendants_among(root, processes_by_parent())


def descendants_among(root: int, children: dict[int, list[int]]) -> list[int]:
    """Return all descendants of `root`, nearest first, of the processes by parent."""
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def processes_by_parent() -> dict[int, list[int]]:
    """Return the pids of all processes, by parent, as /proc shows them now. Empty without /proc."""
    children: dict[int, list[int]] = {}
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  # pathlib costs 5 ms here
    except OSError:
        return {}
    for name in names:
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123  # as above
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(name))
    return children
