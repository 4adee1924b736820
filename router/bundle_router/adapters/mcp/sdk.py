"""The only module that uses the `mcp` SDK (2.x): messages, eras, streams.

Loaded with the first connection.

Rules:
1. Requests bypass the SDK's typed layer. Its validation refuses a whole list for one bad tool,
   lists again before it returns the result of an unlisted tool, and drops content that violates its
   schema.
2. Requests carry the SDK's stamp for the negotiated era, and no trace baggage: the sessions' loop
   runs everything in a context that holds at most the caller's span.
3. The client declares no capabilities (roots, sampling, elicitation) of its own. It declares those
   of an agent's client only if the server's entry passes `input` on: with each request or, in the
   handshake era, for a session of that client's run. A server that asks for an undeclared one is
   refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import mcp  # noqa: F401 - first, as a whole: threads that begin with its parts are given half of them
import mcp_types as types

# The negotiation that `Client(mode="auto")` runs. It is not exported, and writing it again would
# mean keeping up with its corner cases (a probe that timed out here and succeeded there); mcp is
# pinned below 3.
from mcp.client._probe import negotiate_auto
from mcp.client.session import ClientRequestContext, ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import (
    ListenNotSupportedError,
    ResourceUpdated,
    SubscriptionLost,
    listen,
)
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from bundle_router import __version__
from bundle_router.adapters.mcp.faults import EXCHANGE, RequestState, ServerFault
from bundle_router.adapters.mcp.posting import RequestCarrier, encode_params, replace_surrogates
from bundle_router.adapters.mcp.quiet import is_traced, trace_request
from bundle_router.core.catalog import Era
from bundle_router.core.servers.transport.pass_through import (
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
MAX_UNANSWERED: Final = 64
"""Requests of a server that are answered at a time.

Then it is read no further: one that does not read its answers would fill the memory with them.
"""
_UNREAD: Final = {
    types.PARSE_ERROR: ("Failed to parse JSON response", "Failed to parse SSE message"),
    types.INVALID_REQUEST: (
        "Unexpected content type",
        "server answered a request with 202",
        "Redirect to ",
    ),
    types.CONNECTION_CLOSED: ("SSE stream ",),
}
"""Codes and prefixes of the errors that the SDK raises when a server's answer is no message, or
ended early.
"""
_CHANGES: Final = (
    "notifications/resources/updated",
    *(f"notifications/{name}_changed" for name in CHANGED),
)
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
Streams = tuple[Any, Any]
"""The streams that the SDK's dispatcher reads from and writes to."""


def is_unread(error: MCPError) -> bool:
    """Return whether the SDK raised the error because the server's answer was no message, or ended
    early.
    """
    return error.message.startswith(_UNREAD.get(error.code, ("\0",)))


class RawDispatcher(JSONRPCDispatcher):
    """The SDK's dispatcher, with an event for its end, and a bound on the server's requests under
    way. `answers` holds the results that the SDK did not get to see (see `RequestState`).
    """

    def __init__(
        self, read_stream: Any, write_stream: Any, *, answers: dict[int | str, dict[str, Any]]
    ) -> None:
        super().__init__(read_stream, write_stream)
        self._answers = answers
        self.ended = anyio.Event()
        self._room = anyio.Semaphore(MAX_UNANSWERED)

    async def _dispatch_request(
        self, *args: Any
    ) -> None:  # private: it starts a task for each request of the server
        await self._room.acquire()
        await super()._dispatch_request(*args)

    async def _handle_request(self, *args: Any) -> None:
        try:
            await super()._handle_request(*args)
        finally:
            self._room.release()

    def _resolve_pending(self, request_id: types.RequestId | None, outcome: Any) -> None:
        held = self._answers.pop(request_id, None) if request_id is not None else None
        super()._resolve_pending(request_id, outcome if held is None else held)

    async def run(self, *args: Any, **named: Any) -> None:
        try:
            await super().run(*args, **named)
        finally:
            self.ended.set()

    @property
    def closed(self) -> bool:
        """Whether the requests in flight know that the connection is gone.

        True shortly before `ended`.
        """
        return self._closed


