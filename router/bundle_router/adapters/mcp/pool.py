"""The open connections: opened on first use, shared where that is safe, closed when unused.

Rules:
1. A stdio server's process belongs to one run. If the operator declares that it keeps no caller's
   state, all runs share `shared` processes, and each call takes the least loaded. All runs of a
   principal share an HTTP server's connection, unless the server issues a session: a session is
   state, so then every run gets its own connection. So does a run whose client accepts input
   requests: it uses the handshake era, with a session that declares them. A server that passes
   `input` is listed on a connection that declares them all, since its list may depend on them.
2. Concurrent callers wait for one opening. A caller that stops waiting does not end it.
3. A dead connection is retired when it is found; the next caller gets a new one.
4. A run that is closed keeps its own connections until the calls that hold them have ended. One
   that a later call opens is that call's alone and ends with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from bundle_router.adapters.mcp.connection import Connection
from bundle_router.adapters.mcp.faults import RpcError, ServerFault
from bundle_router.core.catalog import Era, Server
from bundle_router.core.servers.transport.bounds import Bounds, bounds_of
from bundle_router.core.servers.transport.concurrency import HeldConnection, Leases
from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.ports import Clock

Key = tuple[str, str, str, str]
"""Server, principal, run, and the era with the declared input capabilities (JSON).

Of a shared process: server, "", and its number (`#0`), which is no run's id.
"""

CLOSED: Final = "the connections to tool servers were closed"
_TRIES: Final = 4
"""Attempts to get a connection: two for a key that changed meanwhile, two for a server that drops
connections.
"""


class SessionPool:
    """The connections.

    `make` returns an unopened one for a server, or raises ServerFault. All on one event loop.
    """

    def __init__(
        self,
        make: Callable[[Server, Scope], Connection],
        bounds: Bounds,
        clock: Clock,
    ) -> None:
        self._make = make
        self._bounds = bounds
        self._clock = clock
        self.closed_runs: Container[str] = ()
        self._leases: Leases[Key] = Leases(idle_s=bounds.idle_s, max_open=bounds.max_open)
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._stateful: set[str] = set()
        self._closed = False

    async def acquire(
        self, server: Server, scope: Scope, deadline: float
    ) -> tuple[HeldConnection[Key], Connection]:
        """Return a live connection, held until `release`.

        `deadline` is on the loop's clock. Raises ServerFault.
        """
        if self._closed:
            raise ServerFault("closed", CLOSED)
        for _ in range(_TRIES):
            key = self._key(server, scope)
            lease, new = self._leases.acquire(key, self._clock.monotonic_ns())
            if new:
                self.close_unused()
                work = asyncio.get_running_loop().create_task(self._open(server, scope, lease))
                work.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._opening[lease.number] = work
            self._retire_if_closed(lease)
            try:
                connection = await self._wait_opened(lease, deadline)
            except BaseException:  # an interrupted caller must release the connection too
                self.release(lease)
                raise
            if connection.alive and (server.shared or lease.key == self._key(server, scope)):
                self._retire_if_closed(
                    lease
                )  # by now, or as it is known only now to be the run's own
                return lease, connection
            if not connection.alive:
                self._retire_held(lease)
            self.release(lease)
        raise ServerFault(
            "connection_lost", "the server ends every connection as soon as it is open"
        )

    async def _wait_opened(self, lease: HeldConnection[Key], deadline: float) -> Connection:
        work = self._opening[lease.number]
        if not work.done():
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait((work,), timeout=max(left, 0.0))
            if not done:
                raise ServerFault("timeout", "the connection to the server was not ready in time")
        if work.cancelled():
            raise ServerFault("closed", CLOSED)
        return work.result()

    async def _open(self, server: Server, scope: Scope, lease: HeldConnection[Key]) -> Connection:
        try:
            connection = self._make(server, scope)
            await connection.open(bounds_of(server, self._bounds).connect_s)
        except (
            BaseException
        ):  # a connection that did not open, for whatever reason, is not lent again
            self._retire_held(lease)
            raise
        if connection.stateful and not server.traits.starts_process:
            # Known only after opening: this connection goes to its run, and other runs get their
            # own.
            self._stateful.add(server.name)
            self._leases.move(lease, self._key(server, scope))
        return connection

    def _key(self, server: Server, scope: Scope) -> Key:
        if server.shared:
            places = [(server.name, "", f"#{number}", "") for number in range(server.shared)]
            return min(places, key=self._leases.load)

        era, capabilities = session_terms(server, scope)
        terms = ""
        if capabilities:
            terms = json.dumps((era, capabilities))
        is_of_run = server.traits.starts_process or server.name in self._stateful
        if capabilities and scope.client is not LISTING:
            is_of_run = True
        run_id = ""
        if is_of_run:
            run_id = scope.run_id
        return (server.name, scope.principal, run_id, terms)

    # --- letting go -------------------------------------------------------------------------------

    def retire(self, connection: Connection) -> bool:
        """Lend this connection no more. Return whether it was still being lent."""
        found = [
            lease
            for lease in self._leases.all()
            if not lease.doomed and self._connection_of(lease) is connection
        ]
        for lease in found:
            self._retire_held(lease)
        return bool(found)

    def retire_server(self, server: str) -> None:
        """Lend no connection of this server any more."""
        self._retire_where(lambda key: key[0] == server)

    def _retire_where(self, wanted: Callable[[Key], bool]) -> None:
        self._end(self._leases.retire_where(wanted))

    def _retire_held(self, lease: HeldConnection[Key]) -> None:
        if self._leases.retire(lease):
            self._end([lease])

    def _retire_if_closed(self, lease: HeldConnection[Key]) -> None:
        if lease.key[2] in self.closed_runs:
            self._retire_held(lease)

    def release(self, lease: HeldConnection[Key]) -> None:
        if self._leases.release(lease, self._clock.monotonic_ns()):
            self._end([lease])

    def close_unused(self) -> None:
        """Close the connections that have been idle for too long."""
        self._end(self._leases.idle(self._clock.monotonic_ns()))

    def _end(self, ended: list[HeldConnection[Key]]) -> None:
        for lease in ended:
            work = self._opening.pop(lease.number, None)
            if work is not None:
                task = asyncio.get_running_loop().create_task(_end(work))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def close_run(self, run_id: str) -> None:
        """Close the run's connections, each after its last call, and wait until those that no call
        holds are closed.
        """
        if run_id:
            self._retire_where(lambda key: key[2] == run_id)
        await self._wait_settled()

    async def close(self) -> None:
        """Close all connections, including those with calls in progress."""
        self._closed = True
        self._leases.retire_where(lambda key: True)
        while self._opening:
            self._closing.add(
                asyncio.get_running_loop().create_task(_end(self._opening.popitem()[1]))
            )
        await self._wait_settled()

    async def _wait_settled(self) -> None:
        while self._closing:
            done = self._closing
            self._closing = set()
            await asyncio.gather(*done, return_exceptions=True)

    def open_connections(self, server: str) -> list[Connection]:
        """Return the live connections of a server, for status output."""
        found = [
            self._connection_of(lease) for lease in self._leases.all() if lease.key[0] == server
        ]
        return [connection for connection in found if connection is not None and connection.alive]

    def _connection_of(self, lease: HeldConnection[Key]) -> Connection | None:
        work = self._opening.get(lease.number)
        if work is None or not work.done() or work.cancelled() or work.exception() is not None:
            return None
        return work.result()


LISTING: Final = Client(
    capabilities={"elicitation": {"form": {}, "url": {}}, "roots": {}, "sampling": {}}
)
"""Stands for the clients of a server that passes `input`, where it is listed.

