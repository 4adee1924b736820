"""Commands as processes that need not start cold: each is forked from one that has imported what
`serve` imports.

Such a process has its own folder, environment, streams, signals and end; only the start of Python
and the imports, three quarters of the CPU of a short service, are not repeated.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tests.command_line import ROOT


class Forked:
    """A command forked from the warm process: what tests use of `Popen`."""

    def __init__(
        self, warm: Warm, folder: Path, words: tuple[str, ...], env: Mapping[str, str]
    ) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        asked = {"folder": str(folder), "words": words, "env": {**os.environ, **env}}
        self._warm, self.pid = warm, warm.ask(asked, out_end, err_end)
        os.close(out_end)
        os.close(err_end)
        self.stdout: TextIO = open(out, encoding="utf-8")  # noqa: PTH123, SIM115 - a descriptor, closed by `communicate`
        self.stderr: TextIO = open(err, encoding="utf-8")  # noqa: PTH123, SIM115 - the same
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)  # the id stays its own until it is waited for

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Read what it still says, until it has ended; it is killed after the timeout."""
        if self.returncode is not None:
            return "", ""
        late = threading.Timer(timeout, self.kill)
        late.start()
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(self.stderr.read()))
        reader.start()
        with self.stdout, self.stderr:
            out = self.stdout.read()
            reader.join()
            self.returncode = self._warm.ask({"wait": self.pid})
        late.cancel()
        return out, said[0]


class Warm:
    """The process that the others are forked from; it has one thread."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "router"), str(ROOT))),
            "PYTHONSAFEPATH": "1",
        }
        command = [sys.executable, "-m", "tests.cli.warm_commands", str(theirs.fileno())]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with theirs:
            self._process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], **pipes)  # type: ignore[call-overload]  # options by name

    def ask(self, asked: Mapping[str, object], *descriptors: int) -> int:
        socket.send_fds(self._channel, [json.dumps(asked).encode()], list(descriptors))
        return int(self._channel.recv(100))

    def close(self) -> None:
        self._channel.close()
        self._process.communicate(timeout=300)


def serve_forks(channel: socket.socket) -> tuple[str, ...]:
    """Fork a process for each request and wait for it on request; return only in a fork, with its
    words.
    """
    while True:
        received, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 2)
        if not received:
            os._exit(0)
        asked = json.loads(received)
        if "wait" in asked:
            _, status = os.waitpid(asked["wait"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())
        elif pid := os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(str(pid).encode())
        else:
            channel.close()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.chdir(asked["folder"])
            os.environ.clear()
            os.environ.update(asked["env"])
            sys.path[:0] = [
                place for place in asked["env"].get("PYTHONPATH", "").split(os.pathsep) if place
            ]
            return tuple(asked["words"])


if __name__ == "__main__":
    import mcp.server.mcpserver  # noqa: F401 - what `serve` imports late
    import uvicorn  # noqa: F401 - the same
    from bundle_router.adapters import http_listener  # noqa: F401 - the same
    from bundle_router.cli import local, main, serve  # noqa: F401 - the same
    from bundle_router.service import endpoint  # noqa: F401 - the same

    assert threading.active_count() == 1
    assert "uvloop" not in sys.modules, "a fork chooses its loop itself"
    sys.argv[0] = "bundle-router"
    words = serve_forks(socket.socket(fileno=int(sys.argv[1])))
    raise SystemExit(main(list(words)))
