"""A run as a server of the `mcp` SDK; besides this module only `client` and `passage` know it.

Loaded when an endpoint starts.

Rules:
1. A server and its session manager belong to one run. The manager runs in one task of its own,
   which also ends it.
2. Every exception of a handler is named before it reaches the SDK, which would report a validation
   error of ours as the client's, and say nothing about others.
3. What the SDK logs about a run's requests is reported without its text.
4. A list is converted to the SDK's form once per decision, because it is requested far more often
   than it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import mcp  # noqa: F401 - first, as a whole: threads that begin with its parts are given half of them
import mcp_types as types
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.connection import Connection
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError

from bundle_router import __version__
from bundle_router.core.results.shaping.json_text import parse
from bundle_router.core.servers.transport.pass_through import CHANGED, Client
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError
from bundle_router.service.gate import Headers
from bundle_router.service.mcp.client import Context, ask_in_rounds, client_of
from bundle_router.service.mcp.direct import Answers, DirectPath
from bundle_router.service.mcp.following import FollowedResources
from bundle_router.service.mcp.passage import (
    ServerRun,
    as_sent,
    dropped_uris,
    followed_resources,
    handlers,
    has_form,
    narrow_capabilities,
)
from bundle_router.service.refusals import Refusal, refuse

MAX_BODY_BYTES: Final = 64 * 1024**2
"""Maximum bytes of a body for the SDK. The service's own bound is lower."""
ANNOUNCE_S: Final = 5.0
"""Seconds that announcing a change to one session may take."""
MAX_WAITING: Final = 16
"""Changes that a listener may lag behind before it is cut off.

It lists again when it reconnects.
"""
CACHEABLE: Final[tuple[CacheableMethod, ...]] = (
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
FRESH: Final = CacheHint(ttl_ms=0, scope="private")

_SAME_ID: Final = Refusal(
    400, "malformed", "A request of this session with this id is under way: give each its own."
)
Json = dict[str, Any]
T = TypeVar("T")


class _Server(Server[Any]):
    """The SDK's server, which declares list changes in the handshake era too, and reads its
    instructions each time.
    """

    def __init__(self, run: ServerRun, **named: Any) -> None:
        self._run = run
        super().__init__("bundle-router", **named)

    @property
    def instructions(self) -> str | None:
        return self._run.guidance or None

    @instructions.setter
    def instructions(self, _given: str | None) -> None:
        """Ignore the value that the SDK's constructor sets: the run's guidance is used."""

    def get_capabilities(self, *args: Any, **options: Any) -> types.ServerCapabilities:
        return narrow_capabilities(super().get_capabilities(*args, **options), self._run.features)

    def create_initialization_options(
        self, notification_options: Any = None, *others: Any, **named: Any
    ) -> Any:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, *others, **named)


class _Sessions(StreamableHTTPSessionManager):
    """The SDK's sessions.

    A new session replaces the longest unused one: clients of the handshake era leave without
    notice, and would lock out everybody until `[service] idle_session_s` has passed.
    """

    def _admit_session(self, *args: Any) -> Any:
        # Overrides a private method, the only place that refuses a session because there are too
        # many.
        if self.max_sessions is not None and len(self._server_instances) >= self.max_sessions:
            idle = [
                (transport.idle_scope.deadline, session)
                for session, transport in self._server_instances.items()
                if transport.idle_scope is not None and not transport._requests_in_flight
            ]
            if idle:
                session = min(idle)[1]
                self._session_owners.pop(session, None)
                scope = self._server_instances.pop(session).idle_scope
                if scope is not None:
                    scope.cancel()
        return super()._admit_session(*args)


