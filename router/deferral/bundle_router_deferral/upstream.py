"""The client of the one upstream, and the only module here that knows `aiohttp`.

No redirects, no cookies, no login of `~/.netrc`.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Self
from urllib.parse import urlsplit

import aiohttp
from bundle_router.core.servers.transport.proxies import proxy_of
from multidict import CIMultiDict
from yarl import URL

CONNECT_S: Final = 10.0
SILENT_S: Final = 600.0
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
HOP_BY_HOP: Final = frozenset(
    (
        *(
            "connection",
            "keep-alive",
            "proxy-authenticate",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
        ),
        *(
            "transfer-encoding",
            "upgrade",
            "host",
            "content-length",
            "expect",
            "cookie",
            "set-cookie",
            "forwarded",
        ),
    )
)
"""Headers of a single connection, and those that a browser or another proxy would add.

All others are passed on, because gateways have headers of their own.
"""

Headers = Sequence[tuple[str, str]]


class UpstreamFailed(Exception):
    """The upstream was unreachable, or its answer was incomplete or too large."""


class UpstreamAnswer:
    """One answer of the upstream, whose body can be read once."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: list[tuple[str, str]] = passed_on(response.headers.items())
        self.type = response.headers.get("content-type", "").lower()
        self.encoding = response.headers.get("content-encoding", "identity").strip().lower()

    async def pieces(self, *, decoded: bool = False) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; `decoded` without its compression.

        Raises UpstreamFailed.
        """
        if decoded and self.encoding in ("gzip", "deflate"):
            decoder = zlib.decompressobj(47)
        else:
            decoder = None
        try:
            async for piece in self._response.content.iter_any():
                yield decoder.decompress(piece) if decoder else piece
        except (aiohttp.ClientError, TimeoutError, OSError, zlib.error) as error:
            raise UpstreamFailed(type(error).__name__) from error

    async def body(self, *, decoded: bool = True) -> bytes:
        """Return the whole body. Raises UpstreamFailed if it exceeds the bound."""
        received = bytearray()
        async for piece in self.pieces(decoded=decoded):
            received += piece
            if len(received) > MAX_BODY_BYTES:
                raise UpstreamFailed("the answer is too large")
        return bytes(received)

    def readable(self) -> bool:
        """Return whether this module can undo the body's compression."""
        return self.encoding in ("identity", "", "gzip", "deflate")

    def close(self) -> None:
        self._response.close()

    def release(self) -> None:
        self._response.release()


class Upstream:
    """The upstream of one proxy, fixed when it is made."""

    def __init__(self, base: str) -> None:
        """Raise ValueError for what is no HTTP address, and for a proxy on the way that is none."""
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base!r} is not an http:// or https:// address")
        self.host = parts.hostname
        self._origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.prefix = parts.path.rstrip("/")
        self._proxy = proxy_of(self._origin, os.environ)  # the agent itself may need HTTPS_PROXY
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,  # else a login of ~/.netrc is added, and replaces the agent's own
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> UpstreamAnswer:
        """Send a request to the fixed origin; `target` is its path and query.

        Raises UpstreamFailed.
        """
        if self._session is None:
            raise UpstreamFailed("closed")
        try:
            response = await self._session.request(
                method,
                URL(self._origin + self.prefix + target, encoded=True),
                headers=CIMultiDict(passed_on(headers)),
                data=body or None,
                allow_redirects=False,
                proxy=self._proxy,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise UpstreamFailed(type(error).__name__) from error
        return UpstreamAnswer(response)


def passed_on(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers to pass on: not those of one connection, nor those that `connection`
    names.
    """
    rows = list(headers)
    named = {
        part.strip().lower()
        for name, value in rows
        if name.lower() == "connection"
        for part in value.split(",")
    }
    return [
        (name, value)
        for name, value in rows
        if name.lower() not in HOP_BY_HOP and name.lower() not in named
    ]
