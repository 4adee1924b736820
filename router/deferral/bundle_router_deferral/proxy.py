"""The proxy: listens on loopback, forwards everything to one upstream, and defers tools if it may.

Fails open.

Rules:
1. Only `POST …/v1/messages` may be rewritten; all else passes unchanged, in both directions.
2. A rewritten request that is refused with 400 is sent again unchanged. If that succeeds, the model
   (or, if the history was changed, the conversation) is left alone for a day.
3. An exception before the first byte went to the client sends the original; after it, the stream
   ends with an error.
4. Hidden blocks are noted before the client sees the end of the answer.
5. Credentials pass through; they are never written, logged or stored.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.adapters.http_listener import Listener
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from bundle_router_deferral.hidden_store import HiddenStore
from bundle_router_deferral.hiding import (
    BrokenAnswer,
    StreamFilter,
    hide_in_message,
    is_hidden,
    notes_of,
)
from bundle_router_deferral.numbers import NumbersLog
from bundle_router_deferral.rewriting import Deferred, RequestRewriter, UnchangedRequest
from bundle_router_deferral.upstream import (
    MAX_BODY_BYTES,
    Headers,
    Upstream,
    UpstreamAnswer,
    UpstreamFailed,
)

HEALTH: Final = "/.bundle-router/health"
HEAD_S: Final = 10.0
"""Seconds in which the head of a request must arrive."""
MAX_CONTINUATIONS: Final = 3
REFUSALS: Final = (400, 422)
_COUNTED: Final = ("model", "tools", "restored", "upfront_bytes", "original_upfront_bytes")
_BROKEN: Final = (BrokenAnswer, ValueError, TypeError, KeyError, AttributeError)
"""Exceptions of parsing an answer that is not in the API's documented form."""


