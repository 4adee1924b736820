"""Requests to tool servers: each passes the queue, the circuit breaker and the connection, on the
sessions' loop.

Rules:
1. The order is queue, breaker, connection. So a breaker's probe never waits in a queue, and a
   server with an open breaker costs nothing.
2. A call is retried only if the server can't have acted on it: it was not reached, or said that it
   has forgotten the session. It is retried once, after `restart_s`, within the call's own time.
3. An error result, a refusal, or a result that violates its schema is an answer: it says nothing
   about health.
4. A server that dies of the question for its era, or does not answer it, is not asked again: from
   then on its connections begin with the handshake, until one fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from bundle_router.adapters.mcp import wires
from bundle_router.adapters.mcp.authorization import Authorization
from bundle_router.adapters.mcp.call_results import (
    busy_result,
    circuit_open,
    error_reply,
    error_result,
    fault_result,
    no_answer_reply,
    read_answer,
    read_reply,
)
from bundle_router.adapters.mcp.connection import Connection, Probes
from bundle_router.adapters.mcp.faults import (
    LIST_AGAIN,
    NEVER_AGAIN,
    OUR_OWN,
    Busy,
    CircuitOpen,
    RpcError,
    ServerFault,
)
from bundle_router.adapters.mcp.lists import Lists, read_pages
from bundle_router.adapters.mcp.pool import (
    LISTING,
    ResourceSubscriptions,
    SessionPool,
    session_terms,
)
from bundle_router.adapters.mcp.server_processes import ProcessSupervisor
from bundle_router.adapters.workers import run_in_turn
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.servers.admission.identity import VolatileError
from bundle_router.core.servers.transport.bounds import Bounds, bounds_of
from bundle_router.core.servers.transport.concurrency import Gate
from bundle_router.core.servers.transport.pass_through import ServerReply, passes
from bundle_router.core.servers.transport.tool_servers import Listing, RawResult, Scope
from bundle_router.core.values.breaker import Breaker, End, Ticket
from bundle_router.core.values.canonical import budget_left
from bundle_router.ports import Clock, Diagnostics

if TYPE_CHECKING:
    from bundle_router.adapters.http import HttpClient

T = TypeVar("T")
Waiter = asyncio.Future[bool]

_REAP_S = 15.0
_INLINE_CHARS = 32_768
"""Maximum characters of an answer that is taken apart on a loop; larger ones are in a thread."""


class Guards:
    """The circuit breaker of each server, and the queue of calls in front of them. On one loop."""

    def __init__(self, bounds: Bounds, clock: Clock) -> None:
        self._gate: Gate[Waiter] = Gate(bounds)
        self._breakers: dict[str, Breaker] = {}
        self._terms = bounds.breaker
        self._clock = clock

    async def enter(self, server: str, deadline: float) -> None:
        """Wait for a place in the queue, which `leave` gives back. Raises Busy."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        verdict = self._gate.enter(server, waiter)
        if verdict == "busy":
            raise Busy
        if verdict == "run":
            return
        is_turn = False
        left = max(deadline - loop.time(), 0.0)
        timer = loop.call_later(left, lambda: None if waiter.done() else waiter.set_result(False))
        try:
            is_turn = await waiter
        finally:
            timer.cancel()
            if not is_turn and not self._gate.cancel(server, waiter):
                self.leave(server)  # it was this call's turn by now
        if not is_turn:
            raise Busy

    def leave(self, server: str) -> None:
        """Give the place to the next waiting call."""
        waiters = self._gate.leave(server)
        for waiter in waiters:
            if not waiter.done():  # else it has just given up, and passes the place on
                waiter.set_result(True)

    # --- the breakers -----------------------------------------------------------------------------

    def admit(self, server: str) -> Ticket:
        """Ask the breaker for permission to contact the server. Raises CircuitOpen."""
        now = self._clock.monotonic_ns()
        breaker, ticket = self.breaker(server).admit(now)
        self._breakers[server] = breaker
        if ticket is None:
            raise CircuitOpen(breaker.opens_again_in_s(now))
        return ticket

    def settle(
        self, server: str, ticket: Ticket, end: End | None, retry_after_s: float | None = None
    ) -> bool:
        """Tell the breaker how the request ended (None: nobody waited).

        Return whether this opened it.
        """
        before = self.breaker(server)
        if end is None:
            after = before.release(ticket)
        else:
            after = before.settle(ticket, end, self._clock.monotonic_ns(), retry_after_s)
        self._breakers[server] = after
        return after.open_until_ns is not None and after.epoch != before.epoch

    def breaker(self, server: str) -> Breaker:
        return self._breakers.get(server) or Breaker(self._terms)

    def counts(self, server: str) -> tuple[int, int]:
        """Return how many calls run, and how many wait."""
        return self._gate.count(server)


