"""What the tests of the endpoint share: a router with local tools, served, and clients that speak
to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bundle_router import Router, Step
from bundle_router.core.values import Text
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from pydantic import BaseModel, ConfigDict

T = TypeVar("T")
SERVERS = '[servers.kit]\ntransport = "local"\ntrust = "trusted"\n'
BUNDLES = """
[bundles."kit.some"]
description = "Small helpers."
tools = ["kit.echo", "kit.wait"]
effects = ["read"]

[bundles."kit.later"]
description = "Helpers on request."
tools = ["kit.late"]
effects = ["read"]
mode = "deferred"
"""
ROUTES = "".join(
    f'[[routes]]\nname = "{step}"\nstep = "{step}"\nbundles = [{bundles}]\n'
    for step, bundles in (
        ("some", '"kit.some"'),
        ("both", '"kit.some", "kit.later"'),
        ("later", '"kit.later"'),
    )
)
POLICY = '[[policies]]\nname = "all"\nallow = ["*"]\n'


class Words(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ""


@dataclass
class Kit:
    """Local tools: `echo` says what it is told, `wait` hangs until the test opens the door or the
    caller goes.
    """

    door: threading.Event = field(default_factory=threading.Event)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def echo(self, arguments: Words, context: ToolContext) -> ToolOutput:
        return ToolOutput((Text(f"said {arguments.text}"),))

    def wait(self, arguments: Words, context: ToolContext) -> ToolOutput:
        self.arrived.release()
        while not self.door.wait(0.01) and not context.cancelled():
            pass
        return ToolOutput((Text("waited"),))

    @property
    def tools(self) -> tuple[LocalTool, ...]:
        return (
            LocalTool("echo", "Say it again.", Words, self.echo),
            LocalTool("late", "Say it again, later.", Words, self.echo),
            LocalTool("wait", "Wait for the door.", Words, self.wait),
        )


@dataclass(frozen=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def sentence(self) -> str:
        return str(json.loads(self.body)["error"]["message"])


FDS = Path("/proc/self/fd")


def open_sockets() -> set[str]:
    """The sockets of this process; none where that is not known."""
    found = set()
    for path in FDS.iterdir() if FDS.exists() else ():
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone by now
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("socket:")}


def listening_ports() -> set[int]:
    """The ports that this process listens on.

    To connect to one says less: another test may have it by now.
    """
    found = set()
    for path in FDS.iterdir() if FDS.exists() else ():
        with contextlib.suppress(OSError):
            descriptor = os.dup(int(path.name))
            try:
                sock = socket.socket(fileno=descriptor)
            except OSError:  # no socket
                os.close(descriptor)
                continue
            with sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockopt(
                    socket.SOL_SOCKET, socket.SO_ACCEPTCONN
                ):
                    found.add(int(sock.getsockname()[1]))
    return found


def step(at: str = "some", run_id: str = "r", **more: Any) -> Step:
    return Step(run_id=run_id, workflow="w", role="r", step=at, **more)


async def raw(port: int, sent: bytes) -> Answer:
    """What comes back for these bytes, until the endpoint closes the connection or the body is
    whole.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (
        (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 300)).decode("latin-1").split("\r\n")
    )
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if headers.get("transfer-encoding") == "chunked":
        return Answer(
            int(head[0].split()[1]), headers, (await reader.readuntil(b"\r\n0\r\n\r\n")).decode()
        )
    length = int(headers.get("content-length", "0"))
    return Answer(int(head[0].split()[1]), headers, (await reader.readexactly(length)).decode())


LISTING = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'


def request(
    endpoint: Any,
    *,
    method: str = "POST",
    target: str = "/mcp/runs/r",
    body: bytes = LISTING,
    host: str | None = None,
    token: str | None = None,
    type_: str = "application/json",
    more: str = "",
    length: int | None = None,
) -> bytes:
    """The bytes of a request that would be let in, unless a part of it is given otherwise."""
    lines = [
        f"{method} {target} HTTP/1.1",
        f"Host: {host if host is not None else f'127.0.0.1:{endpoint.port}'}",
        f"Authorization: Bearer {endpoint.key if token is None else token}"
        if token != ""
        else "X-None: 1",
        "Accept: application/json, text/event-stream",
    ]
    if method == "POST":
        lines += [f"Content-Type: {type_}"] if type_ else []
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    lines += [more] if more else []
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body if method == "POST" else b"")


