"""Bounds on all of a program's processes together, watched from beside them.

The kernel bounds one process (limits) or, where control groups can be made, memory and the number of processes of all.
What it does not bound is looked at ten times a second, and the program is ended when it is too much: so a bound that is
watched can be passed for a moment.

What was written is what the kernel accounts: a process's own, and that of its children that have ended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from bundle_router.tools.sandbox.plan import SandboxPlan, Statement

INTERVAL_S: Final = 0.1


class Watcher:
    """Looks whether a program is within the plan's bounds on the whole.

    `processes` lists the program's; None where /proc does not show them. `in_groups` are bounds the kernel keeps.
    """

    def __init__(self, plan: SandboxPlan, processes: Callable[[], Iterable[int]] | None, in_groups: set[str]) -> None:
        self._plan = plan
        self._in_groups = in_groups
        self._can_read = processes is not None and Path("/proc/self/io").exists()
        self._processes = processes if processes is not None and self._can_read else list
        self._files = _free_files(plan.cwd)
        self._free = {path: _free_bytes(path) for path in plan.in_memory}
        self._written = _account("/proc/self/io", "write_bytes:") if self._can_read else 0

    def statements(self) -> list[Statement]:
        """Return what bounds memory, processes and disk."""
        plan = self._plan
        memory = f"{plan.memory_bytes >> 20} MiB a process, {plan.total_memory_bytes >> 20} MiB together"
        disk = f"{plan.file_bytes >> 20} MiB a file, {plan.total_written_bytes >> 20} MiB"
        rows = [
            ("memory", "memory" in self._in_groups, memory),
            ("process count", "pids" in self._in_groups, f"at most {plan.max_processes}"),
            ("disk", False, f"{disk} and {plan.max_new_files:,} files together"),
        ]
        watched = (self._can_read, "watched" if self._can_read else "no /proc to watch it by")
        ends = [(True, "by cgroup") if held else watched for _, held, _ in rows]
        return [
            Statement(name, held, f"{detail}, {by}") for (name, _, detail), (held, by) in zip(rows, ends, strict=True)
        ]

    def exceeded(self) -> str:
        """Return which bound was passed, in words; empty while none was."""
        plan = self._plan
        pids = list(self._processes())
        if "pids" not in self._in_groups and len(pids) > plan.max_processes:
            return f"it started more than {plan.max_processes} processes"
        written = sum(_account(f"/proc/{pid}/io", "write_bytes:") for pid in ("self", *pids)) - self._written
        in_memory = sum(max(0, free - _free_bytes(path)) for path, free in self._free.items())
        if max(written, in_memory) > plan.total_written_bytes:
            return f"it wrote more than {plan.total_written_bytes >> 20} MiB"
        if self._files - _free_files(plan.cwd) > plan.max_new_files:
            return f"it made more than {plan.max_new_files:,} files"
        if "memory" not in self._in_groups and self._memory(pids) > plan.total_memory_bytes:
            return f"it used more than {plan.total_memory_bytes >> 20} MiB of memory"
        return ""

    def _memory(self, pids: Iterable[int]) -> int:
        """Count pages that several processes share once; finding that out is slow, so only where it matters."""
        rough = sum(_kilobytes(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:")) for pid in pids) << 10
        if rough <= self._plan.total_memory_bytes:
            return rough
        return sum(_kilobytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids) << 10


def _account(path: str, name: str) -> int:
    """Return one number of a process, 0 when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(path).read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    return sum(_account(path, name) for name in names)


def _free_bytes(path: str) -> int:
    with contextlib.suppress(OSError):
        found = os.statvfs(path)
        return found.f_bfree * found.f_frsize
    return 0


def _free_files(path: str) -> int:
    """0 on file systems that have no number of them."""
    with contextlib.suppress(OSError):
        return os.statvfs(path).f_ffree
    return 0
