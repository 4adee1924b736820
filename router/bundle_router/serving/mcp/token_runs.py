"""The runs that tokens have of their own, which agents are served at `/mcp`: no engine routes steps of these.

Rules:
1. A token has one run, whatever sessions it has, begun with its first request. It stands where the token does: workflow
   `mcp`, step `session`, the token's role, its principal. Policy and routes for that say what it is given; where no
   route does, all that policy permits waits behind the router's own tools.
2. It is routed again where the config or what servers can do is no longer what it was decided on.
3. Once it was closed, as idle runs are, the next request begins another; a session that is open goes on with it.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import UTC, datetime

from bundle_router.core.models import Step
from bundle_router.serving.keys import Caller
from bundle_router.serving.mcp.served_runs import ServedRun, ServedRuns
from bundle_router.wiring.endpoint_access import EndpointAccess


class TokenRuns:
    """The runs by whom they are for. Belongs to one event loop."""

    def __init__(self, access: EndpointAccess, served: ServedRuns) -> None:
        self._access = access
        self._served = served
        self._runs: dict[Caller, str] = {}
        self._lock = asyncio.Lock()

    async def get(self, caller: Caller) -> ServedRun:
        """Return the token's run, served. Raises RequestError, StorageError and what routing raises besides."""
        if not await self._is_current(self._runs.get(caller)):
            async with self._lock:
                run_id = self._runs.get(caller)
                if not await self._is_current(run_id):
                    await self._route(caller, run_id)
        return await self._served.get(self._runs[caller])

    async def _is_current(self, run_id: str | None) -> bool:
        return run_id is not None and self._access.is_open(run_id) and await self._access.is_current(run_id)

    async def _route(self, caller: Caller, run_id: str | None) -> None:
        if run_id is None or not (self._access.is_open(run_id) or self._served.is_used(run_id)):
            self._runs = {other: id_ for other, id_ in self._runs.items() if self._access.is_open(id_)}
            run_id = f"mcp-{caller.name.replace('@', '-')}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        place = {"workflow": "mcp", "role": caller.role or caller.name, "step": "session"}
        await self._access.offer(Step(run_id=run_id, principal=caller.principal, fixed_list=True, **place))
        self._runs[caller] = run_id
