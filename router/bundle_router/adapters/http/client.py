"""Sends requests and reads bounded responses, under the rules of `bundle_router.adapters.http`."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from types import TracebackType
from typing import Final, Self

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from bundle_router.adapters.http.decoding import PIECE_BYTES, Decompressor
from bundle_router.adapters.http.sessions import HttpBounds, open_session, timeout_of
from bundle_router.core.servers.transport.proxies import proxy_of

_LARGE_BODY: Final = 256 * 1024
MAX_ATTEMPTS: Final = 4
"""Addresses of one judged name that are tried, in the resolver's order."""
_KEEPS_METHOD: Final = (307, 308)
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_ZIPPED: Final = ("gzip", "x-gzip", "deflate")

Judge = Callable[[str], str | None]
"""Returns why an address (as text) may not be connected to, in a few words; None if it may."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port, as text. Raises OSError."""
Headers = Iterable[tuple[str, str]]


class HttpError(Exception):
    """A request failed.

    HttpError
     ├── NotReached          nothing was sent: no name, no connection, no proxy
     │    ├── AddressRefused  the judge refused an address
     │    └── NotTrusted      no TLS with the server, or not with the certificate of its name
     ├── ConnectionLost      the connection ended before the response was whole
     │    └── NotHttp         what came is no HTTP
     ├── ServerSilent        the server sent nothing for `silent_s`
     ├── BodyTooLarge        the body exceeds the caller's bound
     └── BodyUnreadable      the body's compression is damaged, or of an unknown kind
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
        """One line for people. It holds no header and nothing of a body."""

    @property
    def sent(self) -> bool:
        """Whether the server may have received the request, so that it may have acted on it."""
        return True


class NotReached(HttpError):
    """Nothing was sent."""

    @property
    def sent(self) -> bool:
        return False


class AddressRefused(NotReached):
    """The judge refused an address of the host."""


class NotTrusted(NotReached):
    """There is no TLS with the server, or not with a valid certificate of its name."""


class ConnectionLost(HttpError):
    """The connection ended before the response was whole."""


class NotHttp(ConnectionLost):
    """What the server sent breaks HTTP."""


class ServerSilent(HttpError):
    """The server sent nothing for the seconds that it had."""


class BodyTooLarge(HttpError):
    """The body has more bytes than the caller takes."""


class BodyUnreadable(HttpError):
    """The body's compression is damaged, or was not asked for and is unknown."""


class HttpResponse:
    """One response, whose body can be read once.

    Use it as an async context manager, or `close` it: a connection whose body was read to its end
    is kept for the next request, any other is closed.
    """

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self._response = response
        self.status: int = response.status
        self.url = url
        """The URL that answered, after the redirects that were followed."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """The headers, by name in any case; `getall` gives repeated ones."""
        return self._response.headers

    @property
    def media_type(self) -> str:
        """The media type in lower case without its parameters; empty if none is given."""
        kind: str = self.headers.get("content-type", "")
        return kind.partition(";")[0].strip().lower()

    @property
    def redirects(self) -> bool:
        """Whether this is a redirect that was not followed."""
        return self.status in _REDIRECTS and "location" in self.headers

    async def pieces(self, max_bytes: int, *, decoded: bool = True) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without its compression unless `decoded` is false.

        Raises BodyTooLarge as soon as there are more than `max_bytes`, or if a compressed body
        takes more than twice as many to send, ConnectionLost, ServerSilent, BodyUnreadable.
        """
        decompressor = self._decompressor() if decoded else None
        decoded_bytes = 0
        arrived = 0
        try:
            async for received in self._response.content.iter_any():
                arrived += len(received)
                if arrived > 2 * max_bytes + PIECE_BYTES:
                    raise BodyTooLarge(f"the answer takes more than {2 * max_bytes:,} bytes")
                parts = (received,) if decompressor is None else decompressor.feed(received)
                for part in parts:
                    decoded_bytes += len(part)
                    if decoded_bytes > max_bytes:
                        raise BodyTooLarge(f"the answer has more than {max_bytes:,} bytes")
                    yield part
        except zlib.error:
            raise BodyUnreadable("the compressed answer is damaged") from None
        except TimeoutError as error:
            raise ServerSilent("the server sent nothing in time") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectionLost("the server ended its answer before it was whole") from error
        if decompressor is not None and not decompressor.is_whole:
            raise ConnectionLost("the compressed answer ends early")

    async def read(self, max_bytes: int) -> bytes:
        """Return the whole decoded body. Raises what `pieces` raises."""
        body = bytearray()
        async for piece in self.pieces(max_bytes):
            body += piece
        return bytes(body)

    def _decompressor(self) -> Decompressor | None:
        header: str = ",".join(self.headers.getall("content-encoding", ())).lower()
        encodings = [encoding.strip() for encoding in header.split(",")]
        encodings = [encoding for encoding in encodings if encoding not in ("", "identity")]
        if not encodings:
            return None
        if len(encodings) == 1 and encodings[0] in _ZIPPED:
            return Decompressor()
        raise BodyUnreadable("the answer is compressed in a way that was not asked for")

    def close(self) -> None:
        """End the response; its connection too, unless the body was read to its end."""
        self._response.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Request:
    """One request, as its sender gave it."""

    method: str
    url: URL
    headers: Sequence[tuple[str, str]]
    body: bytes
    timeout: aiohttp.ClientTimeout