class Hub:
    """The servers' connections, queues and lists. Each `McpSessions` makes one, on its loop."""

    def __init__(
        self,
        servers: Mapping[str, Server],
        setting: wires.ConnectionSetting,
        *,
        clock: Clock,
        diagnostics: Diagnostics,
        authorization: Authorization,
        check: Callable[[str, Mapping[str, Any], Any], Sequence[str]],
        note_change: Callable[[], None],
    ) -> None:
        self._servers = servers
        self._setting = setting
        self._bounds = bounds = setting.bounds
        self._diagnostics = diagnostics
        self._authorization = authorization
        self._check = check
        self._note_change = note_change
        self._clients: dict[str, HttpClient] = {}
        self._probes: dict[str, Probes] = {}
        self.begun_with_handshake: Collection[str] = ()
        """The servers that were known before not to take the question for their era."""
        self.errors: dict[str, str] = {}
        self._supervisor = ProcessSupervisor()
        self.guards = Guards(bounds, clock)
        self.pool = SessionPool(self._connection, bounds, clock)
        self.lists = Lists(self._read, clock, diagnostics, _admit_listing, note_change)
        self.following = ResourceSubscriptions(self.pool, bounds)
        self.loop = asyncio.get_running_loop()
        self._reaping = self.loop.create_task(self._reap())

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        server: Server,
        tool: str,
        arguments: Mapping[str, Any],
        scope: Scope,
        timeout_s: float,
    ) -> RawResult:
        """Call a tool. Server failures are returned, never raised."""
        name = f"{server.name}.{tool}"
        loop = asyncio.get_running_loop()
        queued_ms = -1.0
        asked_at = loop.time()

        async def work(deadline: float) -> RawResult:
            nonlocal queued_ms
            queued_ms = (loop.time() - asked_at) * 1000
            params = {"name": tool, "arguments": dict(arguments)}
            raw = await self._with_a_retry(server, "tools/call", params, scope, deadline)
            await self._note_unexpected(server, tool, scope, raw)
            read = partial(read_answer, name, raw, self._bounds.max_blocks, scope.client)
            return await _take_apart(raw.get("content"), read)

        try:
            result = await self._run_queued(server, name, work, timeout_s)
        except RpcError as error:
            result = error_result(name, error, scope.client)
        waited_ms = queued_ms if queued_ms >= 0 else (loop.time() - asked_at) * 1000
        return RawResult(result.blocks, result.outcome, result.code, result.answer, waited_ms)

    async def ask(
        self, server: Server, method: str, params: Mapping[str, Any], scope: Scope, timeout_s: float
    ) -> ServerReply:
        """Send a request other than a call, with the same guards.

        Server failures are returned, never raised.
        """

        async def work(deadline: float) -> ServerReply:
            raw = await self._with_a_retry(server, method, dict(params), scope, deadline)
            return await _take_apart(raw, partial(read_reply, name, raw, scope.client))

        name = f"{server.name} ({method})"
        try:
            found = await self._run_queued(server, name, work, timeout_s)
        except RpcError as error:
            return error_reply(error)
        return found if isinstance(found, ServerReply) else no_answer_reply(found)

    async def _run_queued(
        self, server: Server, name: str, work: Callable[[float], Awaitable[T]], timeout_s: float
    ) -> T | RawResult:
        """Return the result of `work(deadline)`, or the result that says why it failed.

        Raises RpcError.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await self.guards.enter(server.name, deadline)
            left_s = deadline - asyncio.get_running_loop().time()
            try:
                return await self._with_breaker(
                    server, lambda: work(deadline), blames=left_s > timeout_s / 2
                )
            finally:
                self.guards.leave(server.name)
        except Busy:
            return busy_result(name, server.name)
        except CircuitOpen as circuit:
            return circuit_open(name, server.name, circuit.again_in_s)
        except ServerFault as fault:
            return fault_result(name, fault, timeout_s)

    async def _with_breaker(
        self, server: Server, work: Callable[[], Awaitable[T]], *, blames: bool = True
    ) -> T:
        """Do the work if the breaker permits, and tell the breaker how it ended; of a timeout only
        if the server is to blame, and not our queue. Raises CircuitOpen.
        """
        ticket = self.guards.admit(server.name)
        failure: BaseException | None = None
        try:
            return await work()
        except BaseException as error:
            failure = error
            if isinstance(error, ServerFault) and error.kind == "timeout" and not blames:
                error.counted = True
            raise
        finally:
            self._settle(server, ticket, failure)

    def _settle(self, server: Server, ticket: Ticket, failure: BaseException | None) -> None:
        """Tell the breaker how a request ended.

        What is neither an answer nor a fault says nothing.
        """
        end: End | None = "answered" if failure is None or isinstance(failure, RpcError) else None
        fault = failure if isinstance(failure, ServerFault) else None
        if fault is not None:
            if fault.counted:
                end = None
            elif fault.kind in OUR_OWN:
                end = "blameless"
            else:
                end = "failed"
            self.errors[server.name] = fault.detail
            self._diagnostics.event(
                "info", "server.failed", server=server.name, kind=fault.kind, detail=fault.detail
            )
        open_before = self.guards.breaker(server.name).open_until_ns
        opened = self.guards.settle(
            server.name, ticket, end, fault.retry_after_s if fault else None
        )
        if open_before != self.guards.breaker(server.name).open_until_ns:
            self._note_change()
        if opened:
            error = self.errors.get(server.name, "")
            self._diagnostics.event(
                "warning", "server.left_alone", server=server.name, last_error=error
            )
            self.pool.retire_server(server.name)

    async def _with_a_retry(
        self, server: Server, method: str, params: dict[str, Any], scope: Scope, deadline: float
    ) -> dict[str, Any]:
        def again_in_s(fault: ServerFault) -> float | None:
            return None if fault.sent or fault.kind in NEVER_AGAIN else self._bounds.restart_s

        return await self._twice(
            lambda: self._request(server, method, params, scope, deadline), again_in_s, deadline
        )

    async def _twice(
        self,
        attempt: Callable[[], Awaitable[T]],
        again_in_s: Callable[[ServerFault], float | None],
        deadline: float,
    ) -> T:
        """Try once more after the seconds that a fault allows, if there is time for a restart."""
        try:
            return await attempt()
        except ServerFault as fault:
            wait_s = again_in_s(fault)
            if wait_s is None or self.loop.time() + self._bounds.restart_s >= deadline:
                raise
        await asyncio.sleep(wait_s)
        return await attempt()

    async def _request(
        self, server: Server, method: str, params: dict[str, Any], scope: Scope, deadline: float
    ) -> dict[str, Any]:
        lease, connection = await self.pool.acquire(server, scope, deadline)
        try:
            if method == "tools/call":
                schema = self._schema_of(server, params["name"], scope)
            else:
                schema = None
            left = deadline - asyncio.get_running_loop().time()
            return await connection.request(method, params, max(left, 0.0), schema, scope.client)
        except ServerFault as fault:
            self._let_go(connection, fault)
            raise
        finally:
            self.pool.release(lease)

    def _schema_of(self, server: Server, tool: str, scope: Scope) -> Mapping[str, Any] | None:
        """Return a tool's schema as it is listed, for the arguments that a modern server also wants
        as headers.
        """
        entry = self.lists.known(server.name, scope.principal)
        return entry.schemas.get(tool) if entry is not None else None

    def _let_go(self, connection: Connection, fault: ServerFault) -> None:
        """Retire a connection that has ended.

        Only one of the calls that ended with it counts against the server.
        """
        if fault.kind == "session_lost" or not connection.alive:
            fault.counted = not self.pool.retire(connection)

    async def _note_unexpected(
        self, server: Server, tool: str, scope: Scope, raw: Mapping[str, Any]
    ) -> None:
        """Report structured content that does not match the tool's output schema.

        The content is kept either way.
        """
        entry = self.lists.known(server.name, scope.principal)
        declared = entry.outputs.get(tool) if entry is not None else None
        structured = raw.get("structuredContent")
        if declared is None or raw.get("isError") is True:
            return
        wrong: Sequence[str] = ("nothing structured",)
        if isinstance(structured, dict | Mapping):
            wrong = self._check(f"{server.name}.{tool} output", declared, structured)
        if wrong:
            self._diagnostics.event(
                "info", "result.unexpected", server=server.name, tool=tool, wrong=wrong[0]
            )

    # --- lists ------------------------------------------------------------------------------------

    async def _pages(
        self, server: Server, scope: Scope, deadline: float
    ) -> tuple[Listing, float | None]:
        if passes(server, "input") and not server.shared:
            scope = replace(scope, client=LISTING)
        lease, connection = await self.pool.acquire(server, scope, deadline)
        try:
            return await read_pages(connection, server.name, self._bounds, scope.client)
        except ServerFault as fault:
            self._let_go(connection, fault)
            raise
        finally:
            self.pool.release(lease)

    async def _read(self, server: Server, scope: Scope) -> tuple[Listing, float | None]:
        bounds = bounds_of(server, self._bounds)
        deadline = self.loop.time() + bounds.connect_s + bounds.list_s

        def again_in_s(fault: ServerFault) -> float | None:
            wait_s = 0.0 if fault.kind == "session_lost" else self._bounds.restart_s
            return wait_s if fault.kind in LIST_AGAIN else None

        pages = partial(self._pages, server, scope, deadline)
        return await self._with_breaker(server, lambda: self._twice(pages, again_in_s, deadline))

    # --- connections ------------------------------------------------------------------------------

    def _connection(self, server: Server, scope: Scope) -> Connection:
        """Return an unopened connection.

        Raises ServerFault if connecting is not permitted; contacts nobody.
        """
        refused_for = wires.refusal(server, development=self._setting.development)
        if refused_for is not None:
            raise refused_for

        def report(level: str, name: str, **fields: object) -> None:
            self._diagnostics.event(level, name, server=server.name, **fields)

        era, capabilities = session_terms(server, scope)
        parts = wires.WireParts(
            self._setting, self._supervisor, self._http_client, self._authorization.flow, report
        )
        try:
            make_transport = wires.WIRES[server.transport](server, scope, parts)
        except OSError as error:  # no descriptor is left for the modules that it needs
            why = error.strerror or type(error).__name__
            raise ServerFault("not_started", f"it can't be started: {why}") from error
        return Connection(
            make_transport,
            bounds_of(server, self._bounds),
            on_change=lambda: self.lists.changed(
                server, None if server.shared else scope.principal
            ),
            probes=self._probes.setdefault(
                server.name, Probes(server.name in self.begun_with_handshake)
            ),
            era=era,
            capabilities=capabilities,
        )

    def _http_client(self, server: str) -> HttpClient:
        client = self._clients.get(server)
        if client is None:
            from bundle_router.adapters.http import HttpBounds, HttpClient

            client = self._clients[server] = HttpClient(HttpBounds(silent_s=None))
        return client

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_S)
            self.pool.close_unused()

    async def close_run(self, run_id: str) -> None:
        """Close the run's connections and subscriptions."""
        await self.following.close_run(run_id)
        await self.pool.close_run(run_id)

    async def close(self) -> None:
        """Close everything. No connection, process or task is left when this returns."""
        self._reaping.cancel()
        await self.following.close()
        await self.lists.close()
        await self.pool.close()
        await self._supervisor.close()
        for client in self._clients.values():
            await client.close()


def _admit_listing(server: Server, listing: Listing) -> Admitted:
    """Admit the listed definitions.

    Raises ServerFault for an error of the config; no list can make it raise.
    """
    try:
        return admit(server, listing.tools, listing.instructions)
    except VolatileError as wrong:
        raise ServerFault("not_permitted", f"its 'volatile' says: {wrong}") from wrong


async def _take_apart(content: Any, read: Callable[[], T]) -> T:
    """Return what `read` makes of an answer with this content, of a large one in a thread."""
    if budget_left(content, _INLINE_CHARS) >= 0:
        return read()
    return await run_in_turn("taken_apart", read)
