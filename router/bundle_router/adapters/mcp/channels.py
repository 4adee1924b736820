"""HTTP/1.1 connections of our own, and the one place that knows `httptools`: a request out, its response in.

Measured against one server that answers at once, CPU a request: httpx2 1.0 ms, aiohttp 0.15 to 0.24, asyncio with h11
0.12, asyncio with httptools 0.03; and httptools is imported in a hundredth of aiohttp's time.

Rules:
1. A channel carries one request at a time, and is kept for the next only after a whole response. What comes unasked
   closes it, and so does a response that the other side does not end where it said it would.
2. A request leaves in one piece. A channel that was closed meanwhile is never written to: nothing was sent on it. One
   that is lost later may have been heard, and is not tried again.
3. Heads are bounded here, bodies by who reads them. Nothing is followed, decoded or retried.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import httptools

from bundle_router.adapters.mcp.faults import ServerFault

CONNECT_S: Final = 10.0
KEEP_S: Final = 4.0
"""How long an unused TCP connection is kept: less than the 5 s after which common servers close theirs, as a request
sent into a connection that is being closed may or may not have been carried out."""
MAX_HEAD_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Read from a connection at a time: asyncio's own 256 KiB from each of 50 take a loop 20 ms a turn."""
EAGER_S: Final = 0.25
"""How long one address of a host may take before the next is tried beside it."""

Headers = dict[bytes, bytes]
"""Names in lower case; the last value of one that stands there twice."""


class Response(Protocol):
    """Who reads a response. What is raised as a ServerFault ends the request and closes the channel."""

    done: bool
    """Whether nothing more of the body is wanted."""
    end: Callable[[ServerFault], None]  # set when the request is sent: what ends it with a fault

    def head(self, status: int, headers: Headers) -> None: ...

    def body(self, piece: bytes) -> None: ...


class Channel(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(PIECE_BYTES))
        self.used_at = 0.0
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._response: Response | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, response: Response) -> None:
        """Send a whole request and have its response read. Raises ServerFault."""
        if self._transport is None or self._transport.is_closing():
            raise ServerFault("unreachable", "the server closed the connection before anything was sent")
        self.reusable = False
        self._begin(response)
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            self._waiter = self._response = None
            if not self.reusable:
                self.close()

    def _begin(self, response: Response) -> None:
        self._response = response
        response.end = self._end
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = {}
        self._head_bytes = 0
        self._status = 0

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's derives from nothing of asyncio's

    def get_buffer(self, _size: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        if self._response is None:
            self.close()
            return
        try:
            self._parser.feed_data(self._buffer[:size])
        except httptools.HttpParserCallbackError as error:
            fault = error.__context__
            self._end(fault if isinstance(fault, ServerFault) else _garbled_fault())
        except httptools.HttpParserError:
            self._end(_garbled_fault())
        else:
            if self._response is not None and self._response.done:
                self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is None:
            return
        framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if self._status and not framed and error is None:
            self._end(None)  # a body without a length ends with its connection
        else:
            self._end(ServerFault("connection_lost", "the connection to the server was lost", sent=True))

    def _end(self, fault: ServerFault | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if fault is not None:
                self.reusable = False
                self._waiter.set_exception(fault)
            else:
                self._waiter.set_result(None)

    # --- httptools ---------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is None:  # a second response that nobody asked for
            self.reusable = False
            raise _garbled_fault()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ServerFault("too_large", f"the server's head has over {MAX_HEAD_BYTES:,} bytes", sent=True)
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._response is not None:
            self._status = status
            self._response.head(status, self._headers)

    def on_body(self, body: bytes) -> None:
        if self._response is not None and not self._response.done:
            self._response.body(body)

    def on_message_complete(self) -> None:
        if not self._status:  # an interim response
            self._headers, self._head_bytes = {}, 0
            return
        self.reusable = self._parser.should_keep_alive()
        self._response = None
        self._end(None)


def _garbled_fault() -> ServerFault:
    return ServerFault("connection_lost", "the connection to the server was lost (no HTTP came)", sent=True)


class ChannelPool:
    """The channels to one server. At most `keep` idle ones are kept; the caller closes."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, keep: int) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._keep = keep
        self._closed = False
        self._idle: list[Channel] = []

    async def exchange(self, request: bytes, response: Response) -> None:
        """Send a request over an idle channel or a new one. Raises ServerFault."""
        loop = asyncio.get_running_loop()
        channel = self._take_kept_channel(loop.time()) or await self._open_channel(loop)
        try:
            await channel.exchange(request, response)
        finally:
            if channel.reusable and channel.is_open and len(self._idle) < self._keep:
                channel.used_at = loop.time()
                self._idle.append(channel)
            else:
                channel.close()

    def _take_kept_channel(self, now: float) -> Channel | None:
        """Return the channel that was used last, if it still stands. The others are the older ones."""
        while self._idle:
            channel = self._idle.pop()
            if channel.is_open and now - channel.used_at < KEEP_S:
                return channel
            channel.close()
        return None

    async def _open_channel(self, loop: asyncio.AbstractEventLoop) -> Channel:
        name = self._host if self._context is not None else None
        is_plain = isinstance(loop, asyncio.BaseEventLoop)  # uvloop tries one address after the other
        eager: dict[str, Any] = {"happy_eyeballs_delay": EAGER_S} if is_plain else {}
        try:
            async with asyncio.timeout(CONNECT_S):
                _, channel = await loop.create_connection(
                    Channel, self._host, self._port, ssl=self._context, server_hostname=name, **eager
                )
        except (OSError, ValueError) as error:  # a TimeoutError is an OSError; a ValueError: a name that can be none
            raise ServerFault("unreachable", f"the server can't be reached ({type(error).__name__})") from error
        if self._closed:
            channel.close()
            raise ServerFault("closed", "the connections to tool servers were closed")
        return channel

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()
