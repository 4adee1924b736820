"""Whose a folder is, and who holds a lock on an open file, as the kernel tells."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def holders(fd: int) -> tuple[int, ...]:
    """Return the pids of the processes of this machine that hold a lock on an open file, as the kernel tells (Linux);
    empty where it does not. Our own pid is among them where we hold one."""
    found = os.fstat(fd)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return ()
    rows = (line.split() for line in lines if "->" not in line)
    pids = {int(row[4]) for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5] == wanted}
    return tuple(sorted(pid for pid in pids if pid > 0))


def is_ours(folder: Path) -> bool:
    """Return whether a folder is one that this user made and nobody else can write to."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
