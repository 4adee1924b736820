"""The file to execute: opened once, checked through its descriptor, and executed through it.

Rules:
1. The path comes from the rule and is absolute. `PATH` is never searched.
2. Symlinks are resolved once (distributions link `python3` to `python3.11`) and the result states
   the real path. The opened file must be at that real path, and the opened file is executed.
3. It must be a regular file, executable, not a script (whose interpreter would be another program
   than the allowed one), writable only by root or the router's user, and not inside the workspace,
   where an agent could write it.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle_router.adapters.descriptors import Opened
from bundle_router.core.values import BinaryRule
from bundle_router.errors import ToolFailure

PYTHON = "@python"


@dataclass(frozen=True, slots=True)
class Binary:
    """An open, checked binary.

    `path` is the rule's (the program's argv[0]), `real_path` its resolved one.
    """

    path: str
    real_path: str
    fd: int
    device: int
    inode: int


@contextmanager
def opened(rule: BinaryRule, *, workspace: str) -> Iterator[Binary]:
    """Yield the rule's binary, open for the block.

    Raises ToolFailure `binary_unavailable`, `unsafe_binary`.
    """
    path = sys.executable if rule.path == PYTHON else rule.path
    real_path = os.path.realpath(path)
    try:
        descriptor = os.open(real_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ToolFailure(
            f"the binary {rule.name!r} ({path}) can't be opened: {error.strerror}",
            code="binary_unavailable",
            advice="install it, or correct its path in policy.toml",
        ) from error
    with Opened(descriptor):
        info = os.fstat(descriptor)
        wrong = _why_unsafe(descriptor, info, real_path, workspace)
        if wrong:
            raise ToolFailure(
                f"the binary {rule.name!r} ({real_path}) is not started: {wrong}",
                code="unsafe_binary",
            )
        yield Binary(path, real_path, descriptor, info.st_dev, info.st_ino)


def _why_unsafe(descriptor: int, info: os.stat_result, real_path: str, workspace: str) -> str:
    if not stat.S_ISREG(info.st_mode):
        return "it is not a regular file"
    if not info.st_mode & 0o111:
        return "it is not executable"
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & stat.S_IWOTH:
        return "others than root and the router's user may change it"
    if not _is_still(descriptor, info, real_path):
        return "a folder on its path was replaced while it was opened"
    if Path(real_path).is_relative_to(os.path.realpath(workspace)):
        return "it lies inside the workspace, where its content can be replaced"
    if os.pread(descriptor, 2, 0) == b"#!":
        return "it is a script; allow its interpreter, with the script's path as a fixed word"
    return ""


def _is_still(descriptor: int, info: os.stat_result, real_path: str) -> bool:
    """Return whether the opened file is at the path now.

    Without /proc a hard link elsewhere passes for it.
    """
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()) == real_path
    except OSError:
        return os.path.realpath(real_path) == real_path and os.path.samestat(
            info, Path(real_path).stat()
        )
