"""The TCP connections below `http`, and the one place that knows `httpcore2`.

Rules:
1. A request leaves in one piece: its head waits for its body. Two small packets wake the server twice, and a system
   call is the dearest thing in a small request.
2. Nothing waits longer than until the answer is read, or `_HELD` bytes: what was written is sent before anything else
   is done with the connection.
3. Whether an idle connection was closed by the other side is asked of its socket alone.

That methods take a `timeout` in seconds is httpcore2's own interface.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore2

_HELD: Final = 64 * 1024
"""Bytes that may wait to be sent."""
Options = Iterable[Any] | None


class Stream(httpcore2.AsyncNetworkStream):
    """A connection that holds back what is written until something is read."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, raw: socket.socket | None) -> None:
        self._inner = inner
        self._socket = raw
        self._held = bytearray()

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - its interface
        self._held += buffer
        if len(self._held) > _HELD:
            await self._send(timeout)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as above
        if self._held:
            with contextlib.suppress(httpcore2.WriteError):  # a server may answer, and close, before it has read all
                await self._send(timeout)
        return await self._inner.read(max_bytes, timeout)

    async def _send(self, timeout_s: float | None) -> None:
        held, self._held = bytes(self._held), bytearray()
        await self._inner.write(held, timeout_s)

    async def aclose(self) -> None:
        self._held.clear()  # a request that is given up before its answer was waited for
        await self._inner.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> httpcore2.AsyncNetworkStream:
        return Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._socket)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._socket is not None:
            return _is_readable(self._socket)
        return self._inner.get_extra_info(info)


class Backend(httpcore2.AnyIOBackend):
    """Opens such connections."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
        local_address: str | None = None,
        socket_options: Options = None,
    ) -> httpcore2.AsyncNetworkStream:
        inner = await super().connect_tcp(host, port, timeout, local_address, socket_options)
        return Stream(inner, inner.get_extra_info("socket"))


def _is_readable(raw: socket.socket) -> bool:
    """Whether there is something to read on a connection where nothing was asked: its end, then."""
    if raw.fileno() < 0:
        return True
    watching = select.poll()
    watching.register(raw, select.POLLIN)
    return bool(watching.poll(0))


def open_connections(
    ssl_context: ssl.SSLContext | None, max_keepalive_connections: int, keepalive_expiry: float
) -> httpcore2.AsyncConnectionPool:
    """A pool of them, without a limit on how many are in use."""
    return httpcore2.AsyncConnectionPool(
        ssl_context=ssl_context,
        max_connections=None,
        max_keepalive_connections=max_keepalive_connections,
        keepalive_expiry=keepalive_expiry,
        network_backend=Backend(),
    )
