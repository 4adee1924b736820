"""One confined program, from the router's side: starts the launcher, feeds and reads it, and ends
it in time.

Rules:
1. The launcher is started with an argument list and an empty environment; no code runs between fork
   and exec. Its interpreter is the base one, which reads no `pyvenv.cfg`. Its code is what this
   module read when it was imported: later changes on disk, in an environment or in this package,
   are not run.
2. When time is up or the caller has gone, the launcher is told to end everything. It gets its grace
   and some seconds for killing; then it is killed itself, and the program with it.
3. Whatever is raised, no process, pipe or temporary file of ours is left.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import marshal
import os
import re
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from bundle_router.adapters.processes.starting import (
    Command,
    PipeReader,
    StartedProcess,
    find_binary,
    run_to_end,
    start,
)
from bundle_router.adapters.sandbox import bubblewrap
from bundle_router.adapters.sandbox.plan import SWITCHED_OFF, SandboxPlan, Statement
from bundle_router.adapters.sandbox.tree import PathSwapped, mounts_of
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.workspace.router_code import base_interpreter

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]"
)
"""C0 and C1 controls except tab and newline, line separators, and characters that change the text
direction or hide.
"""


_COLOURS: Final = re.compile(r"\x1b\[[0-9;:]{0,32}m|\x1b\[[0-2]?K")
"""Terminal sequences that set a colour or clear a line's rest: they hide no text."""


def printable(data: bytes) -> str:
    """Return the bytes as UTF-8 text: without colours, of a line that was written over (a progress
    bar) the last state with the number of earlier ones, and everything else that could mislead a
    terminal or a reader written as `\\xNN`.
    """
    text = data.decode("utf-8", "backslashreplace")
    text = _COLOURS.sub("", text).replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(map(_last_state, text.split("\n")))
    return _UNSAFE.sub(
        lambda found: (
            f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}"
        ),
        text,
    )


