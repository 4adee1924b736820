"""HTTP transport below the SDK's: responses are bounded, and credentials are tied to one origin.

Rules:
1. Configured headers are added here, and only to requests to the configured origin. So no redirect,
   and no address that a server names, can carry them elsewhere.
2. Every response of the endpoint is bounded in decoded bytes before it is read. Compression is not
   requested; if the server compresses anyway, the body is decompressed here piece by piece.
3. A failing request fails alone: an error that would end the SDK's whole connection becomes the
   answer to that request, and its cause is noted in the request's state.
4. The proxy, `.netrc` and cookie settings of the environment are not used.
5. The SDK parses on the event loop, so it gets no large message. One is parsed here, in a thread;
   an answer is kept in the state of its request, and the SDK gets an empty result in its place. Of
   another message it gets what is small.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from ipaddress import ip_address
from typing import Any, Final, Self, cast

import anyio
import httpx2

from bundle_router.adapters.mcp.channels import CONNECT_S, KEEP_S, ChannelPool, wait_for_turn
from bundle_router.adapters.mcp.faults import EXCHANGE, RequestAborted, RequestState, ServerFault
from bundle_router.adapters.mcp.posting import (
    MAX_ERROR_BYTES,
    STREAM_FACTOR,
    ModernPosts,
    fault_for,
    is_sound,
    read_message,
    read_object,
)
from bundle_router.core.results.shaping.json_text import LARGE, encode_small
from bundle_router.core.servers.transport.lines import EventBuffer, cut_deep

READ_S: Final = 300.0
AUTHORIZING: Final = "bundle_router_authorizing"
"""Extension that marks the requests of an authorization flow (to the issuer, or for the server's
metadata). Only they may leave the origin. One that fails is answered with 502, so that the flow
goes on. One that spends a refresh token (then the value is true) goes on for `REFRESH_S` when its
call has ended; others wait longer (`tokens.LOCK_S`).
"""
REFRESH_S: Final = 9.0
_PIECE: Final = 64 * 1024
_REQUEST: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":"?(\d+)"?,')
_NO_SESSION: Final = (b"session", b"not initialized")
"""Words of a 400 to a request with a session: servers written after the TypeScript SDK's examples
send no 404.
"""
_NOT_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
)


class TooLarge(httpx2.StreamError):
    """A response exceeded its maximum size."""


class TruncatedResponse(httpx2.StreamError):
    """A response ended early. A StreamError, because the SDK then fails only this request."""


class OriginClient(httpx2.AsyncBaseTransport):
    """HTTP transport for one configured endpoint.

    `stateful` becomes true when the server issues a session id.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], max_bytes: int, inner: TcpPool
    ) -> None:
        self._url = httpx2.URL(url)
        self._origin = origin_of(url)
        self._headers = dict(headers)
        self._max_bytes = max_bytes
        self._inner = inner
        self.stateful = False
        self.ready = False
        """Whether the era is known. Before that, a transport error ends the connection."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if not request.extensions.get(AUTHORIZING):
            return await self._send(request)
        own = EXCHANGE.set(RequestState())
        try:
            with anyio.move_on_after(REFRESH_S, shield=True):
                response = await self._send(request)
                body = await _read_whole(response)
                return httpx2.Response(response.status_code, headers=response.headers, content=body)
        finally:
            EXCHANGE.reset(own)
        return _answer(502, "no answer in time")

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        is_own_origin = origin_of(request.url) == self._origin
        aside = AUTHORIZING in request.extensions
        if is_own_origin:
            request.headers.update(self._headers)
        elif not (aside and self._may_leave_for(request.url)):
            if aside:
                return _answer(502, "not asked")
            raise httpx2.UnsupportedProtocol(
                f"{request.url.host} is not contacted for an address that a server names"
            )
        request.headers["accept-encoding"] = "identity"
        endpoint = (
            is_own_origin
            and not aside
            and request.url.path == self._url.path
            and request.method == "POST"
        )
        exchange = _exchange_of(request)
        if endpoint:
            exchange.fault = None
        try:
            response = await exchange.until_aborted(self._inner.handle_async_request(request))
        except httpx2.TransportError as error:
            exchange.fault = _fault_of(error)
            if aside or (endpoint and self.ready):
                return _answer(502, exchange.fault.detail)
            raise
        except RequestAborted:
            return _answer(499, "aborted")
        if response.status_code >= 300:
            exchange.sent = False  # the request is sent again, elsewhere or with other credentials
        if "mcp-session-id" in response.headers:
            self.stateful = True
        if endpoint and response.status_code >= 400:
            return await self._refusal_response(request, response, exchange)
        return self._bounded(request, response, exchange)

    def _may_leave_for(self, url: httpx2.URL) -> bool:
        """Return whether a flow may request the URL: https, or this machine or link if the server
        is there too.
        """
        near = _nearness(url.host)
        return near == _nearness(self._url.host) if near else url.scheme == "https"

    def _bounded(
        self, request: httpx2.Request, response: httpx2.Response, exchange: RequestState
    ) -> httpx2.Response:
        cap = self._max_bytes
        if AUTHORIZING in request.extensions or response.status_code >= 400:
            cap = MAX_ERROR_BYTES  # the SDK parses an issuer's documents on the event loop
        elif response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            # A stream opened by GET is endless, and the SDK bounds each event.
            cap = sys.maxsize if request.method == "GET" else self._max_bytes * STREAM_FACTOR
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        headers = [
            (name, value)
            for name, value in response.headers.raw
            if name.lower() != b"content-encoding"
        ]
        if encoding not in ("identity", ""):
            headers = [
                (name, value) for name, value in headers if name.lower() != b"content-length"
            ]
        body = Body(response, cap, encoding, exchange, self._max_bytes)
        if request.method == "POST" and response.status_code < 300:
            named = _REQUEST.match(request.content)
        else:
            named = None
        body.number = named[1].decode() if named and not body.is_stream else ""
        return httpx2.Response(
            response.status_code, headers=headers, stream=body, extensions=response.extensions
        )

    async def _refusal_response(
        self, request: httpx2.Request, response: httpx2.Response, exchange: RequestState
    ) -> httpx2.Response:
        """Return the answer for an error status: the server's JSON-RPC error, else one with the
        status.
        """
        status = response.status_code
        body = await _read_whole(self._bounded(request, response, exchange))
        is_lost = status == 404 or (
            status == 400 and any(words in body.lower() for words in _NO_SESSION)
        )
        if is_lost and "mcp-session-id" in request.headers:
            exchange.fault = ServerFault("session_lost", "the server has forgotten the session")
        elif (message := read_object(body) or {}).get("jsonrpc") == "2.0" and isinstance(
            message.get("error"), dict
        ):
            return httpx2.Response(
                status, headers={"content-type": "application/json"}, content=body
            )
        else:
            exchange.fault = fault_for(status, response.headers.get("retry-after", ""))
        challenge = response.headers.get("www-authenticate", "")
        return _answer(
            status,
            f"HTTP {status}",
            {"www-authenticate": challenge} if challenge.isascii() else None,
        )

    def modern_posts(self, pool: TcpPool, on_change: Callable[[], None]) -> ModernPosts | None:
        """Return a carrier of modern requests to this address; None if the URL contains
        credentials.
        """
        url = self._url
        if url.userinfo:
            return None
        given_session = partial(setattr, self, "stateful", True)
        channels = pool.channels(url)
        return ModernPosts(
            channels,
            url.raw_path,
            url.netloc,
            self._headers,
            self._max_bytes,
            on_change,
            given_session,
        )

    async def aclose(self) -> None:
        """Do nothing: the connections below belong to the owner of the pool."""


def _exchange_of(request: httpx2.Request) -> RequestState:
    """Return the state of the context's request if this is that request, else a new state."""
    exchange = EXCHANGE.get()
    posts = request.method == "POST" and AUTHORIZING not in request.extensions
    if exchange is None or (posts and exchange.sent and not exchange.is_shared):
        return RequestState()
    exchange.sent = exchange.sent or posts
    return exchange


