"""The addresses that may be connected to: public unicast ones that do not contain another address.

`ipaddress.is_global` is not enough: it is True for NAT64, 6to4, ISATAP, IPv4-compatible and (some)
site-local forms, each of which a gateway can turn into an internal IPv4 address. So IPv6 is a short
allow-list (2000::/3) without its special ranges, IPv4 is everything without its special ranges, and
`is_global` must agree.

A network's own NAT64 or 6rd prefix looks like any other address and can't be recognised from
outside. On a network that has only DNS64/NAT64, fetching is refused.

Sources: IANA's IPv4 and IPv6 Special-Purpose Address Registries, RFC 6052 and 8215 (NAT64), RFC
3056 (6to4), RFC 4380 (Teredo), RFC 5214 section 6.1 (ISATAP), RFC 3879 (site-local), RFC 9637
(3fff::/20).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

_REFUSED_V4: Final = tuple(
    (IPv4Network(network), why)
    for network, why in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "carrier-grade NAT"),
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "a cloud's host service"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "IETF protocol assignments"),
        ("192.0.2.0/24", "documentation"),
        ("192.31.196.0/24", "AS112"),
        ("192.52.193.0/24", "AMT"),
        ("192.88.99.0/24", "6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "AS112"),
        ("198.18.0.0/15", "benchmarking"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_REFUSED_V6: Final = tuple(
    (IPv6Network(network), why)
    for network, why in (
        # Listed only for the message: these are outside 2000::/3 and would be refused anyway.
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "IPv4-mapped"),
        ("::ffff:0:0:0/96", "IPv4-translated"),
        ("::/96", "IPv4-compatible"),
        ("64:ff9b::/96", "NAT64"),
        ("64:ff9b:1::/48", "NAT64"),
        ("100::/64", "discard"),
        ("fc00::/7", "unique local"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
        # Inside 2000::/3.
        ("2001::/32", "Teredo"),
        ("2001:2::/48", "benchmarking"),
        ("2001::/23", "IETF protocol assignments"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "AS112"),
        ("3ffe::/16", "6bone"),
        ("3fff::/20", "documentation"),
    )
)

_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})


def refusal(text: str) -> str | None:
    """Return why the address may not be connected to, in a few words; None if it may.

    Never raises.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return "not an address"
    if isinstance(address, IPv4Address):
        return _refusal_v4(address)
    return _refusal_v6(address)


def _refusal_v4(address: IPv4Address) -> str | None:
    fallback = None if address.is_global else "not public"
    return next((reason for network, reason in _REFUSED_V4 if address in network), fallback)


def _refusal_v6(address: IPv6Address) -> str | None:
    if address.scope_id is not None:
        return "scoped to an interface"
    for network, reason in _REFUSED_V6:
        if address in network:
            return reason
    if address not in _GLOBAL_UNICAST:
        return "not global unicast"
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return "ISATAP"
    return None if address.is_global else "not public"