@dataclass(frozen=True, slots=True)
class _Target:
    """Where one attempt goes."""

    url: URL
    """The URL to ask for, with an address in place of a judged name."""
    server_hostname: str | None = None
    """The name on the certificate, where the URL has an address in its place."""
    host: str | None = None
    """The value of the `Host` header, where the URL has an address in its place."""


class HttpClient:
    """Sends requests, on one event loop and for one purpose. The caller closes it.

    With a `judge` each address is judged before it is connected to (rule 4), and no connection is
    kept.
    """

    def __init__(
        self,
        bounds: HttpBounds | None = None,
        *,
        judge: Judge | None = None,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        """Open nothing yet: the session is made with the first request, on its loop.

        `resolve` and `tls` default to the system's. `variables` name the proxies.
        """
        self._bounds = bounds or HttpBounds()
        self._timeout = timeout_of(self._bounds)
        self._judge = judge
        self._resolve = resolve or resolve_by_system
        self._tls = tls
        self._variables = variables
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        hops: int = 0,
        endless: bool = False,
    ) -> HttpResponse:
        """Send a request and return its response, with the body unread.

        `hops`: redirects that are followed (rule 3). `endless`: the server may stay silent as long
        as it likes. Cancelling ends the connection. Raises NotReached (its subclass
        AddressRefused), ConnectionLost, ServerSilent.
        """
        timeout = self._timeout
        if endless:
            timeout = timeout_of(replace(self._bounds, silent_s=None))
        request = _Request(method, _parsed(url), list(headers), body, timeout)
        while True:
            response = await self._send_once(request)
            next_url = _next_hop(method, request.url, response) if hops > 0 else None
            if next_url is None:
                return HttpResponse(response, str(request.url))
            response.close()
            hops -= 1
            request = replace(request, url=next_url)

    async def _send_once(self, request: _Request) -> aiohttp.ClientResponse:
        targets = await self._targets(request.url)
        for target in targets[:-1]:
            try:
                return await self._send_to(target, request)
            except NotReached:
                continue
        return await self._send_to(targets[-1], request)

    async def _send_to(self, target: _Target, request: _Request) -> aiohttp.ClientResponse:
        headers = CIMultiDict(request.headers)
        if target.host is not None:
            headers["Host"] = target.host
        session = self._open_session()
        try:
            return await session.request(
                request.method,
                target.url,
                headers=headers,
                data=_payload_of(request.body),
                allow_redirects=False,
                proxy=proxy_of(str(request.url), self._variables),
                server_hostname=target.server_hostname,
                timeout=request.timeout,
            )
        except _AIOHTTP_ERRORS as error:
            raise _error_for(error) from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._is_closed:
            raise NotReached("the client was closed")
        if self._session is None:
            self._session = open_session(self._bounds, reuse=self._judge is None, tls=self._tls)
        return self._session

    # --- addresses --------------------------------------------------------------------------------

    async def _targets(self, url: URL) -> list[_Target]:
        """Return where a request may go: to judged addresses where there is a judge."""
        if self._judge is None:
            return [_Target(url)]
        host = url.host or ""
        if _is_address(host):
            self._check(host, [host])
            return [_Target(url)]
        port = url.port or 0
        try:
            async with asyncio.timeout(self._bounds.connect_s):
                addresses = await self._resolve(host, port)
        except TimeoutError:
            raise NotReached(f"{host!r} has no address in time") from None
        except OSError as error:
            raise NotReached(f"can't resolve {host!r}: {error.strerror or error}") from error
        if not addresses:
            raise NotReached(f"{host!r} has no address")
        self._check(host, addresses)
        header = host if url.is_default_port() else f"{host}:{port}"
        return [
            _Target(url.with_host(address), host, header) for address in addresses[:MAX_ATTEMPTS]
        ]

    def _check(self, host: str, addresses: Sequence[str]) -> None:
        for address in addresses:
            refused_for = self._judge(address) if self._judge is not None else None
            if refused_for is not None:
                raise AddressRefused(f"{host!r} is at {address} ({refused_for})")

    async def close(self) -> None:
        """End all connections. Requests under way fail; later ones raise NotReached."""
        self._is_closed = True
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        await self.close()


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the operating system gives for a host, without repetition."""
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL, with the scheme's default port. Raises ValueError."""
    parsed = URL(url)
    if not parsed.host or parsed.port is None:
        raise ValueError("the URL has no host")
    return parsed.scheme, parsed.host, parsed.port


