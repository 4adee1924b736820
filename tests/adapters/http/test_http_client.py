"""The client for everything that goes out, against servers on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
import trustme
from bundle_router.adapters.http import (
    AddressRefused,
    BodyTooLarge,
    BodyUnreadable,
    ConnectionLost,
    HttpBounds,
    HttpClient,
    NotReached,
    ServerSilent,
    open_session,
    tls_context,
)

from tests.ports import free_port

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = Callable[[bytes], bytes]
"""Returns the response to a request, given its head and body; nothing to end the connection."""


class Server:
    """A server of bare sockets: it keeps what it was sent, and answers what a test says."""

    def __init__(self, answer: Answer) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self.port = 0
        self._answer = answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while answer := self._answer(await self._read_request(reader)):
                writer.write(answer)
                await writer.drain()

    async def _read_request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line[15:] for line in head.lower().split(b"\r\n") if b"content-length:" in line]
        body = await reader.readexactly(int(lengths[0])) if lengths else b""
        self.requests.append(head + body)
        return head + body

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handle: Handle, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yield the port of a server; it is left when every connection has ended."""
    handling: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handling.add(asyncio.current_task())
        await handle(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.gather(*(task for task in handling if task is not None))


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(answer)
    async with listening(server.serve, tls) as server.port:
        yield server


def answering(status: str, *headers: str, body: bytes = b"") -> Answer:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
    return lambda _request: "\r\n".join(lines).encode() + body


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(main())


async def text_of(client: HttpClient, url: str, method: str = "GET", hops: int = 0) -> str:
    async with await client.send(method, url, body=b"", hops=hops) as response:
        return f"{response.status} {(await response.read(10_000)).decode()}"


# --- nothing of the environment -------------------------------------------------------------------


def test_a_login_of_netrc_and_cookies_are_never_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def work() -> None:
        async with (
            serving(answering("200 OK", "set-cookie: seen=1; path=/", body=b"ok")) as server,
            HttpClient() as client,
        ):
            await text_of(client, server.url)
            await text_of(client, server.url)
        heads = [request.split(b"\r\n\r\n")[0].split(b"\r\n") for request in server.requests]
        host = f"Host: 127.0.0.1:{server.port}".encode()
        assert heads == [[b"GET /mcp HTTP/1.1", host]] * 2

    run(work)


def test_a_bare_session_follows_the_same_rules(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async def work() -> None:
        async with (
            serving(answering("200 OK", "set-cookie: seen=1; path=/", body=b"ok")) as server,
            open_session() as session,
        ):
            for _ in range(2):
                async with session.get(server.url) as response:
                    assert await response.read() == b"ok"
        assert not any(b"uthorization" in one or b"ookie" in one for one in server.requests)

    run(work)


# --- proxies --------------------------------------------------------------------------------------


def test_a_proxy_is_used_by_name_and_never_for_this_machine() -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK", body=b"by proxy")) as proxy,
            serving(answering("200 OK", body=b"direct")) as server,
        ):
            variables = {"HTTP_PROXY": f"http://user:word@127.0.0.1:{proxy.port}"}
            async with HttpClient(variables=variables) as client:
                assert await text_of(client, "http://tools.example/mcp") == "200 by proxy"
                assert await text_of(client, server.url) == "200 direct"
        assert proxy.requests[0].startswith(b"GET http://tools.example/mcp HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk" in proxy.requests[0]
        assert b"roxy" not in server.requests[0]

    run(work)


@pytest.mark.parametrize(
    "excluded", ["example", ".example", "*.example", "tools.example:80", "*", "a.b, tools.example"]
)
def test_an_excluded_host_is_reached_directly(excluded: str) -> None:
    async def work() -> None:
        async with serving(answering("200 OK", body=b"by proxy")) as proxy:
            variables = {"HTTP_PROXY": f"127.0.0.1:{proxy.port}", "NO_PROXY": excluded}

            async def nowhere(host: str, port: int) -> Sequence[str]:
                raise OSError(f"{host}:{port}")

            async with HttpClient(
                variables=variables, judge=lambda _address: None, resolve=nowhere
            ) as client:
                with pytest.raises(NotReached, match=r"can't resolve 'tools\.example'"):
                    await client.send("GET", "http://tools.example/")
        assert proxy.requests == []

    run(work)


def test_a_network_excludes_its_addresses() -> None:
    async def work() -> None:
        async with serving(answering("200 OK", body=b"by proxy")) as proxy:
            variables = {"HTTP_PROXY": f"127.0.0.1:{proxy.port}", "NO_PROXY": "192.0.2.0/24"}
            async with HttpClient(HttpBounds(connect_s=0.2), variables=variables) as client:
                assert await text_of(client, "http://198.51.100.7/") == "200 by proxy"
                with pytest.raises(NotReached):
                    await client.send("GET", "http://192.0.2.7/")
        assert len(proxy.requests) == 1

    run(work)


def test_a_proxy_of_another_kind_and_one_that_refuses_are_named() -> None:
    async def work() -> None:
        async with serving(answering("407 Who")) as proxy:
            refusing = {"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"}
            async with HttpClient(variables=refusing) as client:
                with pytest.raises(NotReached, match=r"the proxy refused to connect \(HTTP 407\)"):
                    await client.send("GET", "https://tools.example/")
        gone = {"HTTPS_PROXY": f"http://127.0.0.1:{free_port()}"}
        async with HttpClient(variables=gone) as client:
            with pytest.raises(NotReached, match="the proxy can't be reached"):
                await client.send("GET", "https://tools.example/")
        async with HttpClient(variables={"ALL_PROXY": "socks5://127.0.0.1:1"}) as client:
            with pytest.raises(NotReached):
                await client.send("GET", "https://tools.example/")

    run(work)


def test_behind_a_proxy_the_tunnel_goes_to_the_judged_address(authority: trustme.CA) -> None:
    """The proxy would resolve a name again, perhaps to another address."""

    async def work() -> None:
        seen: list[bytes] = []

        async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            await writer.drain()
            await writer.start_tls(server_tls(authority, "docs.example"))
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()

        async with (
            listening(proxy) as port,
            HttpClient(
                judge=lambda address: None if address == "203.0.113.7" else "not it",
                resolve=addresses("203.0.113.7"),
                tls=client_tls(authority),
                variables={"HTTPS_PROXY": f"http://127.0.0.1:{port}"},
            ) as client,
        ):
            assert await text_of(client, "https://docs.example/page") == "200 ok"
        assert seen[0].startswith(b"CONNECT 203.0.113.7:443 HTTP/1.1\r\n")
        assert seen[1].startswith(b"GET /page HTTP/1.1\r\nHost: docs.example\r\n")

    run(work)


# --- addresses ------------------------------------------------------------------------------------


def addresses(*found: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return found

    return resolve


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_an_address_in_the_url_is_judged_before_it_is_connected_to(host: str) -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK")) as server,
            HttpClient(judge=lambda _address: "on this machine") as client,
        ):
            with pytest.raises(AddressRefused, match="on this machine") as refused:
                await client.send("GET", f"http://{host}:{server.port}/")
            assert not refused.value.sent
        assert server.connections == 0

    run(work)


def test_one_refused_address_refuses_the_name() -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK")) as server,
            HttpClient(
                judge=lambda address: None if address == "127.0.0.1" else "private",
                resolve=addresses("127.0.0.1", "10.0.0.1"),
            ) as client,
        ):
            with pytest.raises(AddressRefused, match=r"'both.example' is at 10.0.0.1 \(private\)"):
                await client.send("GET", f"http://both.example:{server.port}/")
        assert server.connections == 0

    run(work)


def test_the_next_address_is_tried_and_the_name_stays_the_host() -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK", body=b"ok")) as server,
            HttpClient(
                judge=lambda _address: None, resolve=addresses("127.0.0.2", "127.0.0.1")
            ) as client,
        ):
            url = f"http://name.example:{server.port}/"
            assert await text_of(client, url) == "200 ok"
        assert f"Host: name.example:{server.port}".encode() in server.requests[0]

    run(work)


