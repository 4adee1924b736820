"""The open connections: opened on first need, shared while that is safe, closed when nobody holds them.

Rules:
1. A stdio server's process belongs to one run, unless the operator says that it keeps nothing of who calls it: then all
   runs share `shared` of them, each call on the one that the fewest are at. An HTTP server's connection is everybody's
   of one principal, unless the server gave out a session: that is state, and from then on every run gets its own.
   So does a run whose client can be asked in the middle of a request: it takes the handshake era, and a session that
   says so.
2. Opening is shared: who comes while a connection is being opened waits for it, and giving up waiting ends nothing.
3. A connection that has died is doomed where it is found, and the next who asks gets a new one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from bundle_router.adapters.mcp.connection import Connection
from bundle_router.adapters.mcp.faults import EXCHANGE, RequestState, RpcError, ServerFault
from bundle_router.core.catalog import Server
from bundle_router.core.tools.transport.bounds import Bounds
from bundle_router.core.tools.transport.concurrency import HeldConnection, Leases
from bundle_router.core.tools.transport.tool_servers import Scope
from bundle_router.ports import Clock

Key = tuple[str, str, str, str]
"""Server, principal, run, and what the run's client gives in the middle of its requests (as JSON); or server, nobody,
and the place among the shared processes, which is no run's id."""

CLOSED: Final = "the connections to tool servers were closed"
_TRIES: Final = 4
"""Two for what another call's discovery changed under us, two for a server that drops connections."""


