"""Refuses system calls that a program never needs and that bypass the rest of the isolation.

Rules:
1. Refused (EPERM): io_uring, key rings, tracing other processes, mounts, new namespaces, kernel
   modules, BPF and the like. `clone3` and `openat2` don't exist (ENOSYS): a filter can't see their
   flags, and programs fall back.
2. Sockets: netlink and, with namespaces of its own, in which none outside can be reached, IP and
   unix; no vsock, no packet, no AF_ALG. No TCP by another name (MPTCP, SCTP, SMC, fast open). IPC
   by key or name is treated as unix sockets are.
3. No file becomes set-user-ID or set-group-ID, by any call.
4. A process can't hide its accounts from the watcher of the bounds (PR_SET_DUMPABLE), nor limit or
   slow it down: by number, only processes of an own pid namespace but its first get limits and
   priorities.
5. Calls of a foreign architecture (32 bits, x32) don't exist.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from bundle_router.adapters.sandbox import linux

_REFUSED: Final = {
    # name: (x86_64, aarch64); 424 and above are the same everywhere
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
}
_IPC: Final = (
    *((29, 194), (30, 196), (31, 195), (64, 190), (65, 193), (220, 192), (66, 191)),  # shm…, sem…
    *(
        (68, 186),
        (69, 189),
        (70, 188),
        (71, 187),
        (240, 180),
        (241, 181),
    ),  # msg…, mq_open, mq_unlink
)
_ABSENT: Final = {"clone3": (435, 435), "openat2": (437, 437)}
_UNSUPPORTED: Final = {"fallocate": (285, 47)}

_NEW_NAMESPACES: Final = 0x7E020000
_SET_ID: Final = 0o6000
_BITS_REFUSED: Final = (
    # (x86_64, aarch64, argument, bits of it that are refused)
    (56, 220, 0, _NEW_NAMESPACES),  # clone
    (90, -1, 1, _SET_ID),  # chmod
    (91, 52, 1, _SET_ID),  # fchmod
    (268, 53, 2, _SET_ID),  # fchmodat
    (452, 452, 2, _SET_ID),  # fchmodat2
    (2, -1, 2, _SET_ID),  # open
    (257, 56, 3, _SET_ID),  # openat
    (85, -1, 1, _SET_ID),  # creat
    (133, -1, 1, _SET_ID),  # mknod
    (259, 33, 2, _SET_ID),  # mknodat
    *(
        (*call, 0x20000000) for call in ((44, 206, 3), (46, 211, 2), (307, 269, 3))
    ),  # sendto…: MSG_FASTOPEN
)
_DATAGRAM_PAIR: Final = (53, 199, 1, 2)
"""socketpair(2) of SOCK_DGRAM or SOCK_RAW, which can be connected anew."""
_VALUES_REFUSED: Final = (
    # (x86_64, aarch64, argument, value of it that is refused)
    (157, 167, 0, 4),  # prctl: PR_SET_DUMPABLE
    (16, 29, 1, 0x5412),  # ioctl: TIOCSTI, which types into a terminal
    (16, 29, 1, 0x541C),  # ioctl: TIOCLINUX
    *((41, 198, 2, protocol) for protocol in (132, 256, 262)),  # socket: SCTP, SMC, MPTCP
    (141, 140, 0, 2),  # setpriority: of all processes of a user
    (251, 30, 0, 3),  # ioprio_set: so
)
_OF_PROCESS: Final = (
    # (x86_64, aarch64, argument that is a process's number)
    *(
        (302, 261, 0),
        (141, 140, 1),
        (144, 119, 0),
        (142, 118, 0),
        (314, 274, 0),
        (203, 122, 0),
        (251, 30, 1),
    ),
)
"""prlimit64, setpriority, sched_setscheduler, sched_setparam, sched_setattr, sched_setaffinity,
ioprio_set.
"""
_SOCKET: Final = (41, 198)
_NETLINK: Final = 16
_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables, and the kernel's number of the architecture (linux/audit.h)."""

_LOAD = 0x20
_EQUAL = 0x15
_GREATER_OR_EQUAL = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NUMBER_AT = 0
_ARCHITECTURE_AT = 4
_ARGUMENTS_AT = 16


def install(*, namespaces: bool) -> None:
    """Install the filter irrevocably; see `program`.

    Raises OSError if the kernel or the architecture does not support it.
    """
    linux.filter_system_calls(program(os.uname().machine, namespaces=namespaces))


def program(machine: str, *, namespaces: bool) -> bytes:
    """Return the filter, for a process that has namespaces of its own (network, IPC, pids) or none.

    Raises OSError (ENOSYS) for a machine whose system call numbers we don't have.
    """
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    column, architecture = _MACHINES[machine]
    families = [_NETLINK]
    if namespaces:
        families += [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX]
    steps = [
        _step(_LOAD, _ARCHITECTURE_AT),
        _step(_EQUAL, architecture, 1, 0),
        _error(errno.ENOSYS),
    ]
    steps += [
        _step(_LOAD, _NUMBER_AT),
        _step(_GREATER_OR_EQUAL, 0x40000000, 0, 1),
        _error(errno.ENOSYS),
    ]
    for table, code in (
        (_REFUSED, errno.EPERM),
        (_ABSENT, errno.ENOSYS),
        (_UNSUPPORTED, errno.EOPNOTSUPP),
    ):
        for numbers in table.values():
            steps += [_step(_EQUAL, numbers[column], 0, 1), _error(code)]
    for numbers in () if namespaces else _IPC:
        steps += [_step(_EQUAL, numbers[column], 0, 1), _error(errno.EPERM)]
    bits = (*_BITS_REFUSED, *(() if namespaces else [_DATAGRAM_PAIR]))
    for test, rows in ((_ANY_BIT, bits), (_EQUAL, _VALUES_REFUSED)):
        for row in rows:
            if row[column] >= 0:
                steps += _on_argument(
                    row[column], row[2], [_step(test, row[3], 0, 1), _error(errno.EPERM)]
                )
    process_test = _step(_EQUAL, 1, 0, 1) if namespaces else _step(_EQUAL, 0, 1, 0)
    for process in _OF_PROCESS:
        steps += _on_argument(process[column], process[2], [process_test, _error(errno.EPERM)])
    allowed = [
        _step(_EQUAL, family, len(families) - index, 0) for index, family in enumerate(families)
    ]
    steps += _on_argument(_SOCKET[column], 0, [*allowed, _error(errno.EPERM)])
    return b"".join([*steps, _step(_RETURN, _ALLOW)])


def _on_argument(number: int, argument: int, verdict: list[bytes]) -> Iterator[bytes]:
    """Yield the steps for one system call that test the low half of one argument, and load the
    call's number again.
    """
    yield _step(_EQUAL, number, 0, len(verdict) + 2)
    yield _step(_LOAD, _ARGUMENTS_AT + 8 * argument)
    yield from verdict
    yield _step(_LOAD, _NUMBER_AT)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _error(code: int) -> bytes:
    return _step(_RETURN, _ERRNO | code)
