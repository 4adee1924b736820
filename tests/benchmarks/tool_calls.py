"""What the sessions add to a call: CPU and time a call, against the SDK's own client on the same
server, side by side.

    python tests/benchmarks/tool_calls.py [--calls 640]
    python tests/benchmarks/tool_calls.py --large [--calls 50] [--servers 1]

The server is the SDK's, in a process of its own, so that only the client's CPU is counted. The
library's way includes the hop to the sessions' thread and back, the queue, the breaker, the lease
and the blocks.

`--large`: how long the event loops stand still while so many calls of a `Router` at once return 5
MB each: one text, many blocks, nested JSON; over modern HTTP, HTTP of the handshake era (JSON,
SSE), stdio. With `--servers`, they are calls of so many servers in turn (on stdio each a process).
Each loop has a timer of 1 ms. Longest and 99th percentile between two of its ticks, in ms: CPU of
the loop's own thread (what the loop itself does), its wait for the interpreter (time less that CPU,
the timer, and what Linux says it waited for a core), both together less what the thread for large
results, too, waited for a core (what is ours), and time. The time of an idle loop of another
process is what the machine does to any loop. Full garbage collections are named: the process has
them without large results, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

SERVER = """
import sys, uvicorn
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench")
@server.tool()
def echo(text: str) -> str:
    return text
uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
"""

LARGE_SERVER = r"""
import json, socket, sys, threading
way, size = sys.argv[1], 5_000_000
line = "a line of some words, as a log would have it 0123456789\n"
row = {"id": 12345, "tags": ["one", "two"], "at": {"x": 1.5, "y": [1, 2, 3]}, "text": "some words here"}
block = {"type": "text", "text": line * 20}
results = {
    "small": {"content": []},
    "text": {"content": [{"type": "text", "text": line * (size // len(line))}]},
    "blocks": {"content": [block] * (size // len(json.dumps(block)))},
    "nested": {"content": [], "structuredContent": {"rows": [row] * (size // len(json.dumps(row)))}},
}
own = {"resultType": "complete", "ttlMs": 60000, "cacheScope": "private"} if way == "modern" else {}
known = {"capabilities": {"tools": {}}, "serverInfo": {"name": "large", "version": "1"}, **own}
plain = {
    "initialize": {"protocolVersion": "2025-11-25", **known},
    "tools/list": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in results], **own},
}
if way == "modern":
    plain["server/discover"] = {"supportedVersions": ["2026-07-28"], **known}
said = {name: b'"result":' + json.dumps({**result, **own}).encode() for name, result in results.items()}
said |= {method: b'"result":' + json.dumps(result).encode() for method, result in plain.items()}

def answer(message):
    name = message["params"]["name"] if message["method"] == "tools/call" else message["method"]
    rest = said.get(name, b'"error":{"code":-32601,"message":"no"}')
    return b'{"jsonrpc":"2.0","id":%b,%b}' % (json.dumps(message["id"]).encode(), rest)

def serve(connection):
    with connection, connection.makefile("rb") as read:
        while line := read.readline():
            length = 0
            while header := read.readline().strip().lower():
                if header.startswith(b"content-length:"):
                    length = int(header[15:])
            message = json.loads(read.read(length) or b"{}")
            status, kind, body = b"202 Accepted" if length else b"405 No", b"application/json", b""
            if "id" in message:
                status, body = b"200 OK", answer(message)
            if body and way == "events":
                kind, body = b"text/event-stream", b"event: message\ndata: " + body + b"\n\n"
            head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
            connection.sendall(head + body)

if way == "stdio":
    for line in sys.stdin.buffer:
        if "id" in (message := json.loads(line)):
            sys.stdout.buffer.write(answer(message) + b"\n")
            sys.stdout.buffer.flush()
else:
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listening.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
IDLE = """
import asyncio, statistics, sys, time

async def main():
    rows = []
    def tell():
        if not sys.stdin.readline():
            sys.exit()
        rows.extend((0.0, 0.0))
        print(f"{max(rows):.0f} ({statistics.quantiles(rows, n=100)[98]:.0f})", flush=True)
        rows.clear()
    asyncio.get_running_loop().add_reader(0, tell)
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        rows.append((time.perf_counter() - begun) * 1000)

asyncio.run(main())
"""
WAYS = {
    "modern": "modern HTTP",
    "json": "handshake, JSON",
    "events": "handshake, SSE",
    "stdio": "stdio",
}
CONFIG = {
    "bundles": '[bundles.large]\ndescription = "Large."\neffects = ["read"]\n',
    "routes": '[[routes]]\nname = "all"\nbundles = ["large"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["*"]\n',
    "router": (
        '[log]\ndiagnostics = "error"\n[limits]\ncalls_per_step = 1_000_000\nrepeated_calls ='
        " 1_000_000\n"
    ),
}


READ = ctypes.PyDLL(None).pread
READ.argtypes, READ.restype = (
    (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long),
    ctypes.c_ssize_t,
)


ROUNDS = 5


class Silent:
    def event(self, level: str, name: str, **fields: object) -> None:
        return


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def load(
    call: Callable[[], Awaitable[object]], callers: int, calls: int
) -> tuple[float, float]:
    """Return CPU and elapsed milliseconds a call."""
    each = calls // callers

    async def one() -> None:
        for _ in range(each):
            await call()

    cpu, clock = cpu_s(), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    done = each * callers / 1000
    return (cpu_s() - cpu) / done, (time.perf_counter() - clock) / done


async def measure(url: str, calls: int) -> None:
    """Print what a call costs, beside the SDK's client on the same server: medians of rounds in
    which both take turns.
    """
    from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
    from bundle_router.adapters.system import SystemClock
    from bundle_router.core.catalog import Server
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    from tests.benchmarks.gateways import STDIO_SERVER

    words = ("-c", STDIO_SERVER, "1")
    lines = StdioServerParameters(command=sys.executable, args=list(words))
    cells: tuple[tuple[str, Callable[[], Any], Server], ...] = (
        (
            "modern HTTP",
            lambda: Client(url),
            Server(name="modern", transport="streamable-http", url=url),
        ),
        (
            "handshake HTTP",
            lambda: Client(url, mode="legacy"),
            Server(name="handshake", transport="streamable-http", url=url, era="handshake"),
        ),
        (
            "stdio",
            lambda: Client(stdio_client(lines), mode="legacy"),
            Server(name="stdio", transport="stdio", command=sys.executable, args=words),
        ),
    )
    sessions = open_mcp_sessions(
        {server.name: server for _, _, server in cells},
        ConnectionSetting(development=True),
        clock=SystemClock(),
        diagnostics=Silent(),
    )
    print(f"{'a call: CPU, elapsed in ms':28}{'callers':>8}{'SDK':>14}{'sessions':>14}   CPU x")
    for name, connect, server in cells:
        async with connect() as client:
            for callers in (1, 16):
                await measure_cell(name, client, sessions, server.name, callers, calls)
    await sessions.close()


async def measure_cell(
    name: str, client: Any, sessions: Any, server: str, callers: int, calls: int
) -> None:
    said = {"text": "hi"}

    async def by_sdk() -> None:
        assert not (await client.call_tool("echo", said)).is_error

    async def by_sessions() -> None:
        result = await sessions.call(server, "echo", said, timeout_s=30)
        assert result.outcome == "ok", result

    rounds: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(ROUNDS + 1):
        taken = (await load(by_sdk, callers, calls), await load(by_sessions, callers, calls))
        rounds += [taken] if number else []  # the first one warms up
    columns = [
        statistics.median(one[way][part] for one in rounds) for way in (0, 1) for part in (0, 1)
    ]
    ratio = statistics.median(ours[0] / theirs[0] for theirs, ours in rounds)
    shown = "".join(f"{value:7.2f}" for value in columns)
    print(f"{name:28}{callers:8}{shown}{ratio:8.2f}", flush=True)


class Ticks:
    """A timer of 1 ms on every loop: what passed between two of its ticks, while `on`, by the name
    of its thread.
    """

    def __init__(self) -> None:
        self.on = False
        self.rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
        self.collections: list[float] = []
        self._begun = 0.0
        self._loops = WeakSet[asyncio.BaseEventLoop]()
        self._run = asyncio.BaseEventLoop.run_forever
        asyncio.BaseEventLoop.run_forever = lambda loop: self._begin(loop)  # type: ignore[method-assign,assignment] # every loop's
        gc.callbacks.append(self._collect)

    def _begin(self, loop: asyncio.BaseEventLoop) -> None:
        """Run the loop for ever, with the timer."""
        name, own = threading.current_thread().name, threading.get_native_id()

        def now() -> tuple[float, float, float, float]:
            return time.thread_time(), time.perf_counter(), queued_s(own), queued_s(self._worker())

        def tick(before: tuple[float, float, float, float]) -> None:
            cpu, time_s, queued, kept = (new - old for new, old in zip(now(), before, strict=True))
            if self.on:
                waited = max(0.0, time_s - cpu - queued - 0.001)
                ours = cpu + max(0.0, waited - kept)
                self.rows[name].append(tuple(s * 1000 for s in (cpu, waited, ours, time_s)))
            loop.call_later(0.001, tick, now())

        if loop not in self._loops:
            self._loops.add(loop)
            loop.call_soon(tick, now())
        self._run(loop)

    @staticmethod
    def _worker() -> int:
        """Return the number of the thread for large results; 0 before it has started."""
        named = (
            thread.native_id for thread in threading.enumerate() if thread.name == "large-results"
        )
        return next(named, None) or 0

    def _collect(self, phase: str, _info: object) -> None:
        now = time.thread_time()
        if phase == "stop" and self.on and now - self._begun > 0.01:
            self.collections.append((now - self._begun) * 1000)
        self._begun = now

    def clear(self) -> None:
        self.rows.clear()
        self.collections.clear()


@cache
def schedule_of(thread: int) -> int:
    """Return a descriptor of what Linux says of a thread, which is not closed; -1 where it says
    nothing.
    """
    try:
        return os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
    except OSError:
        return -1


def queued_s(thread: int) -> float:
    """Return the seconds that the thread has waited for a core, without letting go of the
    interpreter meanwhile.
    """
    said = ctypes.create_string_buffer(80)
    if not thread or READ(schedule_of(thread), said, 80, 0) <= 0:
        return 0.0
    return int(said.value.split()[1]) / 1e9


async def measure_large(
    folder: Path, calls: int, servers: int, ticks: Ticks, idle: Callable[[], str]
) -> None:
    from bundle_router import Router, Step

    async with Router.open(
        folder / "config", runs=folder / "runs", workspace=folder, development="unpinned"
    ) as router:
        for _ in range(60):
            await router.route(Step(run_id="r", workflow="w", role="r", step="s"))
            if all([(await router.call("r", f"s{n}.small", {})).ok for n in range(servers)]):
                break
        for kind in ("text", "blocks", "nested"):
            ticks.clear()
            # what opening the router left, which a process that has run for a while has not
            gc.collect()
            idle()
            await asyncio.sleep(0.1)  # each loop has ticked since the row before was freed
            ticks.on, before, begun = True, cpu_s(), time.perf_counter()
            results = await asyncio.gather(
                *(router.call("r", f"s{n % servers}.{kind}", {"n": n}) for n in range(calls))
            )
            ticks.on = False
            took_s = time.perf_counter() - begun
            each = (cpu_s() - before) / calls * 1000
            print(
                f"  {kind:7}{sum(result.ok for result in results):4} answered, {each:4.0f} ms of"
                " CPU each",
                end="",
            )
            for name, rows in ticks.rows.items():
                columns = [
                    (max(one), statistics.quantiles(one, n=100)[98])
                    for one in zip(*rows, strict=True)
                ]
                print(
                    f" | {name[-10:]}",
                    *(f"{most:5.0f} ({p99:.0f})" for most, p99 in columns),
                    end="",
                )
            print(
                f" | {took_s:.1f} s | idle {idle()}",
                *(f"| collection {one:.0f}" for one in ticks.collections),
                flush=True,
            )


def main_large(calls: int, servers: int) -> None:
    ticks = Ticks()
    other = subprocess.Popen(
        [sys.executable, "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    answers = other.stdout

    def idle() -> str:
        print(file=other.stdin, flush=True)
        return answers.readline().strip()

    for way, name in WAYS.items():
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            folder = Path(place)
            (folder / "server.py").write_text(LARGE_SERVER, encoding="utf-8")
            argv = ["-S", str(folder / "server.py"), way]
            entry: dict[str, Any] = {"transport": "stdio", "command": sys.executable, "args": argv}
            if way != "stdio":
                server = subprocess.Popen(
                    [sys.executable, *argv], stdout=subprocess.PIPE, text=True
                )
                stack.callback(server.wait)
                stack.callback(server.kill)
                assert server.stdout is not None
                entry = {"url": f"http://127.0.0.1:{int(server.stdout.readline())}/mcp"}
            (folder / "config").mkdir()
            keys = "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items())
            tables = [
                f'[servers.s{n}]\ntrust = "trusted"\ntimeout_s = 600\n{keys}\n'
                for n in range(servers)
            ]
            texts = {**CONFIG, "servers": "".join(tables)}
            texts["bundles"] += f"tools = {json.dumps([f's{n}.*' for n in range(servers)])}\n"
            for file, text in texts.items():
                (folder / "config" / f"{file}.toml").write_text(text, encoding="utf-8")
            columns = (
                "ms of the loop's CPU, its wait for the lock, both with the thread on a core, by"
                " the clock"
            )
            print(f"{name}, load {os.getloadavg()[0]:.0f}: {columns}")
            asyncio.run(measure_large(folder, calls, servers, ticks, idle))
    other.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument(
        "--large", action="store_true", help="event loops while calls return 5 MB each"
    )
    options = parser.parse_args()
    if options.large:
        main_large(options.calls or 50, options.servers)
        return
    calls = options.calls or 640
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)])
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        asyncio.run(measure(f"http://127.0.0.1:{port}/mcp", calls))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
