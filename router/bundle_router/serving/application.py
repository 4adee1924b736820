"""The endpoint as an ASGI application: the gate, the body, the run. Knows neither the SDK nor the HTTP server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from bundle_router.errors import RequestError, RouterError, UnknownRun
from bundle_router.serving.gate import (
    BUSY,
    CLOSING,
    MAX_BODY_BYTES,
    TOO_LARGE,
    TOO_SLOW,
    Destination,
    Refusal,
    judge,
)
from bundle_router.serving.keys import Keys
from bundle_router.serving.runs import ServedRun, ServedRuns

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

MAX_REQUESTS: Final = 1_024
"""Requests under way, streams of listeners among them. What comes on top is answered with 503."""
INVALID_REQUEST: Final = -32600


class Application:
    """Answers requests between its making and `close`. `body_s`: how long a body may take to arrive."""

    def __init__(self, runs: ServedRuns, keys: Keys, port: int, body_s: float) -> None:
        self._runs = runs
        self._keys = keys
        self._port = port
        self._body_s = body_s
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._closing = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        admitted = judge(scope["method"], scope["raw_path"], scope["headers"], keys=self._keys, port=self._port)
        if isinstance(admitted, Destination) and (self._closing or len(self._tasks) >= MAX_REQUESTS):
            admitted = CLOSING if self._closing else BUSY
        if isinstance(admitted, Refusal):
            await refuse(admitted, send)
            return
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - ASGI servers run applications in tasks
        self._tasks[task] = scope["method"]
        try:
            await self._admitted(admitted, scope, receive, send)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            # We cancelled it ourselves, and its call is recorded: the HTTP server closes the connection.
        finally:
            del self._tasks[task]

    async def _admitted(self, to: Destination, scope: Message, receive: Receive, send: Send) -> None:
        body = await self._body(receive)
        if body is None:  # the client went away
            return
        if isinstance(body, Refusal):
            await refuse(body, send)
            return
        served = await self._served(to)
        if isinstance(served, Refusal):
            await refuse(served, send)
            return
        served.requests += 1
        try:
            await served.server.handle(scope, _again(body, receive), send)
        finally:
            served.requests -= 1

    async def _served(self, to: Destination) -> ServedRun | Refusal:
        try:
            return await self._runs.get(to.run_id, to.decision)
        except UnknownRun as unknown:
            return Refusal(404, f"{unknown.message}.")
        except RouterError as trouble:
            return Refusal(503 if isinstance(trouble, RequestError) else 500, f"{trouble.message}: {trouble.advice}.")

    async def _body(self, receive: Receive) -> bytes | Refusal | None:
        """The whole body; None when the client went away."""
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY_BYTES:
                        return TOO_LARGE
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            return TOO_SLOW

    async def close(self, grace_s: float) -> None:
        """Takes no more requests, gives those under way `grace_s` to be answered, and ends the rest."""
        self._closing = True
        self._runs.end_listening()
        asking = [task for task, method in self._tasks.items() if method != "GET"]  # a GET only ever listens
        if asking:
            await asyncio.wait(asking, timeout=grace_s)
        await self._runs.close()
        rest = set(self._tasks)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)


def _again(body: bytes, receive: Receive) -> Receive:
    """Receives a body that was read already, and then what comes after it: the client's going away."""
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return whole.pop() if whole else await receive()

    return next_message


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answers with the sentence, as a JSON-RPC error to no request in particular, and closes the connection: what
    follows on it was not read."""
    error = {"code": INVALID_REQUEST, "message": refusal.sentence}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *refusal.headers,
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
