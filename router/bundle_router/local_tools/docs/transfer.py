"""Sends one GET over one connection, with every dimension of the reply bounded.

Bounds: those of `bundle_router.adapters.http` on the head, the caller's `BodyLimit` on the decoded
body, twice that on what is received, and the caller's deadline on all of it together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bundle_router.adapters.http import (
    AddressRefused,
    BodyTooLarge,
    BodyUnreadable,
    HttpBounds,
    HttpClient,
    HttpError,
    HttpResponse,
    NotReached,
    NotTrusted,
)
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.addresses import refusal
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.network import Network
from bundle_router.local_tools.docs.urls import Url

USER_AGENT: Final = "bundle-router-docs"
_BOUNDS: Final = HttpBounds(connect_s=10.0, silent_s=None)
_HEADERS: Final = (
    ("User-Agent", USER_AGENT),
    # Some documentation sites answer with their Markdown source when asked for it.
    ("Accept", "text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.5"),
    ("Accept-Encoding", "gzip"),
)
_SUCCESS: Final = (200, 203)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Status and headers of a reply, with names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def first(self, name: str) -> str:
        return next(iter(self.all(name)), "")


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """At most `max_bytes` decoded bytes.

    More is cut and marked or, if `cut` is false, fails with `too_large`.
    """

    max_bytes: int
    cut: bool


@dataclass(frozen=True, slots=True)
class HttpReply:
    """`body` is decoded; it is empty, and unread, unless the status is 200 or 203.

    `cut`: the body was longer.
    """

    head: ResponseHead
    body: bytes = b""
    cut: bool = False


def get(
    url: Url, network: Network, deadline: Deadline, limit_for: Callable[[ResponseHead], BodyLimit]
) -> HttpReply:
    """Send one GET and read its reply, without following redirects.

    Raises ToolFailure `dns_failed`, `address_refused`, `connect_failed`, `tls_failed`, `timeout`,
    `cancelled`, `bad_response`, `truncated`, `unsupported_encoding`, `too_large`.
    """
    return deadline.run(f"reading {url}", _get(url, network, limit_for), network.loop)


async def _get(
    url: Url, network: Network, limit_for: Callable[[ResponseHead], BodyLimit]
) -> HttpReply:
    client = HttpClient(
        _BOUNDS,
        judge=refusal,
        resolve=network.addresses,
        tls=network.tls,
        variables=network.variables,
    )
    async with client:
        try:
            response = await client.send("GET", str(url), headers=_HEADERS)
        except HttpError as error:
            raise _unanswered(url, error) from error
        async with response:
            head = _head_of(response)
            if head.status < 200:
                raise ToolFailure(f"{url}: the server stopped speaking HTTP", code="bad_response")
            if head.status not in _SUCCESS:
                return HttpReply(head)
            _check_body(url, head)
            return await _read_body(url, response, head, limit_for(head))


def _head_of(response: HttpResponse) -> ResponseHead:
    headers = tuple((name.lower(), value) for name, value in response.headers.items())
    return ResponseHead(response.status, headers)


def _check_body(url: Url, head: ResponseHead) -> None:
    """Refuse a body that can't be read whole for certain."""
    encodings = _encodings_of(head)
    if encodings not in ([], ["gzip"], ["x-gzip"]):
        raise ToolFailure(
            f"{url}: the body is encoded as {', '.join(encodings)[:80]!r}, not asked for",
            code="unsupported_encoding",
        )
    # An event loop does not tell whether TLS ended with a close, or was cut off.
    if not head.all("content-length") and not head.all("transfer-encoding"):
        raise ToolFailure(
            f"{url}: the server does not say where its answer ends, so it may be cut short",
            code="truncated",
        )


def _encodings_of(head: ResponseHead) -> list[str]:
    listed = ",".join(head.all("content-encoding")).lower().split(",")
    encodings = [encoding.strip() for encoding in listed]
    return [encoding for encoding in encodings if encoding not in ("", "identity")]


async def _read_body(
    url: Url, response: HttpResponse, head: ResponseHead, limit: BodyLimit
) -> HttpReply:
    body = bytearray()
    try:
        async for piece in response.pieces(2 * limit.max_bytes):
            body += piece
            if len(body) > limit.max_bytes:
                break
    except BodyTooLarge as error:
        raise ToolFailure(f"{url}: {error.detail}", code="too_large") from error
    except BodyUnreadable as error:
        raise ToolFailure(f"{url}: {error.detail}", code="bad_response") from error
    except HttpError as error:
        raise ToolFailure(f"{url}: {error.detail}", code="truncated") from error
    is_longer = len(body) > limit.max_bytes
    if is_longer and not limit.cut:
        raise ToolFailure(f"{url}: it is larger than {limit.max_bytes} bytes", code="too_large")
    return HttpReply(head, bytes(body[: limit.max_bytes]), cut=is_longer)


def _unanswered(url: Url, error: HttpError) -> ToolFailure:
    """Return the failure of a request that got no reply."""
    if isinstance(error, AddressRefused):
        return ToolFailure(
            f"{error.detail}; only public addresses are fetched from", code="address_refused"
        )
    if isinstance(error, NotTrusted):
        return ToolFailure(
            f"no TLS connection with {url.host!r}: {error.detail}",
            code="tls_failed",
            advice=(
                "if every site fails so, this machine lacks the certificate authorities (package"
                " ca-certificates)"
            ),
        )
    if isinstance(error, NotReached):
        return ToolFailure(
            f"can't connect to {url.host!r}: {error.detail}",
            code="connect_failed",
            advice=(
                "check that this machine, or the proxy that its environment names, may reach the"
                " internet on port 443"
            ),
        )
    return ToolFailure(f"{url}: {error.detail}", code="bad_response")
