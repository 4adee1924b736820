"""Requests to a modern server over HTTP, one POST each.

They bypass the SDK's transport, at a tenth of its cost.

Rules:
1. The SDK negotiates, subscribes and follows redirects. This module sends only modern requests that
   need nothing but their answer. A redirect raises `Redirected`: nothing was done, and the SDK may
   send the request.
2. Every answer is bounded in decoded bytes while it arrives; compression is not requested, and
   undone within the bound.
3. Cancelling a request closes its connection, which is how the modern era tells the server.
4. Credentials are sent only to the configured address; this module knows no other.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from bundle_router.adapters.mcp.channels import ChannelPool, Headers
from bundle_router.adapters.mcp.faults import MAX_MESSAGE, RequestState, RpcError, ServerFault
from bundle_router.adapters.workers import run_in_turn
from bundle_router.core.results.shaping.json_text import (
    LARGE,
    JsonSizes,
    abridge,
    contains,
    decode_small,
    dump,
    encode_small,
    read_large,
)
from bundle_router.core.servers.transport.lines import EventBuffer, cut_deep
from bundle_router.core.servers.transport.pass_through import MAX_PASSED_BYTES
from bundle_router.core.values.canonical import PIECE, budget_left, encode_large

MAX_ERROR_BYTES: Final = 64 * 1024
MAX_VALUES: Final = 2_048
"""Values of a server's large message, other than an answer to a call, that are read; of the rest
nothing is.
"""
STREAM_FACTOR: Final = 4
"""Maximum size of an event stream, in multiples of the maximum message size."""
_STATIC: Final = {
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",
    "content-type": "application/json",
    "user-agent": "bundle-router",
}
_NOTICE: Final = re.compile(
    rb'\s*\{\s*(?:"(?:jsonrpc|id)"\s*:[^,{}\[\]]{1,200},\s*){0,2}"(?:params"|method"\s*:\s*"([^"]{,200})")'
)
"""The head of a message that is no answer, as most servers write it."""
_HEAD_BYTES: Final = 1_000
_LONGEST_S: Final = 1e6
_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t\x20-\x7e]*")


Ended = Callable[[BaseException | None], object]
"""Is called once, on the connection's loop, with the failure of a request or None."""


class RequestCarrier(Protocol):
    """Sends the requests of one connection without the SDK."""

    number: int

    @property
    def is_ready(self) -> bool:
        """Whether a request of this thread is sent before anything is waited for."""

    async def post(
        self,
        method: str,
        params: str,
        headers: Mapping[str, str],
        timeout_s: float = math.inf,
        ended: Ended = bool,
    ) -> tuple[dict[str, Any], int]:
        """Send a request, whose `params` are JSON.

        Return its result unchecked, and the bytes of the answer. Raises ServerFault (kind `timeout`
        too), RpcError, Redirected.
        """

    def close(self) -> None: ...  # ends the requests under way


class Redirected(Exception):
    """The server answered with a redirect."""