def _payload_of(body: bytes) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp sends it: a large one piece by piece."""
    if len(body) > _LARGE_BODY:
        return io.BytesIO(body)
    return body or None


def _parsed(url: str) -> URL:
    """Return a URL as it is written. Raises NotReached for what is no HTTP URL."""
    try:
        parsed = URL(url, encoded=True)
        is_http = parsed.scheme in ("http", "https") and bool(parsed.host) and bool(parsed.port)
    except ValueError:
        is_http = False
    if not is_http:
        raise NotReached("the address is no http: or https: URL")
    return parsed


def _is_address(host: str) -> bool:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _next_hop(method: str, here: URL, response: aiohttp.ClientResponse) -> URL | None:
    """Return where a redirect leads that may be followed; None if there is none."""
    keeps_method = response.status in _KEEPS_METHOD or method in ("GET", "HEAD")
    if response.status not in _REDIRECTS or not keeps_method:
        return None
    try:
        target = here.join(URL(response.headers.get("location", ""), encoded=True))
        is_same = target.origin() == here.origin()
    except ValueError:
        return None
    if not is_same or "location" not in response.headers:
        return None
    if not here.user:
        return target
    return target.with_user(here.user).with_password(here.password)


_AIOHTTP_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError, ValueError)
_NOT_SENT: Final = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientHttpProxyError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
    ValueError,
)
"""What aiohttp raises before it has a connection. ValueError: a header, URL or proxy that is
none."""


def _error_for(error: Exception) -> HttpError:
    name = type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        fault = error.certificate_error
        reason = ""
        if isinstance(fault, ssl.SSLCertVerificationError):
            reason = f": {fault.verify_message}"
        return NotTrusted(f"the server can't be reached (its certificate is not valid{reason})")
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return NotTrusted(f"the server can't be reached ({name})")
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return NotReached(f"the proxy refused to connect (HTTP {error.status})")
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return NotReached("the proxy can't be reached")
    if isinstance(error, _NOT_SENT):
        return NotReached(f"the server can't be reached ({name})")
    if isinstance(error, TimeoutError):
        return ServerSilent("the server sent nothing in time")
    if isinstance(error, aiohttp.ClientResponseError):
        return NotHttp(f"the server answered with something that is no HTTP ({name})")
    return ConnectionLost(f"the connection to the server was lost ({name})")
