"""The one place that speaks to the `mcp` SDK (2.x): messages, eras, streams. Loaded at the first connection.

Rules:
1. Lists and calls are asked for below the SDK's typed layer: its validation refuses a whole list for one bad tool,
   lists again before the result of an unlisted tool is given out, and throws away content that misses its schema.
2. What leaves here carries the SDK's own stamp for the era that was negotiated, and no trace baggage: the sessions'
   loop runs everything in a context that holds at most the caller's span.
3. The client declares no capabilities (roots, sampling, elicitation) of its own, and an agent's client's only where the
   server's entry passes `input` on: with a request or, in the handshake era, for a session of that client's run. A
   server that asks for what was not declared is refused.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp  # noqa: F401 - first, as a whole: threads that begin with its parts are given half of them
import mcp_types as types

# The negotiation that `Client(mode="auto")` runs. It is not exported, and writing it again would mean keeping up with
# its corner cases (a probe that timed out here and succeeded there); mcp is pinned below 3.
from mcp.client._probe import negotiate_auto
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    SubscriptionLost,
    ToolsListChanged,
    listen,
)
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from bundle_router.adapters.mcp.faults import EXCHANGE, ServerFault
from bundle_router.adapters.mcp.posting import RequestCarrier
from bundle_router.adapters.mcp.quiet import is_traced, trace_request
from bundle_router.core.catalog import Era
from bundle_router.core.tools.transport.lines import cut_deep
from bundle_router.core.tools.transport.pass_through import (
    CHANGED,
    LOG,
    PROGRESS,
    Client,
    NotificationHandler,
    can_give,
)

if TYPE_CHECKING:
    from bundle_router.adapters.mcp.http import Client as HttpClient

_COURTESY_S: Final = 2.0
_UNREAD: Final = {
    types.PARSE_ERROR: ("Failed to parse JSON response", "Failed to parse SSE message"),
    types.INVALID_REQUEST: ("Unexpected content type",),
}
"""What the SDK answers in the server's place where it can't read what came, and how that begins."""
_CHANGES: Final = ("notifications/resources/updated", *(f"notifications/{name}_changed" for name in CHANGED))
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Streams = tuple[Any, Any]
"""What the SDK's dispatcher reads from and writes to."""


def is_unread(error: MCPError) -> bool:
    """Return whether the error is not the server's own, but says that its answer was no message."""
    return error.message.startswith(_UNREAD.get(error.code, ("\0",)))


class RawDispatcher(JSONRPCDispatcher):
    """The SDK's dispatcher, which says when it has ended."""

    def __init__(self, read_stream: Any, write_stream: Any) -> None:
        super().__init__(read_stream, write_stream)
        self.ended = anyio.Event()

    async def run(self, *args: Any, **named: Any) -> None:
        try:
            await super().run(*args, **named)
        finally:
            self.ended.set()

    @property
    def closed(self) -> bool:
        """Whether requests in flight have been told that the connection is gone. True a little before `ended`."""
        return self._closed


