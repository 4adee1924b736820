"""The last steps of the process that becomes the program: what it gives up, in order, before execve.

1. Joins its cgroups, while it still may write there.
2. Limits itself; core dumps are off.
3. Enters the working folder, and only if it is still the folder the router checked.
4. Gives up new privileges, then files (Landlock), then capabilities.
5. Executes the file behind the descriptor that the router checked: no name is looked up again.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from pathlib import Path
from typing import Final

from bundle_router.tools.sandbox import landlock, linux
from bundle_router.tools.sandbox.namespaces import reason
from bundle_router.tools.sandbox.plan import Plan, Statement

_REMOVE_TRIES: Final = 100
CANT_START: Final = 127
"""Exit status of a process that could not become the program; what it reported before says why."""


def join_cgroups(plan: Plan) -> bool:
    """Whether this process is now in every group of the plan (and there is one)."""
    try:
        for group in plan.cgroups:
            Path(group, "cgroup.procs").write_text("0", encoding="utf-8")
    except OSError:
        return False
    return bool(plan.cgroups)


def remove_cgroups(plan: Plan) -> None:
    """Empty groups are removed here, so that none stays when the router is killed. EBUSY: not quite empty yet."""
    for group in plan.cgroups:
        for _ in range(_REMOVE_TRIES):
            try:
                Path(group).rmdir()
            except OSError as error:
                if error.errno == errno.EBUSY:
                    time.sleep(0.01)
                    continue
            break


def limit(plan: Plan) -> None:
    limits = (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, plan.memory_bytes),
        (resource.RLIMIT_FSIZE, plan.file_bytes),
        (resource.RLIMIT_NOFILE, plan.open_files),
    )
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def limit_processes(plan: Plan, *, in_cgroup: bool, own_users: bool) -> Statement:
    """RLIMIT_NPROC counts per user: it bounds this program alone only inside a user namespace, and root never."""
    if in_cgroup:
        return Statement("process count", True, f"at most {plan.max_processes}, by cgroup")
    if os.geteuid() == 0:
        return Statement("process count", False, "RLIMIT_NPROC does not bind root and no pids cgroup is writable")
    if not own_users:
        return Statement("process count", False, "RLIMIT_NPROC would count the user's other processes")
    resource.setrlimit(resource.RLIMIT_NPROC, (plan.max_processes, plan.max_processes))
    return Statement("process count", True, f"at most {plan.max_processes}, by RLIMIT_NPROC")


def enter_folder(plan: Plan) -> None:
    """Opens `cwd` anew (mounts of a new namespace are not seen through the old descriptor) and compares."""
    folder = os.open(plan.cwd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if not os.path.samestat(os.fstat(folder), os.fstat(plan.cwd_fd)):
        raise FileNotFoundError(f"the working folder {plan.cwd!r} was replaced while the program was being started")
    os.fchdir(folder)
    os.close(folder)


def restrict_files(plan: Plan, *, network_held: bool) -> Statement:
    if "files" not in plan.facilities:
        return Statement("files", False, "switched off")
    try:
        write: list[str | int] = [plan.root_fd, *plan.write]
        version = landlock.restrict(write=write, read=plan.read, devices=plan.devices, tcp=network_held)
    except OSError as error:
        return Statement("files", False, f"no Landlock ({reason(error)})")
    tcp = "" if network_held or version < 4 else "; TCP refused, UDP not"
    return Statement("files", True, f"Landlock ABI {version}: writes only in the workspace and a private folder{tcp}")


def drop_privileges() -> Statement:
    """Root keeps what it needs to work on files of others (Landlock says which files); everyone else keeps nothing."""
    kept = linux.FILE_CAPABILITIES if os.geteuid() == 0 else ()
    try:
        linux.keep_capabilities(kept)
    except OSError as error:
        return Statement("privileges", False, reason(error))
    return Statement("privileges", True, "no new privileges" + ("; root with file capabilities only" if kept else ""))


def become(plan: Plan) -> None:
    """Replaces this process with the program. Returns never; raises OSError if it can't be started."""
    for number in range(1, signal.NSIG):
        if number in (signal.SIGKILL, signal.SIGSTOP) or number not in signal.valid_signals():
            continue
        if signal.getsignal(number) is not signal.SIG_DFL:  # Python ignores SIGPIPE and SIGXFSZ; programs expect them
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execve(plan.binary_fd, list(plan.argv), dict(plan.env))  # noqa: S606  # no shell is the point
