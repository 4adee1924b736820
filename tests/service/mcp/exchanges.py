"""A run's MCP server without HTTP: requests are handed to its ASGI application, answers are kept.

What it answers is that of a run which the tests write (`ScriptedRun`), so that each row of a table
costs no server, no socket and no record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bundle_router.core.catalog import Feature
from bundle_router.core.servers.transport.pass_through import Client, ServerError, ServerReply
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError
from bundle_router.service.mcp.run_server import RunServer

T = TypeVar("T")
Json = dict[str, Any]

HANDSHAKE: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
META: Final = "io.modelcontextprotocol/"
BOTH_KINDS: Final = "application/json, text/event-stream"
PARAMS: Final = {
    "protocolVersion": HANDSHAKE,
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
"""The parameters of an `initialize`."""
TOOLS: Final[Sequence[Json]] = (
    {"name": "echo", "inputSchema": {"type": "object"}},
    {
        "name": "mirrored",
        "inputSchema": {
            "type": "object",
            "properties": {"text": {"type": "string", "x-mcp-header": "Text"}},
        },
    },
)


class ScriptedRun:
    """A run of which each tool does one thing.

    `echo` and `mirrored` say what they are told, `wait` waits for `door`, `refuse` is refused by
    the router, `break` is a defect, `tell` tells of progress and of a log line, then says `told`.
    """

    guidance = "Use them."

    def __init__(self, features: frozenset[Feature] = frozenset()) -> None:
        self.features = features
        self.door = asyncio.Event()
        self.arrived = asyncio.Semaphore(0)
        self.calls: list[tuple[str, Json]] = []
        self.passed_on: list[tuple[str, Json]] = []
        self.cancelled: list[str] = []
        self.warned: list[str] = []
        self.defects: list[Exception] = []
        self.followed: list[str] = []
        """The resources that are followed now."""
        self.on_unfollow: Callable[[str], None] = lambda _uri: None
        self.change: dict[str, Callable[[], None]] = {}
        """What tells of a change, by resource."""

    async def tools(self) -> Sequence[Json]:
        return TOOLS

    def mirrored_schema(self, name: str) -> Mapping[str, Any] | None:
        schema: Json = TOOLS[1]["inputSchema"]
        return schema if name == "mirrored" else None

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, client: Client | None
    ) -> Result:
        self.calls.append((name, dict(arguments)))
        match name:
            case "wait":
                await self._wait(name)
            case "refuse":
                raise RequestError("no", advice="ask for less")
            case "break":
                raise ZeroDivisionError("secret")
            case "tell":
                assert client is not None
                assert client.on_notification is not None
                half = {"progress": 1, "total": 2, "message": "half"}
                client.on_notification("notifications/progress", half)
                client.on_notification("notifications/message", {"level": "info", "data": "line"})
                return Result("ok", "told")
        return Result("ok", f"said {arguments.get('text', '')}")

    async def _wait(self, name: str) -> None:
        self.arrived.release()
        try:
            await self.door.wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise

    async def content(self, result: Result, revision: str) -> list[Json]:
        return [{"type": "text", "text": result.text}]

    def report(self, defect: Exception) -> None:
        self.defects.append(defect)

    def warn_client(self, where: str) -> None:
        self.warned.append(where)

    async def ask(self, method: str, params: Mapping[str, Any], client: Client) -> ServerReply:
        self.passed_on.append((method, dict(params)))
        if params.get("uri") == "a://visit":
            return ServerReply(error=ServerError(-32042, "visit it first", {"urls": []}))
        if method == "resources/read":
            return ServerReply(error=ServerError(-32002, "no such resource", {"uri": "a://b"}))
        return ServerReply(result={"prompts": [{"name": "p"}, {"name": 3}]})

    async def artifact(self, uri: str) -> Json:
        return {"uri": uri, "text": "whole"}

    async def follow(
        self, uri: str, updated: Callable[[], None]
    ) -> Callable[[], None] | ServerReply:
        if uri == "a://refused":
            return ServerReply(error=ServerError(-32602, "not to be followed"))
        self.followed.append(uri)
        self.change[uri] = updated

        def end() -> None:
            self.followed.remove(uri)
            self.on_unfollow(uri)

        return end


@dataclass
class Exchange:
    """One HTTP request, and what has come back so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_over: bool = False
    has_left: bool = False
    """Whether the server knows that the client has left."""
    leaves: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: the client has left."""
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def messages(self) -> list[Json]:
        """The messages in the body, one JSON object or a stream of events."""
        if self.headers.get("content-type") != "text/event-stream":
            return [json.loads(self.body)] if self.body else []
        events = self.body.decode("ascii").split("\r\n\r\n")
        lines = [line for event in events for line in event.split("\r\n")]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(message) for message in data]

    @property
    def message(self) -> Json:
        """The only message in the body."""
        (message,) = self.messages
        return message

    async def send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            assert not self.status
            self.status = event["status"]
            self.headers = {name.decode(): value.decode() for name, value in event["headers"]}
        else:
            assert not self.is_over
            self.body += event["body"]
            self.is_over = not event.get("more_body", False)
        self._came.set()

    async def receive(self) -> Json:
        await self.leaves.wait()
        self.has_left = True
        self._came.set()
        return {"type": "http.disconnect"}

    async def until(self, is_there: Callable[[Exchange], object]) -> Exchange:
        """Wait until this much has come."""
        while not is_there(self):
            self._came.clear()
            await self._came.wait()
        return self


class Clients:
    """The clients of one run's server."""

    def __init__(self, server: RunServer) -> None:
        self.server = server

    async def ask(
        self,
        headers: Mapping[str, str] | Sequence[tuple[str, str]],
        body: Any,
        method: str = "POST",
    ) -> Exchange:
        """Send a request and return the whole answer. A body of bytes goes as it is."""
        exchange, work = self.begin(headers, body, method)
        await work
        return exchange

    def begin(
        self,
        headers: Mapping[str, str] | Sequence[tuple[str, str]],
        body: Any = None,
        method: str = "POST",
    ) -> tuple[Exchange, asyncio.Task[None]]:
        """Send a request; return its exchange, and the task in which it is answered."""
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        if not any(name == "accept" for name, _ in pairs):
            pairs.append(("accept", BOTH_KINDS))
        scope = {
            "method": method,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in pairs],
            "body": body if isinstance(body, bytes) else json.dumps(body).encode(),
        }
        exchange = Exchange()
        work = self.server.handle(scope, exchange.receive, exchange.send)
        return exchange, asyncio.ensure_future(_run(work))

    async def open_session(self, **params: Any) -> dict[str, str]:
        """Shake hands; return the headers of the session's requests."""
        opened = await self.ask({}, request("initialize", {**PARAMS, **params}, id="open"))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        ready = await self.ask(session, notification("notifications/initialized"))
        assert ready.status == 202
        return session


