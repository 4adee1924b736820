"""The gateways that stand beside the endpoint: each a process in front of the same tools, driven by
the same client.

A peer lives in an environment of its own, since their dependencies contradict each other. One that
is not there is left out, and why is said.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KEY: Final = "benchmark-" * 4
ROOT: Final = str(Path(__file__).resolve().parents[2])
READY_S: Final = 60.0
SERVER: Final = """
import sys
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench", log_level="CRITICAL")
def echo(text: str) -> str:
    "Says what it was told."
    return text
server.add_tool(echo)
for number in range(1, int(sys.argv[1])):
    server.add_tool(echo, name=f"echo_{number}")
import uvicorn
uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")
"""
MINIMAL: Final = """
import contextlib, sys
import httpx2, uvicorn
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import Server

@contextlib.asynccontextmanager
async def lifespan(_server):
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    async with (
        httpx2.AsyncClient(limits=limits, timeout=httpx2.Timeout(60)) as http,
        Client(streamable_http_client(sys.argv[1], http_client=http)) as client,
    ):
        yield client

async def tools(context, _params):
    return await context.lifespan_context.session.list_tools()

async def call(context, params):
    return await context.lifespan_context.call_tool(params.name, params.arguments)

server = Server("minimal", lifespan=lifespan, on_list_tools=tools, on_call_tool=call)
uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")
"""
STDIO_SERVER: Final = """
import json, sys
schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
names = ["echo", *(f"echo_{number}" for number in range(1, int(sys.argv[1])))]
output = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
told = {"description": "Says what it was told.", "inputSchema": schema, "outputSchema": output}
tools = [{"name": name, **told} for name in names]
info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "bench", "version": "1"}}
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params") or {}
    if "id" not in asked:
        continue
    said = {"jsonrpc": "2.0", "id": asked["id"]}
    if method == "tools/call":
        text = params["arguments"]["text"]
        said["result"] = {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}}
    elif method in ("initialize", "tools/list", "ping"):
        said["result"] = {"initialize": info, "tools/list": {"tools": tools}, "ping": {}}[method]
    else:
        said["error"] = {"code": -32601, "message": "Method not found"}
    print(json.dumps(said), flush=True)
"""
FASTMCP: Final = """
import sys
from fastmcp.server import create_proxy
create_proxy(sys.argv[1]).run(
    transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="CRITICAL",
    uvicorn_config={"log_level": "critical"},
)
"""
BUNDLE: Final = '[bundles."bench.all"]\ndescription = "Echoes."\neffects = ["read"]\ntools = '
ROUTE: Final = '[[routes]]\nname = "bench"\nbundles = ["bench.all"]\n'
POLICY: Final = '[[policies]]\nname = "all"\nallow = ["*"]\n'
LIMITS: Final = "[limits]\ncalls_per_step = 1_000_000\nrepeated_calls = 1_000_000\n"


class Missing(Exception):
    """A peer that is not installed, and how it would be found."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway: where it is, how it calls the tool, and its process."""

    name: str
    url: str
    tool: str
    pid: int
    version: str = ""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextlib.contextmanager