class ModernPosts:
    """The requests of one connection.

    `on_change` is called when the server says, beside an answer, that its tools have changed;
    `given_session` when it issues a session. All on one event loop.
    """

    def __init__(
        self,
        pool: ChannelPool,
        target: bytes,
        host: bytes,
        headers: Mapping[str, str],
        max_bytes: int,
        on_change: Callable[[], None],
        given_session: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._first = b"POST " + target + b" HTTP/1.1\r\nhost: " + host + b"\r\n"
        self._fixed = _STATIC | {name.lower(): value for name, value in headers.items()}
        self._first += b"".join(map(_header_line, self._fixed.items()))
        self._max_bytes = max_bytes
        self._given_session = given_session
        self._on_change = on_change
        self._under_way: set[_Answer] = set()
        self.number = 1

    @property
    def is_ready(self) -> bool:
        return asyncio.get_running_loop() is self._loop and self._pool.has_kept_channel(
            self._loop.time()
        )

    async def post(
        self,
        method: str,
        params: str,
        headers: Mapping[str, str],
        timeout_s: float = math.inf,
        ended: Ended = bool,
    ) -> tuple[dict[str, Any], int]:
        """See `RequestCarrier.post`."""
        number = self.number
        self.number = self.number + 1
        text = f'{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params}}}'
        body = text.encode("utf-8", "replace")
        answer = _Answer(number, self._max_bytes, self._on_change)
        try:
            await self._exchange(self._head(headers, len(body)) + body, answer, timeout_s)
            if b"mcp-session-id" in answer.headers:
                self._given_session()
            if len(answer.held) >= LARGE:
                result = await run_in_turn("read", answer.result)
            else:
                result = answer.result()
        except BaseException as error:
            ended(error)
            raise
        ended(None)
        return result, answer.size

    async def _exchange(self, request: bytes, answer: _Answer, timeout_s: float) -> None:
        fault = ServerFault("timeout", f"no answer within {timeout_s:.3g} s", sent=True)
        late = self._loop.call_later(min(timeout_s, _LONGEST_S), lambda: answer.end(fault))
        self._under_way.add(answer)
        try:
            await self._pool.exchange(request, answer)
        finally:  # from here on the channel is another's
            self._under_way.discard(answer)
            late.cancel()

    def close(self) -> None:
        for answer in list(self._under_way):
            answer.end(
                ServerFault("closed", "the connection was closed during the call", sent=True)
            )

    def _head(self, headers: Mapping[str, str], length: int) -> bytes:
        named = b"".join(
            [_header_line(pair) for pair in headers.items() if pair[0].lower() not in self._fixed]
        )
        return b"%b%bcontent-length: %d\r\n\r\n" % (self._first, named, length)


async def encode_params(params: Mapping[str, Any]) -> str:
    """Return a request's params as JSON; those with large arguments are encoded in a thread."""
    is_small = budget_left(params.get("arguments"), PIECE) >= 0
    if is_small:
        return encode_small(params)
    return await run_in_turn("shaped", partial(encode_large, params, encode_small, list))


async def replace_surrogates(params: dict[str, Any]) -> dict[str, Any]:
    """Return the params without lone surrogates, which would end the SDK's connection for all who
    share it.
    """
    text = await encode_params(params)
    sound = text.encode("utf-8", "replace")
    return params if sound.decode("utf-8") == text else read_object(sound) or {}


def _header_line(pair: tuple[str, str]) -> bytes:
    """Return a header as a line. Raises ServerFault for characters that a header can't have."""
    line = f"{pair[0]}: {pair[1]}"
    if not _HEADER.fullmatch(line):
        raise ServerFault("protocol_error", "an argument or name can't be sent in a header")
    return line.encode("ascii") + b"\r\n"


class _Answer:
    """The reader of one response (a `channels.Response`), and the message it contains."""

    def __init__(self, number: int, max_bytes: int, on_change: Callable[[], None]) -> None:
        self.done = False
        self.end: Callable[[ServerFault], None] = lambda fault: None
        self.status = 0
        self.headers: Headers = {}
        self._number = number
        self.size = 0
        self.held = bytearray()  # of a stream the last event, if that is large
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._left = max_bytes
        self._decoder: Any = None
        self._stream = self._event = False
        self._events = EventBuffer()
        self._message: dict[str, Any] | None = None

    # --- as it arrives ----------------------------------------------------------------------------

    def head(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        if 300 <= status < 400:
            self.done = True
        encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            self._decoder = zlib.decompressobj(47)
        elif encoding not in (b"identity", b""):
            raise garbled_fault("the server compressed its answer in a way that was not asked for")
        self._stream = status < 300 and self._kind() == b"text/event-stream"
        self._left = self._max_bytes * STREAM_FACTOR if self._stream else self._max_bytes
        self._left = MAX_ERROR_BYTES if status >= 400 else self._left

    def body(self, piece: bytes) -> None:
        if self._decoder is not None:
            try:
                piece = self._decoder.decompress(piece, self._left + 1)
            except zlib.error:
                raise garbled_fault("the server's compressed answer can't be read") from None
        self.size += len(piece)
        self._left -= len(piece)
        if self._left < 0 and self.status >= 400:
            self.done = True
            return
        if self._left < 0 or (self._stream and self._events.held + len(piece) > self._max_bytes):
            raise ServerFault(
                "too_large",
                f"the server's answer has more than {self._max_bytes:,} bytes",
                sent=True,
            )
        if not self._stream:
            self.held += piece
            return
        for data, _ in self._events.feed(piece):
            self._take_data(data)

    def _take_data(self, data: bytearray) -> None:
        if not data or self.done:
            return
        notice = _NOTICE.match(data[:_HEAD_BYTES]) if len(data) >= LARGE else None
        if len(data) >= LARGE and notice is None:  # it is parsed later, in a thread
            self.held = data
            self._event = True
            self.done = True
            return
        message = {"method": (notice[1] or b"").decode("latin-1")} if notice else read_object(data)
        if message is None:
            raise garbled_fault()
        if "method" not in message:
            self._message = message
            self.done = True
        elif message["method"] == "notifications/tools/list_changed":
            self._on_change()

    # --- when it is there -------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        if 300 <= self.status < 400:
            raise Redirected
        if self.status >= 400:
            return self._refusal_message()
        if self._stream and not self._event:
            if self._message is None:
                raise cut_fault()
            return read_result(self._message, self._number)
        if self._event or self._kind() == b"application/json":
            message = read_object(self.held)
        else:
            message = None
        if message is None:
            raise garbled_fault()
        return read_result(message, self._number)

    def _refusal_message(self) -> dict[str, Any]:
        """Return the server's JSON-RPC error in an error response.

        Raises ServerFault if it sent none.
        """
        message = read_object(self.held) or {}
        if message.get("jsonrpc") == "2.0" and isinstance(message.get("error"), dict):
            return read_result({**message, "id": None}, None)
        raise fault_for(
            self.status, self.headers.get(b"retry-after", b"").decode("latin-1"), sent=True
        )

    def _kind(self) -> bytes:
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()


def fault_for(status: int, retry_after: str, *, sent: bool = False) -> ServerFault:
    """Return the fault for an error status whose body is no JSON-RPC error."""
    reason = f"the server answered HTTP {status}"
    if status in (401, 403):
        return ServerFault("unauthorized", reason, sent=sent)
    if status == 429:
        seconds = float(retry_after) if retry_after.isdigit() and len(retry_after) < 7 else None
        return ServerFault("rate_limited", reason, retry_after_s=seconds, sent=sent)
    return ServerFault("http_error", reason, sent=sent)


def garbled_fault(why: str = "the server's answer is not a JSON-RPC message") -> ServerFault:
    return ServerFault("protocol_error", why, sent=True)


def cut_fault() -> ServerFault:
    return ServerFault(
        "connection_lost", "the server ended its answer before it was whole", sent=True
    )


def read_result(message: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Return the result in a response.

    Raises RpcError for an error, ServerFault if it is no response to `number`.
    """
    error = message.get("error")
    result = message.get("result")
    if message.get("jsonrpc") == "2.0" and message.get("id") in (number, None):
        if (
            isinstance(error, dict)
            and isinstance(error.get("code"), int)
            and isinstance(error.get("message"), str)
        ):
            raise RpcError(error["code"], error["message"], error.get("data"))
        if error is None and isinstance(result, dict) and message.get("id") == number:
            return result
    raise garbled_fault()


def is_sound(message: Mapping[str, Any], number: str) -> bool:
    """Return whether a message is the answer to request `number`; without one, whether the SDK can
    read it.
    """
    if "method" not in message:
        id_ = message.get("id")
        return not number or str(id_) == number or (id_ is None and "error" in message)
    has_form = message.get("jsonrpc") == "2.0" and isinstance(message.get("params") or {}, dict)
    return not number and has_form and isinstance(message["method"], str)


def read_message(data: bytes | bytearray, exchange: RequestState) -> dict[str, Any] | None:
    """Parse a large message, in a thread, as far as the SDK may read it on an event loop; None if
    it is none.
    """
    message = read_object(data)
    if message is None or not exchange.reads_whole(message):
        return message
    error = message.get("error")
    if isinstance(error, dict) and isinstance(
        said := error.get("message"), str
    ):  # what is left out would end no call
        message["error"] = {**error, "message": said[: MAX_MESSAGE + 1]}
    found = abridge(message, JsonSizes(message), MAX_VALUES, MAX_PASSED_BYTES)
    return None if found is None else found[0]


def read_object(body: bytes | bytearray) -> dict[str, Any] | None:
    """Parse a JSON object; None if it is none.

    Lone surrogates are replaced, and parts that are nested too deep.
    """
    try:
        is_small = len(body) < LARGE
        encoding = "utf-8" if body.startswith(b'{"') else json.detect_encoding(body)
        if is_small:
            value = decode_small(body.decode(encoding, "surrogatepass"))
        else:
            value = read_large(body)
        if (b"\\ud" in body or b"\\uD" in body) if is_small else contains(body, b"\\ud", b"\\uD"):
            value = read_large(dump(value).encode("utf-8", "replace"))
    except RecursionError:
        return read_object(cut) if (cut := cut_deep(bytes(body))) != body else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