def test_a_redirect_is_judged_again() -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(_host: str, _port: int) -> Sequence[str]:
        return next(answers)

    async def work() -> None:
        async with (
            serving(answering("302 Found", "location: /there")) as server,
            HttpClient(
                judge=lambda address: "private" if address.startswith("10.") else None,
                resolve=rebinding,
            ) as client,
        ):
            with pytest.raises(AddressRefused):
                await client.send("GET", f"http://name.example:{server.port}/", hops=1)
        assert len(server.requests) == 1

    run(work)


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def client_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def test_a_certificate_for_another_name_is_refused_before_anything_is_sent(
    authority: trustme.CA,
) -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK"), server_tls(authority, "other.example")) as server,
            HttpClient(
                judge=lambda _address: None,
                resolve=addresses("127.0.0.1"),
                tls=client_tls(authority),
            ) as client,
        ):
            with pytest.raises(NotReached, match="its certificate is not valid"):
                await client.send("POST", f"https://name.example:{server.port}/", body=b"secret")
            url = f"https://other.example:{server.port}/"
            assert await text_of(client, url) == "200 "
        assert len(server.requests) == 1

    run(work)


def test_ssl_cert_file_names_the_authorities_and_no_keys_are_logged(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))

    async def work() -> None:
        async with serving(answering("200 OK"), server_tls(authority, "127.0.0.1")) as server:
            url = f"https://127.0.0.1:{server.port}/"
            async with HttpClient() as client:
                with pytest.raises(NotReached):
                    await client.send("GET", url)
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
            async with HttpClient() as client:
                assert await text_of(client, url) == "200 "

    run(work)
    assert not (tmp_path / "keys").exists()
    assert tls_context() is tls_context()


