"""Each fault script, a few rounds of it; `python tests/faults/NAME.py` runs all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


NAMES = (
    "kill9", "two_writers", "disk_full", "gone_directory", "syscall_faults", "thousand_questions", "oversized",
    "exhaustion", "processes", "memory", "evictions", "short_sessions",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_promised_under_this_fault_holds(name: str) -> None:
    command = [sys.executable, str(HERE / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["broken"] == []
    if "skipped" in summary:
        pytest.skip(summary["skipped"])