class RunServer:
    """One run as an MCP server: an ASGI application between `start` and `close`."""

    def __init__(self, run: ServerRun, max_sessions: int, idle_session_s: float) -> None:
        self._run = run
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(
            self._bus, max_subscriptions=max_sessions, max_buffered_events=MAX_WAITING
        )
        self._connections: set[Connection] = set()
        self.following = FollowedResources(run.follow, self._announce_update)
        server = _Server(
            run,
            version=__version__,
            cache_hints=dict.fromkeys(CACHEABLE, FRESH),
            get_tool_input_schema=run.schema,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=self._listened_to,
        )
        for method, (params, handler) in handlers(
            run, self._answer_or_raise, self.following
        ).items():
            server.add_request_handler(method, params, handler)
        server.add_notification_handler(
            "notifications/initialized", types.NotificationParams, self._greet_session
        )
        self._manager = _Sessions(
            server,
            # Host and Origin were compared whole before this; the SDK's patterns compare by prefix.
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            session_idle_timeout=idle_session_s,
            max_request_body_size=MAX_BODY_BYTES,
            max_sessions=max_sessions,
        )
        self._listed: tuple[Sequence[Json], types.ListToolsResult] | None = None
        answers = Answers(
            self._current_list,
            self._make_call,
            self._result_in_form,
            run.schema,
            self._passes_results,
        )
        self._direct = DirectPath(server, answers)
        self._under_way: set[tuple[bytes, str] | None] = set()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    # --- its life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to answer. Call it once."""
        start: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._run_manager(start), name="mcp-run-server")
        await start

    async def _run_manager(self, begun: asyncio.Future[None]) -> None:
        self._run.listen_to_log()
        async with self._manager.run():
            begun.set_result(None)
            await self._stop.wait()

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one HTTP request (ASGI)."""
        self._run.listen_to_log()
        request = None
        if scope["method"] == "POST":
            plain = self._direct.read(
                scope["headers"], scope["body"]
            )  # whole: it was read and bounded before
            if plain is not None:
                await self._direct.answer(plain, receive, send)
                return
            request = _session_request(scope["headers"], scope["body"])
            if request in self._under_way:
                await refuse(_SAME_ID, scope, send, close=False)
                return
        self._under_way |= {request} - {None}
        try:
            await self._manager.handle_request(scope, receive, send)
        finally:
            self._under_way.discard(request)

    @property
    def has_sessions(self) -> bool:
        return bool(self._connections)

    def end_listening(self) -> None:
        """End the streams of listeners."""
        self._listen.close()

    async def close(self) -> None:
        """End every session, and cancel the calls in progress."""
        self.end_listening()
        self._stop.set()
        if self._owner is not None:
            await self._owner
        await self.following.close()

    # --- what it is asked -------------------------------------------------------------------------

    async def _list(self, _context: Context, params: types.PaginatedRequestParams | None) -> Any:
        if params is not None and params.cursor is not None:
            raise MCPError(types.INVALID_PARAMS, "This list has one page: leave the cursor out.")
        return await self._current_list()

    async def _current_list(self) -> types.ListToolsResult:
        tools = await self._answer_or_raise(self._run.tools())
        if self._listed is None or self._listed[0] is not tools:
            listed = types.ListToolsResult(
                tools=[types.Tool.model_validate(tool) for tool in tools]
            )
            self._listed = (tools, listed)
        return self._listed[1]

    async def _call(self, context: Context, params: types.CallToolRequestParams) -> Any:
        result = await self._call_with_client(context, params.name, params.arguments or {})
        return await self._result_in_form(result, context.protocol_version)

    async def _result_in_form(self, result: Result, revision: str) -> Any:
        """Return the result of a call in MCP's form."""
        if result.answer is not None:
            sent = as_sent(result.answer)
            if has_form("tools/call", revision, sent):
                return sent
        if not (result.artifacts or result.parts):
            return types.CallToolResult(
                content=[types.TextContent(text=result.text)], is_error=not result.ok
            )
        content = await self._answer_or_raise(self._run.content(result, revision))
        return types.CallToolResult.model_validate({"content": content, "isError": not result.ok})

    async def _call_with_client(self, context: Context, name: str, arguments: Json) -> Result:
        if not self._passes_results():
            return await self._make_call(name, arguments, None)
        async with client_of(context) as client:
            ask = partial(self._make_call, name, arguments)
            return await ask_in_rounds(context, client, ask, lambda result: result.answer)

    def _passes_results(self) -> bool:
        return "results" in self._run.features

    def _make_call(self, name: str, arguments: Json, client: Client | None) -> Awaitable[Result]:
        return self._answer_or_raise(self._run.call(name, arguments, client=client))

    async def _answer_or_raise(self, work: Awaitable[T]) -> T:
        """Return the result of the work; turn its errors into JSON-RPC errors with a sentence."""
        try:
            return await work
        except RouterError as error:
            sentence = f"{error.message} ({error.advice})" if error.advice else error.message
            if isinstance(error, RequestError):
                code = types.INVALID_REQUEST
            else:
                code = types.INTERNAL_ERROR
            raise MCPError(code, sentence) from None
        except Exception as defect:  # noqa: BLE001 - the boundary to the client (rule 2)
            self._run.report(defect)
            raise MCPError(
                types.INTERNAL_ERROR, "The router failed: this is a defect of it, named in its log."
            ) from None

    # --- what it says unasked ---------------------------------------------------------------------

    async def _greet_session(
        self, context: Context, _params: types.NotificationParams | None
    ) -> None:
        """Subscribe a session of the handshake era, which is ready now, to changes until it
        ends.
        """
        # Private, and the only object that knows when a session ends; mcp is pinned below 3.
        connection: Connection = context.session._connection
        if connection not in self._connections:
            self._connections.add(connection)
            connection.exit_stack.callback(self._connections.discard, connection)
            followed = followed_resources(connection)
            for name, feature in CHANGED.items():
                if feature in self._run.features and await self.following.add(name) is None:
                    followed.add(name)
                    connection.exit_stack.callback(
                        lambda at: self.following.drop(dropped_uris(followed, at)), name
                    )

    async def _listened_to(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> Any:
        """Return a stream of the modern era that sends the changes its client named, including
        those of resources.
        """
        requested = params.notifications
        features = self._run.features
        if "resources" in features:
            uris = [*map(str, requested.resource_subscriptions or ())]
        else:
            uris = []
        lists = zip(
            CHANGED.items(),
            (requested.resources_list_changed, requested.prompts_list_changed),
            strict=True,
        )
        uris += [name for (name, feature), is_asked in lists if is_asked and feature in features]
        followed = [uri for uri in dict.fromkeys(uris) if await self.following.add(uri) is None]
        try:
            return await self._listen(context, params)
        finally:
            self.following.drop(followed)

    async def _announce_update(self, uri: str) -> None:
        """Tell the subscribers of a resource, or of a list, that it has changed, if the run still
        permits it.
        """
        try:
            await self._run.tools()  # another process may have decided
        except RouterError:  # the run, or the decision in its address, is gone
            return
        if not self.following.follows(uri):
            return
        events: dict[str, Any] = {
            "resources/list": ResourcesListChanged(),
            "prompts/list": PromptsListChanged(),
        }
        await self._bus.publish(events.get(uri) or ResourceUpdated(uri=uri))
        if uri in CHANGED:
            name, about = (f"{uri}_changed", None)
        else:
            name, about = ("resources/updated", {"uri": uri})
        following = [
            connection
            for connection in list(self._connections)
            if uri in followed_resources(connection)
        ]
        await asyncio.gather(*(_say(one, f"notifications/{name}", about) for one in following))

    async def announce_change(self) -> None:
        """Tell all listeners that the list has changed, each within `ANNOUNCE_S`."""
        await self._bus.publish(ToolsListChanged())
        await asyncio.gather(
            *(
                _say(connection, "notifications/tools/list_changed", None)
                for connection in list(self._connections)
            )
        )


def _session_request(headers: Headers, body: bytes) -> tuple[bytes, str] | None:
    """Return session and id of a request of the handshake era, in which the SDK can't handle an id
    twice at a time.
    """
    session = next((value for name, value in headers if name == b"mcp-session-id"), None)
    if session is None:
        return None
    message = parse(body.decode("utf-8", "replace"))
    if not isinstance(message, dict) or "method" not in message or message.get("id") is None:
        return None
    return session, str(message["id"])


async def _say(connection: Connection, method: str, params: Json | None) -> None:
    with anyio.move_on_after(ANNOUNCE_S):
        await connection.notify(method, params)
