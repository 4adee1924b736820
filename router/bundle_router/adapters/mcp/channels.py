"""HTTP/1.1 connections of our own; the only module that knows `httptools`.

CPU per request, measured against one server that answers at once: httpx2 1.0 ms, aiohttp 0.15 to
0.24, asyncio with h11 0.12, asyncio with httptools 0.03. Importing httptools takes a hundredth of
the time of aiohttp.

Rules:
1. A channel carries one request at a time. It is reused only after a whole request and response.
   Unrequested data closes it, and so does a response that does not end where its head said.
2. A request is sent in one piece, and never to a channel that was closed meanwhile. If the
   connection is lost later, the server may have acted on the request, so it is not retried.
3. In one turn of a loop `PER_TURN` of its channels read on in a large body: each read lets go of
   the interpreter, which a thread may keep for milliseconds. Small answers wait for no turn, and a
   channel with nothing to read keeps none. What other connections of the loop read on takes turns
   too (`wait_for_turn`).
4. This module bounds heads; the reader of a response bounds its body. It follows, decodes and
   retries nothing.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary, ref

import httptools

from bundle_router.adapters.mcp.faults import ServerFault

CONNECT_S: Final = 10.0
KEEP_S: Final = 4.0
"""Seconds that an unused TCP connection is kept.

Common servers close theirs after 5 s, and a request sent into a connection that is being closed may
or may not be carried out.
"""
MAX_HEAD_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 64 * 1024
"""Bytes read from a connection at a time, at first.

With asyncio's 256 KiB, 50 take 20 ms of a loop's turn.
"""
PER_TURN: Final = 2
LARGE_PIECE_BYTES: Final = 256 * 1024
"""Bytes that one of these reads.

