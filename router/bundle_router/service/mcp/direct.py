"""Answers calls and lists of the modern era from ASGI, without the SDK's server, which costs three
times as much.

Rules:
1. Bytes, status and records are the same as with the SDK (`tests/service/mcp/test_direct.py` asks
   both). Anything unusual goes to the SDK: another method, era or header, a message that is not in
   the plain form, notifications to be sent meanwhile.
2. A request is checked whole before any work, so a request that is passed to the SDK has had no
   effect.
3. A client that disconnects cancels its call. After `PING_S` without an answer a stream is opened
   and kept alive.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.server.runner import ServerRunner, modern_error_data
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, X_MCP_HEADER_KEY, decode_header_value
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace

from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.engine.results import Result
from bundle_router.service.gate import values_of

PING_S: Final = 15.0
WATCH_S: Final = 0.25
"""Seconds after which the client's disconnection is watched for: most answers are faster, and a
watch is a task.
"""
MAX_KNOWN: Final = 16
"""Number of clients whose validated envelope is cached."""
MAX_ENVELOPE: Final = 4_096
"""Maximum characters of an envelope that is cached."""
_NAMES: Final = {b"tools/call": 3, b"tools/list": 2}
"""Number of MCP headers that a request of each method has."""
_ACCEPTED: Final = frozenset(("application/json", "text/event-stream"))
_ENVELOPE: Final = frozenset(
    (
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.CLIENT_INFO_META_KEY,
    )
)
_PROGRESS: Final = "progressToken"
_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)
_TEXT: Final = "\x00text\x00"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Json = dict[str, Any]
Asgi = Any


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """A list or call request in the plain form. `capabilities` are the client's own."""

    id: int | str
    method: str
    name: str
    arguments: Json
    capabilities: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Gives the answers, and raises MCPError: the list in the SDK's form (the same object while it
    is unchanged), a call's result, and that result in MCP's form. `schema` returns a listed tool's;
    `passes`: whether servers' results are passed on unchanged.
    """

    listed: Callable[[], Awaitable[types.ListToolsResult]]
    called: Callable[[str, Json, Client | None], Awaitable[Result]]
    shown: Callable[[Result, str], Awaitable[Any]]
    schema: Callable[[str], Mapping[str, Any] | None]
    passes: Callable[[], bool]


class DirectPath:
    """Answers for one run. Uses `server` for the SDK's form of results."""

    def __init__(self, server: Server[Any], answers: Answers, *, ping_s: float = PING_S) -> None:
        self._answers = answers
        self._ping_s = ping_s
        # The SDK's own conversion of a result: a private method that needs only the server.
        self._form = ServerRunner(server, None, None)._serialize  # type: ignore[arg-type] # there is no connection
        self._known: list[tuple[Json, Json]] = []
        self._list: tuple[types.ListToolsResult, str] | None = None
        self._mirrors: dict[str, tuple[Mapping[str, Any], bool]] = {}
        self._around = {ok: self._template(ok) for ok in (True, False)}

    def _template(self, ok: bool) -> tuple[str, str]:
        """Return the JSON before and after the text in a result that has only text."""
        result = types.CallToolResult(content=[types.TextContent(text=_TEXT)], is_error=not ok)
        template = _dump_json(self._form("tools/call", MODERN_PROTOCOL_VERSIONS[-1], result))
        head, _, tail = template.partition(json.dumps(_TEXT))
        return head, tail

    # --- what is asked ----------------------------------------------------------------------------

    def read(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> PlainRequest | None:
        """Return the request, or None if the SDK must answer it."""
        version, method, name = _head(headers)
        has_tracer = not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
        if (
            has_tracer or version not in MODERN_PROTOCOL_VERSIONS
        ):  # with a tracer, the SDK must make its spans
            return None
        try:
            message = json.loads(body.decode())  # another encoding goes to the SDK
        except (ValueError, RecursionError):
            return None
        if not isinstance(message, dict) or message.keys() != {"jsonrpc", "id", "method", "params"}:
            return None
        id_ = message["id"]
        params = message["params"]
        if (
            message["jsonrpc"] != "2.0"
            or message["method"] != method
            or not isinstance(params, dict)
        ):
            return None
        if not (type(id_) is int or (isinstance(id_, str) and id_.isascii())):
            return None
        capabilities = self._capabilities(params.get("_meta"), version)
        if capabilities is None:
            return None
        if method == "tools/list":
            return PlainRequest(id_, method, "", {}, capabilities) if len(params) == 1 else None
        arguments = params.get("arguments", {})
        if (
            name is None
            or params.get("name") != name
            or not params.keys() <= {"_meta", "name", "arguments"}
        ):
            return None
        if not isinstance(arguments, dict) or not all(map(str.isascii, arguments)):
            return None
        if arguments and self._mirrors_arguments(name):
            return None
        return PlainRequest(id_, method, name, arguments, capabilities)

    def _capabilities(self, meta: Any, version: str) -> Json | None:
        """Return the capabilities in a valid envelope; None if it is invalid or asks for
        notifications.
        """
        if not isinstance(meta, dict) or meta.get(types.PROTOCOL_VERSION_META_KEY) != version:
            return None
        if _PROGRESS in meta:
            if self._answers.passes() or not isinstance(meta[_PROGRESS], int | str):
                return None
            meta = {name: value for name, value in meta.items() if name != _PROGRESS}
        try:
            for encoded, capabilities in self._known:
                if encoded == meta:
                    return capabilities
            if not meta.keys() <= _ENVELOPE or len(str(meta)) > MAX_ENVELOPE:
                return None
            methods.validate_client_request("tools/list", version, {"_meta": meta})
            declared = types.ClientCapabilities.model_validate(
                meta[types.CLIENT_CAPABILITIES_META_KEY], by_name=False
            )
            capabilities = declared.model_dump(by_alias=True, mode="json", exclude_none=True)
        except (ValueError, RecursionError):
            return None
        self._known = [(meta, capabilities), *self._known[: MAX_KNOWN - 1]]
        return capabilities

    def _mirrors_arguments(self, name: str) -> bool:
        """Return whether arguments of the tool must be repeated in headers, which the SDK
        compares.
        """
        schema = self._answers.schema(name)
        if schema is None:
            return False
        mirror = self._mirrors.get(name)
        if mirror is None or mirror[0] is not schema:
            mirror = self._mirrors[name] = (schema, X_MCP_HEADER_KEY in json.dumps(schema))
        return mirror[1]

    # --- what is answered -------------------------------------------------------------------------

    async def answer(self, request: PlainRequest, receive: Asgi, send: Asgi) -> None:
        """Answer the request (ASGI)."""
        stream = _Stream(send)
        asking = asyncio.current_task()
        assert asking is not None  # noqa: S101 - ASGI servers run applications in tasks
        watches: list[asyncio.Task[None]] = []

        def begin_watch() -> None:
            watching = _watch_stream(receive, stream, asking.cancel, self._ping_s)
            watches.append(asyncio.create_task(watching, name="mcp-client-watch"))

        timer = asyncio.get_running_loop().call_later(WATCH_S, begin_watch)
        try:
            status, body = await self._answer_request(request)
        except asyncio.CancelledError:
            if watches and watches[0].done() and not asking.uncancel():
                return  # the client has disconnected
            raise
        finally:
            timer.cancel()
            for watch in watches:
                watch.cancel()
        await stream.end(status, body)

    async def _answer_request(self, request: PlainRequest) -> tuple[int, bytes]:
        try:
            result = await (
                self._list_tools() if request.method == "tools/list" else self._call_tool(request)
            )
        except Exception as error:  # noqa: BLE001 - the boundary to the client, with the SDK's own sentence for each
            answer = types.JSONRPCError(
                jsonrpc="2.0", id=request.id, error=modern_error_data(error)
            )
            status = ERROR_CODE_HTTP_STATUS.get(answer.error.code, 200)
            return status, _dump_json(
                answer.model_dump(mode="json", by_alias=True, exclude_none=True)
            ).encode()
        return 200, f'{{"jsonrpc":"2.0","id":{json.dumps(request.id)},"result":{result}}}'.encode()

    async def _list_tools(self) -> str:
        listed = await self._answers.listed()
        if self._list is None or self._list[0] is not listed:
            self._list = (
                listed,
                _dump_json(self._form("tools/list", MODERN_PROTOCOL_VERSIONS[-1], listed)),
            )
        return self._list[1]

    async def _call_tool(self, request: PlainRequest) -> str:
        client = Client(capabilities=request.capabilities) if self._answers.passes() else None
        result = await self._answers.called(request.name, request.arguments, client)
        if (
            result.answer is None
            and not (result.artifacts or result.parts)
            and not _SURROGATE.search(result.text)
        ):
            head, tail = self._around[result.ok]
            return f"{head}{json.dumps(result.text)}{tail}"
        version = MODERN_PROTOCOL_VERSIONS[-1]
        return _dump_json(
            self._form("tools/call", version, await self._answers.shown(result, version))
        )


class _Stream:
    """One answer: a body or, once a stream was opened, its last event."""

    def __init__(self, send: Asgi) -> None:
        self._send = send
        self._begun = False

    async def ping(self) -> None:
        """Send a comment that keeps proxies from closing the stream."""
        if not self._begun:
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": list(_EVENTS)}
            )
            self._begun = True
        await self._send(
            {"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True}
        )

    async def end(self, status: int, body: bytes) -> None:
        if self._begun:
            body = b"event: message\r\ndata: " + body + b"\r\n\r\n"
        else:
            headers = [
                (b"content-length", str(len(body)).encode()),
                (b"content-type", b"application/json"),
            ]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


async def _watch_stream(
    receive: Asgi, stream: _Stream, on_disconnect: Callable[[], object], ping_s: float
) -> None:
    """Keep a slow answer's stream alive; return when its client has disconnected."""
    while True:
        try:
            async with asyncio.timeout(ping_s):
                message = await receive()
        except TimeoutError:
            await stream.ping()
            continue
        if message["type"] == "http.disconnect":
            on_disconnect()
            return


def _head(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, str, str | None]:
    """Return version, method and name in the headers; empty if the headers are not in the plain
    form.
    """
    nothing = ("", "", None)
    pairs = [pair for pair in headers if pair[0][:4] == b"mcp-"]
    accepted = values_of(headers, b"accept")
    of_mcp = dict(pairs)
    method = of_mcp.get(b"mcp-method", b"")
    if len(accepted) != 1 or _NAMES.get(method) != len(pairs):
        return nothing
    if not {kind.strip() for kind in accepted[0].decode("latin-1").split(",")} >= _ACCEPTED:
        return nothing
    version = of_mcp.get(b"mcp-protocol-version", b"").decode("latin-1")
    name = of_mcp.get(b"mcp-name")
    return (
        version,
        method.decode("ascii"),
        decode_header_value(name.decode("latin-1")) if name is not None else None,
    )


def _dump_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
