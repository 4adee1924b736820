"""The launcher process: reads a plan from its control pipe, enters the namespaces, and supervises
the program.

It is started as `python -I -S -c …`, by bubblewrap or by itself, with three descriptors as
arguments: of this code, of the control pipe and of the pipe for reports. See
`bundle_router.local_tools.workspace.process` for the router's side.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bundle_router.local_tools.sandbox import linux, namespaces
from bundle_router.local_tools.sandbox.plan import NAMESPACES, SandboxPlan, Statement
from bundle_router.local_tools.sandbox.supervisor import Supervisor


def main() -> None:
    code_fd, control_fd, report_fd = map(int, sys.argv[1:4])
    os.write(report_fd, b'{"ready": true}\n')
    plan = SandboxPlan.decode(_read_line(control_fd))
    for descriptor in (
        code_fd,
        control_fd,
        plan.binary_fd,
        plan.cwd_fd,
        plan.root_fd,
        report_fd,
    ):
        os.set_inheritable(descriptor, False)
    linux.adopt_orphans()
    if plan.entered:
        linux.die_with_parent()
        details = (
            "own network namespace, loopback only",
            "own pid namespace",
            namespaces.MOUNTS_HELD,
        )
        statements = [
            Statement(name, True, f"{detail} (bubblewrap)")
            for name, detail in zip(NAMESPACES, details, strict=True)
        ]
        Supervisor(plan, control_fd, statements, own_users=os.geteuid() != 0).run()
        return
    users = _users()
    statements = namespaces.enter(plan.facilities)
    supervisor = Supervisor(plan, control_fd, statements, own_users=_users() != users)
    if not any(statement.held for statement in statements if statement.name == "process tree"):
        supervisor.run()
        return
    first = (
        os.fork()
    )  # the first process of the new pid namespace: when it ends, the kernel ends all others
    if first == 0:
        linux.die_with_parent()
        supervisor.run()
        os._exit(0)
    os.waitpid(first, 0)


def _users() -> int:
    """Return the identity of this process's user namespace."""
    return Path("/proc/self/ns/user").stat().st_ino


def _read_line(descriptor: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 65_536)
        if not part:
            sys.exit(0)  # the router is gone before it sent the plan
        line += part
    return bytes(line)
