"""Bounds on all processes of a program together, watched from outside.

The kernel bounds each process (limits). The bounds on the whole are checked ten times a second, and
the program is ended when it exceeds one, so it may exceed it for a moment.

Written bytes are those that the kernel accounts: of each process, and of its children that were
waited for. Other writes (by children that nobody waits for, or space taken without writing) show as
lost free space: when more of that is gone than may be written, the files that changed since the
program began are summed. Memory is that of the processes, plus memory that belongs to none: System
V segments, and nameless files in memory. Threads count as processes. A
process of an unreadable binary shows only its status: then all it shares counts as its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from bundle_router.adapters.sandbox.plan import SandboxPlan, Statement

INTERVAL_S: Final = 0.1
MANY: Final = 24
"""Number of processes from which they could outrun the watcher."""
BEHIND: Final = 10
"""Steps of priority by which so many run behind the watcher."""


class Watcher:
    """Checks whether a program is within the plan's bounds on the whole.

    `processes` lists the program's.
    """

    def __init__(self, plan: SandboxPlan, processes: Callable[[], Iterable[int]]) -> None:
        self._plan = plan
        self._can_read = Path("/proc/self/io").exists()
        self._processes = processes if self._can_read else list
        self._files = self._free_files()
        self._began_ns = max(
            Path(path).stat().st_ctime_ns for path in plan.write
        )  # made for this program
        self._free = self._free_bytes()
        self._written = _written_by_ended()
        self._segments = _segments()

    def statements(self) -> list[Statement]:
        """Return the statements about what bounds memory, processes and disk."""
        plan = self._plan
        memory = (
            f"{plan.memory_bytes >> 20} MiB a process, {plan.total_memory_bytes >> 20} MiB together"
        )
        disk = f"{plan.file_bytes >> 20} MiB a file, {plan.total_written_bytes >> 20} MiB"
        rows = [
            (
                "memory",
                memory,
                "watched, without what sockets hold and shared mappings that it left",
            ),
            ("process count", f"at most {plan.max_processes}", "watched"),
            ("disk", f"{disk} and {plan.max_new_files:,} files together", "watched"),
        ]
        if not self._can_read:
            rows = [(name, bound, "no /proc to watch it by") for name, bound, _ in rows]
        return [Statement(name, self._can_read, f"{bound}, {by}") for name, bound, by in rows]

    def exceeded_bound(self) -> str:
        """Return the exceeded bound in words; empty if there is none."""
        plan = self._plan
        pids = list(self._processes())
        nice = os.getpriority(os.PRIO_PROCESS, 0) + BEHIND  # the kernel takes 19 for more
        for pid in pids if len(pids) > MANY else ():
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, pid, nice)
        threads = sum(_account(f"/proc/{pid}/status", "Threads:") for pid in pids)
        if threads > plan.max_processes:
            return f"it started more than {plan.max_processes} processes and threads"
        written_bytes = (
            sum(_account(f"/proc/{pid}/io", "write_bytes:") for pid in pids)
            + _written_by_ended()
            - self._written
        )
        if written_bytes > plan.total_written_bytes or self._has_filled(pids):
            return f"it wrote more than {plan.total_written_bytes >> 20} MiB"
        if self._files - self._free_files() > plan.max_new_files:
            return f"it made more than {plan.max_new_files:,} files"
        if self._memory(pids) > plan.total_memory_bytes:
            return f"it used more than {plan.total_memory_bytes >> 20} MiB of memory"
        return ""

    def _memory(self, pids: Iterable[int]) -> int:
        """Return the memory of the processes, counting shared pages once.

        That is slow, so it is done only if it matters, and no longer than needed: hundreds of
        processes that all allocate leave little time for it.
        """
        bound = self._plan.total_memory_bytes
        unmapped = sum(_nameless_files(pids, "/memfd:").values()) + max(
            0, _segments() - self._segments
        )
        rough = {pid: _rough(pid) for pid in pids}
        if sum(rough.values()) + unmapped <= bound:
            return sum(rough.values()) + unmapped
        exact = 0
        for pid in sorted(rough, key=rough.__getitem__, reverse=True):
            exact += _account(
                f"/proc/{pid}/smaps_rollup", "Pss_Anon:", "Pss_Shmem:"
            ) << 10 or _rough(pid)
            if exact > bound:
                break
        return max(exact, unmapped)

    def _file_systems(self) -> Iterable[os.statvfs_result]:
        """Return those that the program writes to."""
        file_systems = [os.statvfs(self._plan.root_fd), *map(os.statvfs, self._plan.write)]
        return {status.f_fsid: status for status in file_systems}.values()

    def _free_bytes(self) -> int:
        return sum(status.f_bfree * status.f_frsize for status in self._file_systems())

    def _free_files(self) -> int:
        """Return the number of free files; 0 for file systems without one."""
        return sum(status.f_ffree for status in self._file_systems())

    def _has_filled(self, pids: Iterable[int]) -> bool:
        """Return whether too much space is taken.

        If others took it, check again after as much more is gone.
        """
        room = self._free_bytes()
        bound = self._plan.total_written_bytes
        if self._free - room <= bound:
            return False
        sizes = _nameless_files(pids, "")
        for folder in (f"/proc/self/fd/{self._plan.root_fd}", *self._plan.write):
            sizes |= {
                file: size for file, size, ctime_ns in _files(folder) if ctime_ns >= self._began_ns
            }
        self._free = room + min(sum(sizes.values()), bound)
        return sum(sizes.values()) > bound


def _account(path: str, *names: str) -> int:
    """Return the sum of these numbers of a process, 0 if it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(path).read_text(encoding="ascii", errors="replace").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(names))
    return 0


def _rough(pid: int) -> int:
    return _account(f"/proc/{pid}/status", "RssAnon:", "RssShmem:") << 10


def _written_by_ended() -> int:
    """Return the bytes that this process and its children that were waited for wrote."""
    processes = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(each).ru_oublock for each in processes) * 512


def _files(folder: str) -> Iterator[tuple[tuple[int, int], int, int]]:
    """Yield identity, size on disk and time of change of every file below a folder."""
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = Path(top, name).lstat()
                yield (status.st_dev, status.st_ino), status.st_blocks * 512, status.st_ctime_ns


def _nameless_files(pids: Iterable[int], kind: str) -> dict[tuple[int, int], int]:
    """Return the bytes of nameless files that processes hold open, whose last name began with
    `kind`.
    """
    sizes = {}
    for folder in (f"/proc/{pid}/fd" for pid in pids):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 - ten times a second, for hundreds of processes
                with contextlib.suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith(kind):  # noqa: PTH115 - so
                        status = os.stat(f"{folder}/{name}")  # noqa: PTH116 - so
                        if not status.st_nlink and stat.S_ISREG(status.st_mode):
                            sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sizes


def _segments() -> int:
    """Return the bytes in memory of all visible System V segments."""
    with contextlib.suppress(OSError):
        return sum(
            int(row.split()[-2])
            for row in Path("/proc/sysvipc/shm").read_text("ascii").splitlines()[1:]
        )
    return 0