class SessionPool:
    """`make` gives an unopened connection for a server, or raises ServerFault. Everything on one event loop."""

    def __init__(self, make: Callable[[Server, Scope], Connection], bounds: Bounds, clock: Clock) -> None:
        self._make = make
        self._bounds = bounds
        self._clock = clock
        self._leases: Leases[Key] = Leases(idle_s=bounds.idle_s, max_open=bounds.max_open)
        self._opening: dict[int, asyncio.Task[Connection]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._stateful: set[str] = set()
        self._closed = False

    async def acquire(self, server: Server, scope: Scope, deadline: float) -> tuple[HeldConnection[Key], Connection]:
        """Return a live connection, until `release`. `deadline` is on the loop's clock. Raises ServerFault."""
        if self._closed:
            raise ServerFault("closed", CLOSED)
        for _ in range(_TRIES):
            key = self._key(server, scope)
            held, new = self._leases.acquire(key, self._clock.monotonic_ns())
            if new:
                self.close_unused()
                work = asyncio.get_running_loop().create_task(self._open(server, scope, held))
                work.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._opening[held.number] = work
            try:
                connection = await self._wait_opened(held, deadline)
            except BaseException:  # who is interrupted gives the connection back, too
                self.release(held)
                raise
            if connection.alive and (server.shared or held.key == self._key(server, scope)):
                return held, connection
            if not connection.alive:
                self._retire_held(held)
            self.release(held)
        raise ServerFault("connection_lost", "the server ends every connection as soon as it is open")

    async def _wait_opened(self, held: HeldConnection[Key], deadline: float) -> Connection:
        work = self._opening[held.number]
        if not work.done():
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait((work,), timeout=max(left, 0.0))
            if not done:
                raise ServerFault("timeout", "the server was still being connected to")
        if work.cancelled():
            raise ServerFault("closed", CLOSED)
        return work.result()

    async def _open(self, server: Server, scope: Scope, held: HeldConnection[Key]) -> Connection:
        try:
            connection = self._make(server, scope)
            await connection.open(self._bounds.connect_s)
        except BaseException:  # what did not open, for whatever reason, is not lent again
            self._retire_held(held)
            raise
        if connection.stateful and not server.traits.starts_process:
            # Learnt by opening: this one goes to the run it was opened for, and other runs get their own.
            self._stateful.add(server.name)
            self._leases.move(held, self._key(server, scope))
        return connection

    def _key(self, server: Server, scope: Scope) -> Key:
        if server.shared:
            places = [(server.name, "", f"#{number}", "") for number in range(server.shared)]
            return min(places, key=self._leases.load)
        gives = declared_input(server, scope)
        own = server.traits.starts_process or server.name in self._stateful or bool(gives)
        return server.name, scope.principal, scope.run_id if own else "", json.dumps(gives) if gives else ""

    # --- letting go --------------------------------------------------------------------------------------------------

    def retire(self, connection: Connection) -> bool:
        """Nobody gets this one any more. False where that was known already."""
        found = [held for held in self._leases.all() if not held.doomed and self._connection_of(held) is connection]
        for held in found:
            self._retire_held(held)
        return bool(found)

    def retire_server(self, server: str) -> None:
        """Nobody gets any of this server's any more."""
        self._end(self._leases.retire_where(lambda key: key[0] == server))

    def _retire_held(self, held: HeldConnection[Key]) -> None:
        if self._leases.retire(held):
            self._end([held])

    def release(self, held: HeldConnection[Key]) -> None:
        if self._leases.release(held, self._clock.monotonic_ns()):
            self._end([held])

    def close_unused(self) -> None:
        """Close what nobody used for long."""
        self._end(self._leases.idle(self._clock.monotonic_ns()))

    def _end(self, gone: list[HeldConnection[Key]]) -> None:
        for held in gone:
            work = self._opening.pop(held.number, None)
            if work is not None:
                task = asyncio.get_running_loop().create_task(_end(work))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def close_run(self, run_id: str) -> None:
        """End what belongs to the run, once its last call has ended. Return when it is gone."""
        if run_id:
            self._end(self._leases.retire_where(lambda key: key[2] == run_id))
        await self._wait_settled()

    async def close(self) -> None:
        """End everything, calls in progress included."""
        self._closed = True
        self._leases.retire_where(lambda key: True)
        for number in list(self._opening):
            work = self._opening.pop(number)
            self._closing.add(asyncio.get_running_loop().create_task(_end(work)))
        await self._wait_settled()

    async def _wait_settled(self) -> None:
        while self._closing:
            done, self._closing = self._closing, set()
            await asyncio.gather(*done, return_exceptions=True)

    def open_connections(self, server: str) -> list[Connection]:
        """Return the live ones, for people to look at."""
        found = [self._connection_of(held) for held in self._leases.all() if held.key[0] == server]
        return [connection for connection in found if connection is not None and connection.alive]

    def _connection_of(self, held: HeldConnection[Key]) -> Connection | None:
        work = self._opening.get(held.number)
        if work is None or not work.done() or work.cancelled() or work.exception() is not None:
            return None
        return work.result()


def declared_input(server: Server, scope: Scope) -> Mapping[str, Any]:
    """Return what the client of a request gives in its middle, where the server is to know."""
    if scope.client is None or server.era == "modern" or server.shared:
        return {}
    return scope.client.gives


async def _end(work: asyncio.Task[Connection]) -> None:
    if not work.done():
        work.cancel()
        await asyncio.wait((work,))
    if not work.cancelled() and work.exception() is None:
        await work.result().close()


# --- resources that are followed --------------------------------------------------------------------------------------
# A resource that somebody wants to know the changes of has a task, which holds a connection and listens on it.
# 1. What is entered in a task is left in it (see `connection`): the task leases, subscribes, listens, and ends it all.
# 2. A connection that ends is made again after a while; what may have changed meanwhile counts as changed.
# 3. Nobody's wish outlives its run, or the sessions.


AGAIN_S = 30.0
Updated = Callable[[], None]


class ResourceSubscriptions:
    """Everything on one event loop."""

    def __init__(self, pool: SessionPool, bounds: Bounds) -> None:
        self._pool = pool
        self._bounds = bounds
        self._tasks: dict[asyncio.Task[None], str] = {}

    async def begin(self, server: Server, scope: Scope, uri: str, updated: Updated) -> Callable[[], None]:
        """Return, once the server has agreed, what ends it (on this loop). Raises ServerFault, RpcError."""
        agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.get_running_loop().create_task(self._follow(server, scope, uri, updated, agreed))
        self._tasks[task] = scope.run_id
        task.add_done_callback(lambda done: self._tasks.pop(done, None) is None or done.cancelled() or done.exception())
        try:
            await asyncio.wait((task, agreed), return_when=asyncio.FIRST_COMPLETED)
            if not agreed.done():
                task.result()
                raise ServerFault("closed", "it was ended before the server agreed")

            def end() -> None:
                task.cancel()

            return end
        except BaseException:  # who is interrupted leaves nobody following, too
            task.cancel()
            raise

    async def _follow(
        self, server: Server, scope: Scope, uri: str, updated: Updated, agreed: asyncio.Future[None]
    ) -> None:
        EXCHANGE.set(RequestState(many=True))
        loop = asyncio.get_running_loop()

        def begun() -> None:
            if agreed.done():
                updated()
            else:
                agreed.set_result(None)

        while True:
            try:
                held, connection = await self._pool.acquire(server, scope, loop.time() + self._bounds.connect_s)
                try:
                    await connection.follow(uri, updated, begun)
                finally:
                    self._pool.release(held)
            except (ServerFault, RpcError):
                if not agreed.done():
                    raise
            await asyncio.sleep(AGAIN_S)

    async def close_run(self, run_id: str) -> None:
        """End what was begun for the run."""
        await self._end([task for task, owner in self._tasks.items() if owner == run_id])

    async def close(self) -> None:
        await self._end(list(self._tasks))

    @staticmethod
    async def _end(tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
