"""Opens files beneath one directory, and nowhere else.

Rules:
1. A path is opened relative to a root descriptor, in one step that either ends beneath the root or
   fails. There is no "check the string, then open": between the two an attacker can swap a
   directory for a symlink.
2. Two implementations give the same answers: `openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)` if
   the kernel has it, else a walk, one component at a time with `O_NOFOLLOW`.
3. Symlinks are followed while they stay beneath the root. A link with an absolute target is
   refused, wherever it points, because its meaning depends on where the root is mounted.
4. `..` is resolved by the walk, not in the text, and never leaves the root.
5. Hidden folders are identified by device and inode, and never entered, by whatever name. Only the
   walk sees every folder on a path, so it is used if anything is hidden.

Both raise `OSError`: `EXDEV` if the path leads outside, `ELOOP` for too many links, `EAGAIN` if it
kept moving; `HiddenFolder` if it enters a hidden one.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import closing
from functools import cache, partial
from typing import Final

from bundle_router.adapters.descriptors import Opened

Opener = Callable[[int, str, int], int]
"""(root descriptor, relative path, open flags) → descriptor beneath the root. Raises OSError."""

Identity = tuple[int, int]
"""Device and inode, which identify a folder under any name."""

MAX_LINKS: Final = 40
"""Maximum symlinks that are followed in one path; the kernel's own limit, so that both openers
agree.
"""

PATH_ONLY: Final = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)
"""Flags that open a place without reading it, if the system can."""
_SYS_OPENAT2: Final = 437
_BENEATH_NO_MAGIC: Final = 0x08 | 0x02
_NO_SYMLINKS: Final = 0x04
_EAGAIN_RETRIES: Final = 128


class HiddenFolder(OSError):
    """The path enters a hidden folder, of this `identity`."""

    def __init__(self, path: str, identity: Identity) -> None:
        super().__init__(errno.EACCES, "it goes into a hidden folder", path)
        self.identity = identity


@cache
def _openat2() -> Callable[[int, str, int, int], int]:
    """Return the system call, bound once.

    Raises OSError if this is not Linux (on other systems the number is another call),
    AttributeError without `syscall`.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    import ctypes  # 5 ms: only when a file is opened

    class OpenHow(ctypes.Structure):
        _fields_ = (
            ("flags", ctypes.c_uint64),
            ("mode", ctypes.c_uint64),
            ("resolve", ctypes.c_uint64),
        )

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(root_fd: int, path: str, flags: int, resolve: int) -> int:
        raw = os.fsencode(path)
        how = OpenHow(flags | os.O_CLOEXEC, 0, resolve)
        for _ in range(_EAGAIN_RETRIES):
            fd: int = syscall(_SYS_OPENAT2, root_fd, raw, ctypes.byref(how), ctypes.sizeof(how))
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            # EAGAIN: something was renamed while the kernel walked, so the result is not certain.
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code), path)

    return call


def open_by_openat2(root_fd: int, path: str, flags: int) -> int:
    """Open `path` beneath `root_fd` in one system call (Linux 5.6).

    Raises ENOSYS or EPERM if it is not available.
    """
    return _openat2()(root_fd, path, flags, _BENEATH_NO_MAGIC)


def open_without_links(root_fd: int, path: str, flags: int) -> int:
    """Open as `open_by_openat2` does, but refuse any symlink on the way and at the end: ELOOP."""
    return _openat2()(root_fd, path, flags, _BENEATH_NO_MAGIC | _NO_SYMLINKS)


def open_by_walk(root_fd: int, path: str, flags: int, hidden: Collection[Identity] = ()) -> int:
    """Open `path` beneath `root_fd` one component at a time, never letting the kernel follow a
    link.

    Raises HiddenFolder if the walk enters or ends at a folder in `hidden`.
    """
    with closing(_Walk(root_fd, path, hidden)) as walk:
        return walk.open(flags)


def opener_beside(hidden: Collection[Identity]) -> Opener:
    """Return an opener that enters none of these folders."""
    if hidden:
        return partial(open_by_walk, hidden=frozenset(hidden))
    return best_opener()


class _Walk:
    """One path being walked: the directories it came through, and the names still ahead.

    `..` goes back to the directory it was reached from, not to its parent at that moment, so a
    directory that is moved elsewhere meanwhile can't lead out.
    """

    def __init__(self, root_fd: int, path: str, hidden: Collection[Identity]) -> None:
        self.path = path
        self.hidden = hidden
        self.ahead = deque(components(path))
        self.links = 0
        self.behind = [os.open(".", PATH_ONLY | os.O_DIRECTORY, dir_fd=root_fd)]

    def close(self) -> None:
        for fd in self.behind:
            os.close(fd)

    def open(self, flags: int) -> int:
        while self.ahead:
            name = self.ahead.popleft()
            if name == "..":
                self._go_back()
            elif self.ahead:
                self._enter(name)
            elif (fd := self._finish(name, flags)) is not None:
                return self._check_visible(fd)
        return os.open(".", flags & ~os.O_NOFOLLOW, dir_fd=self.behind[-1])

    def _go_back(self) -> None:
        if len(self.behind) == 1:
            raise self._error(errno.EXDEV)
        os.close(self.behind.pop())

    def _enter(self, name: str) -> None:
        fd = self._open(name, PATH_ONLY | os.O_DIRECTORY)
        if fd is not None:
            self.behind.append(self._check_visible(fd))

    def _check_visible(self, fd: int) -> int:
        """Return the descriptor; close it and raise HiddenFolder if it is a hidden folder."""
        if self.hidden and (folder_identity := identity(fd)) in self.hidden:
            os.close(fd)
            raise HiddenFolder(self.path, folder_identity)
        return fd

    def _finish(self, name: str, flags: int) -> int | None:
        if flags & os.O_NOFOLLOW:
            return os.open(name, flags, dir_fd=self.behind[-1])
        return self._open(name, flags)

    def _open(self, name: str, flags: int) -> int | None:
        """Return the descriptor; None for a link, whose target then is ahead of the walk."""
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=self.behind[-1])
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR) or not self._follow(name):
                raise
            return None
        if flags & os.O_DIRECTORY or not stat.S_ISLNK(os.fstat(fd).st_mode):
            return fd
        os.close(fd)  # O_PATH with O_NOFOLLOW opens the link itself
        if not self._follow(name):  # no link any more: try again
            self._count()
            self.ahead.appendleft(name)
        return None

    def _follow(self, name: str) -> bool:
        """Put a link's target ahead of the walk; False if the name is no link."""
        target = self._target(name)
        if target is None:
            return False
        self._count()
        if target.startswith("/"):
            raise self._error(errno.EXDEV)
        self.ahead.extendleft(reversed(components(target)))
        return True

    def _target(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.behind[-1])
        except OSError as error:
            if error.errno == errno.EINVAL:
                return None
            raise

    def _count(self) -> None:
        self.links += 1
        if self.links > MAX_LINKS:
            raise self._error(errno.ELOOP)

    def _error(self, code: int) -> OSError:
        return OSError(code, os.strerror(code), self.path)


def components(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def identity(fd: int) -> Identity:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


@cache
def best_opener() -> Opener:
    """Return `open_by_openat2` if this kernel (and its seccomp filter) permits it, else
    `open_by_walk`.
    """
    try:
        with Opened(os.open("/", PATH_ONLY | os.O_DIRECTORY)) as fd:
            os.close(open_by_openat2(fd, ".", PATH_ONLY | os.O_DIRECTORY))
    except (OSError, AttributeError):
        return open_by_walk
    return open_by_openat2
