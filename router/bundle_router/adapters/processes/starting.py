"""Starts a program, reads what it writes within bounds, and ends it with its children.

Rules:
1. The binary is an absolute path and gets a list of arguments: no shell interprets them.
2. It gets the environment that is named, and no descriptor but its standard streams and those that
   are named.
3. It leads a session and a process group of its own. Its end is that of the whole group, also
   where it exited first and left children there: it is reaped last, so that the group's number
   can't be another's by then.
4. Output is read in chunks as it arrives. Whoever stops reading, for whatever reason, ends it.
5. A program that must be confined is started by a thread that confines itself, starts it and ends:
   threads have their own Landlock domain and filter, and children inherit both. So no code runs
   between fork and exec, and the router itself is never confined.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import IO, Final, Literal, Self

from bundle_router.adapters.descriptors import Opened

Stream = Literal["stdout", "stderr"]

_POLL_S: Final = 0.1
_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start."""

    argv: tuple[str, ...]
    """The program's absolute path, and its arguments."""
    env: Mapping[str, str]
    """Its whole environment."""
    cwd: str = "/"
    inherited: tuple[int, ...] = ()
    """Descriptors that stay open in it, under the same numbers."""


@dataclass(frozen=True, slots=True)
class FinishedProcess:
    """What a program came to that was run to its end."""

    status: int
    """Its exit status; `-n` if signal `n` ended it."""
    stdout: bytes
    stderr: bytes
    is_cut: bool
    """Whether it was ended since it wrote more than it might."""


class PipeReader:
    """Reads several pipes as data arrives. A context manager; the pipes stay the caller's."""

    def __init__(self, *descriptors: int) -> None:
        self._selector = selectors.DefaultSelector()
        for descriptor in descriptors:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._selector.close()

    @property
    def is_open(self) -> bool:
        """Whether a pipe has not ended yet."""
        return bool(self._selector.get_map())

    def read(self, timeout_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield a chunk of at most 64 KiB of each pipe that has data now or within `timeout_s`;
        an empty one says that the pipe has ended.
        """
        for key, _ in self._selector.select(timeout_s):
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:  # another reader was faster
                continue
            if not data:
                self._selector.unregister(key.fd)
            yield key.fd, data


class StartedProcess:
    """A started program. Whoever starts it calls `end`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, `-n` if signal `n` ended it; None while it runs."""
        process = self._process
        if process.returncode is not None or not hasattr(os, "pidfd_open"):
            return process.poll()
        found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return found.si_status
        return -found.si_status

    def descriptor_of(self, stream: Stream) -> int:
        """Return our end of the pipe. Raises ValueError if it was started without pipes."""
        pipe = self._process.stdout if stream == "stdout" else self._process.stderr
        if pipe is None:
            raise ValueError("it was started without pipes")
        return pipe.fileno()

    def output(self, check: Callable[[], None]) -> Iterator[tuple[Stream, bytes]]:
        """Yield what it writes as it arrives, until both streams have ended and it has exited.

        `check` is called at least ten times a second; what it raises ends the reading.
        """
        streams: dict[int, Stream] = {
            self.descriptor_of("stdout"): "stdout",
            self.descriptor_of("stderr"): "stderr",
        }
        with PipeReader(*streams) as pipes:
            while pipes.is_open:
                check()
                for descriptor, data in pipes.read(_POLL_S):
                    if data:
                        yield streams[descriptor], data
        while not self.wait(_POLL_S):
            check()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has exited, at the latest after `timeout_s`."""
        if self._process.returncode is not None:
            return True
        try:
            exited = Opened(os.pidfd_open(self.pid))
        except (AttributeError, OSError):  # not Linux, or not permitted there
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
            return self._process.returncode is not None
        with exited as descriptor:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))

    def kill(self) -> None:
        """Kill its process group at once."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self, *, patience_s: float = 0.0) -> int:
        """Kill its process group, once it has exited or `patience_s` are over; reap it, close our
        ends of its pipes and return its exit status.

        Idempotent. Blocks: an event loop calls it in a thread.
        """
        self.wait(patience_s)
        self.kill()
        status = self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return status


def start(
    command: Command,
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    piped: bool = True,
    confine: Callable[[], None] | None = None,
) -> StartedProcess:
    """Start a program whose output is read from pipes, or dropped if it is not `piped`.

    `confine` confines the thread that calls it, and with it the program. Raises OSError.
    """
    if confine is None:
        return StartedProcess(_popen(command, stdin, piped))
    return _start_confined(command, stdin, piped, confine)


def run_to_end(
    command: Command,
    *,
    timeout_s: float,
    max_bytes: int,
    confine: Callable[[], None] | None = None,
) -> FinishedProcess:
    """Run a program to its end, or until it has written more than `max_bytes` to a stream.

    Raises TimeoutError after `timeout_s`, and OSError if it can't be started.
    """
    deadline = time.monotonic() + timeout_s

    def check() -> None:
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{command.argv[0]} took longer than {timeout_s:g} s")

    kept = {"stdout": bytearray(), "stderr": bytearray()}
    is_cut = False
    process = start(command, confine=confine)
    try:
        for stream, data in process.output(check):
            kept[stream] += data
            is_cut = len(kept[stream]) > max_bytes
            if is_cut:
                break
    finally:
        status = process.end()
    stdout = bytes(kept["stdout"][:max_bytes])
    stderr = bytes(kept["stderr"][:max_bytes])
    return FinishedProcess(status, stdout, stderr, is_cut)


def _popen(command: Command, stdin: int | IO[bytes], piped: bool) -> subprocess.Popen[bytes]:
    output = subprocess.PIPE if piped else subprocess.DEVNULL
    return subprocess.Popen(
        command.argv,
        stdin=stdin,
        stdout=output,
        stderr=output,
        close_fds=True,
        pass_fds=command.inherited,
        env=dict(command.env),
        cwd=command.cwd,
        start_new_session=True,
    )


def _start_confined(
    command: Command, stdin: int | IO[bytes], piped: bool, confine: Callable[[], None]
) -> StartedProcess:
    processes: list[subprocess.Popen[bytes]] = []
    errors: list[OSError] = []

    def confine_and_start() -> None:
        try:
            confine()
            processes.append(_popen(command, stdin, piped))
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=confine_and_start, name="start-confined")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    if not processes:
        raise OSError("it did not start")
    return StartedProcess(processes[0])


# --- binaries -------------------------------------------------------------------------------------


def find_binary(name: str, *, outside: str) -> str | None:
    """Return the absolute real path of an executable on `PATH` outside of the folder `outside`,
    where an agent could write it, or None.
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