class Body(httpx2.AsyncByteStream):
    """The decoded bytes of a response, at most `cap` of them.

    Raises TooLarge, TruncatedResponse.
    """

    def __init__(
        self,
        response: httpx2.Response,
        cap: int,
        encoding: str,
        exchange: RequestState,
        event_cap: int,
    ) -> None:
        self._response = response
        self._source = aiter(cast("httpx2.AsyncByteStream", response.stream))
        self._cap = cap
        self._exchange = exchange
        self._seen = 0
        # zlib's own, which stops after a given number of bytes
        is_zipped = encoding in ("gzip", "x-gzip", "deflate")
        self._decoder = zlib.decompressobj(47) if is_zipped else None
        self._known = encoding in ("identity", "") or self._decoder is not None
        self._rest = b""
        self._events = EventBuffer()
        self._event_cap = event_cap
        self.is_stream = (
            response.headers.get("content-type", "").lower().startswith("text/event-stream")
        )
        self.number = ""  # that of the request, where the body is to be its answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next events of a stream, or a whole body, as the SDK may read them."""
        if not self.is_stream:
            body = bytearray(await self._bounded())
            with suppress(StopAsyncIteration):
                while True:
                    body += await self._bounded()
            return await self._readable(body)
        events: list[tuple[bytearray, list[bytes | bytearray]]] = []
        while not events:
            events = self._events.feed(await self._bounded())
        lines: list[bytes | bytearray] = []
        for data, fields in events:
            lines += (
                *fields,
                *(b"data: " + line for line in (await self._readable(data)).split(b"\n")),
                b"",
            )
        return b"\n".join((*lines, b""))

    async def _readable(self, data: bytearray) -> bytes:
        """Return JSON that is bounded in depth and, if it is an answer, in length, without lone
        surrogates.
        """
        work = partial(_set_aside, data, self._exchange, self.number)
        if len(data) >= LARGE:
            return await self._exchange.read_in_turn(work)
        is_read = self.number or b"\\ud" in data or b"\\uD" in data or b'"method"' in data
        return work() if is_read else cut_deep(bytes(data))

    async def _bounded(self) -> bytes:
        try:
            piece = await self._next()
        except httpx2.TransportError as error:
            self._exchange.fault = _fault_of(error)
            raise TruncatedResponse(self._exchange.fault.detail) from error
        except RequestAborted as error:
            raise TruncatedResponse("aborted") from error
        self._seen += len(piece)
        if self._seen > _PIECE:
            await wait_for_turn()
        if self._seen > self._cap or self._events.held + len(piece) > self._event_cap:
            cap = min(self._cap, self._event_cap)
            self._exchange.fault = ServerFault(
                "too_large", f"the server's answer has more than {cap:,} bytes"
            )
            # The SDK would ask for the rest of a stream again after another error.
            raise (httpx2.SSEError if self.is_stream else TooLarge)(self._exchange.fault.detail)
        return piece

    async def _next(self) -> bytes:
        if self._decoder is None:
            if not self._known:
                raise self._truncated_error(
                    "the server compressed its answer in a way that was not asked for"
                )
            return await self._exchange.until_aborted(anext(self._source))
        while True:
            if self._rest:
                await asyncio.sleep(
                    0
                )  # a small piece can unpack into a large one: let other calls run in between
            else:
                self._rest = await self._exchange.until_aborted(anext(self._source))
            try:
                piece: bytes = self._decoder.decompress(self._rest, _PIECE)
            except zlib.error:
                raise self._truncated_error(
                    "the server's compressed answer can't be read"
                ) from None
            self._rest = self._decoder.unconsumed_tail
            if piece:
                return piece

    def _truncated_error(self, why: str) -> TruncatedResponse:
        self._exchange.fault = ServerFault("protocol_error", why)
        return TruncatedResponse(why)

    async def aclose(self) -> None:
        await self._response.aclose()