class RawSession(ClientSession):
    """A session whose requests return the server's result unchecked.

    `capabilities` are those of the agent's client, which a server of the handshake era may use in
    the middle of a request.
    """

    def __init__(
        self,
        dispatcher: RawDispatcher,
        capabilities: Mapping[str, Any],
        on_change: Callable[[], None],
    ) -> None:
        self._capabilities = capabilities
        self._clients: list[Client] = []
        """Clients of the requests in progress that receive notifications or may be asked for
        input.
        """
        super().__init__(
            dispatcher=dispatcher,
            client_info=types.Implementation(name="bundle-router", version=__version__),
            message_handler=self._handle_message,
        )
        self.dispatcher = dispatcher
        self._on_change = on_change
        self._followed: dict[str, list[Callable[[], None]]] = {}
        self._level_set = ""  # log level that was set, in the handshake era
        self.carrier: RequestCarrier | None = None
        self.is_own = False
        """Whether only one run uses this session."""
        self._mirrored: dict[str, tuple[Mapping[str, Any], Mapping[Any, str]]] = {}

    async def _handle_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change()
        elif isinstance(message, types.ResourceUpdatedNotification):
            self._notify_follower(str(message.params.uri))
        elif isinstance(
            message, types.ResourceListChangedNotification | types.PromptListChangedNotification
        ):
            self._notify_follower(f"{message.method.split('/')[1]}/list")
        elif isinstance(message, types.LoggingMessageNotification):
            exchange = EXCHANGE.get()
            client = exchange.client if exchange is not None else None
            if (
                client is None and self.is_own
            ):  # the log line names no request: forward it to one client of the run
                client = next((one for one in self._clients if one.log_level), None)
            if client is not None:
                forward_log(
                    client, message.params.model_dump(by_alias=True, mode="json", exclude_none=True)
                )

    def _notify_follower(self, followed: str) -> None:
        for updated in self._followed.get(followed, ()):
            updated()

    def listens_to(self, method: str) -> bool:
        """Return whether any client listens to a kind of notification."""
        if method == LOG:
            return any(client.log_level for client in self._clients)
        if method == PROGRESS:
            return any(client.progress for client in self._clients)
        return bool(self._followed)

    def _build_capabilities(self, version: str) -> types.ClientCapabilities:
        # Overrides a private method: the SDK would declare its own callbacks, not the agent's
        # client.
        return types.ClientCapabilities.model_validate(dict(self._capabilities), by_name=False)

    async def dispatch_input_request(
        self, ctx: ClientRequestContext, request: types.InputRequest
    ) -> types.InputResponse | types.ErrorData:
        """Pass a server's input request to the client of the request in progress.

        Raises MCPError.
        """
        exchange = EXCHANGE.get()
        client = exchange.client if exchange is not None else None
        askable = [candidate for candidate in self._clients if candidate.ask is not None]
        if (
            client is None and len(askable) == 1
        ):  # over stdio a server's request names no request of ours
            client = askable[0]
        question = request.model_dump(by_alias=True, mode="json", exclude_none=True)
        if client is None or client.ask is None or not can_give(client, question):
            return types.ErrorData(
                code=types.INVALID_REQUEST, message="No client here can answer a request."
            )
        form: TypeAdapter[types.InputResponse] = TypeAdapter(types.InputResponse)
        return form.validate_python(await client.ask(question))

    async def request(
        self,
        method: str,
        params: dict[str, Any],
        schema: Mapping[str, Any] | None = None,
        client: Client | None = None,
    ) -> dict[str, Any]:
        """Send a request, stamped for the era, and return its result unchecked. Raises MCPError.

        `schema` is the called tool's input schema; its annotations name the arguments that a modern
        server also wants as headers. `client` is the agent's client, on whose behalf the request is
        made.
        """
        params, opts = self.stamp(method, await replace_surrogates(params), schema, client)
        if client is None:
            return await self.dispatcher.send_raw_request(method, params, opts)
        if client.progress and client.on_notification is not None:
            opts["on_progress"] = progress_to(client.on_notification)
        params = await replace_surrogates(params)  # the client's capabilities are in them by now
        await self._set_level(client)
        self._clients.append(client)
        try:
            return await self.dispatcher.send_raw_request(method, params, opts)
        finally:
            self._clients = [one for one in self._clients if one is not client]

    def carrier_for(self, client: Client | None) -> RequestCarrier | None:
        """Return the carrier for a client's requests that bypass the SDK; None if the client needs
        notifications or input requests, which the carrier can't receive.
        """
        wants_more = client is not None and (
            client.progress or client.log_level or (client.ask and not self.is_modern)
        )
        return None if wants_more else self.carrier

    async def post(
        self,
        method: str,
        params: dict[str, Any],
        schema: Mapping[str, Any] | None,
        client: Client | None,
        timeout_s: float,
    ) -> dict[str, Any]:
        """Send a request as `request` does, by the `carrier`.

        Raises ServerFault, RpcError, Redirected.
        """
        params, opts = self.stamp(method, params, schema, client)
        assert self.carrier is not None  # noqa: S101 - the caller has looked
        with trace_request(method, self.carrier.number, params) if is_traced() else nullcontext():
            text = await encode_params(params)
            headers = opts.get("headers", {})
            return (await self.carrier.post(method, text, headers, timeout_s))[0]

    def stamp(
        self,
        method: str,
        params: dict[str, Any],
        schema: Mapping[str, Any] | None,
        client: Client | None,
    ) -> tuple[dict[str, Any], CallOptions]:
        """Return the params of a request, with what the era wants in them, such as the client's
        capabilities and log level, and its headers. In the handshake era capabilities belong to the
        session.
        """
        opts: CallOptions = {}
        data: dict[str, Any] = {"method": method, "params": params}
        self._stamp(data, opts)
        if client is not None and self.is_modern:
            meta = {
                **data["params"].get("_meta", {}),
                types.CLIENT_CAPABILITIES_META_KEY: dict(client.capabilities),
            }
            if client.log_level:
                meta[types.LOG_LEVEL_META_KEY] = client.log_level
            data["params"] = {**data["params"], **client.continuation, "_meta": meta}
        if schema is not None and self.is_modern:
            known = self._mirrored.get(params["name"])
            if known is None or known[0] is not schema:
                valid = find_invalid_x_mcp_header(schema) is None
                known = self._mirrored[params["name"]] = (
                    schema,
                    x_mcp_header_map(schema) if valid else {},
                )
            if known[1]:
                opts.setdefault("headers", {}).update(
                    mcp_param_headers(known[1], params.get("arguments") or {})
                )
        return data["params"], opts

    async def _set_level(self, client: Client) -> None:
        """Set the log level of a session in the handshake era.

        All its clients share it, so it only becomes finer.
        """
        logs = self.server_capabilities is not None and self.server_capabilities.logging is not None
        if (
            client.log_level
            and logs
            and not self.is_modern
            and is_finer(client.log_level, self._level_set)
        ):
            self._level_set = client.log_level
            own = EXCHANGE.set(
                RequestState()
            )  # the state in the context is for the request to come
            try:
                await self.dispatcher.send_raw_request(
                    "logging/setLevel", {"level": client.log_level}, {}
                )
            finally:
                EXCHANGE.reset(own)

    @property
    def is_modern(self) -> bool:
        return self.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def announces_changes(self) -> bool:
        capabilities = self.server_capabilities if self.is_modern else None
        return bool(capabilities and capabilities.tools and capabilities.tools.list_changed)

    async def follow_resource(
        self, uri: str, updated: Callable[[], None], begun: Callable[[], None]
    ) -> None:
        """See `Connection.follow`. Raises MCPError."""
        listener = (
            (lambda: None) if self.is_modern else updated
        )  # modern: the stream itself reports changes
        listeners = self._followed.setdefault(uri, [])
        listeners.append(listener)
        try:
            await self._listen_for(uri, updated, begun)
        finally:
            listeners.remove(listener)
            if not listeners:
                self._followed.pop(uri, None)
            if not listeners and uri not in CHANGED and not self.is_modern:
                with (
                    anyio.move_on_after(_COURTESY_S, shield=True),
                    suppress(MCPError),
                ):  # gone, with the subscription
                    await self.dispatcher.send_raw_request(
                        "resources/unsubscribe", {"uri": uri}, {}
                    )

    async def _listen_for(
        self, uri: str, updated: Callable[[], None], begun: Callable[[], None]
    ) -> None:
        if self.is_modern:
            lists = ("tools/list", *CHANGED)
            kinds = {f"{name.split('/')[0]}_list_changed": uri == name for name in lists}
            named = () if uri in lists else (uri,)
            try:
                async with listen(
                    self, on_event=None, **kinds, resource_subscriptions=named
                ) as subscription:
                    begun()
                    async for event in subscription:
                        if not isinstance(event, ResourceUpdated) or str(event.uri) == uri:
                            updated()
            except (SubscriptionLost, ListenNotSupportedError, TimeoutError) as lost:
                raise MCPError(
                    types.INTERNAL_ERROR, "the server does not announce changes of its resources"
                ) from lost
            return
        if uri not in CHANGED:
            await self.dispatcher.send_raw_request("resources/subscribe", {"uri": uri}, {})
        begun()
        await self.dispatcher.ended.wait()

    async def follow_changes(self) -> None:
        """Call `on_change` for every change that a modern server announces, until the server ends
        the stream.
        """
        with suppress(MCPError):
            await self._listen_for("tools/list", self._on_change, lambda: None)


