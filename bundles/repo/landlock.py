"""Confining one child process with Linux Landlock, so that what `git` and `rg` open is beneath the workspace too.

Rules:
1. A child reads beneath the folders it is given, executes the one binary (and its loader), and writes nothing but
   `/dev/null`; it opens no TCP connection. This holds whatever a hostile repository talks it into.
2. It is a second wall. The first is that the child is given nothing hostile to obey (`bundles.repo.gitview`) and is
   told not to follow links. Where the kernel has no Landlock the first wall stands alone.
3. The restriction is put on a thread that then starts the child and ends: threads have their own Landlock domain, and
   children inherit it. So there is no code between fork and exec, and the router itself is never restricted.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_FS_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Every file right the kernel's ABI version knows: all are taken away, then some given back."""
_NET_RIGHTS: Final = 3
_SCOPES: Final = 3

_LIBRARIES: Final = ("/lib", "/lib64", "/lib32", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store")
_SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/dev/urandom")


@cache
def _libc() -> Any:
    import ctypes  # 5 ms: only when a child is confined

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


@cache
def abi_version() -> int:
    """The kernel's Landlock ABI, 0 where there is none (or it is forbidden, or this is not Linux)."""
    try:
        return max(0, int(_libc().syscall(_SYS_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)))
    except (OSError, AttributeError):
        return 0


@contextmanager
def ruleset(binary: str, readable: Sequence[str | int]) -> Iterator[int]:
    """A ruleset for one child. `readable`: paths or directory descriptors. OSError where `abi_version()` is 0."""
    abi = max(1, abi_version())
    attributes = struct.pack("=QQQ", _FS_RIGHTS[min(abi, 5)], _NET_RIGHTS, _SCOPES)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    fd = _checked(_libc().syscall(_SYS_CREATE_RULESET, attributes[:size], size, 0))
    try:
        for place in (*readable, *_LIBRARIES, *_beside(binary), *_SYSTEM_FILES):
            _allow(fd, place, _READ_FILE | _READ_DIR)
        for program in _programs(binary):
            _allow(fd, program, _EXECUTE | _READ_FILE)
        _allow(fd, "/dev/null", _READ_FILE | _WRITE_FILE)
        yield fd
    finally:
        os.close(fd)


def restrict_thread(ruleset_fd: int) -> None:
    """Restricts the calling thread, and what it starts, for good. Only ever called on a thread about to end."""
    _checked(_libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_libc().syscall(_SYS_RESTRICT_SELF, ruleset_fd, 0))


def _allow(ruleset_fd: int, place: str | int, rights: int) -> None:
    try:
        fd = os.open(place, os.O_PATH | os.O_CLOEXEC) if isinstance(place, str) else place
    except OSError:
        return  # nothing there: nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ~_READ_DIR  # the kernel refuses directory rights on a file
        rule = struct.pack("=Qi", rights, fd)
        _checked(_libc().syscall(_SYS_ADD_RULE, ruleset_fd, _RULE_PATH_BENEATH, rule, 0))
    finally:
        if isinstance(place, str):
            os.close(fd)


def _checked(result: int) -> int:
    if result < 0:
        import ctypes

        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "landlock")
    return result


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
