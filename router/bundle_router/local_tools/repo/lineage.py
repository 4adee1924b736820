"""The place of a folder: the way down to it through real folders only, and the way back up from its
descriptor.

The way up uses descriptors, never a name that was read earlier, so it tells where the folder is
now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from bundle_router.adapters.descriptors import ClosedOnError, Opened
from bundle_router.local_tools.repo.beneath import (
    PATH_ONLY,
    HiddenFolder,
    Identity,
    Opener,
    best_opener,
    components,
    identity,
    open_by_openat2,
    open_without_links,
)

_FOLDER: Final = PATH_ONLY | os.O_DIRECTORY
_MAX_DEPTH: Final = 2048
"""Maximum depth of folders in a path of 4,095 bytes."""


def open_folder(
    root_fd: int, path: str, hidden: Collection[Identity] = (), *, opener: Opener | None = None
) -> int:
    """Return a descriptor for the folder `path` beneath `root_fd`, reached through real folders
    only.

    Raises OSError: `ELOOP` or `ENOTDIR` for a symlink on the way, `EXDEV` for `..`, an absolute
    path, or a folder that was moved out while it was opened; HiddenFolder.
    """
    if path.startswith("/") or ".." in components(path):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    by_kernel = (opener or best_opener()) is open_by_openat2
    fd = open_without_links(root_fd, path, _FOLDER) if by_kernel else _step_down(root_fd, path)
    with ClosedOnError(fd):
        for above in ancestors(fd, root_fd):
            if (parent := identity(above)) in hidden:
                raise HiddenFolder(path, parent)
    return fd


def _step_down(root_fd: int, path: str) -> int:
    fd = os.open(".", _FOLDER, dir_fd=root_fd)
    for name in components(path):
        try:
            below = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def ancestors(fd: int, root_fd: int) -> Iterator[int]:
    """Yield descriptors of the folder and of those above it, nearest first, up to but without the
    root; each open until the next. Raises OSError `EXDEV` if the way up does not reach the root:
    the folder was moved out.
    """
    root = identity(root_fd)
    current = os.dup(fd)
    try:
        for _ in range(_MAX_DEPTH):
            if identity(current) == root:
                return
            yield current
            above = os.open("..", _FOLDER, dir_fd=current)
            os.close(current)
            current = above
    finally:
        os.close(current)
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def location(fd: int, root_fd: int, root_path: str) -> Path:
    """Return the present real path of an open folder beneath the root.

    Raises OSError if it was moved out.

    The kernel knows it if there is /proc; else each folder on the way up is searched for in its
    parent.
    """
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    except OSError:
        return Path(root_path, *reversed([_name_of(folder) for folder in ancestors(fd, root_fd)]))


def _name_of(fd: int) -> str:
    target = identity(fd)
    with (
        Opened(os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)) as above,
        os.scandir(above) as entries,
    ):
        for entry in entries:
            info = entry.stat(follow_symlinks=False)
            if (info.st_dev, info.st_ino) == target:
                return entry.name
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
