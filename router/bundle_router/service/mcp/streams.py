"""Answers over HTTP: a JSON body, or a stream of events where something is said before the answer.

Rules:
1. A request is answered by one JSON object. The answer becomes a stream of events when a
   notification or a question comes first, or after `PING_S` seconds: "The client MUST support both
   these cases" ([2025] Transports, Sending Messages to the Server, 5).
2. A comment every `PING_S` seconds keeps proxies from closing a stream that says nothing.
3. One message is written at a time, whoever sends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from bundle_router.service.mcp.jsonrpc import Json, notification_message
from bundle_router.service.mcp.protocol import SESSION_HEADER
from bundle_router.service.mcp.sessions import Outbox
from bundle_router.service.refusals import Receive, Send

PING_S: Final = 15.0
WATCH_S: Final = 0.25
"""Seconds after which the client's disconnection is watched for: most answers are faster, and a
watch is a task.
"""
PING: Final = b": ping\r\n\r\n"
_EVENTS: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)


def event_of(message: bytes) -> bytes:
    """Return a message as an event of a stream."""
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"


class AnswerStream:
    """The answer to one request: a JSON body or, once something came before it, a stream.

    `session_id` is the session that the answer names, if any.
    """

    def __init__(self, send: Send, session_id: str | None = None) -> None:
        self.session_id = session_id
        self._send = send
        self._is_begun = False
        self._is_ended = False
        self._lock = asyncio.Lock()

    async def say(self, message: bytes) -> None:
        """Send a message before the answer."""
        await self._write(event_of(message))

    async def ping(self) -> None:
        """Send a comment, which clients skip."""
        await self._write(PING)

    async def begin(self) -> None:
        """Open the stream, although there is nothing to say yet."""
        async with self._lock:
            await self._begin()

    async def end(self, status: int, message: bytes) -> None:
        """Send the answer. `status` counts only where no stream is open."""
        async with self._lock:
            self._is_ended = True
            if self._is_begun:
                await self._send({"type": "http.response.body", "body": event_of(message)})
                return
            headers = [
                (b"content-length", str(len(message)).encode()),
                (b"content-type", b"application/json"),
                *self._session_header(),
            ]
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": message})

    async def close(self) -> None:
        """End the stream without an answer."""
        async with self._lock:
            if self._is_begun and not self._is_ended:
                self._is_ended = True
                await self._send({"type": "http.response.body", "body": b""})

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            if self._is_ended:  # what comes behind the answer would reach nobody
                return
            await self._begin()
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _begin(self) -> None:
        if self._is_begun:
            return
        headers = [*_EVENTS, *self._session_header()]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._is_begun = True

    def _session_header(self) -> list[tuple[bytes, bytes]]:
        if self.session_id is None:
            return []
        return [(SESSION_HEADER, self.session_id.encode())]


async def watch_client(
    receive: Receive, stream: AnswerStream, on_disconnect: Callable[[], object], ping_s: float
) -> None:
    """Keep a slow answer's stream alive; return when its client has disconnected."""
    while True:
        try:
            async with asyncio.timeout(ping_s):
                message = await receive()
        except TimeoutError:
            await stream.ping()
            continue
        if message["type"] == "http.disconnect":
            on_disconnect()
            return


async def send_notifications(
    outbox: Outbox, stream: AnswerStream, *, meta: Json | None = None
) -> None:
    """Send what comes into an outbox, until it is closed; `meta` goes with each notification."""
    came = asyncio.Event()
    outbox.on_change = came.set
    while True:
        came.clear()
        waiting = outbox.take()
        for method, params in waiting:
            await stream.say(notification_message(method, _with_meta(params, meta)))
        if waiting:  # more may have come meanwhile
            continue
        if outbox.is_closed:
            return
        await came.wait()


def _with_meta(params: Json | None, meta: Json | None) -> Json | None:
    if meta is None:
        return params
    return {**(params or {}), "_meta": meta}
