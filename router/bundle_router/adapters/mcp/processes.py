"""Stdio servers as processes: started under supervision, with nothing inherited, and seen again if they stay behind.

Rules:
1. A server gets the environment its entry gives it, a home of its own, a language, and the router's `PATH`; nothing
   else of the router's environment comes with it. Its arguments are a list; no shell or address gets near them.
2. It carries a mark that names the router's process, as do all its descendants that keep their environment. `leftovers`
   finds marked processes whose router is gone. It reports them and ends none: a pid may be anything by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle_router.adapters.mcp.faults import ServerFault

MARK: Final = "BUNDLE_ROUTER_OWNER"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUPERVISION: Final = str(Path(__file__).resolve().with_name("supervision.py"))
_IMPORT_ROOT: Final = str(Path(__file__).resolve().parents[3])
_REAP_POLLS: Final = 200
_REAP_POLL_S: Final = 0.01
_STARTED_FIELD: Final = 19
"""The start time in /proc/<pid>/stat, counted from after the name."""


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What will be started: exactly this. `env` holds what the entry says; the values may be secrets. `path` is where
    programs are looked for, by us and by the server, unless `env` says otherwise."""

    server: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    path: str
    polite_s: float
    term_s: float


@dataclass(frozen=True, slots=True)
class Leftover:
    """A process that a router, gone since, started (directly or not) for `server`."""

    pid: int
    server: str
    command: str


class Process:
    """One started server. `exited` is set when it has ended, whatever still holds its pipes."""

    def __init__(self, supervisor: asyncio.subprocess.Process, control: socket.socket, home: str) -> None:
        if supervisor.stdin is None or supervisor.stdout is None or supervisor.stderr is None:
            raise AssertionError("the supervisor was started without pipes")
        self.stdin, self.stdout, self.stderr = supervisor.stdin, supervisor.stdout, supervisor.stderr
        self.exited = asyncio.Event()
        self._gone = asyncio.Event()
        self.pid = 0
        self.status: int | None = None
        self.failed = ""
        self._supervisor = supervisor
        self._control = control
        self._home = home
        self._hearing = asyncio.get_running_loop().create_task(self._hear())

    async def _hear(self) -> None:
        """What the supervisor says, until it ends."""
        loop, said = asyncio.get_running_loop(), b""
        try:
            while part := await loop.sock_recv(self._control, 4096):
                *lines, said = (said + part).split(b"\n")
                for line in lines:
                    self._heard(json.loads(line))
        except (OSError, ValueError):
            pass
        finally:
            self.exited.set()
            self._gone.set()

    def _heard(self, said: Mapping[str, object]) -> None:
        self.pid = int(str(said.get("pid", self.pid)))
        self.failed = str(said.get("failed", self.failed))
        if "exited" in said:
            self.status = int(str(said["exited"]))
            self.exited.set()

    def stop_listening(self) -> None:
        """Closes our end of its output: it can't be blocked on writing, and nothing more of it is read."""
        pipe = self._transport.get_pipe_transport(1)
        if pipe is not None:
            pipe.close()

    async def stop(self, timeout_s: float) -> None:
        """Ends the server and all it started, politely first. Returns when they are gone, or after `timeout_s`."""
        self.stdin.close()
        with contextlib.suppress(OSError):
            self._control.send(b"x")
        try:
            # The supervisor's end of the socket closes with it. `wait()` would also wait for the pipes, which a
            # process that got away may hold.
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._supervisor.kill()  # the server dies with it
        finally:
            self._hearing.cancel()
            self._control.close()
            await self._reaped()
            self._transport.close()
            await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)

    async def _reaped(self) -> None:
        for _ in range(_REAP_POLLS):
            if self._supervisor.returncode is not None:
                return
            await asyncio.sleep(_REAP_POLL_S)

    @property
    def _transport(self) -> asyncio.SubprocessTransport:
        """asyncio shows the streams but not what is below them."""
        transport: asyncio.SubprocessTransport = self._supervisor._transport  # type: ignore[attr-defined]
        return transport


async def start(command: ServerCommand) -> Process:
    """Starts the command under supervision. Raises ServerFault `not_started`."""
    if os.name != "posix":
        raise ServerFault("not_permitted", "stdio servers need a POSIX system, where they can be ended for certain")
    program = _program(command)
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise _not_started(error) from error
    ours.setblocking(False)
    home = ""
    try:
        home = await asyncio.to_thread(tempfile.mkdtemp, prefix="bundle-router-home-")
        supervisor = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", _SUPERVISION, str(theirs.fileno()), _IMPORT_ROOT),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
            env={},
            cwd="/",
            start_new_session=True,
        )
    except (OSError, RuntimeError) as error:
        ours.close()
        shutil.rmtree(home, ignore_errors=True)
        raise _not_started(error) from error
    finally:
        theirs.close()
    process = Process(supervisor, ours, home)
    plan = {
        "argv": [program, *command.argv[1:]],
        "env": environment(command, home),
        "cwd": command.cwd,
        "home": home,
        "polite_s": command.polite_s,
        "term_s": command.term_s,
    }
    with contextlib.suppress(OSError):  # a supervisor that is gone already shows in `exited`
        await asyncio.get_running_loop().sock_sendall(ours, json.dumps(plan).encode() + b"\n")
    return process


def _not_started(error: OSError | RuntimeError) -> ServerFault:
    """Where the system has no process, thread (a RuntimeError of Python's) or descriptor left."""
    return ServerFault("not_started", f"it can't be started: {getattr(error, 'strerror', None) or error}")


def _program(command: ServerCommand) -> str:
    """The program's absolute path. A name is looked for in the path, anything else from the server's folder."""
    name = command.argv[0]
    found = shutil.which(
        str(Path(command.cwd, name)) if os.sep in name else name, path=command.env.get("PATH", command.path)
    )
    if found is None:
        raise ServerFault("not_started", f"there is no program {name!r} to start")
    return str(Path(found).absolute())


def environment(command: ServerCommand, home: str) -> dict[str, str]:
    """All of it."""
    base = {"PATH": command.path, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    return {**base, **command.env, MARK: f"{os.getpid()}-{_started(os.getpid())} {command.server}"}


def leftovers() -> tuple[Leftover, ...]:
    """Marked processes of this user whose router is gone. Empty where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            mark = next((v for v in variables if v.startswith(MARK.encode() + b"=")), None)
            if mark is None:
                continue
            owner, _, server = mark.partition(b"=")[2].decode("utf-8", "replace").partition(" ")
            pid, _, started = owner.partition("-")
            if _started(int(pid)) == started:
                continue
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            found.append(Leftover(int(entry.name), server, line[:500]))
        except (OSError, ValueError):
            continue
    return tuple(found)


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks: with the pid it names one process for good. Empty: no such."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[_STARTED_FIELD]
    except (OSError, IndexError):
        return ""
