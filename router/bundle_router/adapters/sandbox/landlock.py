"""Landlock: restricts, irrevocably, what this process and all its children may open.

Rules:
1. Every access right that the running kernel knows is handled, so what no rule grants is refused.
2. Making device nodes and ioctl on devices is never granted, not even beneath a writable folder.
3. Without a network namespace, TCP bind and connect are refused too (ABI 4). Landlock does not
   cover UDP.
4. Signals and abstract sockets stay inside (ABI 6). Landlock does not cover sockets that are files:
   the namespaces hide the folders where these usually are.

Numbers are those of linux/landlock.h; the ABI table is in the kernel's
Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Final

from bundle_router.adapters.sandbox import linux

_LIBRARIES: Final = (
    "/lib",
    "/lib64",
    "/lib32",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/gnu/store",
)
_SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld-musl-x86_64.path", "/dev/urandom")

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_ASK_VERSION: Final = 1
_RULE_PATH_BENEATH: Final = 1

_EXECUTE: Final = 1 << 0
_WRITE_FILE: Final = 1 << 1
_READ_FILE: Final = 1 << 2
_READ_DIR: Final = 1 << 3
_MAKE_CHAR: Final = 1 << 6
_MAKE_BLOCK: Final = 1 << 11
_REFER: Final = 1 << 13
_TRUNCATE: Final = 1 << 14
_IOCTL_DEV: Final = 1 << 15
_ALL_OF_ABI_1: Final = (1 << 13) - 1

_FOR_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_NEVER: Final = _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
_TCP_BIND_AND_CONNECT: Final = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS: Final = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def abi() -> int:
    """Return the kernel's Landlock version, at least 1.

    Raises OSError (ENOSYS, EOPNOTSUPP) without Landlock.
    """
    return linux.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))


def _handled_rights(version: int) -> int:
    rights = _ALL_OF_ABI_1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV)):
        if version >= since:
            rights |= right
    return rights


Grant = tuple[str | int, int]
"""A path, or an open descriptor, and the rights beneath it (or on it, for a file)."""

READ: Final = _READ_FILE | _READ_DIR
RUN: Final = _EXECUTE | _READ_FILE
READ_AND_WRITE: Final = _READ_FILE | _WRITE_FILE | _TRUNCATE


def _grant(ruleset: int, place: str | int, rights: int) -> None:
    """Grant rights on a place. A path that does not exist is skipped."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC) if isinstance(place, str) else place
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _FOR_FILES
        rule = _PathBeneath(rights, descriptor)
        linux.syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            _RULE_PATH_BENEATH,
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        if isinstance(place, str):
            os.close(descriptor)


def ruleset(grants: Iterable[Grant], *, tcp: bool) -> int:
    """Return a descriptor of a ruleset that permits the grants and nothing else; `tcp=False`: no
    TCP. OSError.
    """
    version = abi()
    handled = _handled_rights(version)
    attributes = _Ruleset(
        handled,
        _TCP_BIND_AND_CONNECT if version >= 4 and not tcp else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0,
    )
    if version >= 6:
        size = 24
    elif version >= 4:
        size = 16
    else:
        size = 8
    fd = linux.syscall(
        _CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    try:
        for place, rights in grants:
            _grant(fd, place, handled & rights)
    except BaseException:
        os.close(fd)
        raise
    return fd


def restrict_thread(made: int) -> None:
    """Confine the calling thread and its children for good: one about to end, or a process's only
    one. OSError.
    """
    linux.forbid_new_privileges()
    linux.syscall(_RESTRICT_SELF, ctypes.c_int(made), ctypes.c_uint32(0))


def restrict(
    *, write: Sequence[str | int], read: Sequence[str], devices: Sequence[str], tcp: bool
) -> int:
    """Confine this process to these places; `tcp=False` refuses TCP too.

    Return the kernel's ABI version.

    `write`: read, write and execute beneath; `read`: read and execute; `devices`: read and write
    the file itself. Raises OSError, and then nothing is confined.
    """
    grants: list[Grant] = [(path, ~_NEVER) for path in write]
    grants += [(path, READ | RUN) for path in read]
    grants += [(path, READ_AND_WRITE) for path in devices]
    fd = ruleset(grants, tcp=tcp)
    try:
        restrict_thread(fd)
    finally:
        os.close(fd)
    return abi()


# --- for `git` and `rg`, which only read ----------------------------------------------------------


def reader_ruleset(binary: str, readable: Iterable[str | int]) -> int:
    """Return a descriptor of a ruleset under which a binary only reads beneath some folders, and
    starts nothing. OSError.

    `readable` are paths or descriptors of folders. It executes only itself and its loader, and
    writes only `/dev/null`.
    """
    prefix = Path(binary).parent.parent
    libraries = (
        [] if prefix == prefix.parent else [str(prefix / "lib"), str(prefix / "lib64")]
    )  # not installed in /usr
    grants: Iterator[Grant] = (
        (place, READ) for place in chain(readable, _LIBRARIES, libraries, _SYSTEM_FILES)
    )
    programs = [(program, RUN) for program in (binary, elf_loader(binary)) if program]
    return ruleset(chain(grants, programs, [("/dev/null", READ_AND_WRITE)]), tcp=False)


@cache
def elf_loader(binary: str) -> str:
    """Return the dynamic loader a 64-bit ELF file names (its PT_INTERP segment); empty if it names
    none.
    """
    data = Path(binary).read_bytes()
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return ""
    order = "<" if data[5] == 1 else ">"
    offset, size, number = struct.unpack_from(order + "Q14xHH", data, 32)
    for head in range(offset, offset + size * number, size):
        kind, start, length = struct.unpack_from(order + "I4xQ16xQ", data, head)
        if kind == 3:
            return data[start : start + min(length, 4096)].rstrip(b"\0").decode("utf-8", "replace")
    return ""
