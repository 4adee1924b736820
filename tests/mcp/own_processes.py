"""The processes that a test started: those below this one that were not there before, nor came of such.

Other tests of the same process may keep a browser or a server.
"""

from __future__ import annotations

import os

from bundle_router.adapters.mcp.supervision import descendants

_before: list[int] = []


def forget() -> None:
    """Take what is there for others'."""
    _before[:] = descendants(os.getpid())


def own_processes() -> list[int]:
    """Return the processes started since."""
    others = {pid for known in _before for pid in (known, *descendants(known))}
    return [pid for pid in descendants(os.getpid()) if pid not in others]
