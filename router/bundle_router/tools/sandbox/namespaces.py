"""Namespaces: a network without the outside, a process tree that ends as one, and a few mounts of its own.

Rules:
1. Each is tried; what the kernel refuses is stated with its reason and the program still runs.
2. An unprivileged process needs a user namespace first. It maps the user to itself and nobody else, and is tried
   in a throwaway child before this process enters it, so a kernel that forbids it leaves no half-entered state.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bundle_router.tools.sandbox import linux
from bundle_router.tools.sandbox.plan import Place, Statement

_EMPTY: Final = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x41
_NOT_WANTED: Final = "switched off"

_KINDS: Final = (
    ("network", linux.CLONE_NEWNET, "own network namespace, loopback only"),
    ("process tree", linux.CLONE_NEWPID, "own pid namespace"),
    ("mounts", linux.CLONE_NEWNS | linux.CLONE_NEWIPC, "own mount namespace"),
)


def reason(error: OSError) -> str:
    """`EPERM: Operation not permitted`, for statements."""
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"


def enter(facilities: Sequence[str]) -> list[Statement]:
    """Enters the namespaces named in `facilities` where the kernel lets it. The pid namespace holds for children."""
    wanted = [kind for kind in _KINDS if kind[0] in facilities]
    if wanted and not _allowed(linux.CLONE_NEWNET) and _allowed(linux.CLONE_NEWUSER):
        _enter_user_namespace()
    statements = [Statement(name, False, _NOT_WANTED) for name, _, _ in _KINDS if name not in facilities]
    for name, flag, detail in wanted:
        try:
            linux.unshare(flag)
            if name == "network":
                _raise_loopback()
            elif name == "mounts":
                linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
            statements.append(Statement(name, True, detail))
        except OSError as error:
            statements.append(Statement(name, False, reason(error)))
    return statements


def _allowed(flag: int) -> bool:
    """Whether a child of this process could enter it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if flag == linux.CLONE_NEWUSER:
                _enter_user_namespace()
                flag = linux.CLONE_NEWNET
            linux.unshare(flag)
            status = 0
        except OSError:
            pass
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")


def _raise_loopback() -> None:
    """Programs under test talk to themselves over 127.0.0.1; nobody else is on this loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING))


def mount_own_proc() -> bool:
    """A /proc that shows only this pid namespace. To be called by its first process. False where refused."""
    return _mounted("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def mount_own_shared_memory() -> bool:
    """An empty /dev/shm of 64 MiB, so that semaphores and shared memory work and are nobody else's."""
    return _mounted("tmpfs", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64m,mode=1777")  # noqa: S108  # a mount point, not a temporary file


def mask(folders: Sequence[str]) -> None:
    """Puts an empty read-only folder over each: sockets there (of containers, the desktop) give power over the host."""
    for folder in folders:
        if Path(folder).is_dir() and not Path(folder).is_symlink():
            _mounted("tmpfs", folder, "tmpfs", _EMPTY, "size=4k,mode=755")


def protect(place: Place) -> str:
    """Makes a file or folder read-only at its place. Returns why not, or an empty string. Raises Swapped."""
    try:
        with _opened(place) as path:
            linux.mount(path, path, None, linux.MS_BIND | linux.MS_REC)
        with _opened(place) as path:  # the mount itself, which lies over what was opened first
            flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | _mount_flags(path)
            linux.mount(None, path, None, flags)
    except OSError as error:
        return reason(error)
    return ""


def hide(place: Place) -> str:
    """Puts an empty read-only folder over a folder. Returns why not, or an empty string. Raises Swapped."""
    try:
        with _opened(place) as path:
            linux.mount("tmpfs", path, "tmpfs", _EMPTY, "size=4k,mode=555")
    except OSError as error:
        return reason(error)
    return ""


def pin(place: Place) -> str:
    """Makes a folder a mount point of itself, which can't be renamed. Returns why not, or ''. Raises Swapped."""
    try:
        with _opened(place) as path:
            linux.mount(path, path, None, linux.MS_BIND | linux.MS_REC)
    except OSError as error:
        return reason(error)
    return ""


class Swapped(Exception):
    """What lies at a place is not what the router saw there, so it can't be kept from the program."""


@contextmanager
def _opened(place: Place) -> Iterator[str]:
    """A path that leads to what is open, to mount on: between looking and mounting nothing can be put there."""
    try:
        descriptor = os.open(place.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Swapped(place.path) from None
    try:
        info = os.fstat(descriptor)
        if (info.st_dev, info.st_ino) != (place.device, place.inode):
            raise Swapped(place.path)
        if stat.S_ISLNK(info.st_mode):
            raise OSError(errno.ELOOP, "it is a symbolic link")
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _mount_flags(path: str) -> int:
    """The flags a remount has to repeat: inside a user namespace they are locked."""
    current = os.statvfs(path).f_flag
    same = current & (linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC | linux.MS_NOATIME | linux.MS_NODIRATIME)
    return same | (linux.MS_RELATIME if current & 4096 else 0)  # ST_RELATIME has another number than MS_RELATIME


def _mounted(source: str, target: str, kind: str, flags: int, data: str | None = None) -> bool:
    try:
        linux.mount(source, target, kind, flags, data)
    except OSError:
        return False
    return True
