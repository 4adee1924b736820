"""The requests of one connection whose answers all come on one stream (stdio, HTTP+SSE)."""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from bundle_router.adapters.mcp.exchange import (
    Outgoing,
    Patience,
    Session,
    garbled_fault,
)
from bundle_router.adapters.mcp.faults import NOTHING_DONE, RpcError, ServerFault
from bundle_router.core.servers.reader import (
    Event,
    GarbledAnswer,
    Notification,
    RequestId,
    RpcRefusal,
    RpcResult,
    ServerRequest,
)

MAX_UNANSWERED: Final = 64
"""Requests of a server that are answered at a time.

Then it is read no further: one that does not read its answers would fill the memory with them.
"""


class ReplyWriter(Protocol):
    """What sends our answers to a server's requests."""

    async def write_reply(self, reply: bytes) -> None:
        """Send an answer, and wait until the server has taken it. Never raises ServerFault."""


class PendingRequests:
    """Who waits for which answer. On one event loop.

    An answer to nobody's request is dropped: its caller has given up.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[RequestId, tuple[Outgoing, asyncio.Future[dict[str, Any]]]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_UNANSWERED)
        self._fault: ServerFault | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def patience(self) -> tuple[Patience, ...]:
        """The clocks of the requests that wait."""
        asked = (request for request, _ in self._waiting.values())
        return tuple(request.patience for request in asked if request.patience is not None)

    def add(self, request: Outgoing) -> asyncio.Future[dict[str, Any]]:
        """Return the future of a request's result. Raises ServerFault if the stream has ended."""
        if self._fault is not None:
            raise ServerFault(self._fault.kind, self._fault.detail)
        result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[request.number] = (request, result)
        return result

    def discard(self, request: Outgoing) -> bool:
        """Forget a request. Return whether its answer had not come."""
        return self._waiting.pop(request.number, None) is not None

    async def take(self, event: Event, transport: ReplyWriter) -> bool:
        """Give an event to whom it concerns. Return whether it ended a request.

        Waits while the server has too many unanswered requests of its own.
        """
        if isinstance(event, RpcResult | RpcRefusal | GarbledAnswer):
            return self._settle(event)
        if isinstance(event, Notification):
            self._session.notified(event, None)
        elif isinstance(event, ServerRequest):
            await self._room.acquire()
            task = asyncio.get_running_loop().create_task(self._answer(event, transport))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        return False

    def _settle(self, event: RpcResult | RpcRefusal | GarbledAnswer) -> bool:
        number = event.id
        if number is None and isinstance(event, RpcRefusal) and len(self._waiting) == 1:
            number = next(iter(self._waiting))  # it can be about nothing else
        found = self._waiting.pop(number, None) if number is not None else None
        if found is None:
            return False
        result = found[1]
        if result.done():
            return True
        if isinstance(event, RpcResult):
            result.set_result(event.result)
        elif isinstance(event, RpcRefusal):
            result.set_exception(RpcError(event.code, event.message, event.data))
        else:
            result.set_exception(garbled_fault())
        return True

    async def _answer(self, question: ServerRequest, transport: ReplyWriter) -> None:
        try:
            await transport.write_reply(await self._session.asked(question, None))
        finally:
            self._room.release()

    def end(self, fault: ServerFault) -> None:
        """Fail the requests in progress, and later ones, with a fault."""
        self._fault = fault
        sent = fault.kind not in NOTHING_DONE
        waiting = list(self._waiting.values())
        self._waiting.clear()
        for _, result in waiting:
            if not result.done():
                result.set_exception(ServerFault(fault.kind, fault.detail, sent=sent))

    async def close(self) -> None:
        """End the answers to the server that are being made."""
        answering = list(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
