"""Fetching against a real TLS server: what is connected to, what is followed, what is read, and
when it stops.

The resolver is a stub that answers with public addresses; a proxy on 127.0.0.1 leads tunnels to
those, and only those, to the server on 127.0.0.1, and records every address that it is asked for.
An audit hook records, beneath all of it, what the process itself resolves and connects to.
"""

from __future__ import annotations

import gzip
import select
import socket
import ssl
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from bundle_router.adapters.http.sessions import MAX_HEADERS
from bundle_router.adapters.loop import LoopThread
from bundle_router.core.values import LocalSettings, Media, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs import FetchArguments, SearchArguments, tools_over
from bundle_router.local_tools.docs.answers import MAX_TEXT
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.network import MAX_LOOKUPS, Network, Resolve, SystemResolver
from bundle_router.local_tools.docs.transfer import USER_AGENT

PUBLIC = "93.184.215.14"
PUBLIC_6 = "2606:2800:21f:cb07:6820:80da:af6b:8b2c"
HOST, OTHER = "docs.example.org", "other.example.org"

Responder = bytes | Callable[[ssl.SSLSocket, threading.Event], None]


def reply(
    body: bytes = b"",
    *,
    kind: str = "text/plain",
    status: str = "200 OK",
    headers: Sequence[str] = (),
) -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def redirect(target: str, status: str = "302 Found") -> bytes:
    return reply(status=status, headers=[f"Location: {target}"])


class Site:
    """A TLS server on 127.0.0.1 whose certificate names `*.example.org`.

    `pages` maps (host, target) to a reply.
    """

    def __init__(self, authority: trustme.CA, certificate: trustme.LeafCert) -> None:
        self.client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(self.client_tls)
        self._server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self._server_tls)
        self._server_tls.sni_callback = lambda connection, name, context: self.names.append(name)
        self.pages: dict[tuple[str, str], Responder] = {}
        self.names: list[str | None] = []
        self.requests: list[bytes] = []
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(300)
        # The client hangs up whenever it has seen enough: that is what most tests here are about.
        with (
            connection,
            suppress(OSError),
            self._server_tls.wrap_socket(connection, server_side=True) as tls,
        ):
            request = b""
            while b"\r\n\r\n" not in request:
                if not (data := tls.recv(65536)):
                    return
                request += data
            self.requests.append(request)
            target = request.split(b" ", 2)[1].decode()
            host = next(
                line for line in request.decode().split("\r\n") if line.startswith("Host: ")
            )[6:]
            responder = self.pages.get((host, target), reply(b"no", status="404 Not Found"))
            if callable(responder):
                responder(tls, self._stop)
            else:
                tls.sendall(responder)
            tls.unwrap()