def _set_aside(data: bytearray, exchange: RequestState, number: str) -> bytes:
    """Return what the SDK gets of a message: nothing of a malformed one, no JSON where an answer is
    another's.
    """
    message = read_message(data, exchange)
    if message is None or not is_sound(message, number):
        return b"" if message and not number else b"-"  # "-" is no JSON either
    return cut_deep(encode_small(exchange.hold(message)).encode())


Client = httpx2.AsyncClient
Request = httpx2.Request
Response = httpx2.Response


def origin_of(url: httpx2.URL | str) -> tuple[str, str, int | None]:
    """Return the origin that a credential is tied to. A scheme's default port counts as none."""
    url = httpx2.URL(url)
    return url.scheme, url.host, url.port


class TcpPool(httpx2.AsyncHTTPTransport):
    """The TCP connections to one server, for all its sessions.

    Keeps at most `keep` idle ones; the caller closes it.
    """

    def __init__(self, keep: int) -> None:
        self._context = _certificates(
            os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        )
        limits = httpx2.Limits(
            max_connections=None, max_keepalive_connections=keep, keepalive_expiry=KEEP_S
        )
        super().__init__(verify=self._context, limits=limits)
        self._keep = keep
        self._channels: ChannelPool | None = None

    def channels(self, url: httpx2.URL) -> ChannelPool:
        """Return the channels for requests that bypass the SDK."""
        if self._channels is None:
            secure = url.scheme == "https"
            port = url.port or (443 if secure else 80)
            host = url.raw_host.decode("ascii")
            self._channels = ChannelPool(host, port, self._context if secure else None, self._keep)
        return self._channels

    async def aclose(self) -> None:
        if self._channels is not None:
            self._channels.close()
        await super().aclose()


