"""One request to a server, as the layers above and below the SDK share it: what went wrong, and how to break it off.

The SDK carries the sender's context through to the task that does the sending, so the variable below is seen by the
HTTP transport when it carries out exactly that request (and when it reconnects for it).
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import anyio

from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.core.tools.transport.pass_through import Client

T = TypeVar("T")


class Aborted(Exception):
    """The request was broken off from our side."""


@dataclass(slots=True)
class RequestState:
    """What the transport found out about a request. `abort` ends whatever the transport is waiting for, for good.

    It stands for one request (`taken` once that is under way): what is sent in its context after it, such as the notice
    that it was cancelled, is not part of it. `many`: for a connection that is being made, which is several requests.
    `client`: the agent's own, which hears of what the server says meanwhile.
    """

    fault: ServerFault | None = None
    aborted: bool = False
    taken: bool = False
    many: bool = False
    client: Client | None = None
    _scope: anyio.CancelScope | None = None

    async def guarded(self, work: Awaitable[T]) -> T:
        """Awaits, unless and until the exchange is aborted. Raises Aborted."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            if self.aborted:
                scope.cancel()
            try:
                return await work
            finally:
                self._scope = None
        raise Aborted

    def abort(self) -> None:
        self.aborted = True
        if self._scope is not None:
            self._scope.cancel()


EXCHANGE: ContextVar[RequestState | None] = ContextVar("bundle_router_exchange", default=None)