With 64 KiB, reading and pausing costs large answers a tenth of their time.
"""
EAGER_S: Final = 0.25
"""Seconds that one address of a host may take before the next is tried in parallel."""

Headers = dict[bytes, bytes]
"""Header values by lower-case name; of a repeated header the last value."""


class Response(Protocol):
    """A reader of one response.

    A ServerFault that it raises ends the request and closes the channel.
    """

    done: bool
    """Whether the reader needs no more of the body."""
    end: Callable[[ServerFault], None]  # set when the request is sent: fails it with a fault

    def head(self, status: int, headers: Headers) -> None: ...

    def body(self, piece: bytes) -> None: ...


class Channel(asyncio.BufferedProtocol):
    """One connection.

    One that can't pause takes all that came at once: what waits in uvloop's TLS ends with it.
    """

    def __init__(self, pauses: bool = True) -> None:
        self._own_buffer = self._buffer = memoryview(
            bytearray(PIECE_BYTES if pauses else LARGE_PIECE_BYTES)
        )
        self._pauses_at = PIECE_BYTES if pauses else math.inf
        self.used_at = 0.0
        self.reusable = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._response: Response | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, response: Response) -> None:
        """Send a whole request and pass its response to the reader. Raises ServerFault."""
        if self._transport is None or self._transport.is_closing():
            raise ServerFault(
                "unreachable", "the server closed the connection before anything was sent"
            )
        self.reusable = False
        self._response = response
        response.end = self._end
        self._buffer = self._own_buffer
        self._parser = httptools.HttpResponseParser(self)
        self._headers: Headers = {}
        self._head_bytes = self._status = self._seen = 0
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._waiter
        finally:
            self._waiter = self._response = None
            del (
                self._parser
            )  # it refers to this channel: a cycle would keep the buffer until a full collection
            if (
                not self.reusable or self._transport.get_write_buffer_size()
            ):  # the next request would wait for the rest
                self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def read_on(self) -> None:
        if self._transport is not None and self.is_open:
            self._transport.resume_reading()

    # --- asyncio ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            "asyncio.Transport", transport
        )  # uvloop's transports derive from no class of asyncio

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
            self._seen += size
            if self._response is not None and self._response.done:
                self._end(None)
            elif (
                self._response is not None
                and self._transport is not None
                and self._seen >= self._pauses_at
            ):
                self._transport.pause_reading()
                loop = asyncio.get_running_loop()
                if loop not in _TURNS:
                    _TURNS[loop] = memoryview(bytearray(LARGE_PIECE_BYTES)), deque()
                self._buffer, waiting = _TURNS[loop]
                waiting.append(ref(self))
                if len(waiting) == 1:
                    loop.call_soon(_read_on, loop, waiting)

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiter is None:
            return
        framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        if self._status and not framed and error is None:
            self._end(None)  # a body without a length ends with its connection
        else:
            self._end(
                ServerFault("connection_lost", "the connection to the server was lost", sent=True)
            )

    def _end(self, fault: ServerFault | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            if fault is not None:
                self.reusable = False
                self._waiter.set_exception(fault)
            else:
                self._waiter.set_result(None)

    # --- httptools --------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._response is None:  # an unrequested second response
            self.reusable = False
            raise _garbled_fault()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ServerFault(
                "too_large", f"the server's head has over {MAX_HEAD_BYTES:,} bytes", sent=True
            )
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
            self._headers = {}
            self._head_bytes = 0
            return
        self.reusable = self._parser.should_keep_alive()
        self._response = None
        self._end(None)


_TURNS: Final = WeakKeyDictionary[
    asyncio.AbstractEventLoop, tuple[memoryview, deque[ref[Channel]]]
]()
"""Of each loop the buffer, since only one channel reads at a time, and the channels that wait for a
turn.
"""


def _read_on(loop: asyncio.AbstractEventLoop, waiting: deque[ref[Channel]]) -> None:
    if len(waiting) > PER_TURN:
        loop.call_soon(_read_on, loop, waiting)
    for channel in [waiting.popleft()() for _ in range(min(PER_TURN, len(waiting)))]:
        if channel is not None:
            channel.read_on()


_OTHERS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)


async def wait_for_turn() -> None:
    """Wait until fewer than `PER_TURN` pieces of large answers were read in this turn of the loop,
    of any server.
    """
    if (turns := _OTHERS.get(loop := asyncio.get_running_loop())) is None:
        turns = _OTHERS[loop] = asyncio.Semaphore(PER_TURN)
    await turns.acquire()
    loop.call_soon(turns.release)


def _garbled_fault() -> ServerFault:
    return ServerFault(
        "connection_lost",
        "the connection to the server was lost (its answer is not HTTP)",
        sent=True,
    )


class ChannelPool:
    """The channels to one server. Keeps at most `keep` idle ones; the caller closes it."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, keep: int) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._keep = keep
        self._closed = False
        self._idle: list[Channel] = []
        self._sweep: asyncio.TimerHandle | None = None

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
                if self._sweep is None:
                    self._close_unused(loop)
            else:
                channel.close()

    def _close_unused(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the channels that nobody has used for `KEEP_S`, now and whenever there is one."""
        while (idle := self._idle) and loop.time() - idle[0].used_at >= KEEP_S:
            idle.pop(0).close()
        if idle:
            self._sweep = loop.call_at(idle[0].used_at + KEEP_S, self._close_unused, loop)
        else:
            self._sweep = None

    def has_kept_channel(self, now: float) -> bool:
        return bool(self._idle) and self._idle[-1].is_open and now - self._idle[-1].used_at < KEEP_S

    def _take_kept_channel(self, now: float) -> Channel | None:
        """Return the most recently used idle channel if it is still usable, else None.

        Closes those that are not.
        """
        while self._idle:
            if self.has_kept_channel(now):
                return self._idle.pop()
            self._idle.pop().close()
        return None

    async def _open_channel(self, loop: asyncio.AbstractEventLoop) -> Channel:
        name = self._host if self._context is not None else None
        # uvloop has no happy eyeballs. asyncio's leave reference cycles behind, and an address has
        # no other to try.
        is_address = ":" in self._host or self._host.rpartition(".")[2].isdigit()
        is_asyncio = isinstance(loop, asyncio.BaseEventLoop)
        if is_asyncio and not is_address:
            eager: dict[str, Any] = {"happy_eyeballs_delay": EAGER_S}
        else:
            eager = {}
        made = partial(Channel, is_asyncio or name is None)
        try:
            async with asyncio.timeout(CONNECT_S):
                _, channel = await loop.create_connection(
                    made, self._host, self._port, ssl=self._context, server_hostname=name, **eager
                )
        except (
            OSError,
            ValueError,
        ) as error:  # TimeoutError is an OSError; ValueError: an impossible host name
            raise ServerFault(
                "unreachable", f"the server can't be reached ({type(error).__name__})"
            ) from error
        if self._closed:
            channel.close()
            raise ServerFault("closed", "the connections to tool servers were closed")
        return channel

    def close(self) -> None:
        self._closed = True
        self._keep = 0
        if self._sweep is not None:
            self._sweep.cancel()
        while self._idle:
            self._idle.pop().close()
