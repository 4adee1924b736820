"""Namespaces: a network without the outside, a process tree that ends as one, and a root folder of
its own.

Rules:
1. Each is tried. If the kernel refuses it, the statement has the reason, and the program still
   runs.
2. An unprivileged process needs a user namespace first. It maps the user to itself and nobody else.
   A throwaway child tries it before this process enters it, so a kernel that forbids it leaves no
   half-entered state.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bundle_router.local_tools.sandbox import linux
from bundle_router.local_tools.sandbox.plan import MEMORY_FOLDER_BYTES, Mount, Statement
from bundle_router.local_tools.sandbox.tree import PathSwapped

_EMPTY: Final = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x41
_NOT_WANTED: Final = "switched off"
MOUNTS_HELD: Final = (
    "own root folder: only the workspace, /tmp, /var/tmp and a private folder are writable"
)

_KINDS: Final = (
    ("network", linux.CLONE_NEWNET, "own network namespace, loopback only"),
    ("process tree", linux.CLONE_NEWPID, "own pid namespace"),
    ("mounts", linux.CLONE_NEWNS | linux.CLONE_NEWIPC, MOUNTS_HELD),
)


def reason(error: OSError) -> str:
    """Return the error for a statement: `EPERM: Operation not permitted`."""
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"


def enter(facilities: Sequence[str]) -> list[Statement]:
    """Enter the namespaces in `facilities` that the kernel permits.

    The pid namespace applies to children.
    """
    wanted = [kind for kind in _KINDS if kind[0] in facilities]
    if wanted and not _is_allowed(linux.CLONE_NEWNET) and _is_allowed(linux.CLONE_NEWUSER):
        _enter_user_namespace()
    statements = [
        Statement(name, False, _NOT_WANTED) for name, _, _ in _KINDS if name not in facilities
    ]
    for name, flag, detail in wanted:
        try:
            linux.unshare(flag)
            if name == "network":
                _raise_loopback()
            elif name == "mounts":
                linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
                _try_copies()
            statements.append(Statement(name, True, detail))
        except OSError as error:
            statements.append(Statement(name, False, reason(error)))
    return statements


def _try_copies() -> None:
    """Raise OSError if this kernel (before Linux 5.12) lacks what `build_root` needs."""
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY)
    tree = linux.clone_tree(descriptor)
    linux.restrict_mounts(tree, linux.ATTR_NOSUID)
    os.close(tree)
    os.close(descriptor)


def _is_allowed(flag: int) -> bool:
    """Return whether a child of this process can enter the namespace."""
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
    user = os.geteuid()
    group = os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")


def _raise_loopback() -> None:
    """Bring up the loopback interface, where programs under test talk to themselves, and nobody
    else is.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        fcntl.ioctl(handle, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP_RUNNING))


def build_root(mounts: Sequence[Mount]) -> bool:
    """Make the root folder described by `mounts`, and enter it.

    The first process of a pid namespace must call this. Return whether /proc shows that namespace;
    otherwise there is no /proc. Raises PathSwapped, OSError.

    Every source is opened before anything is mounted, then checked, copied and attached by its
    descriptor: no path is looked up twice.
    """
    trees = {mount: _clone(mount) for mount in mounts if mount.kind in ("read", "write", "device")}
    base = "/tmp" if Path("/tmp").is_dir() else "/mnt"  # noqa: S108  # a mount point
    linux.mount("tmpfs", base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    os.chdir(base)
    Path("old").mkdir()
    linux.change_root(".", "old")
    os.chdir("/")
    for mount in mounts:
        _carry_out(mount, trees.get(mount))
    own_proc = _try_mount(
        "proc",
        "/proc",
        "proc",
        linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC,
    )
    linux.unmount("/old")
    Path("/old").rmdir()
    linux.mount(
        None,
        "/",
        None,
        linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV,
    )
    return own_proc


def _clone(mount: Mount) -> int:
    descriptor = os.open(mount.source, os.O_PATH | os.O_NOFOLLOW * bool(mount.inode) | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if mount.inode and (info.st_dev, info.st_ino) != (mount.device, mount.inode):
            raise PathSwapped(mount.source)
        tree = linux.clone_tree(descriptor)
        attributes = linux.ATTR_NOSUID | (0 if mount.kind == "device" else linux.ATTR_NODEV)
        linux.restrict_mounts(
            tree, attributes | (linux.ATTR_RDONLY if mount.kind in ("read", "device") else 0)
        )
        return tree
    finally:
        os.close(descriptor)


def _carry_out(mount: Mount, tree: int | None) -> None:
    target = Path(mount.target)
    if mount.kind == "link":
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(mount.source)
    elif tree is not None:
        _make_mount_point(target, folder=stat.S_ISDIR(os.fstat(tree).st_mode))
        linux.attach_tree(tree, mount.target)
        os.close(tree)
    else:
        target.mkdir(parents=True, exist_ok=True)
        if mount.kind == "memory":
            options = f"size={MEMORY_FOLDER_BYTES},mode=1777"
            linux.mount("tmpfs", mount.target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
        elif mount.kind == "hide":
            linux.mount("tmpfs", mount.target, "tmpfs", _EMPTY, "size=4k,mode=555")


def _make_mount_point(target: Path, *, folder: bool) -> None:
    if os.path.lexists(target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.mkdir() if folder else target.touch()


def _try_mount(source: str, target: str, kind: str, flags: int) -> bool:
    try:
        linux.mount(source, target, kind, flags)
    except OSError:
        return False
    return True