class RawSession(ClientSession):
    """A session whose requests return the server's result as it came. `gives`: the capabilities of the agent's client,
    which a server of the handshake era may ask in the middle of a request."""

    def __init__(
        self,
        dispatcher: RawDispatcher,
        client: tuple[str, str],
        gives: Mapping[str, Any],
        on_change: Callable[[], None],
    ) -> None:
        self._gives = gives
        self._clients: list[Client] = []
        """Of the requests under way, those that hear or may be asked of."""
        super().__init__(
            dispatcher=dispatcher,
            client_info=types.Implementation(name=client[0], version=client[1]),
            message_handler=self._handle_message,
        )
        self.dispatcher = dispatcher
        self._on_change = on_change
        self._followed: dict[str, list[Callable[[], None]]] = {}
        self._level_set = ""  # of its log, in the handshake era
        self.carrier: RequestCarrier | None = None
        self.is_own = False
        """Whether nobody but one run speaks to the server by it."""
        self._mirrored: dict[str, tuple[Mapping[str, Any], Mapping[Any, str]]] = {}

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change()
        elif isinstance(message, types.ResourceUpdatedNotification):
            self._tell(str(message.params.uri))
        elif isinstance(message, types.ResourceListChangedNotification | types.PromptListChangedNotification):
            self._tell(f"{message.method.split('/')[1]}/list")
        elif isinstance(message, types.LoggingMessageNotification):
            exchange = EXCHANGE.get()
            client = exchange.client if exchange is not None else None
            if client is None and self.is_own:  # nothing says which request is meant: to one of the run's, once
                client = next((one for one in self._clients if one.log_level), None)
            if client is not None:
                forward_log(client, message.params.model_dump(by_alias=True, mode="json", exclude_none=True))

    def _tell(self, followed: str) -> None:
        for updated in self._followed.get(followed, ()):
            updated()

    def listens_to(self, method: str) -> bool:
        """Return whether anybody is there for a notification that comes beside answers."""
        if method == LOG:
            return any(client.log_level for client in self._clients)
        if method == PROGRESS:
            return any(client.progress for client in self._clients)
        return bool(self._followed)

    def _build_capabilities(self, version: str) -> types.ClientCapabilities:
        # Not meant to be overridden: the SDK says what its own callbacks give, and here it is the agent's client.
        return types.ClientCapabilities.model_validate(dict(self._gives), by_name=False)

    async def dispatch_input_request(
        self, ctx: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        """Hand what the server asks in the middle of a request to that request's client. Raises MCPError."""
        exchange = EXCHANGE.get()
        client = exchange.client if exchange is not None else None
        asked_of = [one for one in self._clients if one.ask is not None]
        if client is None and len(asked_of) == 1:  # over stdio nothing says which request is meant
            client = asked_of[0]
        asked = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        if client is None or client.ask is None or not can_give(client, asked):
            return types.ErrorData(code=types.INVALID_REQUEST, message="There is nobody here who could be asked.")
        form: TypeAdapter[types.InputResponse] = TypeAdapter(types.InputResponse)
        return form.validate_python(await client.ask(asked))

    async def request(
        self, method: str, params: dict[str, Any], schema: Mapping[str, Any] | None = None, client: Client | None = None
    ) -> dict[str, Any]:
        """Send a request, stamped for the era, and give its result unread. Raises MCPError.

        `schema` is the called tool's, whose annotations name arguments that a modern server wants as headers too.
        `client` is the agent's, in whose name the request is made.
        """
        params, opts = await self._stamp_request(method, params, schema, client)
        if client is None:
            return await self.dispatcher.send_raw_request(method, params, opts)
        self._clients.append(client)
        try:
            return await self.dispatcher.send_raw_request(method, params, opts)
        finally:
            self._clients = [one for one in self._clients if one is not client]

    def carrier_for(self, client: Client | None) -> RequestCarrier | None:
        """Return what carries the client's requests beside the SDK; None where that would not hear what the client
        wants, or what it is asked."""
        hears = client is not None and (client.progress or client.log_level or (client.ask and not self.is_modern))
        return None if hears else self.carrier

    async def post(
        self, method: str, params: dict[str, Any], schema: Mapping[str, Any] | None, client: Client | None
    ) -> dict[str, Any]:
        """As `request`, by `carrier`, which there has to be. Raises ServerFault, RpcError, Elsewhere."""
        params, opts = await self._stamp_request(method, params, schema, client)
        assert self.carrier is not None  # noqa: S101 - the caller has looked
        if not is_traced():
            return await self.carrier.request(method, params, opts.get("headers", {}), self._on_change)
        with trace_request(method, self.carrier.number, params):
            return await self.carrier.request(method, params, opts.get("headers", {}), self._on_change)

    async def _stamp_request(
        self, method: str, params: dict[str, Any], schema: Mapping[str, Any] | None, client: Client | None
    ) -> tuple[dict[str, Any], CallOptions]:
        opts: CallOptions = {}
        data: dict[str, Any] = {"method": method, "params": params}
        self._stamp(data, opts)
        if client is not None:
            await self._speak_for(client, data, opts)
        if schema is not None and self.is_modern:
            known = self._mirrored.get(params["name"])
            if known is None or known[0] is not schema:
                valid = find_invalid_x_mcp_header(schema) is None
                known = self._mirrored[params["name"]] = (schema, x_mcp_header_map(schema) if valid else {})
            if known[1]:
                opts.setdefault("headers", {}).update(mcp_param_headers(known[1], params.get("arguments") or {}))
        return data["params"], opts

    async def _speak_for(self, client: Client, data: dict[str, Any], opts: CallOptions) -> None:
        """Say what the client can give and wants to hear. In the handshake era a session has said that it can give
        nothing, and the level of its log is everybody's: it is only ever made finer."""
        if client.progress and client.on_notification is not None:
            opts["on_progress"] = progress_to(client.on_notification)
        if self.is_modern:
            meta = {**data["params"].get("_meta", {}), types.CLIENT_CAPABILITIES_META_KEY: dict(client.capabilities)}
            if client.log_level:
                meta[types.LOG_LEVEL_META_KEY] = client.log_level
            data["params"] = {**data["params"], **client.given, "_meta": meta}
            return
        logs = self.server_capabilities is not None and self.server_capabilities.logging is not None
        if client.log_level and logs and is_finer(client.log_level, self._level_set):
            self._level_set = client.log_level
            await self.dispatcher.send_raw_request("logging/setLevel", {"level": client.log_level}, {})

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def announces_changes(self) -> bool:
        capabilities = self.server_capabilities
        return bool(capabilities and capabilities.tools and capabilities.tools.list_changed)

    async def follow_resource(self, uri: str, updated: Callable[[], None], begun: Callable[[], None]) -> None:
        """As `Connection.follow`. Raises MCPError."""
        told = (lambda: None) if self.is_modern else updated  # a modern server tells in the stream: `hears` counts it
        ears = self._followed.setdefault(uri, [])
        ears.append(told)
        try:
            await self._told_of(uri, updated, begun)
        finally:
            ears.remove(told)
            if not ears:
                self._followed.pop(uri, None)
            if not ears and uri not in CHANGED and not self.is_modern:
                with anyio.move_on_after(_COURTESY_S, shield=True), suppress(MCPError):  # gone, it tells no more, too
                    await self.dispatcher.send_raw_request("resources/unsubscribe", {"uri": uri}, {})

    async def _told_of(self, uri: str, updated: Callable[[], None], begun: Callable[[], None]) -> None:
        if self.is_modern:
            named = () if uri in CHANGED else (uri,)
            kinds = {"resources_list_changed": uri == "resources/list", "prompts_list_changed": uri == "prompts/list"}
            try:
                async with listen(self, on_event=None, **kinds, resource_subscriptions=named) as subscription:
                    begun()
                    async for event in subscription:
                        if not isinstance(event, ResourceUpdated) or str(event.uri) == uri:
                            updated()
            except (SubscriptionLost, ListenNotSupportedError, TimeoutError) as lost:
                raise MCPError(types.INTERNAL_ERROR, "the server does not tell of its resources' changes") from lost
            return
        if uri not in CHANGED:
            await self.dispatcher.send_raw_request("resources/subscribe", {"uri": uri}, {})
        begun()
        await self.dispatcher.ended.wait()

    async def follow_changes(self) -> None:
        """Call `on_change` for every change a modern server announces, until the server ends that."""
        try:
            async with listen(self, tools_list_changed=True) as subscription:
                async for event in subscription:
                    if isinstance(event, ToolsListChanged):
                        self._on_change()
        except (MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
            return


async def negotiate(session: RawSession, era: Era) -> None:
    """Find the era: `server/discover` first, the handshake when the server does not know it. Raises ServerFault for a
    server that has no modern one where that is asked for."""
    if era == "handshake":
        await session.initialize()
        return
    await negotiate_auto(session)
    if era == "modern" and not session.is_modern:
        raise ServerFault("protocol_error", f"era = 'modern', and the server speaks {session.protocol_version}")


def open_http(url: str, client: HttpClient, max_event_bytes: int) -> AbstractAsyncContextManager[Streams]:
    """Streamable HTTP over a client that the caller owns."""
    return streamable_http_client(url, http_client=client, max_sse_event_size=max_event_bytes)


@asynccontextmanager
async def open_sse(url: str, make_client: Callable[[], HttpClient]) -> AsyncIterator[Streams]:
    """Give the transport that MCP has given up, for servers that have nothing else. It closes the client it is made."""

    def factory(headers: Any = None, timeout: Any = None, auth: Any = None) -> HttpClient:
        del headers, timeout, auth  # the client brings its own
        return make_client()

    async with sse_client(url, httpx_client_factory=factory) as streams:
        yield streams


def pipe() -> tuple[Any, Any, Any, Any]:
    """Return streams for a transport of our own: (we write, the session reads), (the session writes, we read)."""
    ours_out, theirs_in = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    theirs_out, ours_in = anyio.create_memory_object_stream[SessionMessage](0)
    return ours_out, theirs_in, theirs_out, ours_in


def parse_line(line: bytes) -> SessionMessage | None:
    """Return the message on a line, or None when it is none. Invalid UTF-8 and lone surrogates are replaced."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        pass
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(cut_deep(line).decode("utf-8", "replace"))
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        # Not as JSON once more: pydantic's parser reads 200 levels, and one tool's deep schema costs that tool alone.
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(json.loads(text), by_name=False))
    except (ValueError, RecursionError):
        return None


def is_unheard(message: SessionMessage, hears: Callable[[str], bool]) -> bool:
    """Return whether it is a notification nobody listens to, such as a log line: dropped before it costs a task."""
    inner = message.message
    said = inner.method if isinstance(inner, types.JSONRPCNotification) else ""
    return said in (LOG, PROGRESS, *_CHANGES) and not hears(said)


def line_of(message: SessionMessage) -> bytes:
    """Return the message as one line."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode("utf-8", "replace") + b"\n"


def is_finer(level: str, than: str) -> bool:
    """Return whether a log of this level holds more than one of the other ("": none at all)."""
    return level in LEVELS and (than not in LEVELS or LEVELS.index(level) < LEVELS.index(than))


def forward_log(client: Client, line: Mapping[str, Any]) -> None:
    """Pass on a log line that the client wants."""
    level = line.get("level")
    wanted = client.log_level in LEVELS and level in LEVELS and not is_finer(str(level), client.log_level)
    if client.on_notification is not None and wanted:
        client.on_notification(LOG, line)


def progress_to(on_notification: NotificationHandler) -> ProgressFnT:
    """Pass progress on without the token, which is the SDK's own."""

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        params = {"progress": progress, "total": total, "message": message}
        on_notification(PROGRESS, {name: value for name, value in params.items() if value is not None})

    return hear


__all__ = ["MCPError", "SessionMessage"]
