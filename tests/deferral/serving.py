"""A fake API and a proxy in front of it, on loopback, for as long as a block runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle_router_deferral.hidden_store import HiddenStore
from bundle_router_deferral.numbers import FILE, NumbersLog
from bundle_router_deferral.proxy import DeferralProxy, listen, serve
from bundle_router_deferral.rewriting import DeferralRules, RequestRewriter
from bundle_router_deferral.upstream import Upstream

from tests.deferral.fake_api import FakeApi, read_stream


@dataclass
class Answer:
    """An HTTP answer as it came over the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


async def send(
    port: int, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request over a connection of its own, and read the answer to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rows = {
        "host": f"127.0.0.1:{port}",
        "connection": "close",
        "content-length": str(len(body)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in rows.items())
    writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
    raw = await reader.read()
    writer.close()
    top, _, rest = raw.partition(b"\r\n\r\n")
    first, *lines = top.decode("latin-1").split("\r\n")
    found = [(line.partition(": ")[0], line.partition(": ")[2]) for line in lines]
    chunked = any(name.lower() == "transfer-encoding" for name, _value in found)
    return Answer(int(first.split()[1]), found, _dechunked(rest) if chunked else rest)


def _dechunked(data: bytes) -> bytes:
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        whole, data = whole + data[:count], data[count + 2 :]
    return whole


@dataclass
class Rig:
    """A proxy in front of a fake API."""

    api: FakeApi
    port: int
    folder: Path
    store: HiddenStore
    numbers: NumbersLog

    async def ask(self, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        """Send a request as a client does, and return the message it gets."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await send(
            self.port, "POST", "/v1/messages?beta=true", json.dumps(body).encode(), named
        )
        message = read_stream(answer.body) if body.get("stream") else json.loads(answer.body)
        return {"status": answer.status, **message}

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.numbers.folder / FILE).read_text().splitlines()]


@contextlib.asynccontextmanager
async def rig(folder: Path, api: Any = None, rewriter: Any = None) -> AsyncIterator[Rig]:
    api = api or FakeApi()
    store = HiddenStore(folder / "state/hidden.sqlite")
    numbers = NumbersLog(folder / "runs")
    try:
        async with (
            serve(api, listen()) as upstream_port,
            Upstream(f"http://127.0.0.1:{upstream_port}") as upstream,
            serve(
                DeferralProxy(
                    upstream, rewriter or RequestRewriter(DeferralRules()), store, numbers
                ),
                listen(),
            ) as port,
        ):
            yield Rig(api, port, folder, store, numbers)
    finally:
        store.close()
        numbers.close()


def with_rig(
    folder: Path, work: Callable[[Rig], Awaitable[None]], api: Any = None, rewriter: Any = None
) -> None:
    async def run() -> None:
        async with rig(folder, api, rewriter) as made:
            await work(made)

    asyncio.run(run())
