"""Starts `git` and `rg`: an absolute binary, an argument list, a clean environment, and a certain
end.

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
5. A thread restricts itself, starts the child and ends: threads have their own Landlock domain and
   filter, and children inherit both. So no code runs between fork and exec, and the router itself
   is never restricted.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import IO, Final

from bundle_router.core.values import ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.descriptors import Opened

_POLL_S: Final = 0.1
_CHUNK: Final = 65_536
_STDERR_BYTES: Final = 8192
_ADDRESS_SPACE: Final = 8 << 30


@dataclass(frozen=True, slots=True)
class Command:
    """What is started: `argv[0]` is an absolute path.

    `readable` yields once what it may read.

    `inherited` descriptors stay open in the child, under the same numbers. `confined=False` omits
    the second wall, for tests of the first alone.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    readable: Iterable[str | int]
    inherited: tuple[int, ...] = ()
    confined: bool = True


@dataclass(slots=True)
class Child:
    """A started child. `code` and `stderr` are valid only after `chunks` was read to its end."""

    process: subprocess.Popen[bytes]
    deadline: float
    cancelled: Callable[[], bool]
    stderr: bytearray = field(default_factory=bytearray)
    code: int = -1

    def chunks(self) -> Iterator[bytes]:
        """Yield standard output as it arrives. Raises ToolFailure `timeout` or `cancelled`."""
        out = self.process.stdout
        err = self.process.stderr
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
            raise ToolFailure("the call was cancelled", code="cancelled")
        if time.monotonic() >= self.deadline:
            raise _timeout()


def _timeout() -> ToolFailure:
    return ToolFailure(
        "it took longer than this call may take",
        code="timeout",
        advice="narrow it: name a path or a glob",
    )


@contextmanager
def start_child(command: Command, context: ToolContext) -> Iterator[Child]:
    """Start the command. At the end of the block, kill and reap its process group.

    Raises ToolFailure `unavailable` if it can't be confined or started.
    """
    if command.confined:
        _require_confinement(command.argv[0])
        process = _popen_confined(command)
    else:
        process = _popen(command)
    try:
        _limit(process.pid)
        yield Child(process, time.monotonic() + context.timeout_s, context.cancelled)
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(
                    process.pid, signal.SIGKILL
                )  # before reaping: the group's id can't be reused yet
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def output_of(
    command: Command, context: ToolContext, *, max_bytes: int
) -> tuple[bytes, bool, Child]:
    """Run a command.

    Return its standard output, whether it was cut at `max_bytes`, and the ended child.
    """
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
    # ctypes costs 5 ms: only when a child is confined
    from bundle_router.local_tools.sandbox import landlock, seccomp

    started: list[subprocess.Popen[bytes]] = []
    failed: list[OSError] = []

    def start(rules: int) -> None:
        try:
            landlock.restrict_thread(rules)
            seccomp.install(namespaces=False)
            started.append(_popen(command))
        except OSError as error:
            failed.append(error)

    with Opened(landlock.reader_ruleset(command.argv[0], command.readable)) as rules:
        thread = threading.Thread(target=start, args=(rules,), name="start-confined")
        thread.start()
        thread.join()
    if not started:
        error = failed[0] if failed else OSError("the child did not start")
        raise ToolFailure(
            f"{command.argv[0]} could not be started: {error}", code="unavailable"
        ) from error
    return started[0]


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
    try:
        process = _popen_confined(Command((binary, "--version"), "/", {}, ()))
    except ToolFailure as failure:
        return str(failure)
    except OSError as error:
        return f"no Landlock ({error.strerror})"
    _, said = process.communicate(timeout=10)
    if process.returncode == 0:
        return ""
    return f"it fails there: {said.decode('utf-8', 'backslashreplace')[:200].strip()!a}"


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


# --- binaries -------------------------------------------------------------------------------------


def find_binary(name: str, *, outside: str) -> str | None:
    """Return the absolute real path of an executable on `PATH` outside of the folder `outside`, or
    None.
    """
    inside = f"{os.path.realpath(outside).rstrip('/')}/"
    paths = _candidates(name, os.environ.get("PATH", os.defpath))
    return next((path for path in paths if not f"{path}/".startswith(inside)), None)


@cache
def _candidates(name: str, search_path: str) -> Sequence[str]:
    found = []
    for folder in search_path.split(os.pathsep):
        path = os.path.realpath(f"{folder}/{name}")
        if folder.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113  (a str is wanted)
            found.append(path)
    return tuple(dict.fromkeys(found))
