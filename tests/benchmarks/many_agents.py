"""A thousand agents on one endpoint at once: a list and two calls each, beside a minimal gateway of
the SDK's parts.

    python tests/benchmarks/many_agents.py [--agents 1000] [--turns 2]

Each agent has a connection of its own and speaks modern MCP in bare bytes, so that the agents take
little of the machine that they share with what is measured. `turns`: as many agents again, for what
memory comes to. Says how many requests were answered with a result, what the others were told, how
long answers took, and memory before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.gateways import KEY, Gateway, minimal, ours, tool_server

META: Final = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "1"},
}
WARMING: Final = 100
SETTLE_S: Final = 8.0
"""Until idle connections have been closed."""


@dataclass(slots=True)
class Answers:
    """What came of the requests."""

    results: int = 0
    refused: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: list[float] = field(default_factory=list)


def request(gateway: Gateway, method: str) -> bytes:
    host, _, path = gateway.url.removeprefix("http://").partition("/")
    params: dict[str, Any] = {"_meta": META}
    named = ""
    if method == "tools/call":
        params |= {"name": gateway.tool, "arguments": {"text": "hi"}}
        named = f"mcp-name: {gateway.tool}\r\n"
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    return (
        f"POST /{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\ncontent-type:"
        " application/json\r\naccept: application/json, text/event-stream\r\nmcp-protocol-version:"
        f" 2026-07-28\r\nmcp-method: {method}\r\n{named}content-length: {len(body)}\r\n\r\n{body}"
    ).encode()


async def agent(gateway: Gateway, answers: Answers) -> None:
    host, _, port = gateway.url.removeprefix("http://").partition("/")[0].partition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
    except OSError as error:
        answers.refused[f"connection: {type(error).__name__}"] += 3
        return
    with contextlib.closing(writer):
        for method in ("tools/list", "tools/call", "tools/call"):
            begun = time.perf_counter()
            writer.write(request(gateway, method))
            try:
                body = await _body(reader)
            except (
                OSError,
                asyncio.IncompleteReadError,
                ValueError,
            ) as error:  # ValueError: an answer that is no JSON
                answers.refused[f"{method}: {type(error).__name__}"] += 1
                return
            answers.seconds.append(time.perf_counter() - begun)
            said = body.get("error") or {}
            if body.get("result", {}).get("isError"):
                said = {"message": body["result"]["content"][0]["text"]}
            answers.results += not said
            if said:
                answers.refused[f"{method}: {str(said.get('message'))[:100]}"] += 1


async def _body(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
    if length:
        value: dict[str, Any] = json.loads(await reader.readexactly(int(length)))
        return value
    pieces = []
    while size := int((await reader.readline()).strip(), 16):
        pieces.append(await reader.readexactly(size + 2))
    await reader.readexactly(2)
    data = b"".join(piece[:-2] for piece in pieces)
    event: dict[str, Any] = json.loads(data[data.index(b"{") :])
    if event.get("jsonrpc") != "2.0":
        raise ValueError("no JSON-RPC")
    return event


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


async def crowd(gateway: Gateway, agents: int) -> Answers:
    answers = Answers()
    await asyncio.gather(*(agent(gateway, answers) for _ in range(agents)))
    return answers


def measured(gateway: Gateway, options: argparse.Namespace) -> Iterator[str]:
    asyncio.run(crowd(gateway, WARMING))
    time.sleep(SETTLE_S)
    before = memory_mb(gateway.pid)
    for turn in range(1, options.turns + 1):
        answers = asyncio.run(crowd(gateway, options.agents))
        gc.collect()
        time.sleep(SETTLE_S)
        seconds = sorted(answers.seconds) or [float("nan")]
        after = memory_mb(gateway.pid)
        yield (
            f"{gateway.name}, turn {turn}: {answers.results} of {3 * options.agents} answered,"
            f" median {seconds[len(seconds) // 2]:.2f} s, p99"
            f" {seconds[max(int(len(seconds) * 0.99) - 1, 0)]:.2f} s; memory {before:.0f} MB"
            f" before, {after:.0f} after (x {after / before:.2f}); refused: {dict(answers.refused)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=1_000)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tools", type=int, default=18)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, url = stack.enter_context(tool_server(options.tools))
        gateways = [
            stack.enter_context(ours(folder / "ours", url, options.tools)),
            stack.enter_context(minimal(url)),
        ]
        for gateway in gateways:
            for line in measured(gateway, options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
