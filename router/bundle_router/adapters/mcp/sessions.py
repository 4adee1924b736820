"""The `ToolServers` port over MCP, for callers on any event loop and thread.

Rules:
1. Connections live on one loop in a thread of their own (see `loop`). This module only hands
   requests over, except that a fresh list and the check of arguments are answered on the caller's
   loop.
2. Nothing is contacted, started or imported before it is needed.
3. After `close` no process, socket or thread is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bundle_router.adapters.loop import SessionsLoop
from bundle_router.adapters.mcp import wires
from bundle_router.adapters.mcp.faults import MAX_MESSAGE, CircuitOpen, RpcError, ServerFault
from bundle_router.adapters.mcp.tracing import trace_only
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.tool_servers import (
    EVERYONE,
    NOWHERE,
    CallPlace,
    Listing,
    RawResult,
    Scope,
    ServerStatus,
)
from bundle_router.errors import RequestError, ToolFailure
from bundle_router.ports import Clock, Diagnostics

if TYPE_CHECKING:
    from bundle_router.adapters.json_schema import SchemaChecker
    from bundle_router.adapters.mcp.authorization import Authorization
    from bundle_router.adapters.mcp.hub import Hub
    from bundle_router.adapters.sdk_log import LogListener
    from bundle_router.core.servers.transport.pass_through import ServerReply

T = TypeVar("T")

MAX_CLOSED: Final = 10_000
"""Closed runs that are known as such; an older one is taken for open."""
LOOK_AGAIN_S: Final = 2.0
"""Seconds that a check for authorization is cached: tokens expire, and a person may log in
elsewhere.
"""
SchemaOf = Callable[[str, str], Mapping[str, Any] | None]
"""Returns the schema (such as the pinned one) that a tool's arguments are checked against, by
server and tool.
"""


class McpSessions:
    """Connections to MCP servers.

    Create one per process, with `bundle_router.adapters.mcp.open_mcp_sessions`.
    """

    def __init__(
        self,
        servers: Mapping[str, Server],
        setting: wires.ConnectionSetting,
        *,
        clock: Clock,
        diagnostics: Diagnostics,
        schema_of: SchemaOf | None,
        authorization: Authorization,
    ) -> None:
        self._servers = dict(servers)
        self._setting = setting
        self._clock = clock
        self._diagnostics = diagnostics
        self._schema_of = schema_of
        self._authorization = authorization
        self._begun_with_handshake: set[str] = set()
        self._hub: Hub | None = None
        self.closed_runs: dict[str, None] = {}
        self.changes = 0
        self._making = threading.Lock()
        self._thread = SessionsLoop("bundle-router-mcp", self._context)
        self._log_listener = self._listen_to_sdk()

    def _listen_to_sdk(self) -> LogListener | None:
        """Return what keeps the SDK's log of an authorization off the host's streams, if there may
        be one.
        """
        if all(server.auth is None for server in self._servers.values()):
            return None
        from bundle_router.adapters.sdk_log import LogListener

        return LogListener(
            lambda where, unreported: self._diagnostics.event(
                "warning", "sdk.warned", where=where, unreported=unreported
            )
        )

    # --- calls ------------------------------------------------------------------------------------

    async def check_arguments(
        self, server: str, tool: str, arguments: Mapping[str, Any]
    ) -> Sequence[str]:
        schema = self._schema_of(server, tool) if self._schema_of is not None else None
        if schema is None and self._hub is not None:
            entry = self._hub.lists.known(server, "")
            schema = entry.schemas.get(tool) if entry is not None else None
        if schema is None:
            return ()
        return self._checker.problems(f"{server}.{tool}", schema, dict(arguments))

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
        place: CallPlace = NOWHERE,
    ) -> RawResult:
        del (
            place
        )  # a server has the folder it was started in; what is in the arguments is its own affair
        entry = self._entry(server)
        return await self._on_hub(lambda hub: hub.call(entry, tool, arguments, scope, timeout_s))

    async def ask(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout_s: float,
        scope: Scope = EVERYONE,
    ) -> ServerReply:
        entry = self._entry(server)
        return await self._on_hub(lambda hub: hub.ask(entry, method, params, scope, timeout_s))

    async def follow(
        self, server: str, uri: str, updated: Callable[[], None], *, scope: Scope = EVERYONE
    ) -> Callable[[], None]:
        entry = self._entry(server)

        async def work() -> Callable[[], None]:
            end = await self._make_hub().following.begin(entry, scope, uri, updated)
            loop = asyncio.get_running_loop()

            def end_there() -> None:
                with contextlib.suppress(
                    RuntimeError
                ):  # the sessions are closed, and with them the subscription
                    loop.call_soon_threadsafe(end)

            return end_there

        try:
            return await self._thread.run(work)
        except ServerFault as fault:
            raise ToolFailure(
                f"server {server!r} failed: {fault.detail}", code=fault.kind
            ) from fault
        except RpcError as error:
            raise ToolFailure(
                f"server {server!r} refused: {error.message[:MAX_MESSAGE]}", code="rpc_error"
            ) from error

    async def prepare(self) -> None:
        if self._hub is None:
            await self._on_hub(lambda _hub: asyncio.sleep(0))

    def begin_with_handshake(self, server: str) -> None:
        """Begin with the handshake: the server can't be asked for its era, as was found out before.

        It holds for the first connection to it; from then on, what is found out here does.
        """
        self._begun_with_handshake.add(server)

    # --- lists ------------------------------------------------------------------------------------

    async def definitions(
        self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
    ) -> Listing:
        entry = self._entry(server)
        if not fresh and (listing := self.fresh(server, scope=scope)) is not None:
            return listing
        try:
            return await self._on_hub(lambda hub: hub.lists.get(entry, scope, fresh=fresh))
        except ServerFault as fault:
            code = fault.kind if fault.kind == "timeout" else "unavailable"
            raise ToolFailure(
                f"server {server!r} gave no list of its tools: {fault.detail}", code=code
            ) from fault
        except CircuitOpen as circuit:
            message = (
                f"server {server!r} kept failing and is left alone for {circuit.again_in_s:.0f} s"
            )
            raise ToolFailure(message, code="circuit_open") from circuit

    def fresh(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        return self._hub.lists.fresh(server, scope.principal) if self._hub is not None else None

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        entry = self._hub.lists.known(server, scope.principal) if self._hub is not None else None
        return entry.listing if entry is not None else None

    # --- what there is ----------------------------------------------------------------------------

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
        """Return the current status of each server for a principal; contacts nobody."""
        return tuple(
            self._status(server, scope)
            for server in self._servers.values()
            if server.traits.is_remote
        )

    def _status(self, server: Server, scope: Scope) -> ServerStatus:
        refused = wires.refusal(server, development=self._setting.development)
        reason = refused.detail if refused is not None else self._missing_requirement(server, scope)
        command = (server.command or "", *server.args) if server.traits.starts_process else ()
        again_s = LOOK_AGAIN_S if server.auth is not None else None
        hub = self._hub
        if hub is None:
            return ServerStatus(
                server.name, server.transport, reason=reason, command=command, again_s=again_s
            )
        open_now = hub.pool.open_connections(server.name)
        running, waiting = hub.guards.counts(server.name)
        breaker = hub.guards.breaker(server.name)
        retry_in_s = breaker.opens_again_in_s(self._clock.monotonic_ns())
        if breaker.open_until_ns is None:
            circuit = "closed"
        elif retry_in_s:
            circuit = "open"
        else:
            circuit = "half_open"
        if not reason and circuit == "open":
            reason = f"it kept failing and is left alone for {retry_in_s:.0f} s"
        listing = self.known(server.name)
        return ServerStatus(
            server=server.name,
            transport=server.transport,
            connections=len(open_now),
            pids=tuple(connection.pid for connection in open_now if connection.pid),
            running=running,
            waiting=waiting,
            circuit=circuit,
            retry_in_s=retry_in_s,
            tools=None if listing is None else len(listing.tools),
            reason=reason,
            command=command,
            again_s=again_s,
        )

    def _missing_requirement(self, server: Server, scope: Scope) -> str:
        environ = self._setting.environ
        absent = [name for name in server.env_names if not environ.get(name, "").strip()]
        if absent:
            return f"its credential {absent[0]} is not set"
        return self._authorization.why_unauthorized(server, scope)

    # --- the ends ---------------------------------------------------------------------------------

    def mark_closed(self, run_id: str) -> bool:
        self.closed_runs[run_id] = None
        for oldest in [*self.closed_runs][:-MAX_CLOSED]:
            self.closed_runs.pop(oldest, None)
        return (
            self._hub is not None
        )  # looked at after the mark: a hub that is made meanwhile sees it

    async def close_run(self, run_id: str) -> None:
        hub = self._hub
        if hub is not None:
            await self._thread.run(lambda: hub.close_run(run_id))

    async def close(self) -> None:
        with self._making:
            hub = self._hub
            self._hub = None
        if hub is not None:
            await self._thread.run(hub.close)
        if self._thread.is_started:
            await asyncio.to_thread(self._thread.close)
        else:
            self._thread.close()

    # --- within -----------------------------------------------------------------------------------

    @cached_property
    def _checker(self) -> SchemaChecker:
        """What checks arguments, made with the first call: a route needs none."""
        from bundle_router.adapters.json_schema import SchemaChecker

        return SchemaChecker()

    def _entry(self, server: str) -> Server:
        entry = self._servers.get(server)
        if entry is None:
            raise RequestError(f"there is no server {server!r}", advice="see config/servers.toml")
        return entry

    def _on_hub(self, ask: Callable[[Hub], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        return self._thread.run(lambda: ask(self._make_hub()))

    def _make_hub(self) -> Hub:
        """Create the hub on its loop, on first use."""
        with self._making:
            if self._hub is None:
                from bundle_router.adapters.mcp.hub import Hub

                self._report_leftovers()
                hub = Hub(
                    self._servers,
                    self._setting,
                    clock=self._clock,
                    diagnostics=self._diagnostics,
                    authorization=self._authorization,
                    check=self._checker.problems,
                    note_change=self._note_change,
                )
                hub.pool.closed_runs = self.closed_runs
                hub.begun_with_handshake = self._begun_with_handshake
                self._hub = hub
            return self._hub

    def _note_change(self) -> None:
        self.changes += 1

    def _report_leftovers(self) -> None:
        if self._setting.development:
            from bundle_router.adapters.mcp.server_processes import leftovers

            for left in leftovers():
                self._diagnostics.event(
                    "warning",
                    "server.left_behind",
                    server=left.server,
                    pid=left.pid,
                    command=left.command,
                )

    def _context(self) -> Context:
        context = Context()
        if self._log_listener is not None:
            context.run(self._log_listener.listen)
        return trace_only(context)
