"""Keeps the environment of a process that is the router's own from the programs that it starts.

For `serve`, which owns its process. The library never changes the process that it is in.

Rules:
1. The process is not dumpable: others of the same user can't read its memory, environment and
   descriptors in /proc, nor attach to it. Root with CAP_SYS_PTRACE can.
2. So the text of the environment that the kernel shows in /proc/<pid>/environ is wiped, too. The
   variables stay: they are copied first. Root may still search the memory.
3. Whatever started this process (a shell, an init) keeps its own copy of the environment.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_ENV_START: Final = 47
"""Index of the start of the environment's text in /proc/<pid>/stat, counted after the name."""


def hide_environment() -> bool:
    """Hide this process's environment, and return whether the system lets us (Linux alone)."""
    if sys.platform != "linux":
        return False
    from bundle_router.adapters.sandbox import linux

    try:
        linux.hide_from_program()
        return _wipe_text()
    except (OSError, ValueError, IndexError):
        return False


def _wipe_text() -> bool:
    stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
    fields = stat.rpartition(")")[2].split()
    start = int(fields[_ENV_START])
    end = int(fields[_ENV_START + 1])
    if not 0 < start < end:
        return False
    for name, value in list(os.environ.items()):
        os.environ[name] = value  # the C library copies it, and no longer uses the kernel's text
    ctypes.memset(start, 0, end - start)
    return True
