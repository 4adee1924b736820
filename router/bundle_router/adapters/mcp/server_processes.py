"""Stdio servers as processes: started under supervision, without our environment, and found again
if they survive us.

Rules:
1. A server's environment is what its entry gives, a home folder of its own, a language, and the
   router's `PATH`. Nothing else of the router's environment is passed. Arguments are a list; no
   shell interprets them.
2. A server and all its descendants that keep their environment carry a mark that names the router's
   process. `leftovers` finds marked processes whose router is gone. It only reports them, because a
   pid may have been reused.
3. A server's home goes with it, except for what its launcher downloaded (`server_caches`). One
   left by a router killed together with its supervisor goes at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from bundle_router.adapters.descriptors import Opened
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.processes.starting import Command, StartedProcess, start
from bundle_router.adapters.processes.supervision import AT_ONCE
from bundle_router.errors import StorageError

MARK: Final = "BUNDLE_ROUTER_OWNER"
HOMES: Final = "bundle-router-home-"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IMPORT_ROOT: Final = str(Path(__file__).resolve().parents[3])
_SUPERVISION: Final = (
    "import sys; sys.path.append(sys.argv[2]); "
    "from bundle_router.adapters.processes.supervision import main; main(int(sys.argv[1]))"
)
_AT_ONCE_S: Final = 1.0
_END_S: Final = 10.0
"""Seconds that the supervisor may take to end its servers: longer than its patience with a single
server.
"""
_STARTED_FIELD: Final = 19
"""Index of the start time in /proc/<pid>/stat, counted after the name."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """The command that starts a server.

    `env` is the entry's environment; its values may be secrets. Programs are looked up in `path`,
    by us and by the server, unless `env` sets another.
    """

    server: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    path: str
    polite_s: float
    term_s: float
    cache: Path | None = None
    """The folder in which what its launcher downloads stays; None: it goes with its home."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process of `server` that was started, directly or not, by a router that is gone."""

    pid: int
    server: str
    command: str


class Input:
    """A server's standard input. On the loop that this was made on.

    A write blocks nothing: what the server does not take yet is written when it does. What comes
    after the server's end is dropped.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._loop = asyncio.get_running_loop()
        self._rest = bytearray()
        self._is_scheduled = False
        self._is_closing = False
        self._taken = asyncio.Event()
        self._taken.set()

    def write(self, line: bytes, *, later: bool = False) -> None:
        """Write a line: at once, or with all those of this iteration of the loop, in one system
        call, so that the server wakes once.
        """
        self._rest += line
        if not later:
            self._send()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self._is_scheduled = False
        if self._rest and self._taken.is_set():
            self._send_some()
            if self._rest:
                self._taken.clear()
                self._loop.add_writer(self._socket, self._send_rest)

    def _send_some(self) -> None:
        try:
            del self._rest[: self._socket.send(self._rest)]
        except BlockingIOError:
            pass
        except OSError:  # the reader of the output learns why
            self._rest.clear()

    def _send_rest(self) -> None:
        self._send_some()
        if not self._rest:
            self._end_sending()

    def _end_sending(self) -> None:
        self._rest.clear()
        self._taken.set()
        if self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)
        if self._is_closing:
            self._socket.close()

    async def drain(self) -> None:
        """Wait until the server has taken what was sent, or has ended."""
        await self._taken.wait()

    def close(self, *, at_once: bool = False) -> None:
        """End the input, after what was written before or at once."""
        self._send()
        self._is_closing = True
        if at_once or self._taken.is_set():
            self._end_sending()


class Process:
    """One started server.

    `exited` is set when it has ended, even if another process still holds its pipes.
    """

    def __init__(self, control: socket.socket) -> None:
        self.stdin: Input
        self.stdout: asyncio.StreamReader
        self.stderr: asyncio.StreamReader
        self.exited = asyncio.Event()
        self._gone = asyncio.Event()
        self.pid = 0
        self.status: int | None = None
        self.failed = ""
        self._control = control
        self.home = contextlib.ExitStack()
        """Deletes the server's home."""
        self._reading: list[asyncio.ReadTransport] = []
        self._hearing = asyncio.get_running_loop().create_task(self._read_supervisor())

    async def connect(self, stdin: socket.socket, stdout: BinaryIO, stderr: BinaryIO) -> None:
        """Open streams on our ends of its pipes. Closing the streams closes the pipes."""
        self.stdin = Input(stdin)
        self.stdout = await self._read_pipe(stdout)
        self.stderr = await self._read_pipe(stderr)

    async def _read_pipe(self, file: BinaryIO) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), file
        )
        self._reading.append(transport)
        return reader

    async def _read_supervisor(self) -> None:
        """Read the supervisor's reports until the server's processes, or the supervisor, are
        gone.
        """
        loop = asyncio.get_running_loop()
        rest = b""
        try:
            while part := await loop.sock_recv(self._control, 4096):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._take_report(json.loads(line))
        except (OSError, ValueError):
            pass
        finally:
            self.exited.set()
            self._gone.set()

    def _take_report(self, report: Mapping[str, object]) -> None:
        self.pid = int(str(report.get("pid", self.pid)))
        self.failed = str(report.get("failed", self.failed))
        if "exited" in report:
            self.status = int(str(report["exited"]))
            self.exited.set()

    def stop_listening(self) -> None:
        """Close our end of its standard output: the server can't block on writing, and no more is
        read.
        """
        self._reading[0].close()

    async def stop(self, timeout_s: float) -> bool:
        """End the server and all its processes, first politely.

        Return True when they are gone, False if the supervisor has not ended them within
        `timeout_s` and a second.
        """
        self.stdin.close()
        try:
            for wish, patience_s in ((b"x", timeout_s), (AT_ONCE, _AT_ONCE_S)):
                with contextlib.suppress(OSError):
                    self._control.send(wish)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await self._gone.wait()
                        return True
            return False
        finally:
            self.abandon()
            await asyncio.to_thread(self.home.close)

    def abandon(self) -> None:
        """Close our ends of the sockets, which tells the supervisor to end the server."""
        self._hearing.cancel()
        self._control.close()
        self.stdin.close(at_once=True)
        for transport in self._reading:
            transport.close()


