"""The launcher process: reads a plan from its control pipe, and supervises the program.

It is started as `python -I -S -c …`, by bubblewrap or by itself, with three descriptors as
arguments: of this code, of the control pipe and of the pipe for reports. See
`bundle_router.local_tools.workspace.process` for the router's side.
"""

from __future__ import annotations

import os
import sys

from bundle_router.adapters.sandbox import linux
from bundle_router.adapters.sandbox.plan import SandboxPlan
from bundle_router.adapters.sandbox.supervisor import Supervisor


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
    if not plan.without_bubblewrap:
        linux.die_with_parent()
    Supervisor(plan, control_fd).run()


def _read_line(descriptor: int) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 65_536)
        if not part:
            sys.exit(0)  # the router is gone before it sent the plan
        line += part
    return bytes(line)
