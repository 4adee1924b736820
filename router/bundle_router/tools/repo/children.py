"""Starting `git` and `rg`: an absolute binary, an argument list, a clean environment, and an end.

Rules:
1. The binary is looked up once, on the absolute folders of `PATH`, and never inside the workspace: what an agent may
   write is not what we start.
2. Nothing of our environment reaches the child but what the caller lists.
3. Output is read in chunks as it comes, with a deadline. Whoever stops reading ends the whole process group.
4. The child is confined by Landlock where the kernel has it: it reads beneath the folders it is given, starts and
   writes nothing, whatever a hostile repository talks it into. It is a second wall; the first is that the child is
   given nothing hostile to obey (`tools.repo.gitview`) and told not to follow links.
5. The restriction is put on a thread that then starts the child and ends: threads have their own Landlock domain, and
   children inherit it. So there is no code between fork and exec, and the router itself is never restricted.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import IO, Final

from bundle_router.core.models import ToolContext
from bundle_router.errors import ToolFailure

_POLL_S: Final = 0.1
_CHUNK: Final = 65_536
_STDERR_BYTES: Final = 8192
_ADDRESS_SPACE: Final = 8 << 30


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: `argv[0]` is an absolute path. `readable` yields once what it may read when it can be confined.

    `inherited` descriptors stay open in the child, under the same numbers. `confined=False` leaves Landlock out, to
    show that what stands in front of it holds alone.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    readable: Iterable[str | int]
    inherited: tuple[int, ...] = ()
    confined: bool = True


@dataclass(slots=True)
class Child:
    """A started child. `chunks` must be read to its end before `code` and `stderr` mean anything."""

    process: subprocess.Popen[bytes]
    deadline: float
    cancelled: Callable[[], bool]
    stderr: bytearray = field(default_factory=bytearray)
    code: int = -1

    def chunks(self) -> Iterator[bytes]:
        """Yield standard output as it comes. Raises ToolFailure `timeout` or `cancelled`."""
        out, err = self.process.stdout, self.process.stderr
        if out is None or err is None:
            raise ValueError("a child is read through pipes")
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            while selector.get_map():
                self._check_time()
                for key, _ in selector.select(_POLL_S):
                    pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]  # we registered two pipes
                    data = os.read(pipe.fileno(), _CHUNK)
                    if not data:
                        selector.unregister(pipe)
                    elif pipe is out:
                        yield data
                    else:
                        self.stderr += data[: _STDERR_BYTES - len(self.stderr)]
        try:
            self.code = self.process.wait(max(_POLL_S, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise _timeout() from None

    def _check_time(self) -> None:
        if self.cancelled():
            raise ToolFailure("the caller went away", code="cancelled")
        if time.monotonic() >= self.deadline:
            raise _timeout()


def _timeout() -> ToolFailure:
    return ToolFailure(
        "it took longer than the time this call has", code="timeout", advice="narrow it: name a path or a glob"
    )


@contextmanager
def start_child(command: Command, context: ToolContext) -> Iterator[Child]:
    """Start the command; on leaving, whatever still runs of its process group is killed and reaped."""
    confine = command.confined and starts_confined(command.argv[0])
    process = _popen_confined(command) if confine else _popen(command)
    try:
        _limit(process.pid)
        yield Child(process, time.monotonic() + context.timeout_s, context.cancelled)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # before reaping: the group's number can't be anyone else's
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def output_of(command: Command, context: ToolContext, *, max_bytes: int) -> tuple[bytes, bool, Child]:
    """Run a command: its standard output, whether that was cut at `max_bytes`, and the child for `code`, `stderr`."""
    kept = bytearray()
    with start_child(command, context) as child:
        for chunk in child.chunks():
            kept += chunk
            if len(kept) > max_bytes:
                return bytes(kept[:max_bytes]), True, child
    return bytes(kept), False, child


def _popen(command: Command) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.argv,
        cwd=command.cwd,
        env=dict(command.env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=command.inherited,
        start_new_session=True,
    )


def _popen_confined(command: Command) -> subprocess.Popen[bytes]:
    from bundle_router.tools.sandbox import landlock  # ctypes costs 5 ms: only when a child is confined

    started: list[subprocess.Popen[bytes]] = []
    failed: list[OSError] = []

    def start(rules: int) -> None:
        try:
            landlock.restrict_thread(rules)
            started.append(_popen(command))
        except OSError as error:
            failed.append(error)

    rules = landlock.reader_ruleset(command.argv[0], command.readable)
    try:
        thread = threading.Thread(target=start, args=(rules,), name="start-confined")
        thread.start()
        thread.join()
    finally:
        os.close(rules)
    if not started:
        error = failed[0] if failed else OSError("the child did not start")
        raise ToolFailure(f"{command.argv[0]} could not be started: {error}", code="unavailable") from error
    return started[0]


@cache
def starts_confined(binary: str) -> bool:
    """Return whether the binary runs at all under Landlock. A wrapper script, or libraries in odd places, do not."""
    try:
        process = _popen_confined(Command((binary, "--version"), "/", {}, ()))
    except (ToolFailure, OSError, AttributeError, ImportError):  # no Landlock, or it is forbidden; this is not Linux
        return False
    process.communicate(timeout=10)
    return process.returncode == 0


def _limit(pid: int) -> None:
    """Bound a child's memory and take away writing files. What a hostile repository makes it do then fail."""
    import resource

    if not hasattr(resource, "prlimit"):
        return
    try:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        resource.prlimit(pid, resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    except (ProcessLookupError, PermissionError, ValueError):
        pass  # it has already ended, or has a lower limit than these


# --- binaries -------------------------------------------------------------------------------------------------------


def find_binary(name: str, *, outside: str) -> str | None:
    """Return the absolute real path of an executable on `PATH` outside of the folder `outside`, or None."""
    for path in _candidates(name, os.environ.get("PATH", os.defpath)):
        if not f"{path}/".startswith(f"{os.path.realpath(outside).rstrip('/')}/"):
            return path
    return None


@cache
def _candidates(name: str, search_path: str) -> Sequence[str]:
    found = []
    for folder in search_path.split(os.pathsep):
        path = os.path.realpath(f"{folder}/{name}")
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113  (a str is wanted)
            found.append(path)
    return tuple(dict.fromkeys(found))
