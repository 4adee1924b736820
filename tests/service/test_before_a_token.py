"""Every parser that sees bytes before a token was judged: its work grows with the bytes, no faster
(S-43), on the oldest Python that is supported.

What is compared is the CPU of this thread for a text and for one four times as long: four times as
much, where work is linear, sixteen where it is quadratic. Server and client share the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

LONGER = 4
MOST_GROWTH = 8
FLOOR_S = 0.002
"""CPU below which growth can't be told from what any request costs."""
TRIES = 5


def get(target: str, *lines: str) -> Callable[[int], bytes]:
    """A GET whose target or headers hold `{port}`, and the text under test in place of `*`."""
    head = "\r\n".join([f"GET {target} HTTP/1.1", *(lines or ("Host: 127.0.0.1:{port}",)), ""])
    return lambda port: f"{head}Connection: close\r\n\r\n".replace("{port}", str(port)).encode()


def header(line: str, target: str = "/runs") -> Callable[[int], bytes]:
    return get(target, "Host: 127.0.0.1:{port}", "Accept: text/html", line)


UNITS = ["\\", '"', ";", "a=b;", "a=", " ", ",", "%41", "%", "&", "a=b&", "/", "./", "/a", "=", "a"]
"""What is repeated: each is a delimiter or an escape of one of the grammars."""

PLACES: dict[str, tuple[Callable[[int], bytes], str, str]] = {
    # name: the request, what comes before the repeated text, what comes behind it
    "cookie": (header("Cookie: *"), 'a="', '"'),
    "a cookie without quotes": (header("Cookie: *"), "", "x"),
    "the service's own cookie": (header("Cookie: *"), "bundle_router_1=", ";"),
    "authorization": (header("Authorization: *"), "Bearer x", "y"),
    "authorization, many spaces": (header("Authorization: *"), "Bearer ", " y z"),
    "host": (get("/", "Host: *"), "", ""),
    "origin": (header("Origin: *"), "http://", ""),
    "fetch site": (header("Sec-Fetch-Site: *"), "none", ""),
    "accept": (header("Accept: *"), "text/html", ""),
    "content length": (header("Content-Length: *"), "1", "1"),
    "content type": (header("Content-Type: *"), "application/json;", ""),
    "another header": (header("X-Other: *"), "", ""),
    "a header's name": (header("*: a"), "X-", ""),
    "the path": (get("/*"), "", ""),
    "the path of a run over MCP": (get("/mcp/runs/*"), "", ""),
    "the path of a run over HTTP": (get("/v1/runs/*/tools"), "", ""),
    "the query": (get("/healthz?*"), "", ""),
    "the query of the sign-in": (get("/sign-in?*"), "", ""),
    "where the sign-in leads": (get("/sign-in?to=/*"), "", ""),
}