@dataclass(slots=True)
class _Exchange:
    """One request in progress: its original and sent forms, and its numbers."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    began: float
    deferred: Deferred | None = None
    row: dict[str, Any] = field(default_factory=dict)
    first_byte: float | None = None


class DeferralProxy:
    """The ASGI application. `numbers` and `store` belong to the caller."""

    def __init__(
        self,
        upstream: Upstream,
        rewriter: RequestRewriter,
        store: HiddenStore | None,
        numbers: NumbersLog | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._rewriter = rewriter
        self._store = store
        self._numbers = numbers
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if not _is_local(request.headers.get("host", "")):
            return _error(403, "permission_error", "this proxy answers to loopback names only")
        if request.url.path == HEALTH:
            return JSONResponse({"ok": True, "upstream": self._upstream.host})
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return _error(413, "request_too_large", "the request is over the proxy's bound")
        raw_path = request.scope.get("raw_path") or request.url.path.encode()
        query = request.scope["query_string"]
        target = (raw_path + (b"?" + query if query else b"")).decode("latin-1")
        headers = [
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw
        ]
        exchange = _Exchange(request.method, target, headers, bytes(body), self._clock())
        exchange.row = {"method": request.method, "path": _known_path(request.url.path)}
        if request.method == "POST" and request.url.path.rstrip("/").endswith("/v1/messages"):
            self._rewrite(exchange)
        try:
            return await self._forward(exchange)
        except UpstreamFailed as error:
            self._note_done(exchange, 502)
            return _error(502, "api_error", f"the upstream did not answer ({error})")

    def _rewrite(self, exchange: _Exchange) -> None:
        """Decide whether the request is rewritten. On any error here, the original is sent."""
        try:
            recall = self._store.recall if self._store is not None else lambda _: {}
            rewritten = self._rewriter.rewrite(exchange.body.decode("utf-8"), recall)
        except Exception as error:  # noqa: BLE001 - fails open: nothing in the rewriting may stop a request
            rewritten = UnchangedRequest(type(error).__name__)
        if (
            isinstance(rewritten, Deferred)
            and self._store is not None
            and self._store.refused(*_refusal_keys(rewritten))
        ):
            rewritten = UnchangedRequest("refused before")
        if isinstance(rewritten, UnchangedRequest):
            exchange.row["untouched"] = rewritten.reason
            return
        exchange.deferred = rewritten
        exchange.row |= {name: getattr(rewritten, name) for name in _COUNTED}
        exchange.row["deferred"] = len(rewritten.deferred)

    async def _forward(self, exchange: _Exchange) -> Response:
        deferred = exchange.deferred
        if deferred is None:
            return self._pass(exchange, await self._send_original(exchange))
        try:
            answer = await self._send(exchange, deferred.text.encode())
            if answer.status in REFUSALS or not answer.readable():
                return await self._send_unchanged(exchange, answer)
            if answer.status != 200:
                return self._pass(exchange, answer)
            if "text/event-stream" in answer.type:
                return await self._stream(exchange, deferred, answer)
            return await self._answer_whole(exchange, deferred, answer)
        except UpstreamFailed:
            raise
        except _BROKEN as error:
            exchange.row["failed_open"] = type(error).__name__
            return self._pass(exchange, await self._send_original(exchange))

    async def _send(self, exchange: _Exchange, body: bytes) -> UpstreamAnswer:
        headers: Headers = [(n, v) for n, v in exchange.headers if n.lower() != "accept-encoding"]
        return await self._upstream.send(
            exchange.method, exchange.target, [*headers, ("accept-encoding", "identity")], body
        )

    async def _send_original(self, exchange: _Exchange) -> UpstreamAnswer:
        return await self._upstream.send(
            exchange.method, exchange.target, exchange.headers, exchange.body
        )

    async def _send_unchanged(self, exchange: _Exchange, refusal: UpstreamAnswer) -> Response:
        """Send the original request after its rewritten form was refused, and remember that if it
        helped.
        """
        refusal.close()
        exchange.row["retried"] = 1
        answer = await self._send_original(exchange)
        if answer.status < 300 and exchange.deferred is not None and self._store is not None:
            self._store.refuse(
                _refusal_keys(exchange.deferred)[0 if not exchange.deferred.restored else 1]
            )
        return self._pass(exchange, answer)

    def _pass(self, exchange: _Exchange, answer: UpstreamAnswer) -> Response:
        """Answer with the upstream's bytes unchanged."""

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.pieces():
                    self._mark(exchange)
                    yield piece
            finally:
                answer.close()
                self._note_done(exchange, answer.status)

        return _stream_response(pieces(), answer)

    async def _answer_whole(
        self, exchange: _Exchange, deferred: Deferred, answer: UpstreamAnswer
    ) -> Response:
        """Answer with a plain message, without its searches."""
        try:
            body, blocks = hide_in_message(await answer.body(), placeholders=deferred.placeholders)
            message = json.loads(body)
            so_far = blocks
            for _round in range(MAX_CONTINUATIONS):
                if message.get("stop_reason") != "pause_turn" or not any(map(is_hidden, so_far)):
                    break
                continued = json.loads(
                    await (
                        await self._send(exchange, _continue_request(deferred.text, so_far))
                    ).body()
                )
                so_far = [*so_far, *continued["content"]]
                body, so_far = hide_in_message(
                    json.dumps({**continued, "id": message["id"], "content": so_far}).encode(),
                    placeholders=deferred.placeholders,
                )
                message = json.loads(body)
            self._note(exchange, deferred, so_far)
            exchange.row["usage"] = _usage(message.get("usage"))
        finally:
            answer.close()
        self._mark(exchange)
        self._note_done(exchange, answer.status)
        response = Response(body, answer.status)
        response.raw_headers = [
            *_raw_headers(answer, plain=True),
            (b"content-length", str(len(body)).encode()),
        ]
        return response

    async def _stream(
        self, exchange: _Exchange, deferred: Deferred, answer: UpstreamAnswer
    ) -> Response:
        """Answer with a stream, without its searches.

        Waits for the first bytes: until then the original can go.
        """
        filtered = self._answer_filtered(exchange, deferred, answer)
        await anext(filtered, b"")
        return _stream_response(filtered, answer, plain=True)

    async def _answer_filtered(
        self, exchange: _Exchange, deferred: Deferred, answer: UpstreamAnswer
    ) -> AsyncGenerator[bytes, None]:
        """Yield nothing once there is something to answer with, then the client's bytes of the
        stream, and of those that continue it after `pause_turn`. A failure before that is raised, a
        later one ends the stream.
        """
        stream = StreamFilter(placeholders=deferred.placeholders, may_continue=True)
        began = False
        noted = 0
        try:
            for rounds in range(MAX_CONTINUATIONS + 1):
                async for piece in answer.pieces(decoded=True):
                    data = stream.feed(piece)
                    if stream.searches > noted or stream.stop_reason:
                        noted = stream.searches
                        self._note(exchange, deferred, stream.blocks)
                    if data and not began:
                        began = True
                        self._mark(exchange)
                        yield b""
                    if data:
                        yield data
                if not stream.paused:
                    break
                answer.close()
                blocks = stream.resume(may_continue=rounds + 1 < MAX_CONTINUATIONS)
                exchange.row["continued"] = rounds + 1
                answer = await self._send(exchange, _continue_request(deferred.text, blocks))
                if answer.status != 200:
                    raise BrokenAnswer("the continuation was refused")
            if rest := stream.end():
                yield rest
        except (*_BROKEN, UpstreamFailed) as error:
            if not began:
                raise
            exchange.row["failed"] = type(error).__name__
            yield _error_event()
        finally:
            answer.close()
            if stream.searches:
                self._note(exchange, deferred, stream.blocks)
            exchange.row |= {"searches": stream.searches, "usage": _usage(stream.final_usage())}
            if began:
                self._note_done(exchange, answer.status)

    def _note(self, exchange: _Exchange, deferred: Deferred, blocks: list[dict[str, Any]]) -> None:
        notes = notes_of(blocks, deferred.prompt, placeholders=deferred.placeholders)
        if notes and self._store is not None:
            self._store.remember(notes)
        exchange.row["searches"] = sum(
            block.get("type") == "server_tool_use" for block in blocks if is_hidden(block)
        )

    def _mark(self, exchange: _Exchange) -> None:
        if exchange.first_byte is None:
            exchange.first_byte = self._clock()

    def _note_done(self, exchange: _Exchange, status: int) -> None:
        if self._numbers is None:
            return
        end_s = self._clock()
        first = exchange.first_byte if exchange.first_byte is not None else end_s
        spans = (("first_byte_ms", first), ("ms", end_s))
        times = {name: round((at - exchange.began) * 1e3, 2) for name, at in spans}
        self._numbers.write(
            {**exchange.row, "status": status, "request_bytes": len(exchange.body), **times}
        )


