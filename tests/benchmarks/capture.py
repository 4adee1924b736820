"""The catalog that the benchmarks of definitions read: what installed servers say of their tools, a
server a line.

`python tests/benchmarks/exposure.py capture` writes it; see tests/benchmarks/README.md. A line is
`{"server", "package", "licence", "instructions", "tools"}`, the tools as they came.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLE: Final = ROOT / "tests" / "data" / "catalog" / "servers.jsonl"
"""The capture that ships, so that every benchmark has something to measure."""
DEADLINE_S: Final = 60.0


@dataclass(frozen=True)
class Installed:
    """A server as `.ci/servers/install` leaves it: what starts it, without its folder."""

    name: str
    package: str
    licence: str
    script: str
    args: tuple[str, ...] = ()

    def command(self, folder: Path, workspace: Path) -> list[str] | None:
        """Return what starts it, or None where it, or the node that it needs, is not there."""
        program = folder / self.script
        args = [str(workspace) if arg == "WORKSPACE" else arg for arg in self.args]
        if not program.is_file():
            return None
        if program.suffix != ".js":
            return [str(program), *args]
        own = (
            folder / "node_modules" / ".bin" / "node"
        )  # newer servers want a newer node: the folder brings its own
        node = str(own) if own.is_file() else shutil.which("node")
        return None if node is None else [node, str(program), *args]


def _npm(name: str, *args: str) -> Installed:
    package = f"@modelcontextprotocol/server-{name}"
    return Installed(
        name,
        f"npm {package}",
        "MIT, newer parts Apache-2.0",
        f"node_modules/{package}/dist/index.js",
        args,
    )


def _pypi(name: str, *args: str) -> Installed:
    return Installed(name, f"PyPI mcp-server-{name}", "MIT", f"venv/bin/mcp-server-{name}", args)


SERVERS: Final = (
    _npm("everything"), _npm("filesystem", "WORKSPACE"), _npm("memory"), _pypi("fetch"), _pypi("git"), _pypi("time"),
    Installed("playwright", "npm @playwright/mcp", "Apache-2.0", "node_modules/@playwright/mcp/cli.js"),
)  # fmt: skip


def capture(folder: Path | None, to: Path) -> int:
    """Start each server that is installed in the folder, write what it says, and return the exit
    status.
    """
    place = folder or Path(os.environ.get("BUNDLE_ROUTER_TEST_SERVERS") or ROOT / ".servers")
    rows = []
    with tempfile.TemporaryDirectory() as workspace:
        for server in SERVERS:
            command = server.command(place.resolve(), Path(workspace))
            if command is None:
                print(
                    f"left out: {server.name}: {server.package} is not installed in {place}",
                    file=sys.stderr,
                )
                continue
            told = asyncio.run(asyncio.wait_for(_ask(command, Path(workspace)), DEADLINE_S))
            rows.append(
                {
                    "server": server.name,
                    "package": server.package,
                    "licence": server.licence,
                    **told,
                }
            )
            print(f"{server.name}: {len(told['tools'])} tools", file=sys.stderr)
    if not rows:
        print(f"no server is installed in {place}: run .ci/servers/install, or name a folder with --installed",
              file=sys.stderr)  # fmt: skip
        return 3
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    print(f"written: {to}", file=sys.stderr)
    return 0


async def _ask(command: list[str], workspace: Path) -> dict[str, Any]:
    """Return the instructions and the tools of the server that the command starts."""
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    environment = {"PATH": os.environ["PATH"], "HOME": str(workspace)}
    parameters = StdioServerParameters(
        command=command[0], args=command[1:], env=environment, cwd=workspace
    )
    nowhere: Any = subprocess.DEVNULL  # what `Popen` takes; the SDK's type says a file
    async with Client(stdio_client(parameters, errlog=nowhere), mode="legacy") as client:
        tools = (await client.list_tools()).tools
        return {
            "instructions": client.instructions or "",
            "tools": [
                tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools
            ],
        }
