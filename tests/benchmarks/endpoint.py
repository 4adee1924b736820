"""What the router adds to a call and to a list of an MCP server, beside what other gateways add, in one run.

    python tests/benchmarks/endpoint.py [--calls 128] [--rounds 5] [--tools 18] [--mode auto|legacy]
        [--fastmcp PYTHON] [--mcp-proxy PROGRAM]

Everything is driven by the SDK's own client and ends at a server of the SDK's, whose tools echo. CPU is the kernel's
own account of each process, in milliseconds a call: agent + gateway + server, so that what is added can be told from
what an agent and a server cost anyway. For the library the gateway's process is the agent's. The ways take turns, round
by round, and what is added is taken pair by pair: a machine that slows down slows all of them. Medians of the rounds.

`mcp-proxy` has stdio servers only, and is to be compared with `endpoint, stdio`; all else reaches one server over HTTP.
A list through the endpoint holds the router's six tools besides; 18 is the median of real servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.gateways import (
    KEY,
    Gateway,
    Missing,
    fastmcp,
    mcp_proxy,
    ours,
    tool_server,
)

CALLERS: Final = (1, 16, 64)
WARMING: Final = 16
SAID: Final = {"text": "hi"}
PROCESSES: Final = 3


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the tools, and the processes it goes through: agent, gateway, server (0: none of its own)."""

    name: str
    go: Callable[[], Awaitable[Any]]
    pids: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds a call: CPU of agent, gateway and server, and elapsed."""

    cpu: tuple[float, ...]
    elapsed: float


def cpu_s(pid: int) -> float:
    """CPU that a process used so far, of all its threads."""
    return time.clock_gettime((~pid << 3) | 2) if pid else 0.0  # the clock id of another process, as the kernel has it


def beneath(pid: int) -> int:
    """The process at the end of a chain of only children: the server of a gateway that starts it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
    lowest = pid
    while children := [child for child, parent in parents.items() if parent == lowest]:
        lowest = max(children)
    return lowest if lowest != pid else 0


async def load(way: Way, callers: int, calls: int) -> Sample:
    each = max(1, calls // callers)

    async def one() -> None:
        for _ in range(each):
            await way.go()

    before, clock = [cpu_s(pid) for pid in way.pids], time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    elapsed, done = time.perf_counter() - clock, each * callers
    used = (cpu_s(pid) - was for pid, was in zip(way.pids, before, strict=True))
    return Sample(tuple(s * 1000 / done for s in used), elapsed * 1000 / done)


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


async def measure(direct: Gateway, gateways: Sequence[Gateway], folder: Path, options: argparse.Namespace) -> None:
    from bundle_router import Router, Step

    own, server = os.getpid(), direct.pid
    calls: list[Way] = []
    lists: list[Way] = []
    async with contextlib.AsyncExitStack() as stack:
        for gateway in (direct, *gateways):
            agent = await stack.enter_async_context(client(gateway.url, options.mode))
            call, names = _asked(agent, gateway.tool)
            _check(await call())
            below = beneath(gateway.pid) if gateway.over_stdio else server
            middle = 0 if gateway is direct else gateway.pid
            calls.append(Way(gateway.name, call, (own, middle, below)))
            lists.append(Way(gateway.name, names, (own, middle, below)))
            print(f"{gateway.name}: {agent.session.protocol_version}", flush=True)
        opening: Any = {"runs": folder / "runs", "workspace": folder, "development": "unpinned"}
        router = await stack.enter_async_context(Router.open(folder / "http" / "config", **opening))
        await router.route(Step(run_id="library", workflow="w", role="r", step="s"))
        library = Way("library", lambda: router.call("library", "bench.echo", SAID), (own, 0, server))
        _check(await library.go())
        for what, ways in (("call", [*calls, library]), ("list", lists)):
            for callers in CALLERS:
                for line in table(what, callers, ways, await rounds(ways, callers, options)):
                    print(line, flush=True)


def _asked(agent: Any, tool: str) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
    return lambda: agent.call_tool(tool, SAID), lambda: agent.session.list_tools()


def _check(answer: Any) -> None:
    """A refusal would be fast, and no figure."""
    failed = answer.is_error if hasattr(answer, "is_error") else not getattr(answer, "ok", True)
    assert not failed, answer


async def rounds(ways: Sequence[Way], callers: int, options: argparse.Namespace) -> list[list[Sample]]:
    """For each way what its rounds came to."""
    for way in ways:
        await load(way, callers, WARMING)
        _check(await way.go())
    taken: list[list[Sample]] = [[] for _ in ways]
    for _ in range(options.rounds):
        for way, samples in zip(ways, taken, strict=True):
            samples.append(await load(way, callers, options.calls))
    for way in ways:  # what began to fail meanwhile is no figure either
        _check(await way.go())
    return taken


def table(what: str, callers: int, ways: Sequence[Way], taken: Sequence[Sequence[Sample]]) -> Iterator[str]:
    yield f"\n{what}, {callers} callers: CPU of agent + gateway + server = all; added to direct, times direct; elapsed"
    direct = [sum(sample.cpu) for sample in taken[0]]
    for way, samples in zip(ways, taken, strict=True):
        parts = [statistics.median(sample.cpu[place] for sample in samples) for place in range(PROCESSES)]
        whole = [sum(sample.cpu) for sample in samples]
        added = statistics.median(mine - plain for mine, plain in zip(whole, direct, strict=True))
        times = statistics.median(mine / plain for mine, plain in zip(whole, direct, strict=True))
        shown = " + ".join(f"{ms:5.2f}" for ms in parts)
        elapsed = statistics.median(sample.elapsed for sample in samples)
        yield f"{way.name:18}{shown} = {statistics.median(whole):6.2f} {added:+7.2f} x{times:5.2f} {elapsed:8.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=128, help="calls a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tools", type=int, default=18)
    parser.add_argument("--mode", choices=("auto", "legacy"), default="auto")
    parser.add_argument("--fastmcp", default=sys.executable, help="an interpreter that has fastmcp")
    parser.add_argument("--mcp-proxy", default="mcp-proxy", help="the program")
    options = parser.parse_args()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    print(f"{machine}, Python {platform.python_version()}, mcp {version('mcp')}, load {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, url = stack.enter_context(tool_server(options.tools))
        direct = Gateway("direct", url, "echo", server)
        gateways = [
            stack.enter_context(ours(folder / "http", url, options.tools)),
            stack.enter_context(ours(folder / "stdio", "stdio", options.tools)),
        ]
        for name, peer in (
            ("FastMCP's proxy", fastmcp(options.fastmcp, url)),
            ("mcp-proxy", mcp_proxy(options.mcp_proxy, options.tools)),
        ):
            try:
                gateways.append(stack.enter_context(peer))
            except Missing as why:
                print(f"without {name}: {why}")
        asyncio.run(measure(direct, gateways, folder, options))


if __name__ == "__main__":
    main()
