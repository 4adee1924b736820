"""Real servers from npm and PyPI, and a browser, as `.ci/servers/install DIR` installs them by its
lock files.

`BUNDLE_ROUTER_TEST_SERVERS=DIR` says where; without it, or without one of them, what needs them
skips.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.mcp.server_processes import MARK
from bundle_router.core.catalog import Server

from tests.ports import free_port

FOLDER = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "")
INSTALLED = pytest.mark.skipif(
    not FOLDER, reason="BUNDLE_ROUTER_TEST_SERVERS names no folder with installed servers"
)

MODULES = Path(FOLDER, "node_modules").resolve()
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000b494441"
    "54789c6360000200000500017a5eab3f0000000049454e44ae426082"
)


def node(script: str) -> tuple[str, str]:
    """What starts a script of a package; newer ones are run by the node that is installed beside
    them.
    """
    program = (
        str(MODULES / ".bin" / "node")
        if (MODULES / ".bin" / "node").exists()
        else shutil.which("node")
    )
    if program is None or not (MODULES / script).exists():
        pytest.skip(f"needs node and {script}")
    return program, str(MODULES / script)


def npm(name: str, *args: str, **more: Any) -> Server:
    program, script = node(f"@modelcontextprotocol/server-{name}/dist/index.js")
    return Server(name=name, transport="stdio", command=program, args=(script, *args), **more)


def pypi(name: str, *args: str) -> Server:
    script = Path(FOLDER, "venv", "bin", f"mcp-server-{name}").resolve()
    if not script.exists():
        pytest.skip(f"needs mcp-server-{name}")
    return Server(name=name, transport="stdio", command=str(script), args=args)


def browser(scratch: Path) -> Server:
    program, script = node("@playwright/mcp/cli.js")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    args = [
        script,
        "--headless",
        "--isolated",
        "--executable-path",
        CHROMIUM,
        "--output-dir",
        str(scratch),
    ]
    if os.geteuid() == 0:
        args.append("--no-sandbox")  # chromium refuses to run as root with it
    return Server(
        name="browser", transport="stdio", command=program, args=tuple(args), timeout_s=60.0
    )


@contextmanager
def everything_on_a_port(transport: str, home: Path) -> Iterator[str]:
    """The everything server in a process of its own; gives its address once it listens."""
    program, script = node("@modelcontextprotocol/server-everything/dist/index.js")
    port = free_port()
    env = {"PATH": os.environ["PATH"], "PORT": str(port), "HOME": str(home)}
    command = [program, script, transport]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            errors = process.stderr
            assert errors is not None
            while "on port" not in (said := errors.readline()):
                assert said, "it ended before it listened"
            drain = threading.Thread(target=errors.read)
            drain.start()
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()
                drain.join()
        finally:
            process.kill()


def marked(owner: int) -> list[str]:
    """The processes there are that were started for servers of a router's process, whoever their
    parent is now.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={owner}-".encode() in (entry / "environ").read_bytes():
                found.append(
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found
