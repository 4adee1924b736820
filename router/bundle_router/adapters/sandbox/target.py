"""The last steps of the process that becomes the program, in order, before execve.

1. Limits itself; core dumps are off.
2. Enters the working folder, if it is still the folder that the router checked.
3. Gives up new privileges, then files (Landlock), then capabilities, then system calls (seccomp).
4. Executes the file behind the descriptor that the router checked: no name is looked up again.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from typing import Final

from bundle_router.adapters.sandbox import landlock, linux, seccomp
from bundle_router.adapters.sandbox.linux import reason
from bundle_router.adapters.sandbox.plan import (
    NEEDS_BUBBLEWRAP,
    SWITCHED_OFF,
    SandboxPlan,
    Statement,
)

CANT_START: Final = 127
"""Exit status of a process that could not become the program. Its report says why."""


class Unconfined(Exception):
    """Neither bubblewrap nor both of Landlock and seccomp confine the program: not started."""


def limit(plan: SandboxPlan) -> None:
    """Limit this process.

    RLIMIT_NPROC counts per user: it is useful in a user namespace, which bubblewrap makes for all
    users but root, for whom that limit does not count.
    """
    own_users = not plan.without_bubblewrap and os.geteuid() != 0
    limits = [
        (
            resource.RLIMIT_CORE,
            1,
        ),  # of 0 bytes, a core would still be given to the machine's handler of cores
        (resource.RLIMIT_AS, plan.memory_bytes),
        (resource.RLIMIT_FSIZE, plan.file_bytes),
        (resource.RLIMIT_NOFILE, plan.open_files),
        *([(resource.RLIMIT_NPROC, plan.max_processes)] if own_users else []),
    ]
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def enter_folder(plan: SandboxPlan) -> None:
    """Open `cwd` anew, because the old descriptor does not see mounts of a new namespace, and
    compare.
    """
    swapped = FileNotFoundError(
        f"the working folder {plan.cwd!r} was replaced while the program was being started"
    )
    try:
        folder = os.open(plan.cwd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise swapped from error
    if not os.path.samestat(os.fstat(folder), os.fstat(plan.cwd_fd)):
        raise swapped
    os.fchdir(folder)
    os.close(folder)


def restrict_files(plan: SandboxPlan) -> Statement:
    """Confine by Landlock, which refuses TCP, too, where the network is not the program's own."""
    if "files" not in plan.facilities:
        return Statement("files", False, SWITCHED_OFF)
    own_network = not plan.without_bubblewrap
    try:
        write: list[str | int] = [plan.root_fd, *plan.write]
        version = landlock.restrict(
            write=write, read=plan.read, devices=plan.devices, tcp=own_network
        )
    except OSError as error:
        return Statement("files", False, f"no Landlock ({reason(error)})")
    tcp = "" if own_network or version < 4 else "; TCP refused, UDP not"
    detail = f"Landlock ABI {version}: writes only in the workspace and private folders{tcp}"
    return Statement("files", True, detail)


def filter_calls(plan: SandboxPlan) -> Statement:
    """Filter system calls by seccomp."""
    name = "system calls"
    if name not in plan.facilities:
        return Statement(name, False, SWITCHED_OFF)
    try:
        seccomp.install(namespaces=not plan.without_bubblewrap)
    except OSError as error:
        return Statement(name, False, f"no seccomp filter ({error.strerror})")
    return Statement(
        name,
        True,
        "no io_uring, key rings, tracing, mounts, namespaces, vsock; no set-user-ID files",
    )


def require_confinement(plan: SandboxPlan, files: Statement, calls: Statement) -> None:
    """Raise Unconfined if the program would run without a wall that it was to have.

    Bubblewrap keeps a program in by itself; without it Landlock and seccomp are needed both.
    """
    missing = [
        f"{statement.name}: {statement.detail}"
        for statement in (files, calls)
        if not statement.held and statement.name in plan.facilities
    ]
    if plan.without_bubblewrap and missing:
        reasons = "; ".join([f"bubblewrap: {plan.without_bubblewrap}", *missing])
        raise Unconfined(
            f"nothing here confines it ({reasons}): install bubblewrap, or use a kernel with"
            " Landlock and seccomp"
        )


def consequences(plan: SandboxPlan, calls: Statement) -> Iterator[Statement]:
    """Yield the statements that follow, for the network, for unix sockets and for owners, modes and
    times of files outside.
    """
    entered = not plan.without_bubblewrap
    if entered:
        yield Statement("network", True, "own network namespace, loopback only")
        yield Statement("unix sockets", True, "none outside can be reached")
    elif calls.held:
        yield Statement("network", True, "refused, loopback too")
        yield Statement("unix sockets", True, "refused, since those outside could be reached")
    else:
        yield Statement("network", False, NEEDS_BUBBLEWRAP)
        yield Statement("unix sockets", False, "sockets and IPC outside can be reached")
    detail = "modes, owners, times and attributes outside " + (
        "are read-only" if entered else "need bubblewrap"
    )
    yield Statement("metadata", entered, detail)


def drop_privileges() -> Statement:
    """Drop capabilities.

    Root keeps those for files of others (Landlock limits which files); other users keep none.
    """
    capabilities = linux.FILE_CAPABILITIES if os.geteuid() == 0 else ()
    try:
        linux.keep_capabilities(capabilities)
    except OSError as error:
        return Statement("privileges", False, reason(error))
    return Statement(
        "privileges",
        True,
        "no new privileges" + ("; root with file capabilities only" if capabilities else ""),
    )


def become(plan: SandboxPlan) -> None:
    """Replace this process with the program.

    Never returns; raises OSError if it can't be started.
    """
    for number in range(1, signal.NSIG):
        if number in (signal.SIGKILL, signal.SIGSTOP) or number not in signal.valid_signals():
            continue
        if (
            signal.getsignal(number) is not signal.SIG_DFL
        ):  # Python ignores SIGPIPE and SIGXFSZ; programs expect them
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(plan.binary_fd, list(plan.argv), dict(plan.env))  # noqa: S606  # no shell is the point