# --- redirects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("location", ["/mcp/", "mcp/", "http://127.0.0.1:{port}/mcp/"])
def test_a_redirect_within_the_origin_keeps_method_headers_and_body(
    status: int, location: str
) -> None:
    async def work() -> None:
        async with serving(lambda request: answer(request)) as server:

            def answer(request: bytes) -> bytes:
                if request.startswith(b"POST /mcp HTTP/1.1"):
                    target = location.format(port=server.port)
                    return answering(f"{status} There", f"location: {target}")(request)
                return answering("200 OK", body=request.partition(b"\r\n\r\n")[2])(request)

            async with HttpClient() as client:
                headers = [("authorization", "Bearer token"), ("mcp-session-id", "s1")]
                response = await client.send(
                    "POST", server.url, headers=headers, body=b"asked", hops=1
                )
                async with response:
                    assert (response.status, await response.read(100)) == (200, b"asked")
                assert response.url == f"{server.url}/"
        assert server.requests[1].startswith(b"POST /mcp/ HTTP/1.1\r\n")
        assert b"Bearer token" in server.requests[1]
        assert b"s1" in server.requests[1]

    run(work)


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_post_is_not_turned_into_another_request(status: int) -> None:
    async def work() -> None:
        async with (
            serving(answering(f"{status} There", "location: /there")) as server,
            HttpClient() as client,
            await client.send("POST", server.url, body=b"x", hops=3) as response,
        ):
            assert response.status == status
            assert response.redirects
        assert len(server.requests) == 1

    run(work)


@pytest.mark.parametrize("to", ["http://127.0.0.2:{port}/", "http://localhost:{port}/", "//[", ""])
def test_no_redirect_is_followed_across_origins(to: str) -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK", body=b"taken")) as other,
            serving(lambda request: here(request)) as server,
            HttpClient() as client,
        ):

            def here(request: bytes) -> bytes:
                return answering("307 There", f"location: {to.format(port=other.port)}")(request)

            headers = [("authorization", "Bearer token")]
            async with await client.send("GET", server.url, headers=headers, hops=3) as response:
                assert response.status == 307
        assert other.requests == []

    run(work)


def test_hops_are_counted_and_none_is_followed_by_default() -> None:
    async def work() -> None:
        async with (
            serving(answering("307 There", "location: /again")) as server,
            HttpClient() as client,
        ):
            assert (await text_of(client, server.url)).startswith("307")
            assert len(server.requests) == 1
            assert (await text_of(client, server.url, hops=3)).startswith("307")
            assert len(server.requests) == 5

    run(work)


# --- connections ----------------------------------------------------------------------------------


def dying() -> Answer:
    """Answer the first request of the server, and end the connection at the second one."""
    left = [OK, b"", OK]
    return lambda _request: left.pop(0)


def test_a_post_into_a_dead_connection_is_not_sent_again() -> None:
    async def work() -> None:
        async with serving(dying()) as server, HttpClient() as client:
            assert await text_of(client, server.url, "POST") == "200 ok"
            with pytest.raises(ConnectionLost) as lost:
                await client.send("POST", server.url, body=b"pay")
            assert lost.value.sent
        assert len(server.requests) == 2

    run(work)


def test_a_get_into_a_dead_connection_is_sent_once_more() -> None:
    async def work() -> None:
        async with serving(dying()) as server, HttpClient() as client:
            assert await text_of(client, server.url) == "200 ok"
            assert await text_of(client, server.url) == "200 ok"
        assert (len(server.requests), server.connections) == (3, 2)

    run(work)


def test_a_whole_answer_keeps_the_connection_and_another_one_ends_it() -> None:
    async def work() -> None:
        async with (
            serving(answering("200 OK", body=bytes(1_000_000))) as server,
            HttpClient() as client,
        ):
            for _ in range(2):
                async with await client.send("GET", server.url) as response:
                    assert len(await response.read(1_000_000)) == 1_000_000
            assert server.connections == 1
            async with await client.send("GET", server.url):
                pass
            async with await client.send("GET", server.url) as response:
                await response.read(1_000_000)
            assert server.connections == 2

    run(work)


