"""The deprecated HTTP+SSE transport: one stream for all that the server says, a POST for each
message to it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin

from bundle_router.adapters.http import HttpError, HttpResponse, origin_of
from bundle_router.adapters.mcp.exchange import CANCELLED, Outgoing, Session, message, next_event
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.pending import PendingRequests, Report
from bundle_router.adapters.mcp.streamable import (
    EVENTS,
    HttpSender,
    fault_for,
    fault_of,
    read_cut,
    says_session_lost,
)
from bundle_router.core.servers.reader import (
    EndpointAddress,
    EventFrames,
    FrameTooLarge,
    ServerReader,
)
from bundle_router.core.servers.reader.error_body import error_words
from bundle_router.core.servers.transport.bounds import Bounds

if TYPE_CHECKING:
    from bundle_router.core.servers.reader.agreement import Agreement

_ENDLESS: Final = 2**62
_COURTESY_S: Final = 2.0


class LegacySse:
    """One server over HTTP+SSE (a `Transport`)."""

    first_number = 1
    pid = 0
    silence_s = 10.0
    stateful = False

    def __init__(self, sender: HttpSender, bounds: Bounds, report: Report) -> None:
        self._sender = sender
        self._report = report
        self._bounds = bounds
        self._reading: asyncio.Task[None] | None = None
        self._pending: PendingRequests | None = None
        self._behind: set[asyncio.Task[None]] = set()
        self._endpoint: asyncio.Future[str] | None = None
        self.fault: ServerFault | None = None

    async def open(self, session: Session) -> None:
        """Open the stream, and wait until the server has named the address for requests."""
        loop = asyncio.get_running_loop()
        response = await self._sender.send("GET", self._sender.url, {"accept": EVENTS})
        if response.status != 200 or response.media_type != EVENTS:
            fault = fault_for(response)
            response.close()
            raise fault
        self._pending = PendingRequests(session, self._report)
        self._endpoint = loop.create_future()
        self._reading = loop.create_task(self._read(response, self._pending))
        await asyncio.wait((self._endpoint, self._reading), return_when=asyncio.FIRST_COMPLETED)
        if not self._endpoint.done():
            raise self.fault or ServerFault("connection_lost", "the server ended the stream")

    def agreed(self, agreement: Agreement) -> None:
        """Do nothing: this transport has one era."""

    async def exchange(self, request: Outgoing) -> dict[str, Any]:
        pending = self._opened()
        result = pending.add(request)
        try:
            await self._post(request.body)
            return await result
        finally:
            if pending.discard(request) and request.cancels and self.fault is None:
                params = {"requestId": request.number, "reason": "caller cancelled"}
                self._post_behind(message(CANCELLED, params))

    async def notify(self, message: bytes) -> None:
        await self._post(message)

    async def write_reply(self, reply: bytes) -> None:
        with suppress(ServerFault):
            await self._post(reply)

    async def _post(self, body: bytes) -> None:
        if self._endpoint is None or not self._endpoint.done():
            raise ServerFault("closed", "the connection is not open")
        headers = {"content-type": "application/json"}
        response = await self._sender.send("POST", self._endpoint.result(), headers, body)
        try:
            if response.status >= 300:
                await self._raise_refusal(response)
        finally:
            response.close()

    async def _raise_refusal(self, response: HttpResponse) -> None:
        """Raise what an error status means: the address for requests is this session's own."""
        body = await read_cut(response)
        words = error_words(body)
        if says_session_lost(response.status, body, words):
            raise ServerFault("session_lost", "the server has forgotten the session")
        raise fault_for(response, words)

    def _post_behind(self, body: bytes) -> None:
        async def bounded() -> None:
            with suppress(ServerFault, TimeoutError):
                async with asyncio.timeout(_COURTESY_S):
                    await self._post(body)

        task = asyncio.get_running_loop().create_task(bounded())
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)

    def _opened(self) -> PendingRequests:
        if self._pending is None:
            raise ServerFault("closed", "the connection is not open")
        return self._pending

    # --- what the server sends --------------------------------------------------------------------

    async def _read(self, response: HttpResponse, pending: PendingRequests) -> None:
        try:
            await self._read_events(response, pending)
            self.fault = ServerFault("connection_lost", "the server ended the stream")
        except FrameTooLarge as error:
            self.fault = ServerFault("too_large", f"the server sent {error}")
        except HttpError as error:
            self.fault = fault_of(error)
        except ServerFault as fault:
            self.fault = fault
        finally:
            response.close()
            pending.end(self.fault or ServerFault("closed", "the connection was closed"))

    async def _read_events(self, response: HttpResponse, pending: PendingRequests) -> None:
        reader = ServerReader(
            EventFrames(self._bounds.max_frame_bytes), self._bounds.max_message_bytes
        )
        async for piece in response.pieces(_ENDLESS):
            reader.receive_data(piece)
            while reader.next_size:
                event = await next_event(reader, pending.patience)
                if isinstance(event, EndpointAddress):
                    self._take_endpoint(event.address)
                else:
                    await pending.take(event, self)

    def _take_endpoint(self, address: str) -> None:
        """Note the address for requests. Raises ServerFault for one of another origin."""
        url = urljoin(self._sender.url, address)
        try:
            is_same = origin_of(url) == origin_of(self._sender.url)
        except ValueError:
            is_same = False
        if not is_same:
            raise ServerFault("protocol_error", "the server names an address of another origin")
        if self._endpoint is not None and not self._endpoint.done():
            self._endpoint.set_result(url)

    async def wait_ended(self) -> None:
        if self._reading is not None:
            await asyncio.wait((self._reading,))

    async def close(self) -> None:
        tasks = [*self._behind]
        if self._reading is not None:
            tasks.append(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._pending is not None:
            await self._pending.close()
        await self._sender.close()
