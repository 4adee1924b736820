"""Makes the root and the namespaces by bubblewrap: a plan as its arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

from bundle_router.adapters.sandbox.plan import MEMORY_FOLDER_BYTES, Mount

NAMESPACES: Final = ("--unshare-ipc", "--unshare-net", "--unshare-pid")
PROBE: Final = ("--ro-bind", "/", "/", "--proc", "/proc", "--size", "4096", "--tmpfs", "/tmp")  # noqa: S108  # a mount
"""Arguments that test whether bubblewrap works on this machine."""


def namespaces() -> list[str]:
    """Return the namespaces.

    Root needs no user namespace, and so stays root for the workspace's files.
    """
    return [*NAMESPACES, *([] if os.geteuid() == 0 else ["--unshare-user"]), "--as-pid-1"]


def arguments(mounts: Sequence[Mount]) -> list[str]:
    """Return bubblewrap's arguments before the command."""
    steps = [word for mount in mounts for word in _step(mount)]
    return [
        *namespaces(),
        *steps,
        "--proc",
        "/proc",
        "--remount-ro",
        "/proc",
        "--remount-ro",
        "/",
        "--chdir",
        "/",
    ]


def _step(mount: Mount) -> Iterator[str]:
    match mount.kind:
        case "folder":
            yield from ("--dir", mount.target)
        case "link":
            yield from ("--symlink", mount.source, mount.target)
        case "read":
            yield from ("--ro-bind", mount.source, mount.target)
        case "write":
            yield from ("--bind", mount.source, mount.target)
        case "device":
            yield from ("--dev-bind", mount.source, mount.target)
        case "memory":
            yield from (
                "--size",
                str(MEMORY_FOLDER_BYTES),
                "--perms",
                "1777",
                "--tmpfs",
                mount.target,
            )
        case "hide":
            yield from ("--size", "4096", "--tmpfs", mount.target, "--remount-ro", mount.target)