def _refusal_keys(deferred: Deferred) -> tuple[str, str]:
    return f"model:{deferred.model}", f"conversation:{deferred.conversation}"


def _continue_request(text: str, blocks: list[dict[str, Any]]) -> bytes:
    """Return a request that continues a paused answer: its blocks so far are the last message."""
    body = json.loads(text)
    last = body["messages"][-1]
    if last.get("role") == "assistant":
        raise BrokenAnswer("an answer to a prefilled message can't be continued")
    body["messages"].append({"role": "assistant", "content": blocks})
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _usage(usage: Any) -> dict[str, int]:
    names = (
        "input_tokens",
        "cache_creation_input_tokens",
        "cache_read_input_tokens",
        "output_tokens",
    )
    rows = usage if isinstance(usage, dict) else {}
    return {name: rows[name] for name in names if isinstance(rows.get(name), int)}


def _known_path(path: str) -> str:
    """Return a path for the numbers: one of the API's, else a word, because a path may contain an
    id.
    """
    known_paths = ("/v1/messages/count_tokens", "/v1/messages", "/v1/models")
    return next((known for known in known_paths if path.rstrip("/").endswith(known)), "other")


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.count(":") == 1 or host.startswith("[") else host
    return name.strip("[]") in ("127.0.0.1", "localhost", "::1")


def _raw_headers(answer: UpstreamAnswer, *, plain: bool = False) -> list[tuple[bytes, bytes]]:
    skipped = ("content-encoding",) if plain else ()
    rows = [(n, v) for n, v in answer.headers if n.lower() not in skipped]
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in rows]


def _stream_response(
    pieces: AsyncIterator[bytes], answer: UpstreamAnswer, *, plain: bool = False
) -> StreamingResponse:
    response = StreamingResponse(pieces, answer.status)
    response.raw_headers = _raw_headers(answer, plain=plain)
    return response


def _error(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse(
        {"type": "error", "error": {"type": kind, "message": f"bundle-router: {message}"}}, status
    )


def _error_event() -> bytes:
    message = "bundle-router: the answer broke off"
    data = {"type": "error", "error": {"type": "api_error", "message": message}}
    return f"event: error\ndata: {json.dumps(data)}\n\n".encode()


def listen(port: int = 0) -> socket.socket:
    """Return a socket that listens on loopback."""
    # With IPPROTO_TCP asyncio sets TCP_NODELAY; else pieces of a stream wait up to 40 ms for an
    # acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(256)
    return listening


@contextlib.asynccontextmanager
async def serve(application: Any, listening: socket.socket) -> AsyncIterator[int]:
    """Serve an application on a socket during the block. Yields the port."""
    listener = Listener(application, listening, HEAD_S, dated=False)
    listener.start()
    try:
        yield listening.getsockname()[1]
    finally:
        await listener.close()
