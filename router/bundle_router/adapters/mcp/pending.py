"""The requests of one connection whose answers all come on one stream (stdio, HTTP+SSE).

An error whose id is null is about a message of ours that the server could not read (JSON-RPC 2.0,
section 5). Rules:
1. It ends the one request that waits: it can be about no other.
2. Where several wait, it ends none, as it would be another's failure for all but one. It is
   reported, and each that then gets no answer says it with its own failure.
3. "No such method" is taken so for a request that opens the connection only. Later it is about a
   notification, to which a server should answer nothing.
4. A result whose id is null is reported, and ends nothing: some servers send one for a
   notification.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

from bundle_router.adapters.mcp.exchange import (
    Outgoing,
    Patience,
    Session,
    garbled_fault,
    oversized_fault,
)
from bundle_router.adapters.mcp.faults import NOTHING_DONE, RpcError, ServerFault
from bundle_router.core.servers.reader import (
    Answer,
    Event,
    Notification,
    OversizedAnswer,
    RequestId,
    RpcRefusal,
    RpcResult,
    ServerRequest,
)

MAX_UNANSWERED: Final = 64
"""Requests of a server that are answered at a time.

Then it is read no further: one that does not read its answers would fill the memory with them.
"""
MAX_WORDS: Final = 500
"""Characters of an error that named no request which are kept."""
REPORT_S: Final = 1.0
"""Seconds between two reports of answers that named no request."""
_NO_METHOD: Final = -32601
_OPENING: Final = ("server/discover", "initialize")

Report = Callable[..., None]
"""Reports to the operator: `report(level, name, **fields)`."""


class ReplyWriter(Protocol):
    """What sends our answers to a server's requests."""

    async def write_reply(self, reply: bytes) -> None:
        """Send an answer, and wait until the server has taken it. Never raises ServerFault."""


class PendingRequests:
    """Who waits for which answer. On one event loop.

    An answer to nobody's request is dropped: its caller has given up.
    """

    def __init__(self, session: Session, report: Report) -> None:
        self._session = session
        self._report = report
        self._reported_at = -REPORT_S
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
        if isinstance(event, Answer):
            return self._settle(event)
        if isinstance(event, Notification):
            self._session.notified(event, None)
        elif isinstance(event, ServerRequest):
            await self._room.acquire()
            task = asyncio.get_running_loop().create_task(self._answer(event, transport))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        return False

    def _settle(self, event: Answer) -> bool:
        number = event.id
        if number is None:
            number = self._meant_request(event)
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
        elif isinstance(event, OversizedAnswer):
            result.set_exception(oversized_fault(event))
        else:
            result.set_exception(garbled_fault())
        return True

    def _meant_request(self, event: Answer) -> RequestId | None:
        """Return the request that an answer without an id is about; None if that is uncertain."""
        error = ""
        if isinstance(event, RpcRefusal):
            requests = [request for request, _ in self._waiting.values()]
            if len(requests) == 1 and (event.code != _NO_METHOD or requests[0].method in _OPENING):
                return requests[0].number
            error = event.message
            if len(error) > MAX_WORDS:
                error = error[:MAX_WORDS] + " […]"
            for request in requests:
                request.unnamed_error = error
        now = asyncio.get_running_loop().time()
        if now - self._reported_at >= REPORT_S:
            self._reported_at = now
            waiting = len(self._waiting)
            self._report("warning", "server.unnamed_answer", error=error, waiting=waiting)
        return None

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
        for request, result in waiting:
            if not result.done():
                unnamed = request.unnamed_error
                failure = ServerFault(fault.kind, fault.detail, sent=sent, unnamed=unnamed)
                result.set_exception(failure)

    async def close(self) -> None:
        """End the answers to the server that are being made."""
        answering = list(self._answering)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
