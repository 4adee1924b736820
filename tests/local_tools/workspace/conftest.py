"""What the tests of `workspace` share: a workspace, a rule that runs any Python, and a way to see
what is left.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.sandbox.plan import FACILITIES, SWITCHED_OFF
from bundle_router.core.values import BinaryForm, BinaryRule, Data, LocalSettings, Text, ToolContext
from bundle_router.local_tools.workspace.execution import ExecArguments, execute

PYTHON_FROM_STDIN = BinaryForm(
    words=("-",), positionals="(?s).*", max_positionals=1000, paths=False
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one program gave: the text for the model, the record, and what the statements said."""

    text: str
    record: dict[str, Any]
    failed: bool

    def held(self, name: str) -> bool:
        return any(row["held"] for row in self.record["isolation"] if row["name"] == name)

    def need(self, name: str) -> None:
        """Skips the test, with the program's own statement as the reason, where this protection is
        missing: and fails it where this machine can have it and it was not switched off.
        """
        rows = self.record["isolation"]
        switched_off = {row["name"] for row in rows if row["detail"] == SWITCHED_OFF}
        for row in rows:
            if row["name"] == name and not row["held"]:
                by_choice = name in switched_off or "bubblewrap" in switched_off
                assert by_choice or not can_have(name), row["detail"]
                pytest.skip(f"{name} is not available here: {row['detail']}")


@cache
def can_have(name: str) -> bool:
    """Whether this machine has a protection, asked of others than the code under test."""
    if name == "files":
        return "landlock" in Path("/sys/kernel/security/lsm").read_text()
    if name == "system calls":
        return Path("/proc/sys/kernel/seccomp/actions_avail").exists()
    if name not in ("network", "process tree", "mounts"):
        return False
    program = shutil.which("bwrap")
    if program is None:
        return False
    words = ("--ro-bind", "/", "/", "--unshare-net", "--unshare-pid", "--proc", "/proc", "true")
    return not subprocess.call([program, *words])


class Runner:
    """Runs Python source in one workspace under changeable limits.

    `facilities` are what it has unless a call says.
    """

    def __init__(self, workspace: Path, facilities: tuple[str, ...] = FACILITIES) -> None:
        self.workspace = workspace
        self.facilities = facilities

    def __call__(
        self,
        source: str,
        *args: str,
        facilities: tuple[str, ...] | None = None,
        timeout_s: float = 60,
        max_bytes: int = 1 << 20,
        cancelled: Callable[[], bool] = lambda: False,
        cwd: str = ".",
        within: str = ".",
        protected: tuple[str, ...] = (),
        hidden: tuple[str, ...] = (),
        **rule: Any,
    ) -> Ran:
        python = BinaryRule(name="python", path="@python", forms=(PYTHON_FROM_STDIN,), **rule)
        context = ToolContext(
            workspace=str(self.workspace),
            settings=LocalSettings(binaries=(python,)),
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            cancelled=cancelled,
            protected=protected,
            within=within,
            hidden=hidden,
        )
        arguments = ExecArguments(binary="python", args=("-", *args), stdin=source, cwd=cwd)
        output = execute(
            arguments, context, facilities=self.facilities if facilities is None else facilities
        )
        text, data = output.blocks
        assert isinstance(text, Text)
        assert isinstance(data, Data)
        assert isinstance(data.value, dict)
        return Ran(text.text, data.value, output.failed)


def processes_with(marker: str) -> list[int]:
    """Processes of this machine, other than this one, whose command line holds the marker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (
                int(entry.name) != os.getpid()
                and marker.encode() in (entry / "cmdline").read_bytes()
            ):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], bool], *, within_s: float = 60) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def run(workspace: Path) -> Runner:
    """Runs programs with everything there is."""
    if sys.platform != "linux":
        pytest.skip("programs are only started on Linux")
    return Runner(workspace)


@pytest.fixture
def facilities() -> tuple[str, ...]:
    """Everything there is, where that is bubblewrap."""
    if not can_have("mounts"):
        pytest.skip("bubblewrap is not installed, or does not work here")
    return FACILITIES


@pytest.fixture(params=[FACILITIES, FACILITIES[1:]], ids=["bubblewrap", "landlock"])
def run_either(workspace: Path, request: pytest.FixtureRequest) -> Runner:
    """Runs programs in the two ways there are: by bubblewrap, and by Landlock and seccomp alone."""
    if sys.platform != "linux":
        pytest.skip("programs are only started on Linux")
    if request.param == FACILITIES and not can_have("mounts"):
        pytest.skip("bubblewrap is not installed, or does not work here")
    return Runner(workspace, request.param)


@pytest.fixture
def alive() -> Callable[[str], list[int]]:
    return processes_with


@pytest.fixture
def eventually() -> Callable[..., bool]:
    return wait_until
