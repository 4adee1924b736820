"""The HTTP server of everything that listens (the service, a login's redirect, the deferral proxy),
and the only module that knows `uvicorn`. Loaded when something is to listen.

It sets no signal handler and changes no foreign logger. It closes a connection that does not send a
whole request head in time; uvicorn bounds only the idle time after an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES: Final = 32_768
IDLE_S: Final = 30
"""Maximum seconds that a connection may be idle between two requests."""
HELD_BYTES: Final = 16_384
"""Maximum bytes of an answer that are held until the end of the loop's iteration."""
STOP_TICKS_S: Final = 3.0
"""Seconds that idle connections may take to close."""

_LOG: Final = logging.getLogger("bundle_router.http_listener")
_LOG.setLevel(
    logging.ERROR
)  # a warning for every malformed request would let strangers fill a disk


class CoalescingTransport:
    """A transport that sends all writes of one loop iteration as one piece: an answer's head and
    body are one system call, and one packet that wakes the client.
    """

    __slots__ = ("_buffer", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._buffer = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._buffer:
            self._loop.call_soon(self._send)
        self._buffer += data
        if len(self._buffer) > HELD_BYTES:  # from here on the transport's own flow control applies
            self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._buffer:
            buffered = self._buffer
            self._buffer = bytearray()
            self._transport.write(buffered)


class _RefusedHead(Exception):
    """Raised inside the parser, to end it."""


class HttpConnection(HttpToolsProtocol):
    """One connection.

    A request's head must arrive within `head_s` and `MAX_HEAD_BYTES`, because the parser itself
    accepts any number of bytes.
    """

    head_s = 10.0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logger = _LOG
        self.access_log = False
        self._late: asyncio.TimerHandle | None = None
        self._unread_bytes = self._head_bytes = 0
        self._in_head = True

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type] # by its methods it is one
        self._expect()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if self._in_head:  # the parser holds bytes that it has not reported
            self._unread_bytes += len(data)
            if self._unread_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")
        if self.cycle is not cycle:
            self._cancel()
        elif self._late is None and self._is_between_requests:
            self._expect()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._unread_bytes = 0
        self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _RefusedHead
        if not self._in_head:  # a trailer: it is not heard, for the request was judged by its head
            return
        name = name.lower()
        if name == b"expect" and value.strip().lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append(
            (name, value.strip())
        )  # uvicorn's own method does just this, with one call more a header

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_bytes > MAX_HEAD_BYTES or not self.url.startswith(
            b"/"
        ):  # `http://another.example/mcp`: an address of which the Host may say another
            raise _RefusedHead
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    @property
    def _is_between_requests(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _expect(self) -> None:
        self._late = self.loop.call_later(self.head_s, self._give_up)

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._is_between_requests:
            self.transport.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


class Listener:
    """Serves an application on a listening socket, between `start` and `close`.

    A head that does not arrive in `head_s` seconds ends its connection. `dated`: answers get a
    header `Date`, which those of a proxy have already.
    """

    def __init__(
        self,
        application: Any,
        listening: socket.socket,
        head_s: float,
        tls: tuple[str | None, str | None] = (None, None),
        *,
        dated: bool = True,
    ) -> None:
        protocol = type("HttpConnection", (HttpConnection,), {"head_s": head_s})
        self._socket = listening
        self._server = _Server(
            uvicorn.Config(
                application,
                interface="asgi3",
                http=protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                proxy_headers=False,
                server_header=False,
                date_header=dated,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=int(STOP_TICKS_S),
                ssl_certfile=tls[0],
                ssl_keyfile=tls[1],
            )
        )
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept. Earlier connections wait in the socket's queue."""
        self._task = asyncio.create_task(
            self._server.serve(sockets=[self._socket]), name="http-listener"
        )

    async def close(self) -> None:
        """Stop accepting, and close every connection."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()
