"""The processes that a test started: those below this one that were not there before, nor came of
such.

Other tests of the same process may keep a browser or a server.
"""

from __future__ import annotations

import os

from bundle_router.adapters.processes.family import descendants, processes_by_parent

_before: list[int] = []


def forget() -> None:
    """Take what is there for others'."""
    _before[:] = descendants(os.getpid())


def own_processes() -> list[int]:
    """Return the processes started since."""
    children = processes_by_parent()  # once: there may be hundreds
    own = [pid for pid in children.get(os.getpid(), ()) if pid not in _before]
    for pid in own:
        own.extend(child for child in children.get(pid, ()) if child not in _before)
    return own
