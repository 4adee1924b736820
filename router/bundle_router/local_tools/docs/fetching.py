"""Follows a URL to its page: each hop, the first and every redirect, is parsed, allowed, resolved
and checked anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.network import Network
from bundle_router.local_tools.docs.transfer import BodyLimit, HttpReply, ResponseHead, get
from bundle_router.local_tools.docs.urls import HostList, Url, join_url

MAX_REDIRECTS: Final = 5
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class Page:
    """The page at a URL.

    `url` is the last of `hops`; `media_type` is lower case, without parameters, "" if absent.
    """

    url: Url
    hops: tuple[Url, ...]
    media_type: str
    charset: str
    body: bytes
    cut: bool


@dataclass(frozen=True, slots=True)
class Fetcher:
    """The shared state of one call's requests: the allow-list, the network and the deadline."""

    hosts: HostList
    network: Network
    deadline: Deadline

    def fetch(self, url: Url, limit_for: Callable[[str], BodyLimit]) -> Page:
        """Return the page at `url`, after at most `MAX_REDIRECTS` redirects.

        `limit_for` receives the media type.

        Raises ToolFailure: those of `transfer.get`, `host_not_allowed`, `invalid_url` (a redirect
        to a URL that is never fetched), `too_many_redirects`, `not_found` (404, 410), `http_error`
        (any other status).
        """
        hops = [url]
        while True:
            current = hops[-1]
            try:
                self.hosts.check(current)
                reply = get(
                    current,
                    self.network,
                    self.deadline,
                    lambda head: limit_for(media_type(head)[0]),
                )
                if reply.head.status not in _REDIRECTS:
                    return _page(hops, reply)
                if len(hops) > MAX_REDIRECTS:
                    raise ToolFailure(
                        f"{url}: more than {MAX_REDIRECTS} redirects", code="too_many_redirects"
                    )
                hops.append(join_url(current, _location(current, reply.head)))
            except ToolFailure as failure:
                if len(hops) == 1:
                    raise
                trail = " → ".join(str(hop) for hop in hops)
                message = f"{failure.message} (redirected: {trail})"
                raise ToolFailure(message, code=failure.code, advice=failure.advice) from None


def media_type(head: ResponseHead) -> tuple[str, str]:
    """Return media type and charset of a reply, both lower case and "" if absent."""
    kind, _, parameters = head.first("content-type").partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return kind.strip().lower(), value.strip().strip("\"'").lower()
    return kind.strip().lower(), ""


def _page(hops: list[Url], reply: HttpReply) -> Page:
    status = reply.head.status
    if status in (404, 410):
        raise ToolFailure(f"{hops[-1]}: there is no such page (HTTP {status})", code="not_found")
    if status not in (200, 203):
        raise ToolFailure(f"{hops[-1]}: the server answered HTTP {status}", code="http_error")
    kind, charset = media_type(reply.head)
    return Page(hops[-1], tuple(hops), kind, charset, reply.body, reply.cut)


def _location(here: Url, head: ResponseHead) -> str:
    locations = head.all("location")
    if len(locations) != 1:
        raise ToolFailure(f"{here}: a redirect with {len(locations)} targets", code="bad_response")
    try:  # sites that send raw non-ASCII mean UTF-8; bytes that are none were read as surrogates
        locations[0].encode("utf-8")
        return locations[0]
    except UnicodeEncodeError:
        raise ToolFailure(
            f"{here}: a redirect whose target is not UTF-8", code="bad_response"
        ) from None
