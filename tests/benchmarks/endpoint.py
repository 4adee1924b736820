"""What the router adds to a call of an MCP server: through the library, and through its MCP endpoint, side by side.

    python tests/benchmarks/endpoint.py [--calls 640] [--mode auto|legacy]

Three processes: the agent (the SDK's own client), the router, and a server of the SDK's with one tool that echoes. CPU
is taken of each, in milliseconds a call, so that what is added can be told from what an agent and a server cost anyway.
For the library the router's process is the agent's. `list` asks for a list that stays as it is: seven tools through the
endpoint (the router's six among them), one directly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

CALLERS: Final = (1, 16, 64)
SERVER: Final = """
import socket, uvicorn
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench")
@server.tool()
def echo(text: str) -> str:
    return text
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
listening.bind(("127.0.0.1", 0))
listening.listen(128)
print(listening.getsockname()[1], flush=True)
config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
uvicorn.Server(config).run(sockets=[listening])
"""
BUNDLE: Final = '[bundles."bench.all"]\ndescription = "Echoes."\ntools = ["bench.echo"]\neffects = ["read"]\n'
ROUTE: Final = '[[routes]]\nname = "bench"\nbundles = ["bench.all"]\n'
POLICY: Final = '[[policies]]\nname = "all"\nallow = ["*"]\n'
LIMITS: Final = "[limits]\ncalls_per_step = 1_000_000\nrepeated_calls = 1_000_000\n"
OPENING: Final = {"development": True, "pins": "trusted-may-skip"}
KEY: Final = "benchmark-" * 4


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running process and the first line it says. Ended with the context."""
    child = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**os.environ, "KEY": KEY}
    )
    try:
        assert child.stdout is not None
        yield child, child.stdout.readline()
    finally:
        child.terminate()
        child.wait()


def cpu_ms(pid: int) -> float:
    """CPU that a process used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def load(call: Callable[[], Awaitable[object]], callers: int, calls: int, pids: tuple[int, ...]) -> str:
    """Milliseconds a call: CPU of each process, of all of them, and elapsed."""
    each = calls // callers

    async def one() -> None:
        for _ in range(each):
            await call()

    before, clock = [cpu_ms(pid) for pid in pids], time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    done = each * callers
    used = [(cpu_ms(pid) - was) / done for pid, was in zip(pids, before, strict=True)]
    elapsed = (time.perf_counter() - clock) / done * 1000
    return f"{' + '.join(f'{ms:.2f}' for ms in used):>20} = {sum(used):5.2f}{elapsed:8.2f}"


@asynccontextmanager
async def client(url: str, mode: Any) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {KEY}"}
    limits = httpx2.Limits(max_connections=256, max_keepalive_connections=256)
    async with (
        httpx2.AsyncClient(headers=headers, limits=limits, timeout=httpx2.Timeout(60)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as connected,
    ):
        yield connected


async def measure(direct_url: str, served_url: str, folder: Path, pids: tuple[int, int], calls: int, mode: str) -> None:
    from router import Router, Step

    own, (server, served) = os.getpid(), pids
    async with (
        client(direct_url, mode) as direct,
        client(served_url, mode) as endpoint,
        Router.open(folder / "config", runs=folder / "runs", workspace=folder, **OPENING) as router,  # type: ignore[arg-type]
    ):
        await router.route(Step(run_id="library", workflow="w", role="r", step="s"))
        ways: dict[str, tuple[Callable[[], Awaitable[Any]], tuple[int, ...]]] = {
            "call, direct": (lambda: direct.call_tool("echo", {"text": "hi"}), (own, server)),
            "call, library": (lambda: router.call("library", "bench.echo", {"text": "hi"}), (own, server)),
            "call, endpoint": (lambda: endpoint.call_tool("bench__echo", {"text": "hi"}), (own, served, server)),
            "list, direct": (lambda: direct.session.list_tools(), (own, server)),
            "list, endpoint": (lambda: endpoint.session.list_tools(), (own, served)),
        }
        print("ms a call: CPU of agent (+ router) + server = all, elapsed")
        for name, (way, counted) in ways.items():
            _check(await way())
            for callers in CALLERS:
                print(f"{name:16}{callers:4} callers{await load(way, callers, calls, counted)}", flush=True)


def _check(answer: Any) -> None:
    """A refusal would be fast, and no figure."""
    failed = answer.is_error if hasattr(answer, "is_error") else not getattr(answer, "ok", True)
    assert not failed, answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=640)
    parser.add_argument("--mode", choices=("auto", "legacy"), default="auto")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, process("-c", SERVER) as (server, port):
        folder, url = Path(name), f"http://127.0.0.1:{int(port)}/mcp"
        (folder / "config").mkdir()
        servers = f'[servers.bench]\nurl = "{url}"\ntrust = "trusted"\n'
        files = {"servers": servers, "bundles": BUNDLE, "routes": ROUTE, "policy": POLICY, "router": LIMITS}
        for file, text in files.items():
            (folder / "config" / f"{file}.toml").write_text(text, encoding="utf-8")
        step = ("--run", "served", "--workflow", "w", "--role", "r", "--step", "s", "--development")
        words = ("-m", "router", "serve", "--mcp-only", "--json", "--token-env", "KEY", *step)
        places = ("--config", f"{folder}/config", "--runs", f"{folder}/served", "--workspace", name)
        with process(*words, *places, "--pins", "trusted-may-skip") as (served, line):
            pids = (server.pid, served.pid)
            asyncio.run(measure(url, json.loads(line)["url"], folder, pids, arguments.calls, arguments.mode))


if __name__ == "__main__":
    main()
