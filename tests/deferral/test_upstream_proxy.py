"""How the client of the upstream leaves this machine: through which proxy, and with what login."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from bundle_router.core.servers.transport.proxies import proxy_of
from bundle_router.testing.upstream import ReceivedRequest, ScriptedServer, body
from bundle_router_deferral.upstream import Upstream

PROXY: Final = "http://proxy.example:3128"
EITHER: Final = {"http_proxy": PROXY, "https_proxy": PROXY}
# NO_PROXY: hosts that are reached directly, and hosts that are not
EXCLUDED: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "": ((), ("a.example", "10.0.0.1")),
    "*": (("a.example", "10.0.0.1", "[2001:db8::1]"), ()),
    "a.example": (
        ("a.example", "A.example", "b.a.example", "a.example."),
        ("ba.example", "example"),
    ),
    ".a.example": (("a.example", "b.a.example"), ("ba.example",)),
    "*.a.example": (("a.example", "b.a.example"), ("ba.example",)),
    "x.example, a.example": (("x.example", "a.example"), ("b.example",)),
    "x.example a.example": (("x.example", "a.example"), ("b.example",)),
    "a.example:443": (("a.example", "a.example:443"), ("a.example:8443",)),
    "10.0.0.0/8": (("10.1.2.3", "[::ffff:10.1.2.3]"), ("11.0.0.1", "10.example")),
    "10.0.0.1": (("10.0.0.1",), ("10.0.0.10", "10.0.0.1.example")),
    "[2001:db8::1]:443": (("[2001:db8::1]",), ("[2001:db8::1]:8443", "[2001:db8::2]")),
    "2001:db8::/32": (("[2001:db8:1::1]",), ("[2001:db9::1]",)),
    "...": ((), ("a.example",)),
    ",": ((), ("a.example",)),
}


def test_no_proxy_knows_domains_addresses_networks_and_ports() -> None:
    wrong = []
    for listed, (direct, proxied) in EXCLUDED.items():
        environ = {**EITHER, "no_proxy": listed}
        wrong += [(listed, h) for h in direct if proxy_of(f"https://{h}/v1", environ) is not None]
        wrong += [(listed, h) for h in proxied if proxy_of(f"https://{h}/v1", environ) != PROXY]
    assert wrong == []


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "a.localhost",
        "LOCALHOST",
        "127.0.0.1",
        "127.9.9.9",
        "[::1]",
        "[::ffff:127.0.0.1]",
    ],
)
def test_this_machine_is_never_reached_through_a_proxy(host: str) -> None:
    assert proxy_of(f"http://{host}:8080/v1", EITHER) is None


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("https://a.example", {"HTTPS_PROXY": PROXY}, PROXY),
        (
            "https://a.example",
            {"HTTPS_PROXY": PROXY, "https_proxy": "http://low:1"},
            "http://low:1",
        ),
        ("https://a.example", {"HTTPS_PROXY": "proxy.example:3128"}, PROXY),
        ("https://a.example", {"HTTP_PROXY": PROXY}, None),
        ("https://a.example", {"ALL_PROXY": PROXY}, PROXY),
        ("https://a.example", {"https_proxy": " "}, None),
        ("http://a.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://a.example", {"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, None),
    ],
)
def test_the_variable_of_the_scheme_names_the_proxy(
    url: str, environ: Mapping[str, str], expected: str | None
) -> None:
    assert proxy_of(url, environ) == expected


def test_a_proxy_of_another_kind_is_refused_rather_than_passed_by() -> None:
    with pytest.raises(ValueError, match="no http:// or https:// URL"):
        proxy_of("https://a.example", {"ALL_PROXY": "socks5://proxy.example:1080"})


@pytest.fixture
def netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a login for every host into the user's netrc file, in both places where it is looked
    for.
    """
    path = tmp_path / ".netrc"
    path.write_text("machine 127.0.0.1 login me password hunter2\ndefault login me password x\n")
    path.chmod(0o600)
    monkeypatch.setenv("NETRC", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))


def ask(base: str, headers: Mapping[str, str]) -> None:
    async def asked() -> None:
        async with Upstream(base) as upstream:
            answer = await upstream.send("POST", "/messages", list(headers.items()), b"{}")
            await answer.body()

    asyncio.run(asked())


def credentials(request: ReceivedRequest) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if "authorization" in name}


@pytest.mark.usefixtures("netrc")
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer of-the-agent"}])
@pytest.mark.parametrize("is_proxied", [False, True])
def test_no_login_of_netrc_reaches_the_upstream_or_the_proxy_on_the_way(
    headers: Mapping[str, str], is_proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer([body(b"{}")]) as server:
        base = server.base_url
        if is_proxied:
            monkeypatch.setenv("HTTP_PROXY", server.base_url.removesuffix("/v1"))
            base = "http://api.example/v1"
        ask(base, headers)
        (request,) = server.requests
    assert request.path == ("http://api.example/v1/messages" if is_proxied else "/v1/messages")
    assert credentials(request) == headers