It answers nothing.
"""


def session_terms(server: Server, scope: Scope) -> tuple[Era, Mapping[str, Any]]:
    """Return the era of a session, and the input capabilities that the server must be told when it
    is opened.
    """
    if scope.client is LISTING:
        return server.era, LISTING.capabilities
    if scope.client is None or not scope.client.input_capabilities:
        return server.era, {}
    if server.era == "modern" or server.shared:
        return server.era, {}
    return "handshake", scope.client.input_capabilities


async def _end(work: asyncio.Task[Connection]) -> None:
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled() and work.exception() is None:
        await work.result().close()


# --- subscriptions to resources -------------------------------------------------------------------
# Each subscription is a task, which holds a connection and listens on it.
# 1. The task acquires, subscribes, and closes.
# 2. A connection that ends is opened again after `AGAIN_S`; the resource then counts as changed.
# 3. No subscription outlives its run, or the sessions.


AGAIN_S = 30.0
Updated = Callable[[], None]


class ResourceSubscriptions:
    """Subscriptions to changes of resources. All on one event loop."""

    def __init__(self, pool: SessionPool, bounds: Bounds) -> None:
        self._pool = pool
        self._bounds = bounds
        self._tasks: dict[asyncio.Task[None], str] = {}

    async def begin(
        self, server: Server, scope: Scope, uri: str, updated: Updated
    ) -> Callable[[], object]:
        """Subscribe; return the function that ends it, on this loop.

        Raises ServerFault, RpcError.
        """
        if scope.run_id in self._pool.closed_runs:
            raise ServerFault("closed", "the run was closed")
        agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(
            self._follow(server, scope, uri, updated, agreed)
        )
        self._tasks[task] = scope.run_id
        task.add_done_callback(
            lambda done: self._tasks.pop(done, None) is None or done.cancelled() or done.exception()
        )
        try:
            await asyncio.wait((task, agreed), return_when=asyncio.FIRST_COMPLETED)
            if not agreed.done():
                task.result()
                raise ServerFault("closed", "the subscription ended before the server confirmed it")
            return task.cancel
        except BaseException:  # an interrupted caller must leave no subscription behind either
            task.cancel()
            raise

    async def _follow(
        self, server: Server, scope: Scope, uri: str, updated: Updated, agreed: asyncio.Future[None]
    ) -> None:
        loop = asyncio.get_running_loop()

        def begun() -> None:
            if agreed.done():
                updated()
            else:
                agreed.set_result(None)

        while True:
            try:
                lease, connection = await self._pool.acquire(
                    server, scope, loop.time() + bounds_of(server, self._bounds).connect_s
                )
                try:
                    await connection.follow(uri, updated, begun)
                finally:
                    self._pool.release(lease)
            except (ServerFault, RpcError):
                if not agreed.done():
                    raise
            await asyncio.sleep(AGAIN_S)

    async def close_run(self, run_id: str) -> None:
        """End the run's subscriptions."""
        await self._end([task for task, owner in self._tasks.items() if owner == run_id])

    async def close(self) -> None:
        await self._end(list(self._tasks))

    @staticmethod
    async def _end(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
