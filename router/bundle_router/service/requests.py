"""The requests in progress: bounds their number and the size and time of their bodies, and ends
them with the service.

Rules:
1. A body is read whole before any work, and is bounded in bytes and in time meanwhile. Where the
   gate set `scope["max_body_bytes"]`, since no token is needed there, that is the bound.
2. Requests beyond the maximum are refused at once, with a time after which to retry. So is every
   request once the service is stopping.
3. When the service stops, requests get some time to be answered. Then they are cancelled, and their
   calls recorded so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.service.gate import Headers, is_too_long
from bundle_router.service.refusals import Asgi, Message, Receive, Refusal, Send, refuse

TOO_SLOW: Final = Refusal(
    408,
    "too_slow",
    "The body did not arrive within [service] body_s.",
    advice="send it faster, or raise the limit",
)
_RETRY: Final = ((b"retry-after", b"1"),)
BUSY: Final = Refusal(
    503,
    "busy",
    "As many requests are under way as [service] max_requests allows.",
    _RETRY,
    "wait, then try again",
)
CLOSING: Final = Refusal(
    503, "closing", "The service is stopping.", _RETRY, "send the request again once it is back"
)

CROWD: Final = 64
"""Number of concurrent requests after which unused memory is returned to the system."""
SETTLED_S: Final = 6.0
"""Seconds until the connections of such a crowd are closed."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Maximum number of requests, with the streams of listeners among them; maximum size of a body,
    and the time in which it must arrive.
    """

    max_requests: int = 1_024
    max_body_bytes: int = 4 * 1024 * 1024
    body_s: float = 15.0


class Requests:
    """The requests of one service."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._bounds = bounds
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closing = False
        self._most = 0
        """Maximum concurrent requests since memory was last returned."""

    @property
    def under_way(self) -> int:
        """Number of requests in progress."""
        return len(self._tasks)

    def refusal(self, headers: Headers, max_body_bytes: int) -> Refusal | None:
        """Return why a request can't begin now, or None if it can."""
        if self._closing:
            return CLOSING
        if len(self._tasks) >= self._bounds.max_requests:
            return BUSY
        if not is_too_long(headers, max_body_bytes):
            return None
        return _too_large(max_body_bytes)

    async def carry_out(self, app: Asgi, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request within the bounds; it counts as in progress meanwhile."""
        max_bytes = min(scope.get("max_body_bytes", sys.maxsize), self._bounds.max_body_bytes)
        if (refusal := self.refusal(scope["headers"], max_bytes)) is not None:
            await refuse(refusal, scope, send)
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        self._tasks[task] = scope["method"]
        self._most = max(self._most, len(self._tasks))
        try:
            body = await self._body(task, receive, max_bytes)
            if isinstance(body, Refusal):
                await refuse(body, scope, send)
            elif body is not None:  # else the client has disconnected
                scope["body"] = body
                messages: list[Message] = [
                    {"type": "http.request", "body": body, "more_body": False}
                ]

                async def next_message() -> Message:
                    return messages.pop() if messages else await receive()

                await app(scope, next_message, send)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # The service cancelled it, and its call is recorded. The HTTP server closes the
            # connection.
            if "begun" not in scope:  # no answer was begun
                await refuse(CLOSING, scope, send)
        finally:
            del self._tasks[task]
            if self._most >= CROWD > 8 * len(self._tasks):
                self._most = 0
                loop = asyncio.get_running_loop()
                loop.call_later(SETTLED_S, loop.run_in_executor, None, give_memory_back)

    async def _body(
        self, task: asyncio.Task[Any], receive: Receive, most: int
    ) -> bytes | Refusal | None:
        """Return the whole body; None if the client disconnected.

        The time limit is a timer that starts with the loop's next iteration: most bodies are read
        before, and a timer costs as much as reading one.
        """
        body = bytearray()
        late = False
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def give_up() -> None:
            nonlocal late
            late = task.cancel()

        begin = loop.call_soon(lambda: timers.append(loop.call_later(self._bounds.body_s, give_up)))
        try:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                body += message.get("body", b"")
                if len(body) > most:
                    return _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
        except asyncio.CancelledError:
            if not late or task.uncancel():  # not only our timer cancelled the task
                raise
            return TOO_SLOW
        finally:
            begin.cancel()
            for timer in timers:
                timer.cancel()

    def stop(self) -> None:
        """Refuse new requests."""
        self._closing = True

    async def wait(self, grace_s: float) -> None:
        """Wait for the requests in progress, at most `grace_s` seconds."""
        asking = [
            task for task, method in self._tasks.items() if method != "GET"
        ]  # a GET only listens
        if asking:
            await asyncio.wait(asking, timeout=grace_s)

    async def cancel(self) -> None:
        """Cancel the remaining requests."""
        rest = set(self._tasks)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)


def _too_large(max_body_bytes: int) -> Refusal:
    sentence = f"A body may have at most {max_body_bytes:,} bytes here."
    advice = "send less, or raise [service] max_body_bytes where a token is needed"
    return Refusal(413, "too_large", sentence, advice=advice)


def give_memory_back() -> None:
    """Return free memory to the system: glibc keeps pages that many requests needed."""
    with contextlib.suppress(AttributeError, OSError):  # another C library, without this function
        ctypes.CDLL(None).malloc_trim(0)