@cache
def certificates() -> ssl.SSLContext:
    """Return what a client trusts: reading the machine's certificates takes longer than most
    questions.
    """
    return ssl.create_default_context()


@asynccontextmanager
async def client(
    endpoint: Any,
    mode: str = "auto",
    *,
    run_id: str | None = "r",
    decision: str | None = None,
    token: str | None = None,
    **more: Any,
) -> AsyncIterator[Any]:
    """The SDK's own client, connected: `legacy` shakes hands, `auto` finds the modern era.

    No run: the token's own.
    """
    import httpx2
    from mcp.client.client import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"authorization": f"Bearer {token or endpoint.key}"}
    url = endpoint.url(run_id, decision) if decision else endpoint.url(run_id)
    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=httpx2.Timeout(300), verify=certificates()
        ) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **more) as connected,
    ):
        yield connected


def http(endpoint: Any, token: str | None = None) -> Any:
    """An HTTP client that sends the endpoint's token, or another one (empty: none)."""
    import httpx2

    token = endpoint.key if token is None else token
    headers = {"authorization": f"Bearer {token}"} if token else {}
    timeout = httpx2.Timeout(300)
    return httpx2.AsyncClient(
        base_url=endpoint.base, headers=headers, timeout=timeout, verify=certificates()
    )


class Site:
    """A folder with a config, a router over it and an endpoint, for as long as one test's work
    takes; and clients.
    """

    step = staticmethod(step)
    raw = staticmethod(raw)
    read_answer = staticmethod(read_answer)
    request = staticmethod(request)
    client = staticmethod(client)
    http = staticmethod(http)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kit = Kit()
        (folder / "config").mkdir()
        for name, text in (
            ("servers", SERVERS),
            ("bundles", BUNDLES),
            ("routes", ROUTES),
            ("policy", POLICY),
        ):
            (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")

    def open(self) -> Router:
        return Router.open(
            self.folder / "config",
            runs=self.folder / "runs",
            workspace=self.folder,
            local={"kit": self.kit.tools},
        )

    def records(self, run_id: str = "r", file: str = "tool-calls.jsonl") -> list[dict[str, Any]]:
        path = self.folder / "runs" / run_id / file
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )

    def serve_all(
        self, work: Callable[[Router, Any], Awaitable[T]], config: str = "", **options: Any
    ) -> T:
        """As `serve`, beside the whole service. `config` goes into router.toml."""
        (self.folder / "config" / "router.toml").write_text(
            config or "# as shipped\n", encoding="utf-8"
        )
        return self.serve(work, whole=True, **options)

    def serve(
        self,
        work: Callable[[Router, Any], Awaitable[T]],
        *,
        whole: bool = False,
        limits: str = "",
        limit_s: float = 300,
        **options: Any,
    ) -> T:
        """Runs the work beside an endpoint with the run `r` at step `some`, and looks that nothing
        of it is left. `limits` goes into router.toml.
        """
        from bundle_router.service import serve, serve_mcp

        begin: Callable[..., Any] = serve if whole else serve_mcp

        async def main() -> T:
            async with self.open() as router:
                await router.route(step())
                before = asyncio.all_tasks()
                async with begin(router, **options) as endpoint:
                    done = await work(router, endpoint)
                left = asyncio.all_tasks() - before
                assert not left, left
                assert endpoint.port not in listening_ports()
                return done

        if limits:
            (self.folder / "config" / "router.toml").write_text(limits, encoding="utf-8")
        before = open_sockets()
        result = asyncio.run(asyncio.wait_for(main(), limit_s))
        if not open_sockets() <= before:
            # what only a cycle still holds; it takes 30 ms, so not where nothing is held
            gc.collect()
        assert open_sockets() <= before
        return result


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
