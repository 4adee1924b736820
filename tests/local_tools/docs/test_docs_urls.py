"""URLs, hosts and addresses: what is refused, and the one spelling of what is not."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from bundle_router.core.values.host_names import spell_host
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.addresses import refusal
from bundle_router.local_tools.docs.urls import HostList, join_url, parse_url
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("https://docs.example.org", "https://docs.example.org/"),
        ("HTTPS://Docs.Example.ORG/A", "https://docs.example.org/A"),
        ("https://docs.example.org:443/a", "https://docs.example.org/a"),
        ("https://docs.example.org./a", "https://docs.example.org/a"),
        ("https://docs.example.org?q=1", "https://docs.example.org/?q=1"),
        ("https://docs.example.org/a?", "https://docs.example.org/a?"),
        ("https://docs.example.org/a/../../../etc/x", "https://docs.example.org/etc/x"),
        ("https://docs.example.org/a/%2e%2E/b", "https://docs.example.org/b"),
        ("https://docs.example.org/a/.%2e", "https://docs.example.org/"),
        ("https://docs.example.org/a/b/.", "https://docs.example.org/a/b/"),
        ("https://docs.example.org//a", "https://docs.example.org//a"),
        ("https://docs.example.org/a%2Fb", "https://docs.example.org/a%2Fb"),
        ("https://docs.example.org/grüße?q=ß", "https://docs.example.org/gr%C3%BC%C3%9Fe?q=%C3%9F"),
        ('https://docs.example.org/<">{|}^`', "https://docs.example.org/%3C%22%3E%7B%7C%7D%5E%60"),
        ("https://docs.example.org/100%", "https://docs.example.org/100%25"),
        ("https://docs.example.org/@user", "https://docs.example.org/@user"),
        ("https://BÜCHER.example.org/", "https://xn--bcher-kva.example.org/"),
        ("https://xn--bcher-kva.example.org/", "https://xn--bcher-kva.example.org/"),
        ("https://1.example2.org/", "https://1.example2.org/"),
        ("https://docs.example.org/a#part", "https://docs.example.org/a"),
    ],
)
def test_a_url_has_one_spelling(text: str, spelled: str) -> None:
    assert str(parse_url(text)) == spelled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "docs.example.org/a",
        "//docs.example.org/a",
        "https:docs.example.org",
        "https:/docs.example.org",
        "https:///a",
        "http://docs.example.org/",
        "file:///etc/passwd",
        "file://docs.example.org/etc/passwd",
        "gopher://docs.example.org:70/_x",
        "ftp://docs.example.org/",
        "ws://docs.example.org/",
        "data:text/html,x",
        "javascript:alert(1)",
        "https+unix://docs.example.org/",
        "https://user@docs.example.org/",
        "https://user:secret@docs.example.org/",
        "https://@docs.example.org/",
        "https://docs.example.org@evil.example/",
        "https://evil.example%40docs.example.org/",
        "https://docs.example.org:80/",
        "https://docs.example.org:8443/",
        "https://docs.example.org:/",
        "https://docs.example.org:0443/",
        "https://docs.example.org:443:443/",
        "https://docs.example.org:４４３/",
        "https://docs.example.org\\@evil.example/",
        "https:\\\\docs.example.org\\a",
        "https://docs.example.org/a\\..\\b",
        "https://docs.example.org/\t",
        "https://docs.exa\tmple.org/",
        "https://docs.example.org/a\r\nHost: evil",
        " https://docs.example.org/",
        "https://docs.example.org/ ",
        "https://docs.example.org/a b",
        "https://docs.example.org/\x00",
        "https://docs.example.org/\u00a0",
        "https://docs.example.org/\u202egro",
        "https://docs.example.org/\ufeff",
        "https://docs.example.org../",
        "https://.docs.example.org/",
        "https://docs..example.org/",
        "https://localhost/",
        "https://docs/",
        "https://-docs.example.org/",
        "https://docs_x.example.org/",
        "https://%64ocs.example.org/",
        "https://docs.example.org%00.evil.example/",
        "https://127.0.0.1/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0x0.0x0.0x1/",
        "https://0177.0.0.1/",
        "https://1.1.1.1./",
        "https://example.0x/",
        "https://169.254.169.254/latest/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fe80::1%25eth0]/",
        "https://::1/",
        "https://①②⑦.0.0.1/",
        "https://１２７.0.0.1/",
        "https://docs１.example.org/",
        "https://docs٣.example.org/",
        "https://docs².example.org/",
        "https://docs。example。org/",
        "https://docs．example.org/",
        "https://ⓓocs.example.org/",
        "https://dоcs\u200d.example.org/",
        "https://faß.example.org/",
        "https://büßen.example.org/",
        "https://ｄöcs.example.org/",
        "https://docs\u00ad.example.org/",
        "https://" + "a" * 64 + ".example.org/",
        "https://" + "ü" * 64 + ".example.org/",
        "https://" + "a." * 130 + "org/",
        "https://docs.example.org/" + "a" * 2048,
        "https://docs.example.org/" + "ü" * 700,
    ],
)
def test_a_url_that_breaks_a_rule_is_refused(text: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        parse_url(text)
    assert caught.value.code == "invalid_url"


@pytest.mark.parametrize(
    ("reference", "joined"),
    [
        ("other.html", "https://docs.example.org/en/latest/other.html"),
        ("../../../../x", "https://docs.example.org/x"),
        ("..%2f..%2fx", "https://docs.example.org/en/latest/..%2f..%2fx"),
        ("%2e%2e/%2e%2e/x", "https://docs.example.org/x"),
        ("//evil.example/x", "https://evil.example/x"),
        ("?q", "https://docs.example.org/en/latest/page.html?q"),
    ],
)
def test_a_reference_is_read_on_its_page(reference: str, joined: str) -> None:
    assert (
        str(join_url(parse_url("https://docs.example.org/en/latest/page.html"), reference))
        == joined
    )


@pytest.mark.parametrize(
    "reference",
    ["http://docs.example.org/", "https://[::1/", "//docs.example.org:80/", "a\\b", "a\tb"],
)
def test_a_reference_that_leads_to_what_is_never_fetched_is_refused(reference: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        join_url(parse_url("https://docs.example.org/"), reference)
    assert caught.value.code == "invalid_url"


def test_a_folder_holds_what_stands_under_it_and_not_its_prefix_siblings() -> None:
    folder = parse_url("https://docs.example.org/en/x.html").folder
    assert folder.holds(parse_url("https://docs.example.org/en/a/b"))
    assert not folder.holds(parse_url("https://docs.example.org/english/a"))
    assert not folder.holds(parse_url("https://docs.example.org/en/../a"))
    assert not folder.holds(parse_url("https://evil.example/en/a"))


@given(st.text(max_size=60))
def test_spelling_a_host_or_a_url_twice_changes_nothing(text: str) -> None:
    try:
        host = spell_host(text)
    except ValueError:
        pass
    else:
        assert host.isascii()
        assert spell_host(host) == host
    try:
        url = parse_url(f"https://docs.example.org/{text}")
    except ToolFailure:
        return
    assert str(url).isascii()
    assert str(parse_url(str(url))) == str(url)
    assert url.host == "docs.example.org"


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("docs.example.org", True),
        ("DOCS.example.ORG.", True),
        ("example.org", False),
        ("evildocs.example.org", False),
        ("docs.example.org.evil.example", False),
        ("sphinx.readthedocs.example", True),
        ("a.b.readthedocs.example", True),
        ("readthedocs.example", False),
        ("notreadthedocs.example", False),
        ("bücher.example.net", True),
        ("xn--bcher-kva.example.net", True),
    ],
)
def test_the_allow_list_compares_spelled_names(host: str, allowed: bool) -> None:
    hosts = HostList.parse(["Docs.Example.org", "*.readthedocs.example", "BÜCHER.example.net"])
    assert hosts.allows(spell_host(host)) is allowed


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.org", "*.*.example.org", "docs.*.org", "1.2.3.4", "https://docs.example.org", ""],
)
def test_a_pattern_that_is_neither_form_is_an_error_not_a_gap(pattern: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        HostList.parse([pattern])
    assert caught.value.code == "invalid_settings"


REFUSED = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
    "carrier-grade NAT": ["100.64.0.1", "100.100.100.200"],
    "link-local": ["169.254.169.254", "fe80::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255"],
    "IETF protocol assignments": ["192.0.0.8", "192.0.0.192", "2001:1::1", "2001:20::1"],
    "6to4 relay": ["192.88.99.1"],
    "a cloud's host service": ["168.63.129.16"],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0a00:1"],
    "IPv4-translated": ["::ffff:0:7f00:1"],
    "IPv4-compatible": ["::127.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "64:ff9b:1:ffff::7f00:1"],
    "6to4": ["2002:7f00:1::", "2002:0808:0808::1"],
    "Teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "ISATAP": ["2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1"],
    "unique local": ["fc00::1", "fd00:ec2::254"],
    "site-local": ["fec0::1", "feff::1"],
    "discard": ["100::1"],
    "6bone": ["3ffe::1"],
    "AS112": ["192.31.196.1", "192.175.48.1", "2620:4f:8000::1"],
    "AMT": ["192.52.193.1"],
    "not global unicast": ["4000::1", "5f00::1", "e000::1", "1::1"],
    "scoped to an interface": ["fe80::1%eth0", "2606:4700::1111%1"],
    "not an address": [
        "",
        "docs.example.org",
        "0177.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "1.2.3.4 ",
        "[::1]",
    ],
}


@pytest.mark.parametrize(
    ("text", "why"), [(text, why) for why, texts in REFUSED.items() for text in texts]
)
def test_an_address_that_is_not_public_unicast_is_refused_by_its_kind(text: str, why: str) -> None:
    assert refusal(text) == why


@pytest.mark.parametrize(
    "text",
    ["8.8.8.8", "93.184.215.14", "100.63.255.255", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"],
)
def test_a_public_address_is_not_refused(text: str) -> None:
    assert refusal(text) is None


@given(st.integers(0, 2**32 - 1))
def test_no_form_that_hides_an_ipv4_address_in_an_ipv6_one_is_accepted(number: int) -> None:
    inner = int(IPv4Address(number))
    prefixes = [
        "::",
        "::ffff:0:0",
        "::ffff:0:0:0",
        "64:ff9b::",
        "64:ff9b:1::",
        "2606:4700::5efe:0:0",
        "2606:4700::200:5efe:0:0",
    ]
    for prefix in prefixes:
        assert refusal(str(IPv6Address(int(IPv6Address(prefix)) | inner)))
    assert refusal(str(IPv6Address(int(IPv6Address("2002::")) | inner << 80)))


@given(st.ip_addresses())
def test_nothing_that_python_calls_not_global_is_accepted(
    address: IPv4Address | IPv6Address,
) -> None:
    assert address.is_global or refusal(str(address))