async def _run(work: Awaitable[None]) -> None:
    await work


def request(method: str, params: Json | None = None, /, **changes: Any) -> Json:
    """A request of the handshake era, with the id 1."""
    message: Json = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
    return {**message, **changes}


def notification(method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}}


def modern(
    method: str, params: Json | None = None, /, **changes: Any
) -> tuple[dict[str, str], Json]:
    """Headers and body of a modern request, with the id 1."""
    given = params or {}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    name = given.get("name", given.get("uri"))
    if isinstance(name, str):
        headers["mcp-name"] = name
    meta = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}
    return headers, request(
        method, {**given, "_meta": {**meta, **given.get("_meta", {})}}, **changes
    )


def exchanged(
    work: Callable[[Clients, ScriptedRun], Awaitable[T]],
    features: frozenset[Feature] = frozenset(),
    *,
    max_sessions: int = 4,
    idle_session_s: float = 3600.0,
    ping_s: float = 15.0,
) -> T:
    """Run the work beside a run's server, and look that no task of it is left."""

    async def main() -> T:
        run = ScriptedRun(features)
        server = RunServer(run, max_sessions, idle_session_s, ping_s=ping_s)
        before = asyncio.all_tasks()
        done = await work(Clients(server), run)
        await server.close()
        left = asyncio.all_tasks() - before
        if left:
            await asyncio.wait(left, timeout=10)
        assert not [task for task in left if not task.done()]
        assert not run.followed
        return done

    return asyncio.run(asyncio.wait_for(main(), 60))
