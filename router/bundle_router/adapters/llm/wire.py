"""The HTTP session that litellm uses, with the bounds that litellm lacks.

Rules:
1. One allowance is one request. Redirects, reconnects and retries inside the libraries need a
   second one, and are refused before they connect. Without an allowance (at warm-up) nothing
   connects at all.
2. Of an answer no more is read than its tokens can need (`bytes_for`; for vectors, the bytes that
   the caller allows); then the connection is closed. Compressed answers are neither requested nor
   accepted, so that bytes on the wire are bytes in memory. A completion of many values, or with
   long ones around the text, is refused before litellm sees it, which spends a millisecond on each
   invalid value, and seconds on long names and errors (`is_overloaded`, `VECTOR`).
3. Of an error's text `MAX_ERROR_BYTES` are read, and none of a compressed one. Its status is
   enough, and litellm searches the text with more than a hundred expressions, which takes ten
   seconds a megabyte.
4. The rules of `bundle_router.adapters.http` hold: the proxy is the environment's, and `~/.netrc`
   is not read.
5. To a `base_url` go no credentials but the one named for it (see `credentials`).

It uses aiohttp's extension points: `TraceConfig.on_request_start`, `request_class` and
`response_class`.
"""

from __future__ import annotations

import json
import math
import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.llm.credentials import ModelHost, RequestNotSent

if TYPE_CHECKING:
    from aiohttp import ClientSession

MAX_BYTES: Final = 1_048_576
FEWEST_BYTES: Final = 65_536
BYTES_PER_TOKEN: Final = 64
"""Bytes of an answer for each token that it may have, beyond `FEWEST_BYTES` and up to `MAX_BYTES`.

A token of four characters, all escaped, is 24 bytes. litellm's work on some fields is quadratic, so
less is better.
"""
MAX_ERROR_BYTES: Final = 8_192
MAX_VALUES: Final = 500
"""Maximum values in the JSON of a completion, whose text is one of some fifty; of vectors, maximum
objects.
"""
VECTOR: Final = re.compile(rb"\[[-+.0-9eE,\s]*\]")
LONG_TEXTS: Final = (
    "content",
    "arguments",
    "refusal",
    "text",
    "reasoning",
    "reasoning_content",
    "thinking",
    "data",
)
MAX_CONNECTIONS: Final = 64


@dataclass(slots=True)
class Allowance:
    """Permission for a number of requests. Shared by everything that runs in its context."""

    left: int
    host: ModelHost | None = None
    """Where the requests may go, and with which key; None: to the provider's own host."""
    asked: int = 0
    """Number of attempted requests, granted or not."""
    refusal: RequestNotSent | None = None
    """Why a request was not sent to `host`."""


allowance: ContextVar[Allowance | None] = ContextVar("bundle_router_model_allowance", default=None)


def bytes_for(tokens: int) -> int:
    """Return the maximum bytes of an answer with so many tokens."""
    return min(FEWEST_BYTES + BYTES_PER_TOKEN * tokens, MAX_BYTES)


def is_overloaded(answer: bytes | bytearray) -> bool:
    """Return whether a completion has more values, or longer ones around its text, than any needs
    (rule 2).
    """
    try:
        top = json.loads(answer)
    except (ValueError, RecursionError):
        return False  # litellm refuses it at once
    if (not isinstance(top, dict) or "error" in top) and len(answer) > MAX_ERROR_BYTES:
        return True
    todo = [("", top)]
    count = 1
    while todo and count <= MAX_VALUES:
        name, value = todo.pop()
        if (
            max(len(name), len(value) if isinstance(value, str) and name not in LONG_TEXTS else 0)
            > FEWEST_BYTES
        ):
            return True
        inner = value if isinstance(value, dict | list) else ()
        count += len(inner)
        todo += inner.items() if isinstance(inner, dict) else ((name, element) for element in inner)
    return count > MAX_VALUES