@cache
def _certificates(*_places: str | None) -> ssl.SSLContext:
    """Return the TLS context.

    Loading its certificates takes 20 ms, so all servers of a process share it.
    """
    return httpx2.create_ssl_context()


def open_client(transport: OriginClient, auth: Any = None) -> httpx2.AsyncClient:
    """Return a client over a transport that ignores the environment.

    The caller closes it, but not the pool.
    """
    timeout = httpx2.Timeout(CONNECT_S, read=READ_S)
    return httpx2.AsyncClient(
        transport=transport, auth=auth, timeout=timeout, follow_redirects=False, trust_env=False
    )


def _nearness(host: str) -> str:
    """Return `machine` or `link` for a host name that denotes this machine or a link-local address,
    else nothing.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return "machine"
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return ""
    if address.is_link_local:
        return "link"
    if address.is_loopback or address.is_unspecified:
        return "machine"
    return ""


async def _read_whole(response: httpx2.Response) -> bytes:
    """Return a bounded response's body; empty if it can't be read."""
    try:
        return await response.aread()
    except (httpx2.StreamError, httpx2.SSEError):
        return b""
    finally:
        await response.aclose()


def _answer(status: int, message: str, headers: Mapping[str, str] | None = None) -> httpx2.Response:
    """Return a response with a JSON-RPC error, which the SDK takes for the answer to the one
    request.
    """
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": message}}
    return httpx2.Response(
        status, headers={**(headers or {}), "content-type": "application/json"}, json=error
    )


def _fault_of(error: httpx2.TransportError) -> ServerFault:
    if isinstance(error, _NOT_SENT):
        return ServerFault("unreachable", f"the server can't be reached ({type(error).__name__})")
    return ServerFault(
        "connection_lost", f"the connection to the server was lost ({type(error).__name__})"
    )
