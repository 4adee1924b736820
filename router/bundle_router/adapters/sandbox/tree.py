"""A program's root folder: what of the machine it sees, and what of that it may change.

Only the router computes this, as a list of steps that bubblewrap carries out. The root begins
empty, so unnamed parts are absent: no socket, no home folder, nobody's temporary files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from bundle_router.adapters.sandbox.plan import Mount, Place, SandboxPlan

_EMPTY_FOLDERS: Final = (
    "/dev",
    "/etc",
    "/home",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/tmp",  # noqa: S108  # of a root of its own
    "/var",
)
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108  # a mount of its own


class PathSwapped(Exception):
    """Another file is at a place than the router saw there, so it can't be protected from the
    program.
    """

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} was replaced while the program was being started")


def mounts_of(plan: SandboxPlan) -> tuple[Mount, ...]:
    """Return the steps, outer folders first. Raises PathSwapped.

    There is none for a place that is a symlink: a mount would cover the link's target.
    """
    root = os.readlink(f"/proc/self/fd/{plan.root_fd}")  # noqa: PTH115  # text
    at_root = Place(root, *_identity_of(os.fstat(plan.root_fd)))
    read_only = any(Path(root).is_relative_to(place.path) for place in plan.protected)
    root_kind = "read" if read_only else "write"
    inside = [
        place
        for place in (*plan.protected, *plan.hidden, *plan.masked, *plan.pinned, *plan.linked)
        if place.path != root
    ]
    check_places(inside)
    real_places = [place for place in inside if not stat.S_ISLNK(Path(place.path).lstat().st_mode)]
    steps = [Mount("folder", path) for path in _EMPTY_FOLDERS]
    steps += _readable_mounts((*plan.read, *plan.loader), below=root)
    steps += [Mount("device", path, path) for path in plan.devices if os.path.exists(path)]  # noqa: PTH110  # text
    steps += [Mount("memory", SHARED_MEMORY)]
    steps += [Mount("write", target, source) for source, target in plan.temporary]
    steps += [Mount("write", path, path) for path in plan.write]
    steps += [_shown_mount(at_root, root_kind)]
    for place in plan.pinned:
        if place in real_places:
            steps.append(_shown_mount(place, root_kind))
    for place in (*plan.protected, *plan.linked):
        if place in real_places and _beneath(place.path, root):
            steps.append(_shown_mount(place, "read"))
    for place in (*plan.hidden, *plan.masked):
        if place in real_places:
            steps.append(_covering_mount(place))
    return tuple(sorted(dict.fromkeys(steps), key=lambda step: step.target.rstrip("/").count("/")))


def check_places(places: Iterable[Place]) -> None:
    """Raise PathSwapped if a place has changed its identity, or is gone."""
    for place in places:
        if not _is_at(place.path, place.device, place.inode):
            raise PathSwapped(place.path)


def check_mounts(plan: SandboxPlan) -> None:
    """Raise PathSwapped if what was mounted is not what the router saw.

    Bubblewrap mounts by path, so somebody outside may have led it elsewhere for a moment.
    """
    uppermost = {mount.target: mount for mount in plan.mounts}
    for mount in uppermost.values():
        if mount.inode and not _is_mounted(mount):
            raise PathSwapped(mount.target)
    for place in (*plan.hidden, *plan.masked):
        if place.path not in uppermost:
            continue
        if _is_at(place.path, place.device, place.inode):
            raise PathSwapped(place.path)


def _is_mounted(mount: Mount) -> bool:
    """Return whether the expected file is at the target, and read-only if it should be."""
    if not _is_at(mount.target, mount.device, mount.inode):
        return False
    return mount.kind != "read" or bool(os.statvfs(mount.target).f_flag & os.ST_RDONLY)


def _is_at(path: str, device: int, inode: int) -> bool:
    try:
        return _identity_of(os.lstat(path)) == (device, inode)
    except OSError:
        return False


def _readable_mounts(paths: Iterable[str], *, below: str) -> Iterator[Mount]:
    """Yield the read-only mounts: each path as written, with links as links, and its real
    target.
    """
    mounted: list[str] = []
    candidates: set[str] = set()
    for path in paths:
        candidates |= {path, os.path.realpath(path)}
    for path in sorted(filter(os.path.lexists, candidates), key=len):
        if _beneath(path, below) or any(_beneath(path, folder) for folder in mounted):
            continue
        mounted.append(path)
        if os.path.islink(path):  # noqa: PTH114  # text
            yield Mount("link", path, os.readlink(path))  # noqa: PTH115  # text
        else:
            yield Mount("read", path, path)


def _shown_mount(place: Place, kind: str) -> Mount:
    return Mount(
        "read" if kind == "read" else "write", place.path, place.path, place.device, place.inode
    )


def _covering_mount(place: Place) -> Mount:
    """Return the mount that hides a place: an empty folder, or a file without content."""
    if stat.S_ISDIR(Path(place.path).lstat().st_mode):
        return Mount("hide", place.path)
    return Mount("device", place.path, "/dev/null")


def _beneath(path: str, folder: str) -> bool:
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def _identity_of(info: os.stat_result) -> tuple[int, int]:
    return info.st_dev, info.st_ino