def plain_completion(answer: bytes) -> bytes:
    """Return a completion in the form that litellm reads; as it is, where it is in that form.

    Some servers give the content as a list of parts, of which those of type `text` are the answer,
    and counts of tokens as fractions.
    """
    try:
        top = json.loads(answer)
    except (ValueError, RecursionError):
        return answer
    if not isinstance(top, dict):
        return answer

    changed = False
    for message in _messages_of(top):
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = _text_of_parts(content)
            changed = True
    usage = top.get("usage")
    if isinstance(usage, dict):
        whole = {name: _whole_count(count) for name, count in usage.items()}
        changed = changed or any(map(_is_fraction, usage.values()))
        top["usage"] = whole
    return json.dumps(top).encode() if changed else answer


def _messages_of(top: dict[str, Any]) -> list[dict[str, Any]]:
    choices = top.get("choices")
    rows = [row for row in choices if isinstance(row, dict)] if isinstance(choices, list) else []
    messages = [row.get("message") for row in rows]
    return [message for message in messages if isinstance(message, dict)]


def _text_of_parts(parts: list[Any]) -> str:
    texts = [part for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(str(part.get("text", "")) for part in texts)


def _is_fraction(count: object) -> bool:
    return isinstance(count, float) and math.isfinite(count)


def _whole_count(count: Any) -> Any:
    return math.ceil(count) if _is_fraction(count) else count


def _is_compressed(response: Any) -> bool:
    return str(response.headers.get("Content-Encoding", "identity")).lower() != "identity"


def open_session(*, max_bytes: int = MAX_BYTES, vectors: bool = False) -> ClientSession:
    """Return a session that keeps the rules.

    It belongs to the running loop. `vectors`: it is for them alone.
    """
    import aiohttp

    from bundle_router.adapters import http

    class Bounded:
        """The response's reader, which gives all that it may in one piece."""

        def __init__(self, reader: Any, response: aiohttp.ClientResponse) -> None:
            self._reader = reader
            self._response = response

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

        async def iter_chunked(self, _n: int) -> Any:
            if answer := await self.read():
                yield answer

        async def read(self, n: int = -1) -> bytes:
            if n >= 0:
                return bytes(await self._reader.read(n))
            is_error = self._response.status >= 400
            answer = bytearray()
            if not is_error:
                limit = max_bytes
            elif _is_compressed(self._response):
                limit = 0
            else:
                limit = MAX_ERROR_BYTES
            async for chunk in self._reader.iter_chunked(65_536):
                answer += chunk
                if len(answer) > limit:
                    self._response.close()
                    if is_error:
                        return bytes(answer[:limit])
                    raise aiohttp.ClientPayloadError(f"the answer is longer than {max_bytes} bytes")
            many = max(map(answer.count, b"{[")) > MAX_VALUES if vectors else is_overloaded(answer)
            if not is_error and (many or (vectors and len(VECTOR.sub(b"", answer)) > FEWEST_BYTES)):
                raise aiohttp.ClientPayloadError(
                    "the answer has more values, or longer ones, than it needs"
                )
            if is_error or vectors:
                return bytes(answer)
            return plain_completion(bytes(answer))

    class BoundedResponse(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            await super().start(connection)
            if self.status < 400 and _is_compressed(self):
                raise aiohttp.ClientPayloadError(
                    "the answer is compressed, which was not asked for"
                )
            self.content = Bounded(self.content, self)  # type: ignore[assignment]  # reads as a StreamReader does
            return self

    async def on_request_start(_session: Any, _context: Any, request: Any) -> None:
        budget = allowance.get()
        if budget is not None:
            budget.asked += 1
        if budget is None or budget.left <= 0:
            raise aiohttp.ClientConnectionError("no request is allowed here")
        budget.left -= 1
        request.headers["Accept-Encoding"] = "identity"
        request.headers.popall("Cookie", None)  # an HTTP client above this session may keep cookies
        if budget.host is not None:
            try:
                budget.host.clean(str(request.url), request.headers)
            except RequestNotSent as refusal:
                budget.refusal = refusal
                raise

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(on_request_start)
    return http.open_session(
        http.HttpBounds(max_connections=MAX_CONNECTIONS),
        request_class=http.ProxiedRequest,  # litellm would reach this machine by a proxy
        response_class=BoundedResponse,
        trace_configs=[trace],
    )