def _last_state(line: str) -> str:
    """Return what a line shows at last, and how often it was written over."""
    if "\r" not in line:
        return line
    states = list(filter(None, map(str.rstrip, line.split("\r"))))
    if not states:
        return ""

    last = states[-1]
    earlier = len(states) - states.count(last)
    if earlier == 0:
        return last
    return f"{last} [{earlier} earlier states of this line]"


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The shown part of a stream of `total` bytes: `text` names the `dropped` bytes that are left
    out.
    """

    text: str
    total: int
    dropped: int


class Capture:
    """Keeps the first and the last `limit / 2` bytes that are fed, and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # trimmed rarely, so that feeding stays linear
            del self._tail[: -self._half]

    def output(self) -> CapturedOutput:
        """Return the text, of at most `limit` bytes and the line that counts the missing ones."""
        head = bytes(self._head)
        tail = bytes(self._tail[-self._half :])
        if len(head) + len(tail) == self.total and _size(head + tail) <= 2 * self._half:
            return CapturedOutput(printable(head + tail), self.total, 0)
        while head and _size(head) > self._half:  # escapes have made it longer
            head = head[: len(head) * self._half // (_size(head) + 1)]
        while tail and _size(tail) > self._half:
            tail = tail[-(len(tail) * self._half // (_size(tail) + 1)) or len(tail) :]
        dropped = self.total - len(head) - len(tail)
        middle = f"\n[… {dropped:,} bytes left out …]\n" if dropped else ""
        return CapturedOutput(printable(head) + middle + printable(tail), self.total, dropped)


def _size(data: bytes) -> int:
    return len(printable(data).encode("utf-8"))


Ended = Literal["exited", "killed", "timeout", "cancelled", "limit"]

_POLL_S: Final = 0.05
_KILLING_S: Final = 8.0
_PROBE_S: Final = 10.0
_CHUNK: Final = 65_536
_CODE: Final = (
    "import sys; sys.path.append('/proc/self/fd/' + sys.argv[1]); "
    "from bundle_router.adapters.sandbox.launcher import main; main()"
)
_ADAPTERS: Final = Path(__file__).parents[2] / "adapters"
_PACKAGES: Final = (
    "bundle_router",
    "bundle_router/adapters",
    "bundle_router/adapters/processes",
    "bundle_router/adapters/sandbox",
)
_SOURCES: Final = {
    f"bundle_router/adapters/{path.relative_to(_ADAPTERS).with_suffix('')}": path.read_bytes()
    for path in (
        _ADAPTERS / "processes" / "family.py",
        *(_ADAPTERS / "sandbox").glob("[!_]*.py"),
    )
}
"""The launcher's code when this process started."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a program ended.

    `exit_code` is None if `signal` ended it; `leftovers` counts the processes it left running.

    `exceeded` names the bound on the whole that was exceeded, if that ended it.
    """

    ended: Ended
    exit_code: int | None
    signal: int | None
    elapsed_ms: float
    stdout: CapturedOutput
    stderr: CapturedOutput
    statements: tuple[Statement, ...]
    leftovers: int
    exceeded: str = ""


def run(
    plan: SandboxPlan,
    *,
    stdin: str | None,
    timeout_s: float,
    cancelled: Callable[[], bool],
    max_bytes: int,
) -> ProcessExit:
    """Run the plan's program to its end, at most `timeout_s` and the plan's grace.

    Sets `plan.report_fd`.

    Each output stream is kept up to `max_bytes`. Raises ToolFailure `not_started` if it could not
    be started.
    """
    control_out, control_in = os.pipe()
    report_out, report_in = os.pipe()
    try:
        plan, wrapper = _arranged(plan._replace(report_fd=report_in))
        process = _start(plan, control_out, stdin, wrapper)
    except (OSError, PathSwapped) as error:
        for descriptor in (control_in, report_out):
            os.close(descriptor)
        if isinstance(error, PathSwapped):
            reason = str(error)
        else:
            reason = f"the launcher can't be started: {error.strerror}"
        raise ToolFailure(f"the program was not started: {reason}", code="not_started") from error
    finally:
        os.close(control_out)
        os.close(report_in)
    with contextlib.closing(_Watch(process, control_in, report_out, plan, max_bytes)) as watch:
        watch.follow(timeout_s, cancelled)
        return watch.finished()


def _arranged(plan: SandboxPlan) -> tuple[SandboxPlan, list[str]]:
    """Return the plan with its mounts, and the bubblewrap command for them.

    Without bubblewrap: the plan with the reason, and no command.
    """
    if "bubblewrap" not in plan.facilities:
        return plan._replace(without_bubblewrap=SWITCHED_OFF), []
    program = find_binary("bwrap", outside=os.readlink(f"/proc/self/fd/{plan.root_fd}"))  # noqa: PTH115  # text
    if program is None:
        return plan._replace(without_bubblewrap="not installed"), []
    if fault := _fault_of_bubblewrap(program):
        return plan._replace(without_bubblewrap=fault), []
    plan = plan._replace(mounts=mounts_of(plan))
    return plan, [program, *bubblewrap.arguments(plan.mounts), "--"]


@cache
def _fault_of_bubblewrap(program: str) -> str:
    """Return why bubblewrap can't be used: others than root and this user may change the file, or
    it does not work on this kernel. Empty if it can.
    """
    info = Path(program).stat()
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        return f"others may change {program}"
    arguments = (*bubblewrap.namespaces(), *bubblewrap.PROBE, "--", program, "--version")
    try:
        probe = run_to_end(
            Command((program, *arguments), env={}), timeout_s=_PROBE_S, max_bytes=_CHUNK
        )
    except OSError as error:
        return f"it does not work here: {error}"
    if probe.status == 0:
        return ""
    said = printable(probe.stderr).strip().splitlines() or [f"status {probe.status}"]
    return f"it does not work here: {said[-1][:200]}"


@cache
def _sealed_code() -> int:
    """Return a descriptor of the launcher's code as a zip file in memory, sealed against
    changes.
    """
    descriptor = os.memfd_create("launcher", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    modules = {f"{package}/__init__": b"" for package in _PACKAGES}
    modules |= _SOURCES
    header = (
        importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    )  # flag 1: by hash, never checked
    with os.fdopen(os.dup(descriptor), "wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, source in modules.items():
            archive.writestr(
                f"{name}.pyc", header + marshal.dumps(compile(source, f"{name}.py", "exec"))
            )
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _start(
    plan: SandboxPlan, control_fd: int, stdin: str | None, wrapper: list[str]
) -> StartedProcess:
    descriptors = (_sealed_code(), control_fd, plan.report_fd)
    launcher = (base_interpreter(), "-I", "-S", "-c", _CODE, *map(str, descriptors))
    command = Command(
        (*wrapper, *launcher),
        env={},
        inherited=(*descriptors, plan.binary_fd, plan.cwd_fd, plan.root_fd),
    )
    if stdin is None:
        return start(command)
    with os.fdopen(os.memfd_create("stdin", os.MFD_CLOEXEC), "w+b") as source:
        source.write(stdin.encode("utf-8"))
        source.seek(0)
        return start(command, stdin=source)


class _Watch:
    """Follows one launcher until it and all processes below it have ended."""

    def __init__(
        self,
        process: StartedProcess,
        control_fd: int,
        report_fd: int,
        plan: SandboxPlan,
        max_bytes: int,
    ) -> None:
        self._process = process
        self._plan = plan
        self._control = control_fd
        self._report = report_fd
        self._started = time.monotonic()
        self._program_ended = 0.0
        self._out_of_patience = False
        self._streams = {
            process.descriptor_of("stdout"): Capture(max_bytes),
            process.descriptor_of("stderr"): Capture(max_bytes),
        }
        self._reports = bytearray()
        self._outcome: dict[str, Any] = {}
        self._ended: Ended | None = None
        self._launcher_ended = False
        self._pipes = PipeReader(*self._streams, report_fd)

    def send_plan(self, line: bytes) -> None:
        """Write the plan while the launcher reads.

        If the launcher is gone, its report shows that.
        """
        with contextlib.suppress(BrokenPipeError):
            while line:
                line = line[os.write(self._control, line) :]

    def follow(self, timeout_s: float, cancelled: Callable[[], bool]) -> None:
        """Send the plan once the launcher is ready, and return when everything has ended."""
        deadline = self._started + timeout_s
        grace_s = self._plan.grace_s
        is_sent = False
        while True:
            self._read(_POLL_S)
            if self._launcher_ended:
                return
            instant = time.monotonic()
            if not is_sent and "ready" in self._outcome:
                self.send_plan(self._plan.encode())
                is_sent = True
            if (
                self._ended is None
                and "exited" not in self._outcome
                and (instant >= deadline or cancelled())
            ):
                self._ended = "timeout" if instant >= deadline else "cancelled"
                self.send_plan(b"x")
                deadline = instant + grace_s + _KILLING_S
            elif self._ended is None and "exited" in self._outcome:
                self._ended = "exited"
                deadline = instant + grace_s + _KILLING_S
            elif self._ended is not None and instant >= deadline:
                self._out_of_patience = True
                return

    def _read(self, timeout_s: float) -> bool:
        """Read what arrives within that time, and return whether anything did."""
        chunks = list(self._pipes.read(timeout_s))
        for descriptor, data in chunks:
            if descriptor != self._report:
                self._streams[descriptor].feed(data)
            elif data:
                self._take_output(data)
            else:
                self._launcher_ended = True  # which is what closes its report
        return bool(chunks)

    def _take_output(self, data: bytes) -> None:
        self._reports += data
        *lines, rest = self._reports.split(b"\n")
        self._reports = bytearray(rest)
        for line in lines:
            self._outcome.update(json.loads(line))
        if "exited" in self._outcome and not self._program_ended:
            self._program_ended = time.monotonic()

    def finished(self) -> ProcessExit:
        """Return how the program ended. Raises ToolFailure `not_started`."""
        self._drain()
        stdout, stderr = (capture.output() for capture in self._streams.values())
        self._require_result(stderr)
        outcome = self._outcome
        status: int | None = outcome.get("exited")
        exit_code = None
        signal = None
        if status is not None and status >= 0:
            exit_code = status
        elif status is not None:
            signal = -status
        return ProcessExit(
            ended=self._how_it_ended(signal),
            exit_code=exit_code,
            signal=signal,
            elapsed_ms=((self._program_ended or time.monotonic()) - self._started) * 1000,
            stdout=stdout,
            stderr=stderr,
            statements=tuple(Statement(**fields) for fields in outcome.get("statements", ())),
            leftovers=outcome.get("leftovers", 0),
            exceeded=outcome.get("exceeded", ""),
        )

    def _require_result(self, stderr: CapturedOutput) -> None:
        """Raise ToolFailure if the program was not started, or its launcher did not say how it
        ended.
        """
        outcome = self._outcome
        if "failed" in outcome:
            raise ToolFailure(
                f"the program was not started: {outcome['failed']}", code="not_started"
            )
        was_ended = "exceeded" in outcome or self._ended not in (None, "exited")
        is_known = "exited" in outcome and "statements" in outcome
        if not was_ended and not is_known:
            raise ToolFailure(
                f"the launcher ended without a result: {stderr.text[-2000:]}", code="not_started"
            )

    def _how_it_ended(self, signal: int | None) -> Ended:
        if "exceeded" in self._outcome:
            return "limit"
        if self._ended not in (None, "exited"):
            return self._ended
        return "exited" if signal is None else "killed"

    def _drain(self) -> None:
        """Read the rest in the pipes.

        Nobody writes any more, so it is little; an escaped writer can't block us.
        """
        deadline = time.monotonic() + 1.0
        while self._read(0) and time.monotonic() < deadline:
            pass

    def close(self) -> None:
        """End and reap the launcher, and close every descriptor. Idempotent."""
        self._pipes.close()
        if "leftovers" not in self._outcome and self._ended is None:
            self.send_plan(b"x")  # an exception was raised while the program ran
        # Killed with its launcher, the program and its pid namespace die (PDEATHSIG).
        self._process.end(patience_s=0.0 if self._out_of_patience else _KILLING_S)
        os.close(self._control)
        os.close(self._report)
