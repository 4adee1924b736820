"""The client of the one upstream, by the router's rules for HTTP: no redirects, no cookies, no
login of `~/.netrc` (`bundle_router.adapters.http`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, Self
from urllib.parse import urlsplit

from bundle_router.adapters.http import HttpBounds, HttpClient, HttpError, HttpResponse
from bundle_router.core.servers.transport.proxies import proxy_of

BOUNDS: Final = HttpBounds(connect_s=10.0, silent_s=600.0)
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

    def __init__(self, response: HttpResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: list[tuple[str, str]] = passed_on(response.headers.items())
        self.type = response.headers.get("content-type", "").lower()
        self.encoding = response.headers.get("content-encoding", "identity").strip().lower()

    async def pieces(
        self, *, decoded: bool = False, max_bytes: int = sys.maxsize
    ) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; `decoded` without its compression.

        Raises UpstreamFailed, also for more than `max_bytes`.
        """
        is_known = self.encoding in ("gzip", "deflate")
        try:
            async for piece in self._response.pieces(max_bytes, decoded=decoded and is_known):
                yield piece
        except HttpError as error:
            raise UpstreamFailed(error.detail) from error

    async def body(self, *, decoded: bool = True) -> bytes:
        """Return the whole body. Raises UpstreamFailed if it exceeds the bound."""
        received = bytearray()
        async for piece in self.pieces(decoded=decoded, max_bytes=MAX_BODY_BYTES):
            received += piece
        return bytes(received)

    def readable(self) -> bool:
        """Return whether this module can undo the body's compression."""
        return self.encoding in ("identity", "", "gzip", "deflate")

    def close(self) -> None:
        self._response.close()


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
        proxy_of(self._origin, os.environ)  # the agent itself may need HTTPS_PROXY
        self._client = HttpClient(BOUNDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._client.close()

    async def send(self, method: str, target: str, headers: Headers, body: bytes) -> UpstreamAnswer:
        """Send a request to the fixed origin; `target` is its path and query.

        Raises UpstreamFailed.
        """
        try:
            response = await self._client.send(
                method, self._origin + self.prefix + target, headers=passed_on(headers), body=body
            )
        except HttpError as error:
            raise UpstreamFailed(error.detail) from error
        return UpstreamAnswer(response)


def passed_on(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers to pass on: not those of one connection, nor those that `connection`
    names.
    """
    rows = list(headers)
    hop_headers = {
        part.strip().lower()
        for name, value in rows
        if name.lower() == "connection"
        for part in value.split(",")
    }
    return [
        (name, value)
        for name, value in rows
        if name.lower() not in HOP_BY_HOP and name.lower() not in hop_headers
    ]