def process(*words: str, checkout: str = ROOT) -> Iterator[subprocess.Popen[str]]:
    """A process that runs while the context lasts, with the package of a checkout, whatever it was
    named then.
    """
    is_moved = Path(checkout, "router", "bundle_router").is_dir()
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "KEY": KEY,
            "PYTHONPATH": f"{checkout}/router" if is_moved else checkout,
        },
    )
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def await_port(port: int, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and child.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise Missing(f"it did not listen within {READY_S:.0f} s")


@contextlib.contextmanager
def tool_server(tools: int) -> Iterator[tuple[int, str]]:
    """The SDK's own server over Streamable HTTP: its process, and where it is."""
    port = free_port()
    with process(sys.executable, "-c", SERVER, str(tools), str(port)) as child:
        await_port(port, child)
        yield child.pid, f"http://127.0.0.1:{port}/mcp"


@contextlib.contextmanager
def ours(
    folder: Path, upstream: str, tools: int, *, era: str = "auto", checkout: str = ROOT
) -> Iterator[Gateway]:
    """`bundle-router serve` of a checkout. `upstream` is an address, or `stdio`; `era` is how the
    server is spoken to.
    """
    over_stdio = upstream == "stdio"
    command = (
        f"command = {json.dumps(sys.executable)}\nargs ="
        f" {json.dumps(['-c', STDIO_SERVER, str(tools)])}"
    )
    written = (
        f'transport = "stdio"\n{command}' if over_stdio else f'url = "{upstream}"\nera = "{era}"'
    )
    write_config(folder, written, tools)
    step = ("--run", "served", "--workflow", "w", "--role", "r", "--step", "s", "--development")
    places = (
        "--config",
        f"{folder}/config",
        "--runs",
        f"{folder}/served",
        "--workspace",
        str(folder),
    )
    verb = (
        sys.executable,
        "-m",
        "bundle_router",
        "serve",
        "--mcp-only",
        "--json",
        "--token-env",
        "KEY",
    )
    with process(*verb, *step, *places, "--unpinned", checkout=checkout) as child:
        assert child.stdout is not None
        url = json.loads(child.stdout.readline())["url"]
        yield Gateway(folder.name, url, "bench__echo", child.pid)


def write_config(folder: Path, server: str, tools: int) -> None:
    (folder / "config").mkdir(parents=True)
    servers = f'[servers.bench]\n{server}\ntrust = "trusted"\n'
    names = ["bench.echo", *(f"bench.echo_{number}" for number in range(1, tools))]
    bundles = f"{BUNDLE}{json.dumps(names)}\n"
    files = {
        "servers": servers,
        "bundles": bundles,
        "routes": ROUTE,
        "policy": POLICY,
        "router": LIMITS,
    }
    for file, text in files.items():
        (folder / "config" / f"{file}.toml").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def minimal(upstream: str) -> Iterator[Gateway]:
    """What a gateway costs that is nothing but the SDK's client behind the SDK's server."""
    port = free_port()
    with process(sys.executable, "-c", MINIMAL, upstream, str(port)) as child:
        await_port(port, child)
        yield Gateway("minimal", f"http://127.0.0.1:{port}/mcp", "echo", child.pid)


@contextlib.contextmanager
def fastmcp(python: str, upstream: str) -> Iterator[Gateway]:
    """FastMCP's proxy, run by an interpreter that has it. Raises Missing."""
    found = _said(python, "-c", "import fastmcp, mcp_types; print(fastmcp.__version__)")
    if found is None:
        raise Missing(f"FastMCP: {python} can't import fastmcp: name one that can with --fastmcp")
    port = free_port()
    with process(python, "-c", FASTMCP, upstream, str(port)) as child:
        await_port(port, child)
        yield Gateway("FastMCP", f"http://127.0.0.1:{port}/mcp", "echo", child.pid, found)


@contextlib.contextmanager
def mcp_proxy(program: str, tools: int) -> Iterator[Gateway]:
    """`mcp-proxy`, which serves stdio servers over HTTP and nothing else. Raises Missing."""
    found = _said(program, "--version") if shutil.which(program) else None
    if found is None:
        raise Missing(f"mcp-proxy: there is no program {program!r}: name it with --mcp-proxy")
    port = free_port()
    beneath = ("--", sys.executable, "-c", STDIO_SERVER, str(tools))
    with process(
        program, "--port", str(port), "--pass-environment", "--log-level", "ERROR", *beneath
    ) as child:
        await_port(port, child)
        number = found.replace("mcp-proxy", "").strip()
        yield Gateway("mcp-proxy", f"http://127.0.0.1:{port}/mcp", "echo", child.pid, number)


def _said(*words: str) -> str | None:
    """The last line a program says, or None where there is none."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=READY_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else None