class ProcessSupervisor:
    """Starts stdio servers through one supervisor process.

    It starts that process (`local_tools.processes.supervision`) on first use, and again if it is
    gone. All on one event loop.
    """

    def __init__(self) -> None:
        self._process: StartedProcess | None = None
        self._socket: socket.socket | None = None
        self._starting = asyncio.Lock()

    async def start(self, command: ServerCommand) -> Process:
        """Start the command under supervision. Raises ServerFault `not_started`."""
        if os.name != "posix":
            raise ServerFault(
                "not_permitted",
                "stdio servers need a POSIX system, where they can be ended for certain",
            )
        program = _program(command)
        from bundle_router.adapters.mcp.server_caches import kept_caches
        from bundle_router.adapters.private_folders import private_folder

        variables: dict[str, str] = {}
        with contextlib.ExitStack() as home:
            try:
                folder = await asyncio.to_thread(home.enter_context, private_folder(HOMES))
                if command.cache is not None:
                    caches = kept_caches(folder, command.cache)
                    variables = await asyncio.to_thread(home.enter_context, caches)
                env = environment(command, folder, variables)
                process = await self._handed_over(program, command, folder, env)
            except (OSError, RuntimeError, StorageError) as error:
                why = (
                    getattr(error, "strerror", None) or error
                )  # no process, thread or descriptor is left
                raise ServerFault("not_started", f"it can't be started: {why}") from error
            process.home = home.pop_all()
            return process

    async def _handed_over(
        self, program: str, command: ServerCommand, home: str, env: Mapping[str, str]
    ) -> Process:
        plan = {
            "argv": [program, *command.argv[1:]],
            "env": env,
            "cwd": command.cwd,
            "home": home,
            "polite_s": command.polite_s,
            "term_s": command.term_s,
        }
        with contextlib.ExitStack() as ours:
            with contextlib.ExitStack() as theirs:
                control, their_control = _sockets(ours, theirs)
                stdin, their_stdin = _sockets(ours, theirs)
                stdout, their_stdout = _pipe(ours, theirs)
                stderr, their_stderr = _pipe(ours, theirs)
                await self._send(
                    [their_control.fileno(), their_stdin.fileno(), their_stdout, their_stderr]
                )
            process = Process(control)
            ours.callback(process.abandon)
            await process.connect(stdin, stdout, stderr)
            with contextlib.suppress(OSError):  # if the supervisor is gone, `exited` is set anyway
                await asyncio.get_running_loop().sock_sendall(
                    control, json.dumps(plan).encode() + b"\n"
                )
            ours.pop_all()
        return process

    async def _send(self, descriptors: list[int]) -> None:
        """Hand a server's descriptors to the supervisor, after restarting it if it is gone.

        Raises OSError.
        """
        async with self._starting:
            for again in (True, False):
                if self._socket is None:
                    self._process, self._socket = _start_supervisor()
                try:
                    socket.send_fds(self._socket, [b"s"], descriptors)
                    return
                except (BrokenPipeError, ConnectionResetError):
                    await self._drop()
                    if not again:
                        raise

    async def stop(self, process: Process, timeout_s: float) -> None:
        """End a server and all its processes.

        If the supervisor fails to, kill it: its servers die with it.
        """
        if not await process.stop(timeout_s) and self._process is not None:
            self._process.kill()

    async def _drop(self) -> None:
        process = self._process
        self._process = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if process is not None:
            await asyncio.to_thread(process.end, patience_s=_END_S)

    async def close(self) -> None:
        """End the supervisor and its servers. No process is left when this returns."""
        async with self._starting:
            await self._drop()


