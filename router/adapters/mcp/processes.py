"""Stdio servers as processes: started under supervision, with nothing inherited, and seen again if they stay behind.

Rules:
1. A server gets the environment its entry gives it, a path, a language and a home of its own; nothing of the router's
   environment comes with it. Its arguments are a list; no shell, and no address, ever gets near them.
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

from router.adapters.mcp.exchange import ServerFault

MARK: Final = "BUNDLE_ROUTER_OWNER"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUPERVISION: Final = str(Path(__file__).resolve().with_name("supervision.py"))
_IMPORT_ROOT: Final = str(Path(__file__).resolve().parents[3])
_STARTED_FIELD: Final = 19
"""The start time in /proc/<pid>/stat, counted from after the name."""


@dataclass(frozen=True, slots=True)
class Command:
    """What will be started: exactly this. `env` holds what the entry says; the values may be secrets."""

    server: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
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

    def _heard(self, said: Mapping[str, object]) -> None:
        self.pid = int(str(said.get("pid", self.pid)))
        self.failed = str(said.get("failed", self.failed))
        if "exited" in said:
            self.status = int(str(said["exited"]))
            self.exited.set()

    async def stop(self, timeout_s: float) -> None:
        """Ends the server and all it started, politely first. Returns when they are gone, or after `timeout_s`."""
        self.stdin.close()
        with contextlib.suppress(OSError):
            self._control.send(b"x")
        try:
            async with asyncio.timeout(timeout_s):
                await self._supervisor.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._supervisor.kill()  # the server dies with it
            await self._supervisor.wait()
        finally:
            self._hearing.cancel()
            self._control.close()
            # The pipes' transports outlive a process whose descendants escaped with their ends.
            transport = getattr(self._supervisor, "_transport", None)
            if transport is not None:
                transport.close()
            await asyncio.to_thread(shutil.rmtree, self._home, ignore_errors=True)


async def start(command: Command) -> Process:
    """Starts the command under supervision. Raises ServerFault `not_started`."""
    program = shutil.which(command.argv[0], path=command.env.get("PATH", PATH))
    if program is None:
        raise ServerFault("not_started", f"there is no program {command.argv[0]!r} to start")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    home = await asyncio.to_thread(tempfile.mkdtemp, prefix="bundle-router-home-")
    try:
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
    except OSError as error:
        ours.close()
        shutil.rmtree(home, ignore_errors=True)
        raise ServerFault("not_started", f"it can't be started: {error.strerror}") from error
    finally:
        theirs.close()
    process = Process(supervisor, ours, home)
    plan = {
        "argv": [program, *command.argv[1:]],
        "env": environment(command, home),
        "cwd": command.cwd,
        "polite_s": command.polite_s,
        "term_s": command.term_s,
    }
    with contextlib.suppress(OSError):  # a supervisor that is gone already shows in `exited`
        await asyncio.get_running_loop().sock_sendall(ours, json.dumps(plan).encode() + b"\n")
    return process


def environment(command: Command, home: str) -> dict[str, str]:
    """All of it."""
    base = {"PATH": PATH, "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
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
