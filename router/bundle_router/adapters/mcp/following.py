"""Resources that somebody wants to know the changes of: for each a task, which holds a connection and listens on it.

Rules:
1. What is entered in a task is left in it (see `connection`): the task leases, subscribes, listens, and ends all of it.
2. A connection that ends is made again after a while; what may have changed meanwhile counts as changed.
3. Nobody's wish outlives its run, or the sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bundle_router.adapters.mcp.faults import EXCHANGE, RequestState, RpcError, ServerFault
from bundle_router.adapters.mcp.pool import SessionPool
from bundle_router.core.catalog import Server
from bundle_router.core.tools.transport.bounds import Bounds
from bundle_router.core.tools.transport.tool_servers import Scope

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
                async with self._pool.lease(server, scope, loop.time() + self._bounds.connect_s) as connection:
                    await connection.follow(uri, updated, begun)
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
