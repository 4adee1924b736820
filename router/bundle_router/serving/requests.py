"""The requests under way: how many there may be, how large and slow their bodies, and how they end with the service.

Rules:
1. A body is read whole before anything is done, and bounded in bytes and in time while it is read.
2. Beyond so many a request is refused at once, with the time after which to try again. So is every one once the
   service is being stopped.
3. What is stopped is given time to be answered, then cancelled; its calls are recorded as cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.serving.gate import Headers, is_too_long
from bundle_router.serving.refusals import Asgi, Message, Receive, Refusal, Send, refuse

TOO_SLOW: Final = Refusal(
    408, "too_slow", "The message did not arrive in time.", advice="send it whole, or raise [service] body_s"
)
_RETRY: Final = ((b"retry-after", b"1"),)
BUSY: Final = Refusal(
    503, "busy", "Too many requests are under way: try again when some have ended.", _RETRY, "wait, then try again"
)
CLOSING: Final = Refusal(503, "closing", "This endpoint is being stopped.", _RETRY, "ask again once it is up")


CROWD: Final = 64
"""So many requests at a time need memory that few need again."""
SETTLED_S: Final = 6.0
"""Until the connections of a crowd that has gone were closed."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """How many requests there may be, streams of listeners among them; how large a body may be, how long it may take to
    arrive."""

    max_requests: int = 1_024
    max_body_bytes: int = 4 * 1024 * 1024
    body_s: float = 15.0


class Requests:
    """The requests of one service."""

    def __init__(self, bounds: RequestBounds) -> None:
        self._bounds = bounds
        sentence = f"A message may have {bounds.max_body_bytes:,} bytes at most."
        self.too_large = Refusal(413, "too_large", sentence, advice="send less, or raise [service] max_body_bytes")
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closing = False
        self._most = 0
        """How many there were at a time since memory was given back last."""

    @property
    def under_way(self) -> int:
        """How many there are."""
        return len(self._tasks)

    def refusal(self, headers: Headers) -> Refusal | None:
        """Return why a request is not begun now; None where it may be."""
        if self._closing:
            return CLOSING
        if len(self._tasks) >= self._bounds.max_requests:
            return BUSY
        return self.too_large if is_too_long(headers, self._bounds.max_body_bytes) else None

    async def carry_out(self, app: Asgi, scope: Message, receive: Receive, send: Send) -> None:
        """Have a request answered, counted for as long as that takes."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        self._tasks[task] = scope["method"]
        self._most = max(self._most, len(self._tasks))
        try:
            body = await self._body(task, receive)
            if isinstance(body, Refusal):
                await refuse(body, scope, send)
            elif body is not None:  # else the client went away
                scope["body"] = body
                whole: Message = {"type": "http.request", "body": body, "more_body": False}
                await app(scope, again(whole, receive), send)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # We cancelled it ourselves, and its call is recorded: the HTTP server closes the connection.
            if "begun" not in scope:  # no answer went past the gate
                await refuse(CLOSING, scope, send)
        finally:
            del self._tasks[task]
            if self._most >= CROWD > 8 * len(self._tasks):
                self._most = 0
                loop = asyncio.get_running_loop()
                loop.call_later(SETTLED_S, loop.run_in_executor, None, give_memory_back)

    async def _body(self, task: asyncio.Task[Any], receive: Receive) -> bytes | Refusal | None:
        """Return the whole body; None when the client went away. The bound is a timer that begins with the loop's next
        turn: most bodies are there before, and a timer costs as much as reading one."""
        body, late, loop = bytearray(), False, asyncio.get_running_loop()
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
                if len(body) > self._bounds.max_body_bytes:
                    return self.too_large
                if not message.get("more_body", False):
                    return bytes(body)
        except asyncio.CancelledError:
            if not late or task.uncancel():  # else somebody else wants it ended, too
                raise
            return TOO_SLOW
        finally:
            begin.cancel()
            for timer in timers:
                timer.cancel()

    def stop(self) -> None:
        """Begin no more."""
        self._closing = True

    async def wait(self, grace_s: float) -> None:
        """Give those under way time to be answered."""
        asking = [task for task, method in self._tasks.items() if method != "GET"]  # a GET only ever listens
        if asking:
            await asyncio.wait(asking, timeout=grace_s)

    async def cancel(self) -> None:
        """End the rest."""
        rest = set(self._tasks)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)


def give_memory_back() -> None:
    """Have the C library give the system what is free: glibc keeps pages that a crowd needed."""
    with contextlib.suppress(AttributeError, OSError):  # another library, which has no such function
        ctypes.CDLL(None).malloc_trim(0)


class LimitedRequests:
    """The middleware that holds requests to these bounds."""

    def __init__(self, app: Asgi, requests: Requests) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal = self._requests.refusal(scope["headers"])
        if refusal is not None:
            await refuse(refusal, scope, send)
            return
        await self._requests.carry_out(self._app, scope, receive, send)


def again(message: Message, receive: Receive) -> Receive:
    """Receive a message that was received already, and then what comes after it: the client's going away."""
    held: list[Message] = [message]

    async def next_message() -> Message:
        return held.pop() if held else await receive()

    return next_message
