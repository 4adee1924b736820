"""A pids control group for one program, where the kernel has them and this process may make one.

RLIMIT_NPROC counts per user and not for root, so a fork bomb under root is bounded by this or by nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_REMOVE_FOR_S: Final = 2.0
_numbers = itertools.count()


@contextmanager
def process_group(
    max_processes: int, *, mount: Path = _MOUNT, membership: str | None = None
) -> Iterator[tuple[str, ...]]:
    """A fresh group limited to `max_processes`, removed at the end; empty where none can be made.

    `membership` is the text of /proc/self/cgroup: the group is made beneath the one this process is in.
    """
    group = _make(mount, membership if membership is not None else _membership(), max_processes)
    if group is None:
        yield ()
        return
    try:
        yield (str(group),)
    finally:
        _remove(group)


def _membership() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parents(mount: Path, membership: str) -> Iterator[Path]:
    """Where a pids group may be made: version 1 has a hierarchy for each controller, version 2 one for all."""
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if "pids" in controllers.split(","):
            yield mount / "pids" / path.lstrip("/")
        elif not controllers:
            parent = mount / path.lstrip("/")
            with contextlib.suppress(OSError):
                if "pids" in (parent / "cgroup.subtree_control").read_text(encoding="ascii").split():
                    yield parent


def _make(mount: Path, membership: str, max_processes: int) -> Path | None:
    for parent in _parents(mount, membership):
        group = parent / f"bundle-router-{os.getpid()}-{next(_numbers)}"
        try:
            group.mkdir(mode=0o700)
        except OSError:
            continue
        try:
            (group / "pids.max").write_text(str(max_processes), encoding="ascii")
            return group
        except OSError:
            _remove(group)
    return None


def _remove(group: Path) -> None:
    """The kernel frees the last process's place a moment after it was reaped: EBUSY until then."""
    deadline = time.monotonic() + _REMOVE_FOR_S
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                return  # an empty group costs nothing, and its processes were ended by their supervisor
            time.sleep(0.005)
