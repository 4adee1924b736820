"""Linux system calls that Python has no function for, through ctypes.

Each raises OSError with the kernel's errno.

Structure layouts and numbers are those of linux/{prctl,capability,landlock,mount,seccomp}.h. The
system call numbers used here (428 and above) are the same on every architecture; those of `seccomp`
have a table of their own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterable
from typing import Final

MS_NOSUID: Final = 2
MS_NOEXEC: Final = 8
MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_LAST_CAPABILITY: Final = 63
_CAPABILITY_VERSION_3: Final = 0x20080522

FILE_CAPABILITIES: Final = (0, 1, 3)
"""CHOWN, DAC_OVERRIDE, FOWNER: root's capabilities for a workspace that belongs to someone else.

Without FSETID, writing to a set-user-ID file removes that bit.
"""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def reason(error: OSError) -> str:
    """Return the error for a statement: `EPERM: Operation not permitted`."""
    return f"{errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}"


def _raise() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def syscall(number: int, *arguments: object) -> int:
    """Call `syscall(2)`.

    Arguments must already be ctypes values or ints that fit a C int. Raises OSError (ENOSYS) if
    this is not Linux, because other systems have other calls under these numbers.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result == -1:
        _raise()
    return result


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero) == -1:
        _raise()


def die_with_parent() -> None:
    """Get SIGKILL when the thread that forked this process ends.

    Survives execve of an ordinary file.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def hide_from_program() -> None:
    """Keep the program, which has the same user, from this process's memory and descriptors (in
    /proc).
    """
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that this process can end and reap
    them.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """Make set-user-id bits and file capabilities ineffective, for this process and all its
    children.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) == -1:
        _raise()


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_system_calls(program: bytes) -> None:
    """Install a BPF program of 8-byte instructions for this process and its children.

    Needs `no_new_privs`.
    """
    filter_ = _FilterProgram(len(program) // 8, program)
    zero = ctypes.c_ulong(0)
    mode = ctypes.c_ulong(2)  # SECCOMP_MODE_FILTER
    if _libc.prctl(ctypes.c_int(_PR_SET_SECCOMP), mode, ctypes.byref(filter_), zero, zero) == -1:
        _raise()


def keep_capabilities(kept: Iterable[int]) -> None:
    """Drop every capability but `kept` (without adding any), irrevocably, from the bounding set
    too.
    """
    keep = set(kept)
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in keep:
            try:
                _prctl(_PR_CAPBSET_DROP, capability)
            except OSError:
                break  # past the kernel's last capability, or not privileged and so nothing to drop
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()
    if _libc.capget(header, data) == -1:
        _raise()
    mask = sum(1 << capability for capability in keep if capability < 32)
    permitted = data[1] & mask
    data[:] = [permitted, permitted, 0, 0, 0, 0]
    if _libc.capset(header, data) == -1:
        _raise()
