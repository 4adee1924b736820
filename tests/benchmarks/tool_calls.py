"""What the sessions add to a call: CPU and time a call, against the SDK's own client on the same server, side by side.

    python tests/benchmarks/tool_calls.py [--calls 640]

The server is the SDK's, in a process of its own, so that only the client's CPU is counted. The library's way includes
the hop to the sessions' thread and back, the queue, the breaker, the lease and the blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import Context

SERVER = """
import sys, uvicorn
from mcp.server.mcpserver import MCPServer
server = MCPServer("bench")
@server.tool()
def echo(text: str) -> str:
    return text
uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
"""


class Silent:
    def event(self, level: str, name: str, **fields: object) -> None:
        return


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def load(call: Callable[[], Awaitable[object]], callers: int, calls: int) -> str:
    """CPU and elapsed milliseconds a call."""
    each = calls // callers

    async def one() -> None:
        for _ in range(each):
            await call()

    cpu, clock = cpu_s(), time.perf_counter()
    await asyncio.gather(*(one() for _ in range(callers)))
    done = each * callers
    return f"{(cpu_s() - cpu) / done * 1000:6.2f} {(time.perf_counter() - clock) / done * 1000:6.2f}"


async def measure(url: str, calls: int) -> None:
    from bundle_router.adapters.loop import SessionsLoop
    from bundle_router.adapters.mcp import open_mcp_sessions
    from bundle_router.adapters.system import SystemClock
    from bundle_router.core.catalog import Server
    from mcp import Client

    server = Server(name="bench", transport="streamable-http", url=url)
    sessions = open_mcp_sessions({"bench": server}, clock=SystemClock(), diagnostics=Silent())
    hops = SessionsLoop("bench", Context)

    async def nothing() -> None:
        return

    async with Client(url) as client:
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "call, SDK client": lambda: client.call_tool("echo", {"text": "hi"}),
            "call, sessions": lambda: sessions.call("bench", "echo", {"text": "hi"}, timeout_s=30),
            "hop to a thread alone": lambda: hops.run(nothing),
            "list, SDK client": lambda: client.list_tools(),
            "list, sessions (cached)": lambda: sessions.definitions("bench"),
        }
        print(f"{'ms a call: CPU, elapsed':28}" + "".join(f"{n:>6} callers   " for n in (1, 16, 64)))
        for name, way in ways.items():
            await way()
            row = [await load(way, callers, calls) for callers in (1, 16, 64)]
            print(f"{name:28}" + "   ".join(row))
    hops.close()
    await sessions.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=640)
    calls = parser.parse_args().calls
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
