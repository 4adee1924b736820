"""Chooses the proxy of a URL, from variables of the environment, for every client that uses one.

Rules:
1. This machine is never reached through a proxy, whatever the variables say.
2. `NO_PROXY` lists, separated by commas or spaces: `*`, a domain (also `.domain` and `*.domain`)
   with everything below it, an address, a network (CIDR); each may end in a port.
3. The lower-case variable wins. `HTTP_PROXY` does not count in a CGI program (`REQUEST_METHOD`),
   where a header of a request sets it.
4. No other file or variable is read: `~/.netrc` holds logins that nobody gave to us.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit

_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(url: str, variables: Mapping[str, str]) -> str | None:
    """Return the proxy's URL for an `http:` or `https:` URL; None to connect directly.

    `variables` are those of the environment.

    Raises ValueError for a proxy that is no `http:` or `https:` URL (SOCKS).
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    if _is_this_machine(host) or _is_excluded(host, _port(parts), _variable("no_proxy", variables)):
        return None
    proxy = _proxy_for(parts.scheme, variables)
    if not proxy:
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    if urlsplit(proxy).scheme not in _PORTS:
        raise ValueError(f"the proxy for {parts.scheme}: URLs is no http:// or https:// URL")
    return proxy


def _proxy_for(scheme: str, variables: Mapping[str, str]) -> str:
    if scheme == "http" and "REQUEST_METHOD" in variables:
        proxy = variables.get("http_proxy", "").strip()
    else:
        proxy = _variable(f"{scheme}_proxy", variables)
    return proxy or _variable("all_proxy", variables)


def _variable(name: str, variables: Mapping[str, str]) -> str:
    lower = variables.get(name, "").strip()
    return lower or variables.get(name.upper(), "").strip()


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 0)


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    if address is None:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    for entry in no_proxy.lower().replace(",", " ").split():
        name, entry_port = _split_port(entry)
        if entry_port not in ("", str(port)):
            continue
        if name == "*" or _covers(name, host):
            return True
    return False


def _split_port(entry: str) -> tuple[str, str]:
    """Return an entry's name and port; an IPv6 address has a port only where it is in brackets."""
    if entry.startswith("["):
        name, _, port = entry[1:].partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _covers(name: str, host: str) -> bool:
    address = _address(host)
    if address is not None:
        try:
            network = ip_network(name, strict=False)
        except ValueError:
            return False
        return address.version == network.version and address in network
    domain = name.removeprefix("*").removeprefix(".").rstrip(".")
    return domain != "" and (host == domain or host.endswith(f".{domain}"))


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is; an IPv4 address that is written as IPv6 counts as IPv4."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
