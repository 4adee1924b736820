"""What the endpoint costs beside other gateways and beside the SDK's own server, in one run: a row
for each promise.

    python tests/benchmarks/endpoint.py [--calls 128] [--rounds 5] [--tools 18]
        [--mode auto|legacy ...] [--mcp-proxy PROGRAM] [--fastmcp PYTHON] [--before CHECKOUT]
        [--all]

Everything is driven by the SDK's own client and ends at tools that echo: over HTTP at a server of
the SDK's, over stdio at one of bare lines. CPU is the kernel's own account of the gateway's
process, in milliseconds a call. The ways take turns, round by round, and a ratio is taken within a
round: a machine that slows down slows all of them. Medians of the rounds, with their quartiles.

`--mode` is the era of the client: `auto` is modern, `legacy` the handshake; both by default. The
endpoint stands in front of a stdio server, a modern HTTP server and one that is spoken to by the
handshake; `mcp-proxy` has stdio servers only, and is what all three stand beside. A list through
the endpoint holds six tools of the router besides; 18 is the median of real servers. `--before`
measures the endpoint of another checkout too. `--all` prints what each way came to. What the
library's own call costs: calls.py.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
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
    minimal,
    ours,
    tool_server,
)

MANY: Final = 16
WARMING: Final = 32
SAID: Final = {"text": "hi"}
STDIO, MODERN, HANDSHAKE = "stdio", "modern HTTP", "handshake HTTP"
PROXY, MINIMAL, DIRECT = "mcp-proxy", "minimal", "the SDK's server"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the tools, and the process whose CPU counts: the gateway's, or the server's where
    there is none.
    """

    name: str
    go: Callable[[], Awaitable[Any]]
    pid: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds a call: CPU of the process, and elapsed."""

    cpu: float
    elapsed: float


Rounds = Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class Promise:
    """What is to cost at most `goal` times as much as something else."""

    what: str
    ours: str
    beside: str
    goal: float
    elapsed: bool = False


CALLS: Final = (
    Promise("call, stdio server", STDIO, PROXY, 0.8),
    Promise("call, modern server", MODERN, PROXY, 0.8),
    Promise("call, handshake server", HANDSHAKE, PROXY, 0.8),
    Promise("call, modern server", MODERN, MINIMAL, 0.5),
)
ALONE: Final = (
    Promise("call, one caller's wait", MODERN, DIRECT, 3.0, elapsed=True),
    Promise("call, one caller's wait", HANDSHAKE, DIRECT, 3.0, elapsed=True),
)
LISTS: Final = (
    Promise("list, stdio server", STDIO, PROXY, 0.5),
    Promise("list, modern server", MODERN, PROXY, 0.5),
    Promise("list, handshake server", HANDSHAKE, PROXY, 0.5),
)
BEFORE: Final = ", before"


def cpu_s(pid: int) -> float:
    """CPU that a process used so far, of all its threads."""
    return time.clock_gettime(
        (~pid << 3) | 2
    )  # the clock id of another process, as the kernel has it


async def load(way: Way, callers: int, calls: int) -> Sample:
    each = max(1, calls // callers)

    async def one() -> None:
        for _ in range(each):
            await way.go()

    before, clock = cpu_s(way.pid), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    done = each * callers / 1000
    return Sample((cpu_s(way.pid) - before) / done, (time.perf_counter() - clock) / done)


@asynccontextmanager
async def client(url: str, mode: Any) -> AsyncIterator[Any]:
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Limits(max_connections=256, max_keepalive_connections=256)
    headers = {"authorization": f"Bearer {KEY}"}
    async with (
        httpx2.AsyncClient(headers=headers, limits=limits, timeout=httpx2.Timeout(60)) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as connected,
    ):
        yield connected


async def measure(started: Sequence[Gateway], mode: str, options: argparse.Namespace) -> None:
    calls: list[Way] = []
    lists: list[Way] = []
    async with contextlib.AsyncExitStack() as stack:
        for gateway in started:
            agent = await stack.enter_async_context(client(gateway.url, mode))
            call, names = _asked(agent, gateway.tool)
            listed = [tool.name for tool in (await names()).tools]
            assert gateway.tool in listed, f"{gateway.name} lists {listed}"
            _check(await call())
            calls.append(Way(gateway.name, call, gateway.pid))
            lists.append(Way(gateway.name, names, gateway.pid))
        for ways, callers, promises in (
            (calls, MANY, CALLS),
            (calls, 1, ALONE),
            (lists, MANY, LISTS),
        ):
            taken = await rounds(ways, callers, options)
            for line in (*rows(promises, taken), *(parts(callers, taken) if options.all else ())):
                print(line, flush=True)


def _asked(
    agent: Any, tool: str
) -> tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]:
    return lambda: agent.call_tool(tool, SAID), lambda: agent.session.list_tools()


def _check(answer: Any) -> None:
    """A refusal would be fast, and no figure."""
    assert not getattr(answer, "is_error", False), answer


async def rounds(ways: Sequence[Way], callers: int, options: argparse.Namespace) -> Rounds:
    """For each way what its rounds came to."""
    for way in ways:
        await load(way, callers, WARMING)
    taken: dict[str, list[Sample]] = {way.name: [] for way in ways}
    for _ in range(options.rounds):
        for way in ways:
            taken[way.name].append(await load(way, callers, options.calls))
    for way in ways:  # what began to fail meanwhile is no figure
        _check(await way.go())
    return taken


def rows(promises: Sequence[Promise], taken: Rounds) -> Iterator[str]:
    """A line for each promise whose peer is there."""
    for promise in promises:
        for name in (promise.ours, promise.ours + BEFORE):
            if promise.beside not in taken or name not in taken:
                continue
            pairs = zip(taken[name], taken[promise.beside], strict=True)
            yield row(
                replace(promise, what=promise.what + name.removeprefix(promise.ours)),
                [a.elapsed / b.elapsed if promise.elapsed else a.cpu / b.cpu for a, b in pairs],
            )


def row(promise: Promise, ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [*ratios] * 3
    verdict = "met" if middle <= promise.goal else "missed"
    beside = f"{promise.beside}'s" if not promise.beside.endswith("server") else promise.beside
    return (
        f"{promise.what:32} {middle:5.2f} ({low:.2f} to {high:.2f}) x {beside}; goal"
        f" {promise.goal}: {verdict}"
    )


def parts(callers: int, taken: Rounds) -> Iterator[str]:
    for name, samples in taken.items():
        cpu, elapsed = (
            statistics.median(part)
            for part in zip(*((s.cpu, s.elapsed) for s in samples), strict=True)
        )
        yield f"    {name}, {callers} callers: {cpu:.2f} ms of CPU, {elapsed:.2f} ms elapsed a call"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=128, help="calls a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tools", type=int, default=18)
    parser.add_argument("--mode", choices=("auto", "legacy"), nargs="*", default=("auto", "legacy"))
    parser.add_argument("--before", help="another checkout, measured in the same run")
    parser.add_argument("--fastmcp", help="an interpreter that has fastmcp")
    parser.add_argument("--mcp-proxy", default="mcp-proxy", help="the program")
    parser.add_argument("--all", action="store_true", help="print what each way came to")
    options = parser.parse_args()
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
    )
    print(
        f"{machine}, Python {platform.python_version()}, mcp {version('mcp')}, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    for mode in options.mode:
        print("modern client" if mode == "auto" else "handshake client")
        with contextlib.ExitStack() as stack:
            asyncio.run(measure(gateways(stack, options), mode, options))


def gateways(stack: contextlib.ExitStack, options: argparse.Namespace) -> list[Gateway]:
    """Start all that is measured, for one kind of client."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    server, url = stack.enter_context(tool_server(options.tools))
    started = [Gateway(DIRECT, url, "echo", server), stack.enter_context(minimal(url))]
    ways = ((STDIO, "stdio", "auto"), (MODERN, url, "auto"), (HANDSHAKE, url, "handshake"))
    for name, upstream, era in ways:
        made = ours(folder / name, upstream, options.tools, era=era)
        started.append(stack.enter_context(made))
        if options.before:
            named = folder / (name + BEFORE)
            made = ours(named, upstream, options.tools, era=era, checkout=options.before)
            started.append(stack.enter_context(made))
    peers = [mcp_proxy(options.mcp_proxy, options.tools)]
    for peer in (*peers, *([fastmcp(options.fastmcp, url)] if options.fastmcp else ())):
        try:
            started.append(stack.enter_context(peer))
            print(f"beside {started[-1].name} {started[-1].version}")
        except Missing as why:
            print(f"without {why}")
    return started


if __name__ == "__main__":
    main()