async def negotiate(session: RawSession, era: Era) -> None:
    """Negotiate the era: `server/discover` first, the handshake if the server does not know it.

    Raises ServerFault if the entry demands the modern era and the server has none.
    """
    if era == "handshake":
        await session.initialize()
        return
    await negotiate_auto(session)
    if era == "modern" and not session.is_modern:
        raise ServerFault(
            "protocol_error", f"era = 'modern', and the server speaks {session.protocol_version}"
        )


def open_http(
    url: str, client: HttpClient, max_event_bytes: int
) -> AbstractAsyncContextManager[Streams]:
    """Open Streamable HTTP over a client that the caller owns."""
    return streamable_http_client(url, http_client=client, max_sse_event_size=max_event_bytes)


@asynccontextmanager
async def open_sse(url: str, make_client: Callable[[], HttpClient]) -> AsyncIterator[Streams]:
    """Open the deprecated SSE transport. It closes the client that `make_client` returns."""

    def factory(headers: Any = None, timeout: Any = None, auth: Any = None) -> HttpClient:
        del headers, timeout, auth  # the client has its own
        return make_client()

    async with sse_client(url, httpx_client_factory=factory) as streams:
        yield streams


def pipe() -> tuple[Any, Any, Any, Any]:
    """Return the streams of a custom transport: (we write, the session reads), (the session writes,
    we read).
    """
    ours_out, theirs_in = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    theirs_out, ours_in = anyio.create_memory_object_stream[SessionMessage](0)
    return ours_out, theirs_in, theirs_out, ours_in