def serve_without_goodbye(listener: socket.socket, tls: ssl.SSLContext, is_over: Event) -> None:
    """Answer one request, and never the TLS goodbye; `is_over` once the connection has ended."""
    connection, _ = listener.accept()
    with tls.wrap_socket(connection, server_side=True) as secured:
        while b"\r\n\r\n" not in secured.recv(65536):
            pass
        secured.sendall(OK)
        with contextlib.suppress(ConnectionError):
            while socket.socket.recv(secured, 65536):  # beneath TLS
                pass
        is_over.set()


@pytest.mark.parametrize("is_judged", [True, False])
def test_close_ends_a_connection_whose_server_says_no_goodbye(
    authority: trustme.CA, is_judged: bool
) -> None:
    is_over = Event()

    async def work(url: str) -> None:
        judge = (lambda _address: None) if is_judged else None
        client = HttpClient(judge=judge, tls=client_tls(authority))
        assert await text_of(client, url) == "200 ok"
        await client.close()
        assert await asyncio.to_thread(is_over.wait, 20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        tls = server_tls(authority, "localhost")
        server = Thread(target=serve_without_goodbye, args=(listener, tls, is_over))
        server.start()
        run(lambda: work(f"https://localhost:{listener.getsockname()[1]}/"))
        server.join()


def test_nobody_there_a_closed_client_and_what_is_no_address_reach_nobody() -> None:
    async def work() -> None:
        client = HttpClient()
        for url in (f"http://127.0.0.1:{free_port()}/", "ftp://h/", "http://", "http://h:99999/"):
            with pytest.raises(NotReached):
                await client.send("GET", url)
        with pytest.raises(NotReached):
            await client.send("GET", "http://127.0.0.1:1/", headers=[("x", "a\r\nb: c")])
        await client.close()
        with pytest.raises(NotReached, match="the client was closed"):
            await client.send("GET", "http://127.0.0.1:1/")

    run(work)


def test_a_silent_server_is_given_up() -> None:
    async def work() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        async with listening(silent) as port, HttpClient(HttpBounds(silent_s=0.05)) as client:
            with pytest.raises(ServerSilent) as given_up:
                await client.send("POST", f"http://127.0.0.1:{port}/", body=b"x")
            assert given_up.value.sent

    run(work)


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1_000 + b"\r\n",
    ],
)
def test_what_is_no_http_ends_the_request(answer: bytes) -> None:
    async def work() -> None:
        async with serving(lambda _request: answer) as server, HttpClient() as client:
            with pytest.raises(ConnectionLost) as lost:
                await client.send("GET", server.url)
            assert lost.value.sent
            assert len(lost.value.detail) < 100

    run(work)


# --- bodies ---------------------------------------------------------------------------------------


def zipped(data: bytes, wbits: int = 31) -> bytes:
    packer = zlib.compressobj(wbits=wbits)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "body", "expected"),
    [
        ("identity", b"plain", b"plain"),
        ("gzip", zipped(b"one") + zipped(b"two"), b"onetwo"),
        ("deflate", zipped(b"text", 15), b"text"),
    ],
)
def test_a_body_is_decompressed(encoding: str, body: bytes, expected: bytes) -> None:
    async def work() -> None:
        answer = answering("200 OK", f"content-encoding: {encoding}", body=body)
        async with serving(answer) as server, HttpClient() as client:
            async with await client.send("GET", server.url) as response:
                assert await response.read(100) == expected
            async with await client.send("GET", server.url) as response:
                raw = [piece async for piece in response.pieces(10_000, decoded=False)]
                assert b"".join(raw) == body

    run(work)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answering("200 OK", body=bytes(1_001)), BodyTooLarge),
        (
            answering("200 OK", "content-encoding: gzip", body=zipped(bytes(50_000_000))),
            BodyTooLarge,
        ),
        (answering("200 OK", "content-encoding: gzip", body=zipped(b"text")[:-4]), ConnectionLost),
        (answering("200 OK", "content-encoding: gzip", body=b"no gzip"), BodyUnreadable),
        (answering("200 OK", "content-encoding: br", body=b"x"), BodyUnreadable),
        (answering("200 OK", "content-encoding: gzip, gzip", body=b"x"), BodyUnreadable),
        (lambda _request: b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2_000), BodyTooLarge),
    ],
)
def test_a_body_is_bounded_and_whole(answer: Answer, error: type[Exception]) -> None:
    async def work() -> None:
        async with (
            serving(answer) as server,
            HttpClient() as client,
            await client.send("GET", server.url) as response,
        ):
            with pytest.raises(error):
                await response.read(1_000)

    run(work)


def test_a_body_that_ends_early_is_lost() -> None:
    async def work() -> None:
        async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
            await writer.drain()

        async with (
            listening(cutting) as port,
            HttpClient() as client,
            await client.send("GET", f"http://127.0.0.1:{port}/") as response,
        ):
            with pytest.raises(ConnectionLost, match="before it was whole"):
                await response.read(100)

    run(work)