def requests_of(port: int, most: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield each request twice: with a text, and with one that is longer."""
    for place, (make, before, behind) in PLACES.items():
        for unit in UNITS:
            short, long = (
                make(port).replace(b"*", f"{before}{unit * (size // len(unit))}{behind}".encode())
                for size in (most // LONGER, most)
            )
            yield f"{place}: {unit!r}", short, long
    many = [
        get("/", "Host: 127.0.0.1:{port}", *["a: b"] * (size // 8))(port)
        for size in (most // LONGER, most)
    ]
    yield "many headers", many[0], many[1]
    cookies = [
        get("/", "Host: 127.0.0.1:{port}", "Accept: text/html", *["Cookie: a=b"] * (size // 14))(
            port
        )
        for size in (most // LONGER, most)
    ]
    yield "many cookie headers", cookies[0], cookies[1]


async def answered(port: int, sent: bytes) -> tuple[float, bytes]:
    """Send bytes; return the CPU of this thread until the connection was closed, and the answer."""
    before = time.thread_time()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    with contextlib.suppress(ConnectionError):  # refused before all was sent
        await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    return time.thread_time() - before, answer


async def faster_than_its_bytes(port: int, most: int, *, fails: bytes = b"") -> list[str]:
    """Return the requests whose work grows faster than their bytes, or that fail with another
    status than `fails`.
    """
    wrong = []
    for name, short, long in requests_of(port, most):
        least = {short: 1e9, long: 1e9}
        for _ in range(TRIES):
            for sent in (short, long):
                cpu_s, answer = await answered(port, sent)
                least[sent] = min(least[sent], cpu_s)
                if answer.startswith(b"HTTP/1.1 5") and answer[9:12] != fails:
                    wrong.append(f"{name}: {answer[:40]!r}")
            if least[long] <= MOST_GROWTH * max(least[short], FLOOR_S):
                break
        else:
            wrong.append(f"{name}: {least[short]:.4f} s of CPU, then {least[long]:.4f}")
    return wrong


def test_work_before_a_token_grows_no_faster_than_the_bytes_at_the_service(site: Any) -> None:
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    async def work(_router: Any, endpoint: Any) -> None:
        assert await faster_than_its_bytes(endpoint.port, 30_000) == []

    with service_pages(PageSources(site.folder / "runs", config=site.folder / "config")) as made:
        site.serve_all(work, pages=made)


def test_work_before_a_token_grows_no_faster_than_the_bytes_at_the_endpoint(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        assert await faster_than_its_bytes(endpoint.port, 30_000) == []

    site.serve(work)


def test_the_address_that_a_login_returns_to_reads_in_time_linear_in_its_bytes() -> None:
    from bundle_router.adapters.http_listener import MAX_HEAD_BYTES
    from bundle_router.adapters.mcp.receiver import Receiver

    async def main() -> None:
        person = Receiver(lambda _url: None)
        await person.show("https://issuer.example/authorize?state=expected")
        port = int(person.redirect_uri.split(":")[2].split("/")[0])
        try:
            most = MAX_HEAD_BYTES - 1_000
            assert await faster_than_its_bytes(port, most) == []
            for unit in UNITS:
                head = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
                sizes = (most // LONGER, most)
                costs = []
                for size in sizes:
                    target = f"/callback?state={unit * (size // len(unit))}".replace(" ", "+")
                    runs = [await answered(port, f"GET {target} {head}".encode()) for _ in range(3)]
                    assert all(b"400 Bad Request" in answer for _, answer in runs), unit
                    costs.append(min(cpu_s for cpu_s, _ in runs))
                assert costs[1] <= MOST_GROWTH * max(costs[0], FLOOR_S), unit
        finally:
            await person.finish(False)

    asyncio.run(main())


def test_the_proxy_of_deferral_reads_in_time_linear_in_its_bytes(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    from bundle_router_deferral.proxy import DeferralProxy, listen, serve
    from bundle_router_deferral.rewriting import DeferralRules, RequestRewriter
    from bundle_router_deferral.upstream import Upstream

    async def main() -> None:
        # Nobody listens at port 9: what passes the proxy's own checks is answered by 502.
        async with Upstream("http://127.0.0.1:9") as upstream:
            proxy = DeferralProxy(upstream, RequestRewriter(DeferralRules()), None, None)
            async with serve(proxy, listen()) as port:
                health = get("/.bundle-router/health")(port)
                assert b"200 OK" in (await answered(port, health))[1]
                assert await faster_than_its_bytes(port, 15_000, fails=b"502") == []

    asyncio.run(main())


@pytest.mark.parametrize("target", ["/sign-in", "/healthz", "/readyz"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_needs_no_token_has_at_most_four_kilobytes(
    site: Any, target: str, chunked: bool
) -> None:
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    async def work(_router: Any, endpoint: Any) -> None:
        for size, refused in ((4_096, False), (4_097, True), (4_000_000, True)):
            body = b"token=" + b"a" * (size - 6)
            method = "POST" if target == "/sign-in" else "GET"
            head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\n"
            head += "Content-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
            if chunked:
                pieces = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
                sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
                head, body = f"{head}Transfer-Encoding: chunked\r\n\r\n", sent + b"0\r\n\r\n"
            else:
                head += f"Content-Length: {size}\r\n\r\n"
            _, answer = await answered(endpoint.port, head.encode() + body)
            assert (answer.startswith(b"HTTP/1.1 413") or not answer) is refused, (size, answer)

    with service_pages(PageSources(site.folder / "runs", config=site.folder / "config")) as made:
        site.serve_all(work, pages=made)


@pytest.mark.parametrize(
    ("cookies", "opens"),
    [
        (["{own}"], True),
        (["a=b; {own}"], True),
        (["{own};a=b"], True),
        ([" {own} ; "], True),
        (["a=b", "{own}"], True),
        (['other="a;b"; {own}'], True),
        (["{name}=x; {own}"], False),
        (["{own}", "{own}"], False),
        (["{name}={value}x"], False),
        (["{name}"], False),
        (["x{own}"], False),
        ([], False),
    ],
)
def test_the_cookie_of_a_session_is_found_among_others_and_never_guessed(
    site: Any, cookies: list[str], opens: bool
) -> None:
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token="") as browser:
            signed = await browser.post("/sign-in", data={"token": endpoint.key})
            own = signed.headers["set-cookie"].split(";")[0]
        name, _, value = own.partition("=")
        lines = [
            "Cookie: " + line.format(own=own, name=name, value=value) + "\r\n" for line in cookies
        ]
        head = f"GET /runs HTTP/1.1\r\nHost: 127.0.0.1:{endpoint.port}\r\nConnection: close\r\n"
        _, answer = await answered(endpoint.port, f"{head}{''.join(lines)}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200" if opens else b"HTTP/1.1 401"), answer[:40]

    with service_pages(PageSources(site.folder / "runs", config=site.folder / "config")) as made:
        site.serve_all(work, pages=made)
