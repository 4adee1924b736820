"""What the deferral proxy costs beside a plain forwarding proxy on the same stack, in one run.

    python tests/benchmarks/deferral.py [--streams 50] [--rounds 6]

Three processes: a fake upstream that streams, one proxy at a time, and this client, which keeps
`--streams` requests under way. The plain proxy has the same server, client library and settings,
and forwards bytes. The body is one that a real agent sent (opencode, 34 KB, 34 tools), or with
`--long` that of a long conversation (some 400 KB).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bundle_router_deferral.hidden_store import HiddenStore
from bundle_router_deferral.numbers import NumbersLog
from bundle_router_deferral.proxy import DeferralProxy, listen, serve
from bundle_router_deferral.rewriting import DeferralRules, RequestRewriter
from bundle_router_deferral.upstream import Upstream
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

ARCHIVE = Path(__file__).parent.parent / "data/deferral/fixtures.tar.xz"
EVENTS = 120
"""Events of an answer: some 120 pieces of text."""


def events() -> list[bytes]:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 9_000, "output_tokens": 1}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": usage,
    }
    steps: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    steps.append(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    )
    delta = {"type": "text_delta", "text": "some words of an answer "}
    steps += [{"type": "content_block_delta", "index": 0, "delta": delta}] * EVENTS
    steps += [{"type": "content_block_stop", "index": 0}]
    steps += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": EVENTS},
        }
    ]
    steps += [{"type": "message_stop"}]
    return [f"event: {step['type']}\ndata: {json.dumps(step)}\n\n".encode() for step in steps]


class Fake:
    """An upstream that reads a request and streams an answer, a few events to a piece."""

    def __init__(self) -> None:
        made = events()
        self._pieces = [b"".join(made[i : i + 4]) for i in range(0, len(made), 4)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await request.body()

        async def pieces() -> AsyncIterator[bytes]:
            for piece in self._pieces:
                yield piece
                await asyncio.sleep(0.005)

        await StreamingResponse(pieces(), media_type="text/event-stream")(scope, receive, send)


class Plain:
    """A proxy that forwards bytes, on the same server and client library."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw
        ]
        answer = await self._upstream.send(request.method, request.url.path, headers, body)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.pieces():
                    yield piece
            finally:
                answer.close()

        response = StreamingResponse(pieces(), answer.status)
        response.raw_headers = [(n.lower().encode(), v.encode()) for n, v in answer.headers]
        await response(scope, receive, send)


class Metered:
    """Adds `/cpu`, which says how many CPU seconds this process has used."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            await JSONResponse(used.ru_utime + used.ru_stime)(scope, receive, send)
            return
        await self._inner(scope, receive, send)


async def serve_part(part: str, upstream_port: int) -> None:
    """Be one of the servers, until standard input closes."""
    listening = listen()
    if part == "fake":
        async with serve(Fake(), listening) as port:
            print(port, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        async with Upstream(f"http://127.0.0.1:{upstream_port}") as upstream:
            made: Any = Plain(upstream)
            if part == "deferral":
                store, numbers = (
                    HiddenStore(Path(folder) / "hidden.sqlite"),
                    NumbersLog(Path(folder)),
                )
                made = DeferralProxy(upstream, RequestRewriter(DeferralRules()), store, numbers)
            async with serve(Metered(made), listening) as port:
                print(port, flush=True)
                await asyncio.to_thread(sys.stdin.read)


async def one(port: int, body: bytes) -> float:
    """Send one request, read its answer to the end, and return the seconds to its first byte of
    body.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        "POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length:"
        f" {len(body)}\r\n\r\n"
    )
    began = time.perf_counter()
    writer.write(head.encode() + body)
    await reader.readuntil(b"message_start")
    first = time.perf_counter() - began
    rest = await reader.read()
    writer.close()
    if b"message_stop" not in rest:
        raise SystemExit(f"a broken answer: {rest[-200:]!r}")
    return first


async def cpu(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /cpu HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
    raw = await reader.read()
    writer.close()
    return float(raw.rpartition(b"\r\n\r\n")[2])


async def load(port: int, body: bytes, streams: int, each: int) -> tuple[list[float], float]:
    """Keep so many requests under way; returns the times to first byte and the proxy's CPU seconds
    a request.
    """

    async def lane() -> list[float]:
        return [await one(port, body) for _ in range(each)]

    before = await cpu(port)
    lanes = await asyncio.gather(*(lane() for _ in range(streams)))
    return [first for times in lanes for first in times], (await cpu(port) - before) / (
        streams * each
    )


def body_of(*, long: bool) -> bytes:
    with tarfile.open(ARCHIVE) as archive:
        file = archive.extractfile("fixtures/requests/captured/opencode-1.18.33_turn2.json")
        assert file is not None
        body = json.load(file)["body"]
    if long:
        text = "word " * 2_000
        more = [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role in ("assistant", "user") * 18
        ]
        body["messages"] += more
    return json.dumps(body).encode()


def start(part: str, upstream_port: int = 0) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--part", part, "--upstream", str(upstream_port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "router:router/deferral"},
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


async def measure(streams: int, rounds: int, body: bytes) -> dict[str, Any]:
    fake, fake_port = start("fake")
    processes, ports = [fake], {}
    for part in ("plain", "deferral"):
        process, ports[part] = start(part, fake_port)
        processes.append(process)
    rows: dict[str, dict[str, list[float]]] = {
        part: {"first": [], "cpu": [], "alone": []} for part in ports
    }
    try:
        for port in ports.values():
            await load(port, body, streams, 1)  # warm
        for number in range(rounds):
            order = list(ports) if number % 2 else list(ports)[::-1]
            for part in order:
                first, used = await load(ports[part], body, streams, 3)
                rows[part]["first"].append(statistics.median(first))
                rows[part]["cpu"].append(used)
                rows[part]["alone"] += [await one(ports[part], body) for _ in range(8)]
    finally:
        for process in processes:
            process.communicate()
    result: dict[str, Any] = {"streams": streams, "rounds": rounds, "body_bytes": len(body)}
    for part, figures in rows.items():
        result[part] = {
            "first_byte_ms": round(statistics.median(figures["first"]) * 1e3, 2),
            "first_byte_alone_ms": round(statistics.median(figures["alone"]) * 1e3, 2),
            "cpu_ms_a_request": round(statistics.median(figures["cpu"]) * 1e3, 2),
        }
    for name in ("first_byte_ms", "first_byte_alone_ms", "cpu_ms_a_request"):
        result[f"ratio_{name}"] = round(result["deferral"][name] / result["plain"][name], 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--long", action="store_true", help="a long conversation")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--upstream", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        asyncio.run(serve_part(arguments.part, arguments.upstream))
        return
    body = body_of(long=arguments.long)
    result = asyncio.run(measure(arguments.streams, arguments.rounds, body))
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
