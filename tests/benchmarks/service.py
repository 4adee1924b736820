"""What a decision costs over HTTP: `POST /v1/route` of a mapped step beside a bare route of the
same framework, on the same listener in the same process, that reads the same body and appends the
same bytes to a file.

    # the table of tests/benchmarks/README.md
    python tests/benchmarks/service.py [--requests 2000] [--rate 200]

    # memory and descriptors over that many
    python tests/benchmarks/service.py --soak 200000 --calls 20000

The clients are another process, on the same cores. Latencies are of requests at a fixed rate over
64 connections, each from the time it was due (so that a stall counts for all it delayed), and of
one connection that asks back to back. The two routes take turns within each round. The bare route
is mounted behind the service's own gate, so what the gate costs is in both.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONNECTIONS = 64
ROUNDS = 5
STEP = {
    "workflow": "feature",
    "role": "planner",
    "step": "plan",
    "goal": "find out what the repository holds",
}


# --- the server: the service, and a bare route mounted beside it ----------------------------------


def bare(folder: Path) -> Any:
    """An application whose one route reads a body and appends what a decision's record has, in one
    write.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    out = os.open(folder / "bare.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line: dict[str, bytes] = {}

    async def append(request: Request) -> Response:
        await request.body()
        if not line:
            line["record"] = (
                (folder / "runs" / "seed" / "routing.jsonl")
                .read_bytes()
                .splitlines(keepends=True)[0]
            )
            line["answer"] = (folder / "answer.json").read_bytes()
        os.write(out, line["record"])
        return Response(line["answer"], media_type="application/json")

    return Starlette(routes=[Route("/bare", append, methods=["POST"])])


async def served(folder: Path) -> None:
    from bundle_router import Router
    from bundle_router.service import serve

    (folder / "a.txt").write_text("a\n")
    opened = Router.open(ROOT / "config", runs=folder / "runs", workspace=folder)
    async with opened as router, serve(router, pages=bare(folder)) as endpoint:
        await asyncio.to_thread(import_module, "bundle_router.service.mcp.run_server")
        gc.freeze()  # both as `bundle-router serve` does
        print(json.dumps({"port": endpoint.port, "key": endpoint.key}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


# --- the clients ----------------------------------------------------------------------------------


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer"
            f" {self._key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


def body_of(run: str) -> bytes:
    return json.dumps({**STEP, "run_id": run}).encode()


async def back_to_back(connection: Connection, path: str, count: int) -> list[float]:
    taken = []
    for number in range(count):
        body = body_of(f"one-{number % 20}")
        began = time.perf_counter()
        await connection.ask(path, body)
        taken.append((time.perf_counter() - began) * 1000)
    return taken


async def at_rate(connections: list[Connection], path: str, count: int, rate: float) -> list[float]:
    """Milliseconds from when each request was due, over all connections."""
    begun = time.perf_counter() + 0.05

    async def one(place: int, connection: Connection) -> list[float]:
        taken = []
        for number in range(place, count, len(connections)):
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await connection.ask(path, body_of(f"c-{place}"))
            taken.append((time.perf_counter() - due) * 1000)
        return taken

    parts = await asyncio.gather(*(one(place, each) for place, each in enumerate(connections)))
    return [value for part in parts for value in part]


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def row(name: str, found: dict[str, list[float]]) -> None:
    for path in ("/v1/route", "/bare"):
        values = found[path]
        shown = [f"{quantile(values, share):8.3f}" for share in (0.5, 0.9, 0.99, 0.999)]
        print(f"{name:26}{path:12}{len(values):8,}{''.join(shown)}")
    apart = median(found["/v1/route"]) - median(found["/bare"])
    print(f"{'':26}the service's median is {apart:+.3f} ms from the bare route's")


def cpu_ms(pid: int) -> float:
    """Processor time that a process has taken: what another process takes does not count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


async def measured(port: int, key: str, pid: int, arguments: argparse.Namespace) -> None:
    connections = [await Connection(port, key).open() for _ in range(CONNECTIONS)]
    for number in range(200):  # every run is open, every connection warm
        for path in ("/v1/route", "/bare"):
            await connections[number % CONNECTIONS].ask(path, body_of(f"c-{number % CONNECTIONS}"))
            await connections[0].ask(path, body_of(f"one-{number % 20}"))
    print(f"{'':26}{'':12}{'requests':>8}{'p50':>8}{'p90':>8}{'p99':>8}{'p99.9':>8}   ms")
    single: dict[str, list[float]] = {"/v1/route": [], "/bare": []}
    spread: dict[str, list[float]] = {"/v1/route": [], "/bare": []}
    taken = dict.fromkeys(single, 0.0)
    for _ in range(ROUNDS):
        for path in single:
            before = cpu_ms(pid)
            single[path] += await back_to_back(connections[0], path, arguments.requests // ROUNDS)
            taken[path] += cpu_ms(pid) - before
        for path in spread:
            spread[path] += await at_rate(
                connections, path, arguments.requests // ROUNDS, arguments.rate
            )
    row("one connection", single)
    row(f"64 at {arguments.rate:g} a second", spread)
    ours, bare_ms = (taken[path] / len(single[path]) for path in ("/v1/route", "/bare"))
    print(
        f"processor time of the server, one connection: {ours:.3f} and {bare_ms:.3f} ms a request"
    )
    for each in connections:
        each.close()


def standing(pid: int) -> tuple[float, int]:
    """Resident memory in MB and open descriptors of a process."""
    status = Path(f"/proc/{pid}/statm").read_text().split()
    return int(status[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


async def soaked(port: int, key: str, pid: int, arguments: argparse.Namespace) -> None:
    """Steps and calls of many short runs, each closed; how the process stands after each tenth."""
    connections = [await Connection(port, key).open() for _ in range(16)]
    steps_a_run = 20
    runs = arguments.soak // steps_a_run
    calls_a_run = max(1, arguments.calls // runs)
    call = json.dumps({"tool": "search_tools", "arguments": {"query": "read a file"}}).encode()
    numbers = iter(range(runs))

    async def work(connection: Connection, tenth: int) -> None:
        while (number := next(numbers, None)) is not None:
            run = f"soak-{number}"
            for _ in range(steps_a_run):
                await connection.ask("/v1/route", body_of(run))
            for _ in range(calls_a_run):
                await connection.ask(f"/v1/runs/{run}/call", call)
            await connection.ask(f"/v1/runs/{run}/close", b"")
            if number and number % (runs // 10) == tenth:
                megabytes, descriptors = standing(pid)
                steps, calls = number * steps_a_run, number * calls_a_run
                print(
                    f"{steps:9,} steps {calls:8,} calls {megabytes:8.1f} MB {descriptors:5}"
                    " descriptors",
                    flush=True,
                )

    began = time.perf_counter()
    await asyncio.gather(*(work(each, 0) for each in connections))
    print(
        f"{runs * steps_a_run:,} steps and {runs * calls_a_run:,} calls in"
        f" {time.perf_counter() - began:.0f} s"
    )
    for each in connections:
        each.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=2_000, help="of each kind")
    parser.add_argument(
        "--rate", type=float, default=200.0, help="requests a second over 64 connections"
    )
    parser.add_argument("--soak", type=int, default=0, help="decisions of a soak, instead")
    parser.add_argument("--calls", type=int, default=20_000, help="calls of a soak")
    parser.add_argument("--served", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.served is not None:
        asyncio.run(served(arguments.served))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        seed_run(folder)
        words = [sys.executable, __file__, "--served", made]
        server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            said = json.loads(server.stdout.readline())
            print(
                f"{os.cpu_count()} cores for both, load {os.getloadavg()[0]:.1f} at the beginning"
            )
            if arguments.soak:
                asyncio.run(soaked(said["port"], said["key"], server.pid, arguments))
            else:
                asyncio.run(measured(said["port"], said["key"], server.pid, arguments))
        finally:
            server.stdin.close()
            server.wait(20)


def seed_run(folder: Path) -> None:
    """A run whose record and decision are what the bare route writes and answers."""
    from bundle_router import Router, Step

    with Router.open(ROOT / "config", runs=folder / "runs", workspace=folder) as router:
        decision = router.route_sync(Step(run_id="seed", **STEP))
        (folder / "answer.json").write_text(json.dumps(decision.to_json()))
        router.close_run_sync("seed")


if __name__ == "__main__":
    main()
