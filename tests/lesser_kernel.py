"""A kernel that lacks Landlock or seccomp, for one process and its children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_CALLS = {
    # what is missing: number of the system call (x86-64, aarch64), first argument or None, error
    "Landlock": ((444, 444), None, 38),
    "seccomp": ((157, 167), 22, 22),  # prctl(PR_SET_SECCOMP)
}
LACKING = tuple(_CALLS)
_INSTALL = """
import struct, sys
from bundle_router.adapters.sandbox import linux

def step(code, value, if_true=0, if_false=0):
    return struct.pack("=HBBI", code, if_true, if_false, value)

def lack(number, argument, error):
    refuse, allow = step(6, 0x00050000 | error), step(6, 0x7FFF0000)
    test = [] if argument is None else [step(0x20, 16), step(0x15, argument, 0, 1)]
    call = step(0x15, number, 0, len(test) + 1)
    linux.forbid_new_privileges()
    linux.filter_system_calls(b"".join([step(0x20, 0), call, *test, refuse, allow]))

lack{arguments}
"""


def run_without(missing: str, source: str, *arguments: str) -> str:
    """What a Python program prints on a kernel that lacks Landlock or seccomp."""
    machine = os.uname().machine
    if machine not in ("x86_64", "aarch64"):
        pytest.skip("no number of that system call for this machine")
    numbers, argument, error = _CALLS[missing]
    number = numbers[("x86_64", "aarch64").index(machine)]
    install = _INSTALL.format(arguments=(number, argument, error))
    done = subprocess.run(
        [sys.executable, "-c", install + source, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1] / "router",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