class StubResolver:
    """Answers from a list per host: the first answer first, the last one from then on."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self.answers.get(host, [[PUBLIC]])
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Tunnels:
    """A proxy on 127.0.0.1 that leads every tunnel to the site, and keeps the addresses that it was
    asked for. With `is_mute`, it answers and then takes what comes, and says nothing more.
    """

    def __init__(self, port: int) -> None:
        self._site = port
        self.connected: list[tuple[str, int]] = []
        self.down: set[str] = set()
        self.is_mute = False
        self.heard = bytearray()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            method, target, _ = request.split(b" ", 2)
            assert method == b"CONNECT"
            address, _, port = target.decode().rpartition(":")
            address = address.strip("[]")
            self.connected.append((address, int(port)))
            if address in self.down:
                connection.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            if self.is_mute:
                while data := connection.recv(65536):
                    self.heard += data
                return
            with socket.create_connection(("127.0.0.1", self._site)) as site:
                relay(connection, site)


def relay(client: socket.socket, site: socket.socket) -> None:
    """Pass bytes in both directions until the client has ended."""
    peers = {client: site, site: client}
    while client in peers:
        ready, _, _ = select.select(list(peers), [], [], 300)
        for sender in ready:
            data = sender.recv(65536)
            if data:
                peers[sender].sendall(data)
                continue
            peers[sender].shutdown(socket.SHUT_WR)
            del peers[sender]


class Rig:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.resolver = StubResolver()
        self.connector = Tunnels(site.port)
        self.loop = LoopThread("docs-of-a-test")
        self.use(self.resolver.resolve, site.client_tls)

    def use(self, resolve: Resolve, tls: ssl.SSLContext | None) -> None:
        """Take tools over another network, behind the same proxy."""
        variables = {"https_proxy": f"http://127.0.0.1:{self.connector.port}"}
        self.fetch_tool, self.search_tool = tools_over(Network(resolve, tls, variables, self.loop))

    def close(self) -> None:
        self.site.close()
        self.connector.close()
        self.loop.close()

    def page(self, target: str, responder: Responder, host: str = HOST) -> str:
        self.site.pages[host, target] = responder
        return f"https://{host}{target}"

    def fetch(
        self, url: str, *, section: str | None = None, offset: int = 0, **context: Any
    ) -> ToolOutput:
        arguments = FetchArguments(url=url, section=section, offset=offset)
        output = self.fetch_tool.run(arguments, _context(**context))
        assert isinstance(output, ToolOutput)
        return output

    def text(self, url: str, **more: Any) -> str:
        (block,) = self.fetch(url, **more).blocks
        assert isinstance(block, Text)
        return block.text

    def search(self, site: str, query: str, limit: int = 10) -> str:
        arguments = SearchArguments(site=site, query=query, limit=limit)
        output = self.search_tool.run(arguments, _context())
        assert isinstance(output, ToolOutput)
        (block,) = output.blocks
        assert isinstance(block, Text)
        return block.text

    def code(self, url: str, **more: Any) -> str:
        with pytest.raises(ToolFailure) as caught:
            self.fetch(url, **more)
        return caught.value.code


def _context(
    *,
    hosts: Sequence[str] = (HOST, OTHER),
    timeout_s: float = 20,
    max_bytes: int = 2_000_000,
    cancelled: Callable[[], bool] = lambda: False,
) -> ToolContext:
    return ToolContext(
        "/nowhere", LocalSettings(docs_hosts=tuple(hosts)), timeout_s, max_bytes, cancelled
    )


class Audit:
    """Every name resolved and address connected to by this process, as the interpreter itself
    reports it.
    """

    def __init__(self) -> None:
        self.connects: list[Any] = []
        self.lookups: list[str] = []
        self.on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and event == "socket.connect":
            self.connects.append(arguments[1])
        elif self.on and event == "socket.getaddrinfo":
            self.lookups.append(arguments[0])


@pytest.fixture(scope="session")
def audit() -> Audit:
    return Audit()  # an audit hook can't be removed, so there is one per process


@pytest.fixture(scope="session")
def issued() -> tuple[trustme.CA, trustme.LeafCert]:
    authority = trustme.CA()
    return authority, authority.issue_cert("*.example.org")


@pytest.fixture
def rig(audit: Audit, issued: tuple[trustme.CA, trustme.LeafCert]) -> Iterator[Rig]:
    site = Site(*issued)
    rig = Rig(site)
    audit.connects.clear()
    audit.lookups.clear()
    audit.on = True
    try:
        yield rig
        here = {("127.0.0.1", site.port), ("127.0.0.1", rig.connector.port)}
        assert set(audit.connects) <= here, "connected past the proxy"
        assert set(audit.lookups) <= {"127.0.0.1"}, "resolved past the resolver"
        assert set(rig.connector.connected) <= {
            (PUBLIC, 443),
            (PUBLIC_6, 443),
        }, "connected to an unchecked address"
    finally:
        audit.on = False
        rig.close()


# --- what is asked, and of whom -------------------------------------------------------------------


def test_a_page_comes_with_its_url_and_the_request_carries_nothing_about_the_user(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text(f"machine {HOST} login me password secret")
    monkeypatch.setenv("HOME", str(tmp_path))
    url = rig.page(
        "/a?b=c", reply(b"hello\r\nworld\x1b[31m\x07\xe2\x80\xae!", headers=["Set-Cookie: id=1"])
    )
    assert rig.text(url) == f"URL: {url}\nType: text/plain\nCharacters: all 16\n\nhello\nworld[31m!"
    assert rig.text(url)
    lines = [request.decode().split("\r\n") for request in rig.site.requests]
    assert lines[0] == lines[1]
    assert lines[0][0] == "GET /a?b=c HTTP/1.1"
    assert sorted(line.split(":")[0].lower() for line in lines[0][1:] if line) == [
        "accept",
        "accept-encoding",
        "connection",
        "host",
        "user-agent",
    ]
    assert f"User-Agent: {USER_AGENT}" in lines[0]
    assert rig.site.names == [HOST, HOST]


def test_a_fragment_is_never_sent(rig: Rig) -> None:
    rig.page("/a", reply(b"hello"))
    rig.text(f"https://{HOST}/a#secret")
    assert b"secret" not in rig.site.requests[0]


def test_a_host_that_is_not_listed_is_not_even_resolved(rig: Rig) -> None:
    assert rig.code("https://evil.example.org/") == "host_not_allowed"
    assert rig.code(f"https://{HOST}/", hosts=()) == "no_hosts"
    assert rig.code(f"https://{HOST}/", hosts=["*"]) == "invalid_settings"
    assert rig.code("http://docs.example.org/") == "invalid_url"
    assert (rig.resolver.asked, rig.connector.connected) == ([], [])


def test_a_wildcard_lets_its_subdomains_in(rig: Rig) -> None:
    rig.page("/", reply(b"hello"), host="deep.example.org")
    assert "hello" in rig.text("https://deep.example.org/", hosts=["*.example.org"])


@pytest.mark.parametrize(
    "answer",
    [
        ["127.0.0.1"],
        ["::1"],
        [PUBLIC, "10.0.0.1"],
        [PUBLIC, "64:ff9b::7f00:1"],
        ["169.254.169.254"],
        ["not an address"],
    ],
)
def test_an_answer_with_one_address_that_is_not_public_is_refused_whole(
    rig: Rig, answer: list[str]
) -> None:
    rig.resolver.answers[HOST] = [answer]
    assert rig.code(f"https://{HOST}/") == "address_refused"
    assert rig.connector.connected == []


def test_an_empty_answer_is_a_name_without_an_address(rig: Rig) -> None:
    rig.resolver.answers[HOST] = [[]]
    assert rig.code(f"https://{HOST}/") == "dns_failed"


def test_an_answer_that_flips_after_the_check_is_never_seen(rig: Rig) -> None:
    rig.resolver.answers[HOST] = [[PUBLIC], ["127.0.0.1"]]
    assert "hello" in rig.text(rig.page("/", reply(b"hello")))
    assert rig.resolver.asked == [HOST]
    assert rig.connector.connected == [(PUBLIC, 443)]


def test_an_answer_that_flips_between_redirects_is_checked_again(rig: Rig) -> None:
    rig.resolver.answers[HOST] = [[PUBLIC], ["127.0.0.1"]]
    rig.page("/b", reply(b"secret"))
    assert rig.code(rig.page("/a", redirect("/b"))) == "address_refused"
    assert rig.connector.connected == [(PUBLIC, 443)]


def test_the_next_address_is_tried_when_one_does_not_answer(rig: Rig) -> None:
    rig.resolver.answers[HOST] = [[PUBLIC_6, PUBLIC]]
    rig.connector.down = {PUBLIC_6}
    assert "hello" in rig.text(rig.page("/", reply(b"hello")))
    rig.connector.down = {PUBLIC_6, PUBLIC}
    assert rig.code(f"https://{HOST}/") == "connect_failed"


def test_a_certificate_for_another_host_is_refused(rig: Rig) -> None:
    rig.page("/", reply(b"hello"), host="docs.example.net")
    assert rig.code("https://docs.example.net/", hosts=["docs.example.net"]) == "tls_failed"
    assert rig.site.requests == []


def test_a_certificate_of_an_unknown_authority_is_refused(rig: Rig) -> None:
    rig.use(rig.resolver.resolve, None)
    assert rig.code(f"https://{HOST}/") == "tls_failed"
    assert rig.site.requests == []


# --- redirects ------------------------------------------------------------------------------------

FORBIDDEN = [
    ("https://evil.example/", "host_not_allowed"),
    ("//evil.example/", "host_not_allowed"),
    ("http://docs.example.org/", "invalid_url"),
    ("https://docs.example.org:8443/", "invalid_url"),
    ("https://user:pass@docs.example.org/", "invalid_url"),
    ("https://127.0.0.1/", "invalid_url"),
    ("https://[::1]/", "invalid_url"),
    ("https://2130706433/", "invalid_url"),
    ("file:///etc/passwd", "invalid_url"),
    ("gopher://docs.example.org/", "invalid_url"),
    ("javascript:alert(1)", "invalid_url"),
    ("data:text/plain,hello", "invalid_url"),
    ("\\\\evil.example/", "invalid_url"),
    ("/\tx", "invalid_url"),
    ("https://inside.example.org/", "address_refused"),
]


@pytest.mark.parametrize("hops", [1, 3, 5])
@pytest.mark.parametrize(("target", "code"), FORBIDDEN)
def test_a_redirect_to_what_is_forbidden_ends_there_at_every_hop(
    rig: Rig, hops: int, target: str, code: str
) -> None:
    rig.resolver.answers["inside.example.org"] = [["10.0.0.1"]]
    for hop in range(1, hops):
        rig.page(f"/{hop}", redirect(f"/{hop + 1}"))
    rig.page(f"/{hops}", redirect(target))
    assert rig.code(f"https://{HOST}/1", hosts=[HOST, "inside.example.org"]) == code
    assert len(rig.connector.connected) == hops


@pytest.mark.parametrize(
    "status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"]
)
def test_a_redirect_is_followed_and_the_final_url_stated(rig: Rig, status: str) -> None:
    rig.page("/b/d", reply(b"hello"), host=OTHER)
    url = rig.page("/a", redirect(f"//{OTHER}/b/c/../d#part", status))
    assert f"Final URL: https://{OTHER}/b/d (after 1 redirect)" in rig.text(url)
    assert rig.resolver.asked == [HOST, OTHER]


def test_a_redirect_loop_ends_after_five(rig: Rig) -> None:
    assert rig.code(rig.page("/a", redirect("/a"))) == "too_many_redirects"
    assert len(rig.connector.connected) == 6


def test_a_redirect_without_one_target_is_refused(rig: Rig) -> None:
    assert rig.code(rig.page("/a", reply(status="302 Found"))) == "bad_response"
    rig.page("/c", reply(b"hello"))
    assert (
        rig.code(
            rig.page("/b", reply(status="302 Found", headers=["Location: /c", "Location: /d"]))
        )
        == "bad_response"
    )


def test_a_redirect_to_raw_utf8_is_followed(rig: Rig) -> None:
    rig.page("/gr%C3%BC%C3%9Fe", reply(b"hello"))
    assert "hello" in rig.text(rig.page("/a", redirect("/grüße")))


# --- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("404 Not Found", "not_found"),
        ("410 Gone", "not_found"),
        ("403 Forbidden", "http_error"),
        ("500 Oops", "http_error"),
        ("204 No Content", "http_error"),
        ("206 Partial", "http_error"),
        ("304 Not Modified", "http_error"),
    ],
)
def test_any_status_but_success_is_a_failure_and_its_body_is_not_shown(
    rig: Rig, status: str, code: str
) -> None:
    assert rig.code(rig.page("/a", reply(b"", status=status))) == code


def _write(*parts: bytes) -> Responder:
    def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
        for part in parts:
            tls.sendall(part)

    return respond


def _hang_up_rudely(data: bytes) -> Responder:
    def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
        tls.sendall(data)
        socket.socket.shutdown(tls, socket.SHUT_RDWR)  # TCP ends without TLS saying so

    return respond


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
BROKEN: dict[str, tuple[Responder, str]] = {
    "fewer bytes than the length says": (OK + b"Content-Length: 100\r\n\r\nhello", "truncated"),
    "a chunk that ends early": (OK + b"Transfer-Encoding: chunked\r\n\r\n64\r\nhello", "truncated"),
    "no last chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "truncated"),
    "a body cut by TCP": (_hang_up_rudely(OK + b"Content-Length: 9\r\n\r\nhello"), "truncated"),
    "a body that ends with the connection": (OK + b"\r\nhello", "truncated"),
    "a body that ends with TCP": (_hang_up_rudely(OK + b"\r\nhello"), "truncated"),
    "gzip that ends early": (reply(gzip.compress(b"hello" * 99)[:-9], headers=["Content-Encoding: gzip"]), "truncated"),
    "gzip that is none": (reply(b"hello", headers=["Content-Encoding: gzip"]), "bad_response"),
    "an encoding not asked for": (reply(b"hello", headers=["Content-Encoding: br"]), "unsupported_encoding"),
    "two encodings": (reply(b"x", headers=["Content-Encoding: gzip, gzip"]), "unsupported_encoding"),
    "two lengths": (OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "bad_response"),
    "a length that is none": (OK + b"Content-Length: -5\r\n\r\nhello", "bad_response"),
    "a chunk size that is none": (OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nhello", "bad_response"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "bad_response"),
    "nothing": (b"", "bad_response"),
    "another protocol": (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", "bad_response"),
    "too many headers": (OK + b"X: y\r\n" * MAX_HEADERS + b"\r\n", "bad_response"),
    "one endless header": (OK + b"X: " + b"y" * 200_000 + b"\r\n\r\nhello", "bad_response"),
    "a header line after another": (_write(OK, *[b"X: y\r\n" * 1000] * 100, b"\r\nhello"), "bad_response"),
    "a header folded around a control": (OK + b"X: \x00\r\n\r\n", "bad_response"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_reply_is_a_failure_not_half_a_page(rig: Rig, what: str) -> None:
    responder, code = BROKEN[what]
    assert rig.code(rig.page("/", responder)) == code


def test_bytes_after_the_stated_length_are_not_part_of_the_page(rig: Rig) -> None:
    assert rig.text(
        rig.page("/", OK + b"Content-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\nevil")
    ).endswith("\nhello")


def test_chunks_and_members_of_gzip_are_put_together(rig: Rig) -> None:
    body = gzip.compress(b"hello ") + gzip.compress(b"world")
    chunks = [b"%x\r\n%s\r\n" % (1, body[at : at + 1]) for at in range(len(body))]
    head = OK + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert rig.text(rig.page("/", _write(head, *chunks, b"0\r\n\r\n"))).endswith("\nhello world")


def _bomb(size: int) -> bytes:
    """gzip of `size` times the letter a."""
    packer, block = zlib.compressobj(9, wbits=31), b"a" * (1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(size >> 20)), packer.flush()])


def test_a_gzip_bomb_of_300_mb_stops_at_the_cap(rig: Rig) -> None:
    bomb = _bomb(300 << 20)
    assert len(bomb) < 1 << 20
    text = rig.text(rig.page("/text", reply(bomb, headers=["Content-Encoding: gzip"])))
    assert f"The page is longer than {MAX_TEXT} bytes; only its start was read" in text
    assert f"of {MAX_TEXT} (from 0)" in text
    assert (
        rig.code(
            rig.page("/image", reply(bomb, kind="image/png", headers=["Content-Encoding: gzip"]))
        )
        == "too_large"
    )


def test_compressed_bytes_that_decode_to_nothing_are_bounded_too(rig: Rig) -> None:
    def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
        packer = zlib.compressobj(wbits=31)
        tls.sendall(
            OK
            + b"Content-Encoding: gzip\r\nContent-Length: 999999999\r\n\r\n"
            + packer.compress(b"")
            + packer.flush(zlib.Z_SYNC_FLUSH)
        )
        while not stop.is_set():
            tls.sendall(b"\x00\x00\x00\xff\xff" * 20_000)  # empty stored blocks

    assert rig.code(rig.page("/", respond)) == "too_large"


def test_an_endless_text_is_cut_and_an_endless_image_refused(rig: Rig) -> None:
    def endless(kind: bytes) -> Responder:
        def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\nContent-Type: %s\r\n\r\n"
            tls.sendall(head % kind)
            while not stop.is_set():
                tls.sendall(b"line of text\n" * 5_000)

        return respond

    assert "only its start was read" in rig.text(rig.page("/a", endless(b"text/plain")))
    assert rig.code(rig.page("/b", endless(b"image/png")), max_bytes=10_000) == "too_large"


# --- time -----------------------------------------------------------------------------------------


def _drip(first: bytes, drop: bytes) -> Responder:
    def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
        tls.sendall(first)
        for _ in range(
            500
        ):  # 10 s: long past the deadline, so that a test without one ends and fails
            if stop.wait(0.02):
                return
            tls.sendall(drop)

    return respond


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (OK + b"Content-Length: 500\r\n\r\n", b"y"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\ny\r\n"),
    ],
    ids=["silence", "headers", "body", "chunks"],
)
def test_dripping_does_not_extend_the_deadline(rig: Rig, first: bytes, drop: bytes) -> None:
    assert rig.code(rig.page("/", _drip(first, drop)), timeout_s=0.4) == "timeout"


def test_redirects_share_one_deadline(rig: Rig) -> None:
    def late(target: str) -> Responder:
        def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
            stop.wait(0.15)
            tls.sendall(redirect(target))

        return respond

    for hop in range(5):
        rig.page(f"/{hop}", late(f"/{hop + 1}"))
    rig.page("/5", reply(b"hello"))
    assert rig.code(f"https://{HOST}/0", timeout_s=0.4) == "timeout"


def test_a_server_that_never_shakes_hands_is_left_at_the_deadline(rig: Rig) -> None:
    rig.connector.is_mute = True
    assert rig.code(f"https://{HOST}/", timeout_s=0.3) == "timeout"
    assert rig.connector.heard[:1] == b"\x16"  # a TLS hello was sent


def test_a_caller_that_goes_away_ends_the_wait(rig: Rig) -> None:
    gone = threading.Event()

    def respond(tls: ssl.SSLSocket, stop: threading.Event) -> None:
        gone.set()
        select.select([tls], [], [], 300)

    assert rig.code(rig.page("/", respond), cancelled=gone.is_set) == "cancelled"


def test_a_look_up_that_hangs_is_left_at_the_deadline_and_hanging_ones_are_counted(
    rig: Rig,
) -> None:
    release = threading.Event()

    def hang(*_: Any, **__: Any) -> list[Any]:
        release.wait(300)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (PUBLIC, 443))]

    resolver = SystemResolver(hang)
    try:
        for _ in range(MAX_LOOKUPS):
            with pytest.raises(ToolFailure) as caught:
                Deadline(0.01).run("resolving", resolver.resolve(HOST, 443), rig.loop)
            assert caught.value.code == "timeout"
        with pytest.raises(ToolFailure) as caught:
            Deadline(60).run("resolving", resolver.resolve(HOST, 443), rig.loop)
        assert caught.value.code == "dns_failed"
    finally:
        release.set()


# --- the real network -----------------------------------------------------------------------------


def test_the_system_resolver_answers_and_a_loopback_answer_is_refused_without_a_connect(
    rig: Rig,
) -> None:
    real = SystemResolver(lambda *_, **more: socket.getaddrinfo("127.0.0.1", 443, **more))
    assert Deadline(60).run("resolving", real.resolve(HOST, 443), rig.loop) == ("127.0.0.1",)
    rig.use(real.resolve, None)
    assert rig.code(f"https://{HOST}/") == "address_refused"
    assert rig.connector.connected == []


def test_a_name_that_does_not_exist_or_no_network_at_all_is_said_plainly() -> None:
    fetch, _ = tools_over()
    with pytest.raises(ToolFailure) as caught:
        fetch.run(
            FetchArguments(url="https://docs.invalid/"),
            _context(hosts=["docs.invalid"], timeout_s=60),
        )
    assert caught.value.code in ("dns_failed", "timeout")
    assert "docs.invalid" in caught.value.message


def test_no_file_descriptor_is_left_behind_by_failures(rig: Rig) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("needs /proc to count file descriptors")
    for url in (rig.page("/a", redirect("/a")), rig.page("/b", b""), f"https://{HOST}/none"):
        rig.code(url)
    before = _sockets(descriptors)
    for _ in range(3):
        for target in ("/a", "/b", "/none"):
            rig.code(f"https://{HOST}{target}")
    rig.code("https://docs.example.net/", hosts=["docs.example.net"])
    rig.close()
    assert _sockets(descriptors) < before  # the listener is gone too


def _sockets(descriptors: Path) -> int:
    return sum(entry.is_socket() for entry in descriptors.iterdir())


# --- what comes back ------------------------------------------------------------------------------

PAGE = b"""<html><head><title>Guide</title></head><body><nav>menu</nav><main>
<h1 id="top">Guide</h1><p>Intro &#x202e;.</p>
<h2 id="one">One</h2><p>First <a href="../up">up</a>.</p><h3>Deeper</h3><p>Deep.</p><h2 id="two">Two</h2><p>Second.</p>
<p id="spot">Spot.</p><img src="/pic.png" alt="ours"><img src="https://tracker.example/p.gif" alt="theirs">
</main></body></html>"""


@pytest.mark.parametrize(
    ("section", "fragment", "left_out"),
    [
        (None, "", "left out: 1 menu"),
        ("Two", "", "left out: 1 menu (of the whole page)"),
        ("deeper", "", "left out: 1 menu (of the whole page)"),
        (None, "#one", "left out: 1 menu (of the whole page)"),
    ],
)
def test_every_part_of_a_page_ends_with_what_was_left_out(
    rig: Rig, section: str | None, fragment: str, left_out: str
) -> None:
    url = rig.page("/docs/guide.html", reply(PAGE, kind="text/html; charset=utf-8"))
    text = rig.text(f"{url}{fragment}", section=section)
    assert text.endswith(f"\n\n{left_out}")
    assert text.count("left out:") == 1


def test_html_comes_as_markdown_of_its_main_content(rig: Rig) -> None:
    url = rig.page("/docs/guide.html", reply(PAGE, kind="text/html; charset=utf-8"))
    text = rig.text(url)
    assert text.startswith(
        f"URL: {url}\nType: text/html, as Markdown\nTitle: Guide\nCharacters: all "
    )
    assert text.endswith("\n\nleft out: 1 menu")
    assert ">menu" not in text
    assert "\u202e" not in text
    assert f"[up](https://{HOST}/up)" in text
    assert f"![ours](https://{HOST}/pic.png)" in text
    assert "tracker" not in text
    assert "theirs" in text


@pytest.mark.parametrize(
    ("fragment", "section", "holds", "lacks"),
    [
        ("", "one", ["## One", "First", "### Deeper"], ["Intro", "## Two"]),
        ("", "TW", ["## Two", "Second"], ["First"]),
        ("#one", None, ["Section: #one", "First", "Deep."], ["Intro", "Second"]),
        ("#two", None, ["Second", "Spot"], ["First"]),
        ("#spot", None, ["Spot."], ["Second", "Intro"]),
        ("#none", None, ["there is no #none", "Intro", "Second"], []),
    ],
)
def test_a_section_is_picked_by_heading_or_fragment(
    rig: Rig, fragment: str, section: str | None, holds: list[str], lacks: list[str]
) -> None:
    text = rig.text(rig.page("/g", reply(PAGE, kind="text/html")) + fragment, section=section)
    assert [part for part in holds if part not in text] == []
    assert [part for part in lacks if part in text] == []


def test_a_section_that_is_not_there_is_answered_with_those_that_are(rig: Rig) -> None:
    with pytest.raises(ToolFailure, match="no section 'Three'") as caught:
        rig.fetch(rig.page("/g", reply(PAGE, kind="text/html")), section="Three")
    assert caught.value.code == "no_section"
    assert "Guide | One | Deeper | Two" in caught.value.advice


def test_a_long_page_comes_in_pieces_that_join_to_the_whole(rig: Rig) -> None:
    whole = "".join(f"line {number} ü\n" for number in range(6_000))
    url = rig.page("/long", reply(whole.encode()))
    pieces, offset = [], 0
    for _ in range(20):
        head, _, piece = rig.text(url, offset=offset).partition("\n\n")
        pieces.append(piece)
        if "fetch again" not in head:
            break
        assert f"of {len(whole)} (from {offset}); for more, fetch again with offset=" in head
        offset = int(head.rpartition("=")[2])
    assert "".join(pieces) == whole
    assert len(pieces) > 3
    assert rig.code(url, offset=len(whole)) == "bad_offset"


def test_a_result_stays_within_the_bytes_it_may_have(rig: Rig) -> None:
    url = rig.page("/long", reply("ü".encode() * 50_000))
    text = rig.text(url, max_bytes=1_000)
    assert len(text.encode()) <= 1_000
    assert "fetch again with offset=" in text


@pytest.mark.parametrize(
    "kind", ["text/markdown", "application/json", "application/vnd.api+json", "text/css", ""]
)
def test_plain_text_markdown_and_json_come_as_they_are(rig: Rig, kind: str) -> None:
    body = '{"a": "<b>not html</b>"}\n# [x](y)'
    assert rig.text(rig.page("/a", reply(body.encode(), kind=kind))).endswith(body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n\0"),
        ("application/pdf", b"%PDF-1.7\n"),
        ("image/svg+xml", b"<svg/>"),
        ("audio/ogg", b"OggS"),
    ],
)
def test_media_come_as_artifacts(rig: Rig, kind: str, body: bytes) -> None:
    url = rig.page("/files/my%20pic..png", reply(body, kind=f"{kind}; x=y"))
    says, media = rig.fetch(url).blocks
    assert media == Media(body, kind, "my_pic..png")
    assert isinstance(says, Text)
    assert says.text == f"URL: {url}\nType: {kind}, {len(body)} bytes"


def test_text_that_is_binary_comes_as_an_artifact_of_unknown_type(rig: Rig) -> None:
    _, media = rig.fetch(rig.page("/", reply(b"MZ\0\0binary"))).blocks
    assert media == Media(b"MZ\0\0binary", "", "")


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain; charset=ISO-8859-1", b"gr\xfc\xdfe", "grüße"),
        ("text/plain; charset=utf-16", "grüße".encode("utf-16"), "grüße"),
        ("text/plain", b"\xef\xbb\xbfgr\xc3\xbc", "grü"),
        ("text/plain; charset=zlib", b"x\x9c\xab", "xœ«"),
        ("text/plain; charset=zlib", b"\xe9", "Encoding: none is named, and it is not UTF-8"),
        ("text/plain; charset=csUnicode", "grüße".encode("utf-16-le"), "grüße"),
        ("text/plain; charset=unicode_escape", b"\\u0041", "\\u0041"),
        ("text/html", b"<meta charset=shift_jis><p>\x93\xfa\x96{</p>", "日本"),
        ("text/plain; charset=utf-8", b"\xff\xfehello"[2:] + b"\xff", "hello\ufffd"),
    ],
)
def test_the_charset_is_heard_but_only_charsets_are(
    rig: Rig, kind: str, body: bytes, text: str
) -> None:
    assert text in rig.text(rig.page("/", reply(body, kind=kind)))


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"<div id=root></div><noscript>Enable JavaScript.</noscript><script src=a.js></script>", "JavaScript"),
        (b"<div id=root>Loading\xe2\x80\xa6</div><script src=a.js></script>", "JavaScript"),
        (b"<p>You need to enable JavaScript to run this app.</p><script src=a.js></script>", "JavaScript"),
        (b"<meta http-equiv=refresh content='0; URL=/new'>", "it only leads to https://docs.example.org/new"),
        (b"<frameset><frame src=toc.html><frame src=text.html></frameset>", "https://docs.example.org/text.html"),
        (b"<nav>Menu</nav><main></main>", "it holds no text"),
        (b"", "it holds no text"),
    ],
)  # fmt: skip
def test_a_page_without_text_is_a_failure_that_says_why(rig: Rig, page: bytes, reason: str) -> None:
    url = rig.page("/empty", reply(page, kind="text/html; charset=utf-8"))
    with pytest.raises(ToolFailure, match="there is no text to read on this page") as caught:
        rig.fetch(url)
    assert caught.value.code == "no_text"
    assert reason in caught.value.message


def test_a_text_file_without_text_is_a_failure(rig: Rig) -> None:
    assert rig.code(rig.page("/empty.txt", reply(b" \n"))) == "no_text"


def test_a_page_about_javascript_is_no_failure(rig: Rig) -> None:
    page = b"<h1>Setup</h1><p>The editor requires JavaScript.</p><p>It runs anywhere.</p><script></script>"
    assert "The editor requires" in rig.text(rig.page("/js", reply(page, kind="text/html")))


# --- search over the network ----------------------------------------------------------------------


def test_search_climbs_to_the_nearest_index_and_says_which(rig: Rig) -> None:
    listing = (
        b"# Docs\n- [Retries](https://docs.example.org/en/retries.html): how a call is tried"
        b" again\n- [A](b.html)"
    )
    rig.page("/en/llms.txt", reply(listing, kind="text/plain"))
    rig.page("/llms.txt", reply(b"[Wrong retries](wrong.html)"))
    text = rig.search(f"{HOST}/en/guide/start.html", "retries")
    assert text.startswith(
        f"Index: https://{HOST}/en/llms.txt (llms.txt, 2 entries)\n1 of 1 matches for 'retries'"
    )
    assert f"1. Retries\n   https://{HOST}/en/retries.html\n   how a call is tried again" in text
    assert "Wrong" not in text


def test_search_follows_an_index_redirect_and_stays_under_its_folder(rig: Rig) -> None:
    rig.page("/llms.txt", redirect("/en/latest/llms.txt"))
    links = [
        "page-a.html",
        "../../page-b.html",
        "%2e%2e/page-c.html",
        "https://evil.example/page-d",
        "//evil.example/page-e",
        "http://docs.example.org/en/latest/page-f",
        "javascript:page-g",
        "/en/latest/page-h",
    ]
    rig.page(
        "/en/latest/llms.txt",
        reply("".join(f"- [page {link}]({link})\n" for link in links).encode()),
    )
    text = rig.search(HOST, "page")
    assert [line.strip() for line in text.splitlines() if line.startswith("   ")] == [
        f"https://{HOST}/en/latest/page-a.html",
        f"https://{HOST}/en/latest/page-h",
    ]


def test_search_reads_sitemaps_of_sitemaps_of_the_same_site_only(rig: Rig) -> None:
    parts = "".join(
        f"<sitemap><loc>{url}</loc></sitemap>"
        for url in (f"https://{HOST}/one.xml", "https://evil.example/x.xml")
    )
    rig.page(
        "/sitemap.xml", reply(f"<sitemapindex>{parts}</sitemapindex>".encode(), kind="text/xml")
    )
    rig.page(
        "/one.xml",
        reply(f"<urlset><url><loc>https://{HOST}/guide/rate-limits/</loc></url></urlset>".encode()),
    )
    assert f"1. guide rate limits\n   https://{HOST}/guide/rate-limits/" in rig.search(
        HOST, "limits"
    )


def test_search_of_a_site_that_answers_everything_with_a_page_finds_no_index(rig: Rig) -> None:
    for path in (
        "objects.inv",
        "search/search_index.json",
        "searchindex.js",
        "llms.txt",
        "sitemap.xml",
    ):
        rig.page(f"/{path}", reply(PAGE, kind="text/html"))
    with pytest.raises(ToolFailure, match="publishes no index") as caught:
        rig.search(HOST, "retries")
    assert caught.value.code == "no_index"


def test_search_outside_the_list_or_without_a_network_stops_at_the_first_request(rig: Rig) -> None:
    with pytest.raises(ToolFailure) as caught:
        rig.search("evil.example", "retries")
    assert caught.value.code == "host_not_allowed"
    rig.connector.down = {PUBLIC}
    with pytest.raises(ToolFailure) as caught:
        rig.search(HOST, "retries")
    assert caught.value.code == "connect_failed"
    assert len(rig.connector.connected) == 1


def test_search_says_when_nothing_matches(rig: Rig) -> None:
    rig.page("/llms.txt", reply(b"- [Retries](retries.html)"))
    assert rig.search(HOST, "quantum").endswith("Nothing matches.")
    with pytest.raises(ToolFailure) as caught:
        rig.search(HOST, "?!")
    assert caught.value.code == "no_words"
