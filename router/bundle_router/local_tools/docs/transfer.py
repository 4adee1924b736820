"""Sends one GET over one connection, with every dimension of the reply bounded.

h11 does the framing: it has no I/O of its own, is strict about lengths and chunks, and bounds its
buffers. The socket, and so the deadline, is here. One request per connection: nothing that a server
sends can be taken for the answer to another request.

Bounds: `MAX_HEAD` bytes of headers (or trailers), `MAX_HEADERS` of them, `MAX_INTERIM` interim
replies, the caller's `BodyLimit` on the decoded body, twice that on what is received, and the
caller's deadline on all of it together.
"""

from __future__ import annotations

import ssl
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NoReturn

import h11

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.network import Network
from bundle_router.local_tools.docs.urls import Url

MAX_HEAD: Final = 32_768
MAX_HEADERS: Final = 100
MAX_INTERIM: Final = 5
USER_AGENT: Final = "bundle-router-docs"
CHUNK: Final = 65_536
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

    Raises ToolFailure: those of `Network.open`, `bad_response`, `truncated`,
    `unsupported_encoding`, `too_large`.
    """
    with closing(network.open(url.host, deadline)) as connection:
        exchange = _Exchange(url, connection, deadline)
        exchange.send_request()
        head = exchange.read_head()
        if head.status in _SUCCESS:
            return exchange.read_body(head, limit_for(head))
        return HttpReply(head)


class _Exchange:
    """Sends a request and reads its reply, over one connection."""

    def __init__(self, url: Url, connection: ssl.SSLSocket, deadline: Deadline) -> None:
        self._url = url
        self._socket = connection
        self._deadline = deadline
        self._doing = f"reading {url}"
        self._received = 0
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD)

    def send_request(self) -> None:
        headers = [
            ("Host", self._url.host),
            ("User-Agent", USER_AGENT),
            # Some documentation sites answer with their Markdown source when asked for it.
            ("Accept", "text/markdown, text/html;q=0.9, text/plain;q=0.8, */*;q=0.5"),
            ("Accept-Encoding", "gzip"),
            ("Connection", "close"),
        ]
        request = h11.Request(method="GET", target=self._url.target, headers=headers)
        try:
            self._socket.settimeout(self._deadline.check(f"asking for {self._url}"))
            self._socket.sendall(self._http.send(request) + self._http.send(h11.EndOfMessage()))
        except OSError as error:
            self._deadline.check(f"asking for {self._url}")
            self._raise_broken(str(error.strerror or error))

    def read_head(self) -> ResponseHead:
        interim = 0
        while True:
            event = self._next_event()
            if isinstance(event, h11.Response):
                break
            interim += 1
            if (
                not isinstance(event, h11.InformationalResponse)
                or event.status_code == 101
                or interim > MAX_INTERIM
            ):
                self._fail("the server sent something other than a reply", "bad_response")
        raw = list(event.headers)
        if len(raw) > MAX_HEADERS:
            self._fail(f"the reply has more than {MAX_HEADERS} headers", "bad_response")
        return ResponseHead(
            event.status_code, tuple((k.decode("ascii"), v.decode("latin-1")) for k, v in raw)
        )

    def read_body(self, head: ResponseHead, limit: BodyLimit) -> HttpReply:
        inflate = self._inflater(head)
        body = bytearray()
        self._received = 0
        while isinstance(event := self._next_event(), h11.Data):
            data = bytes(event.data)
            room = limit.max_bytes + 1 - len(body)
            body += inflate.feed(data, room) if inflate else data[:room]
            if len(body) > limit.max_bytes:
                if limit.cut:
                    return HttpReply(head, bytes(body[: limit.max_bytes]), cut=True)
                self._fail(f"it is larger than {limit.max_bytes} bytes", "too_large")
            if self._received > 2 * limit.max_bytes + CHUNK:
                self._fail(f"it takes more than {2 * limit.max_bytes} bytes to send", "too_large")
        if inflate and not inflate.complete:
            self._fail("the compressed body ends early", "truncated")
        return HttpReply(head, bytes(body))

    def _inflater(self, head: ResponseHead) -> _Gunzip | None:
        listed = ",".join(head.all("content-encoding")).lower().split(",")
        codings = [coding for item in listed if (coding := item.strip()) not in ("", "identity")]
        if not codings:
            return None
        if codings not in (["gzip"], ["x-gzip"]):
            self._fail(
                f"the body is encoded as {', '.join(codings)[:80]!r}, not asked for",
                "unsupported_encoding",
            )
        return _Gunzip(
            lambda why: self._fail(f"the compressed body is damaged ({why})", "bad_response")
        )

    def _next_event(self) -> h11.Event:
        try:
            while True:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    self._http.receive_data(self._receive())
                elif isinstance(event, h11.Event):
                    return event
                else:  # PAUSED: the server switched protocols
                    self._fail("the server stopped speaking HTTP", "bad_response")
        except h11.RemoteProtocolError as error:
            early = self._http.their_state is h11.ERROR and "without sending complete" in str(error)
            self._fail(f"the reply breaks HTTP ({error})", "truncated" if early else "bad_response")

    def _receive(self) -> bytes:
        while True:
            self._socket.settimeout(self._deadline.slice(self._doing))
            try:
                data = self._socket.recv(CHUNK)
            except TimeoutError:
                continue
            except OSError as error:
                self._raise_broken(str(error.strerror or error))
            self._received += len(data)
            return data

    def _raise_broken(self, why: str) -> NoReturn:
        self._fail(f"the connection broke ({why})", "truncated")

    def _fail(self, why: str, code: str) -> NoReturn:
        raise ToolFailure(f"{self._url}: {why}", code=code)


class _Gunzip:
    """Decodes gzip piece by piece within bounds, so that a bomb costs no more than the room given
    to it.
    """

    def __init__(self, damaged: Callable[[str], NoReturn]) -> None:
        self._damaged = damaged
        self._member = zlib.decompressobj(wbits=31)
        self._fed = False

    @property
    def complete(self) -> bool:
        return self._member.eof or not self._fed

    def feed(self, data: bytes, room: int) -> bytes:
        """Return at most `room` decoded bytes.

        If it returns that many the caller must stop: the rest is dropped.
        """
        out = bytearray()
        self._fed = self._fed or bool(data)
        while data and len(out) < room:
            if self._member.eof:
                self._member = zlib.decompressobj(wbits=31)
            try:
                out += self._member.decompress(data, room - len(out))
            except zlib.error as error:
                self._damaged(str(error))
            data = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
        return bytes(out)
