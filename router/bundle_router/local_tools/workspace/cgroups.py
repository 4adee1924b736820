"""Control groups for one program, if the kernel has them and this process may make one.

They bound the memory and the number of processes of the whole. RLIMIT_NPROC counts per user and not
for root.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOUNT: Final = Path("/sys/fs/cgroup")
_REMOVE_TRIES: Final = 400
_LIMITS: Final = {"pids": ("pids.max",), "memory": ("memory.max", "memory.limit_in_bytes")}
"""File of a controller's limit; version 1 has another name for that of memory."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A new group, and the controllers that bound it."""

    path: Path
    controllers: tuple[str, ...]


@contextmanager
def control_groups(
    limits: dict[str, int], *, mount: Path = _MOUNT, membership: str | None = None
) -> Iterator[tuple[ControlGroup, ...]]:
    """Yield new groups with these limits (`pids`, `memory`), and remove them at the end; fewer, or
    none, if they can't be made.

    `membership` is the text of /proc/self/cgroup: a group is made beneath this process's own.
    """
    made: list[ControlGroup] = []
    try:
        for parent, controllers in _parents(
            mount, membership if membership is not None else _membership()
        ):
            wanted = {name: limits[name] for name in controllers if name in limits}
            group = _make(parent, wanted) if wanted else None
            if group is not None:
                made.append(group)
        yield tuple(made)
    finally:
        for group in made:
            _remove(group.path)


def _membership() -> str:
    try:
        return Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parents(mount: Path, membership: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders in which groups may be made, with their controllers (version 2: one
    hierarchy for all).
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in _LIMITS:
            if name in controllers.split(","):
                yield mount / name / path.lstrip("/"), [name]
        if not controllers:
            parent = mount / path.lstrip("/")
            with contextlib.suppress(OSError):
                yield (
                    parent,
                    (parent / "cgroup.subtree_control").read_text(encoding="ascii").split(),
                )


def _make(parent: Path, limits: dict[str, int]) -> ControlGroup | None:
    """Return a group with those limits that could be set; None if none could."""
    group = parent / f"bundle-router-{os.getpid()}-{next(_numbers)}"
    try:
        group.mkdir(mode=0o700)
    except OSError:
        return None
    bounded = tuple(
        name
        for name, value in limits.items()
        if any(_set(group / file, value) for file in _LIMITS[name])
    )
    if not bounded:
        _remove(group)
        return None
    return ControlGroup(group, bounded)


def _set(file: Path, value: int) -> bool:
    try:
        file.write_text(str(value), encoding="ascii")
    except OSError:
        return False
    return True


def _remove(group: Path) -> None:
    """Remove an empty group.

    The kernel frees the last process's place just after it was reaped: EBUSY until then.
    """
    for _ in range(
        _REMOVE_TRIES
    ):  # then it stays, which costs nothing: the supervisor has ended its processes
        with contextlib.suppress(OSError):
            group.rmdir()
        if not group.exists():
            return
        time.sleep(0.005)