def read_message(value: dict[str, Any]) -> SessionMessage | None:
    """Return the message that a JSON object is, or None if it is none.

    A result's values are not looked at.
    """
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(value, by_name=False))
    except ValidationError:
        return None


def is_unwanted(message: SessionMessage, accepts: Callable[[str], bool]) -> bool:
    """Return whether the message is a notification without a listener, such as a log line.

    It is dropped early.
    """
    inner = message.message
    method = inner.method if isinstance(inner, types.JSONRPCNotification) else ""
    return method in (LOG, PROGRESS, *_CHANGES) and not accepts(method)


def line_of(message: SessionMessage) -> bytes:
    """Serialize the message as one line."""
    return (
        message.message.model_dump_json(by_alias=True, exclude_unset=True).encode(
            "utf-8", "replace"
        )
        + b"\n"
    )


def is_finer(level: str, than: str) -> bool:
    """Return whether log level `level` is more verbose than `than` ("": no log at all)."""
    return level in LEVELS and (than not in LEVELS or LEVELS.index(level) < LEVELS.index(than))


def forward_log(client: Client, line: Mapping[str, Any]) -> None:
    """Forward a log message if the client's level includes it."""
    level = line.get("level")
    wanted = (
        client.log_level in LEVELS
        and level in LEVELS
        and not is_finer(str(level), client.log_level)
    )
    if client.on_notification is not None and wanted:
        client.on_notification(LOG, line)


def progress_to(on_notification: NotificationHandler) -> ProgressFnT:
    """Return a progress callback that forwards progress without the SDK's own token."""

    async def report_progress(progress: float, total: float | None, message: str | None) -> None:
        params = {"progress": progress, "total": total, "message": message}
        on_notification(
            PROGRESS, {name: value for name, value in params.items() if value is not None}
        )

    return report_progress


__all__ = ["MCPError", "SessionMessage"]
