"""The address that the service listens on, and the names it answers to.

Rules:
1. Loopback is the default. Any other address needs a token file, and either TLS or the caller's
   statement that something in front of the service terminates TLS. A config file can't grant
   either.
2. `Host` must be a name of the service, and `Origin` must be the service's own.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from bundle_router.errors import RequestError

LOOPBACK: Final = "127.0.0.1"
BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The service's own names, which requests have to use."""

    hosts: frozenset[bytes]
    """The values of `Host` that it answers to, in their plain form (`plain_host`)."""
    origins: frozenset[bytes]
    """The values of `Origin` that are its own."""
    words: str
    """Its names as text."""
    default_ports: frozenset[bytes] = frozenset()
    """The ports that its schemes have where none is given."""

    def answer_to(self, host: bytes) -> bool:
        """Return whether a value of `Host` is one of its names."""
        return plain_host(host, self.default_ports) in self.hosts


_HOST: Final = re.compile(rb"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+?)\.?(?::(?P<port>[0-9]{1,5}))?")
_PORT: Final = re.compile(r":[0-9]+\Z")
_DEFAULT_PORTS: Final = {"http": b"80", "https": b"443"}


def plain_host(host: bytes, default_ports: Collection[bytes]) -> bytes:
    """Return a value of `Host` in lower case, without a dot at the end of its name and without a
    default port; as it is where it is none.

    >>> plain_host(b"Tools.Example.org.:443", {b"443"})
    b'tools.example.org'
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return host
    name = parts["name"].lower()
    port = parts["port"]
    return name if port is None or port in default_ports else b"%b:%b" % (name, port)


def is_address(host: bytes) -> bool:
    """Return whether a value of `Host` is an IP address, with or without a port.

    >>> is_address(b"10.0.0.7:8000"), is_address(b"evil.example")
    (True, False)
    """
    parts = _HOST.fullmatch(host)
    if parts is None:
        return False
    try:
        ipaddress.ip_address(parts["name"].decode("ascii", "replace").strip("[]"))
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """An address that the service listens on.

    >>> from bundle_router.service import ServiceAddress
    >>> ServiceAddress(port=8_080).host, ServiceAddress().has_tls
    ('127.0.0.1', False)
    """

    host: str = LOOPBACK
    """An IP address; others than loopback need tokens and TLS."""
    port: int = 0
    """The port; 0: any free one."""
    names: tuple[str, ...] = ()
    """Further names of the service, as in a URL (`router.example`, `router.example:8443`); without
    a port: with the default ports and its own.
    """
    certificate: str | None = None
    """The file of the TLS certificate; None: the service speaks no TLS itself."""
    private_key: str | None = None
    """The file of the certificate's key."""
    without_tls: bool = False
    """True: something in front of the service terminates TLS."""

    @property
    def has_tls(self) -> bool:
        """Whether the service speaks TLS itself."""
        return self.certificate is not None

    def refuse_open(self, *, has_tokens: bool) -> None:
        """Raise RequestError for an address that other machines reach, unless it has tokens and
        TLS.
        """
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            raise RequestError(
                f"{self.host!r} is not an IP address",
                advice=(
                    "name an address, such as 127.0.0.1, ::1 or 0.0.0.0; give host names with"
                    " --name"
                ),
            ) from None
        if (self.certificate is None) != (self.private_key is None):
            raise RequestError(
                "TLS needs a certificate and its key", advice="give --tls-cert and --tls-key"
            )
        if self.certificate is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                    self.certificate, self.private_key
                )
            except OSError as error:  # ssl.SSLError is one
                reason = error.strerror or str(error)
                raise RequestError(
                    f"can't use the certificate {self.certificate!r} with its key: {reason}"
                ) from None
        if is_loopback:
            return
        if not has_tokens:
            raise RequestError(
                f"other machines can reach {self.host}: that needs a token file",
                advice="give --tokens FILE, or listen on 127.0.0.1",
            )
        if not self.has_tls and not self.without_tls:
            raise RequestError(
                f"other machines can reach {self.host}: that needs TLS",
                advice=(
                    "give --tls-cert and --tls-key, or --without-tls if something in front of it"
                    " has TLS"
                ),
            )

    def own_names(self, port: int) -> OwnNames:
        """Return the names by which requests may call the service on this port."""
        listed = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]
        if self.host not in (LOOPBACK, "0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            listed.append(f"{_in_url(self.host)}:{port}")
        for name in self.names:
            listed.append(name)
            if _PORT.search(name) is None:
                listed.append(f"{name}:{port}")
        if self.without_tls:
            schemes: tuple[str, ...] = ("http", "https")
        elif self.has_tls:
            schemes = ("https",)
        else:
            schemes = ("http",)
        origins = frozenset(f"{scheme}://{name}".encode() for scheme in schemes for name in listed)
        words = f"{', '.join(listed[:-1])} or {listed[-1]}"
        default_ports = frozenset(_DEFAULT_PORTS[scheme] for scheme in schemes)
        hosts = frozenset(plain_host(name.encode(), default_ports) for name in listed)
        return OwnNames(hosts, origins, words, default_ports)

    def base(self, port: int) -> str:
        """Return the URL of the service on this port."""
        host = {"0.0.0.0": LOOPBACK, "::": "[::1]"}.get(self.host, _in_url(self.host))  # noqa: S104 - compared, not bound
        name = self.names[0] if self.names else f"{host}:{port}"
        return (
            f"{'https' if self.has_tls or (self.names and self.without_tls) else 'http'}://{name}"
        )

    def listen(self) -> socket.socket:
        """Return a listening socket.

        Raises RequestError if the address is taken or not available.
        """
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            # With IPPROTO_TCP asyncio sets TCP_NODELAY; else each small answer waits 40 ms for an
            # acknowledgement.
            listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            try:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind((self.host, self.port))
                listening.listen(BACKLOG)
            except BaseException:
                listening.close()
                raise
            return listening
        except (OSError, OverflowError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
            raise RequestError(
                f"can't listen on port {self.port} of {self.host}: {reason}",
                advice="choose another port, or 0 for any free one",
            ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
