"""Confining one child process with Linux Landlock, so that what `git` and `rg` open is beneath the workspace too.

Rules:
1. A child reads beneath the folders it is given, executes the one binary (and its loader), and writes nothing but
   `/dev/null`; it opens no TCP connection. This holds whatever a hostile repository talks it into.
2. It is a second wall. The first is that the child is given nothing hostile to obey (`tools.repo.gitview`) and is
   told not to follow links. Where the kernel has no Landlock the first wall stands alone.
3. The restriction is put on a thread that then starts the child and ends: threads have their own Landlock domain, and
   children inherit it. So there is no code between fork and exec, and the router itself is never restricted.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

_LIBRARIES: Final = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store")
_SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/dev/urandom")


@cache
def abi_version() -> int:
    """The kernel's Landlock ABI, 0 where there is none (or it is forbidden, or this is not Linux)."""
    try:
        from bundle_router.tools.sandbox import landlock  # ctypes costs 5 ms: only when a child is confined

        return landlock.abi()
    except (OSError, AttributeError, ImportError):
        return 0


@contextmanager
def ruleset(binary: str, readable: Sequence[str | int]) -> Iterator[int]:
    """A ruleset for one child. `readable`: paths or directory descriptors. OSError where `abi_version()` is 0."""
    from bundle_router.tools.sandbox import landlock

    grants: list[landlock.Grant] = [
        (place, landlock.READ) for place in (*readable, *_LIBRARIES, *_beside(binary), *_SYSTEM_FILES)
    ]
    grants += [(program, landlock.RUN) for program in _programs(binary)]
    grants.append(("/dev/null", landlock.READ_AND_WRITE))
    fd = landlock.ruleset(grants, tcp=False)
    try:
        yield fd
    finally:
        os.close(fd)


def restrict_thread(ruleset_fd: int) -> None:
    """Restricts the calling thread, and what it starts, for good. Only ever called on a thread about to end."""
    from bundle_router.tools.sandbox import landlock, linux

    linux.forbid_new_privileges()
    landlock.enforce(ruleset_fd)


# --- what a binary needs to start -----------------------------------------------------------------------------------


def _beside(binary: str) -> Iterable[str]:
    """Library folders of a binary that is not installed under /usr."""
    prefix = Path(binary).parent.parent
    return () if prefix == prefix.parent else (str(prefix / "lib"), str(prefix / "lib64"))


def _programs(binary: str) -> Iterable[str]:
    yield binary
    loader = elf_loader(binary)
    if loader:
        yield loader


@cache
def elf_loader(binary: str) -> str:
    """The dynamic loader a 64-bit ELF file names (its PT_INTERP segment); empty if it names none."""
    with Path(binary).open("rb") as file:
        head = file.read(64)
        if len(head) < 64 or head[:5] != b"\x7fELF\x02":
            return ""
        order = "<" if head[5] == 1 else ">"
        (offset,) = struct.unpack_from(order + "Q", head, 32)
        size, number = struct.unpack_from(order + "HH", head, 54)
        for index in range(number):
            file.seek(offset + index * size)
            segment = file.read(size)
            kind, _, at = struct.unpack_from(order + "IIQ", segment)
            if kind == 3:
                (length,) = struct.unpack_from(order + "Q", segment, 32)
                file.seek(at)
                return file.read(min(length, 4096)).rstrip(b"\0").decode("utf-8", "replace")
    return ""