def _start_supervisor() -> tuple[StartedProcess, socket.socket]:
    """Start the supervisor. Its only descriptors are the socket and three of /dev/null."""
    ours, theirs = socket.socketpair()
    try:
        # Never 0, 1 or 2, which this process may have closed: the child's standard streams get
        # these numbers.
        with Opened(fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 3)) as handed:
            process = start(
                Command(
                    (sys.executable, "-I", "-S", "-c", _SUPERVISION, str(handed), _IMPORT_ROOT),
                    env={},
                    inherited=(handed,),
                ),
                piped=False,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return process, ours


def _sockets(
    ours: contextlib.ExitStack, theirs: contextlib.ExitStack
) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    ours.callback(pair[0].close)
    theirs.callback(pair[1].close)
    pair[0].setblocking(False)
    return pair


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[BinaryIO, int]:
    readable, writable = os.pipe()
    theirs.callback(os.close, writable)
    return ours.enter_context(os.fdopen(readable, "rb", buffering=0)), writable


def _program(command: ServerCommand) -> str:
    """Return the program's absolute path. Only a bare name is looked up in `path`."""
    name = command.argv[0]
    found = shutil.which(
        str(Path(command.cwd, name)) if os.sep in name else name,
        path=command.env.get("PATH", command.path),
    )
    if found is None:
        raise ServerFault("not_started", f"there is no program {name!r} to start")
    return str(Path(found).absolute())


def environment(command: ServerCommand, home: str, caches: Mapping[str, str]) -> dict[str, str]:
    """Return the server's whole environment.

    `caches` are the variables that name its caches: what the config sets counts before them.
    """
    base = {"PATH": command.path, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    configured = {name.lower() for name in command.env}  # npm takes its variables in capitals too
    return {
        **base,
        **{name: value for name, value in caches.items() if name not in configured},
        **command.env,
        MARK: f"{os.getpid()}-{_start_time_of(os.getpid())} {command.server}",
    }


def leftovers() -> tuple[Leftover, ...]:
    """Return this user's marked processes whose router is gone. Empty without /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            mark = next((v for v in variables if v.startswith(MARK.encode() + b"=")), None)
            if mark is None:
                continue
            owner, _, server = mark.partition(b"=")[2].decode("utf-8", "replace").partition(" ")
            pid, _, started = owner.partition("-")
            if _start_time_of(int(pid)) == started:
                continue
            line = (
                (entry / "cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode("utf-8", "replace")
                .strip()
            )
            found.append(Leftover(int(entry.name), server, line[:500]))
        except (OSError, ValueError):
            continue
    return tuple(found)


def _start_time_of(pid: int) -> str:
    """Return a process's start time in kernel ticks; with the pid it is unique.

    Empty if there is none.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[_STARTED_FIELD]
    except (OSError, IndexError):
        return ""
