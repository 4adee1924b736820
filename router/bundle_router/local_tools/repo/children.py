"""Starts `git` and `rg` confined, with an absolute binary, an argument list, a clean environment,
and a certain end (`bundle_router.adapters.processes`).

Rules:
1. The binary is looked up once, in the absolute folders of `PATH`, and never inside the workspace,
   where an agent could write it.
2. The child gets only those variables of our environment that the caller lists.
3. Output is read in chunks as it arrives, with a deadline. A caller that stops reading ends the
   whole process group.
4. Landlock and seccomp confine the child: it reads only beneath the given folders, starts and
   writes nothing and has no sockets, whatever a hostile repository makes it do. Without one of them
   it is not started. Bubblewrap can't replace them: it mounts by path, and what the child may read
   are open descriptors. This is the second wall. The first: the child gets no hostile configuration
   (`local_tools.repo.gitview`), and is told not to follow links.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.processes.starting import (
    Command,
    FinishedProcess,
    StartedProcess,
    run_to_end,
    start,
)
from bundle_router.core.values import ToolContext
from bundle_router.errors import ToolFailure

_STDERR_BYTES: Final = 8192
_PROBE_S: Final = 10
_ADDRESS_SPACE: Final = 8 << 30


@dataclass(frozen=True, slots=True)
class ConfinedCommand:
    """A program that reads, and does nothing else."""

    command: Command
    readable: Iterable[str | int]
    """Paths and descriptors of folders that it may read; yielded once."""
    confined: bool = True
    """False omits the second wall, for tests of the first alone."""


@dataclass(slots=True)
class Child:
    """A started child. `code` and `stderr` are valid only after `chunks` was read to its end."""

    process: StartedProcess
    deadline: float
    cancelled: Callable[[], bool]
    stderr: bytearray = field(default_factory=bytearray)
    code: int = -1

    def chunks(self) -> Iterator[bytes]:
        """Yield standard output as it arrives. Raises ToolFailure `timeout` or `cancelled`."""
        for stream, data in self.process.output(self._check_time):
            if stream == "stdout":
                yield data
            else:
                self.stderr += data[: _STDERR_BYTES - len(self.stderr)]
        status = self.process.status
        if status is not None:
            self.code = status

    def _check_time(self) -> None:
        if self.cancelled():
            raise ToolFailure("the call was cancelled", code="cancelled")
        if time.monotonic() >= self.deadline:
            raise ToolFailure(
                "it took longer than this call may take",
                code="timeout",
                advice="narrow it: name a path or a glob",
            )


@contextmanager
def start_child(command: ConfinedCommand, context: ToolContext) -> Iterator[Child]:
    """Start the command. At the end of the block, kill and reap its process group.

    Raises ToolFailure `unavailable` if it can't be confined or started.
    """
    binary = command.command.argv[0]
    if command.confined:
        _require_confinement(binary)
    try:
        process = _start_confined(command) if command.confined else start(command.command)
    except OSError as error:
        raise ToolFailure(f"{binary} could not be started: {error}", code="unavailable") from error
    try:
        _limit(process.pid)
        yield Child(process, time.monotonic() + context.timeout_s, context.cancelled)
    finally:
        process.end()


def output_of(
    command: ConfinedCommand, context: ToolContext, *, max_bytes: int
) -> tuple[bytes, bool, Child]:
    """Run a command.

    Return its standard output, whether it was cut at `max_bytes`, and the ended child.
    """
    output = bytearray()
    with start_child(command, context) as child:
        for chunk in child.chunks():
            output += chunk
            if len(output) > max_bytes:
                return bytes(output[:max_bytes]), True, child
    return bytes(output), False, child


def _start_confined(command: ConfinedCommand) -> StartedProcess:
    from bundle_router.adapters.sandbox import landlock  # ctypes costs 5 ms

    with Opened(landlock.reader_ruleset(command.command.argv[0], command.readable)) as rules:
        return start(command.command, confine=partial(_confine_thread, rules))


def _confine_thread(rules: int) -> None:
    from bundle_router.adapters.sandbox import landlock, seccomp

    landlock.restrict_thread(rules)
    seccomp.install(namespaces=False)


def _require_confinement(binary: str) -> None:
    fault = confinement_fault(binary)
    if fault:
        raise ToolFailure(
            f"{binary} is not started, since it can't be confined here: {fault}",
            code="unavailable",
            advice="read files instead, or use Linux with Landlock and seccomp",
        )


@cache
def confinement_fault(binary: str) -> str:
    """Return why the binary can't run under Landlock and seccomp; empty if it can.

    Wrapper scripts, or libraries in unusual places, can't.
    """
    if sys.platform != "linux":
        return "only Linux has Landlock and seccomp"
    from bundle_router.adapters.sandbox import landlock

    try:
        rules = Opened(landlock.reader_ruleset(binary, ()))
    except OSError as error:
        return f"no Landlock ({error.strerror})"
    with rules as ruleset:
        try:
            probe = _run_probe(binary, ruleset)
        except OSError as error:
            return f"{binary} could not be started: {error}"
    if probe.status == 0:
        return ""
    return f"it fails there: {probe.stderr.decode('utf-8', 'backslashreplace')[:200].strip()!a}"


def _run_probe(binary: str, ruleset: int) -> FinishedProcess:
    return run_to_end(
        Command((binary, "--version"), env={}),
        timeout_s=_PROBE_S,
        max_bytes=_STDERR_BYTES,
        confine=partial(_confine_thread, ruleset),
    )


def _limit(pid: int) -> None:
    """Limit a child's memory, and forbid it to write files.

    What a hostile repository makes it do then fails.
    """
    import resource

    if not hasattr(resource, "prlimit"):
        return
    with suppress(
        ProcessLookupError, PermissionError, ValueError
    ):  # it has ended, or its limit is lower than these
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
