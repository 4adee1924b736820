"""The network access of the `docs` server: names to addresses, addresses to connections.

Rules:
1. A name is resolved once per request, and every address in the answer is checked. One refused
   address refuses the whole answer, because DNS rebinding gives mixed answers.
2. The connection goes to one of exactly those checked addresses. Nothing after the check resolves a
   name again.
3. The certificate is checked against the URL's name, with the system's authorities.
4. Environment proxies, `.netrc` and cookies are not used.

`Resolver` and `Connector` are the interfaces that tests replace, with a real TLS server behind
them.
"""

from __future__ import annotations

import queue
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Final, Protocol

from bundle_router.errors import ToolFailure
from bundle_router.local_tools.docs.addresses import refusal
from bundle_router.local_tools.docs.deadline import Deadline

PORT: Final = 443
MAX_ATTEMPTS: Final = 4
"""Maximum addresses of one name that are tried, in the resolver's order."""
ATTEMPT_S: Final = 5.0
MAX_LOOKUPS: Final = 16
"""Maximum hanging look-ups.

`getaddrinfo` can't be interrupted, so a hanging one keeps its thread.
"""


class Resolver(Protocol):
    def resolve(self, host: str, deadline: Deadline) -> Sequence[str]:
        """Return the addresses of `host`, as text.

        Raises ToolFailure `dns_failed`, or the deadline's own.
        """


class Connector(Protocol):
    @property
    def tls(self) -> ssl.SSLContext:
        """TLS context for connections. It must check the certificate and the name."""

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        """Return a TCP connection to exactly that address. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Network:
    resolver: Resolver
    connector: Connector

    def open(self, host: str, deadline: Deadline) -> ssl.SSLSocket:
        """Return a TLS connection to `host` under the rules above.

        Raises ToolFailure `dns_failed`, `address_refused`, `connect_failed`, `tls_failed`,
        `timeout`, `cancelled`.
        """
        addresses = self._check_host(host, deadline)
        plain = self._connect(host, addresses, deadline)
        with ExitStack() as undo:
            undo.enter_context(plain)
            # Ragged ends must be errors: without close_notify a body that ends with the connection
            # may have been cut. Some Pythons (Debian's) make OpenSSL accept them.
            tls = self.connector.tls
            tls.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
            wrapped = tls.wrap_socket(
                plain,
                server_hostname=host,
                do_handshake_on_connect=False,
                suppress_ragged_eofs=False,
            )
            undo.enter_context(
                wrapped
            )  # `plain` is detached: closing it no longer closes the connection
            _shake_hands(wrapped, host, deadline)
            undo.pop_all()
            return wrapped

    def _check_host(self, host: str, deadline: Deadline) -> Sequence[str]:
        addresses = self.resolver.resolve(host, deadline)
        if not addresses:
            raise ToolFailure(f"{host!r} has no address", code="dns_failed")
        for address in addresses:
            if why := refusal(address):
                raise ToolFailure(
                    f"{host!r} resolves to {address} ({why}); only public addresses are fetched"
                    " from",
                    code="address_refused",
                )
        return addresses

    def _connect(self, host: str, addresses: Sequence[str], deadline: Deadline) -> socket.socket:
        problems = []
        for address in addresses[:MAX_ATTEMPTS]:
            timeout_s = min(deadline.check(f"connecting to {host}"), ATTEMPT_S)
            try:
                return self.connector.connect(address, PORT, timeout_s)
            except OSError as error:
                problems.append(f"{address}: {error.strerror or error}")
        deadline.check(f"connecting to {host}")
        raise ToolFailure(
            f"can't connect to {host!r} ({'; '.join(problems)})",
            code="connect_failed",
            advice=(
                "check that this machine may reach the internet directly on port 443; proxies are"
                " not used"
            ),
        )


def _shake_hands(wrapped: ssl.SSLSocket, host: str, deadline: Deadline) -> None:
    doing = f"setting up TLS with {host}"
    try:
        while True:
            wrapped.settimeout(deadline.slice(doing))
            try:
                wrapped.do_handshake()
            except TimeoutError:
                continue
            return
    except ssl.SSLCertVerificationError as error:
        raise ToolFailure(
            f"the certificate of {host!r} is not valid: {error.verify_message}",
            code="tls_failed",
            advice=(
                "if every site fails so, this machine lacks the certificate authorities (package"
                " ca-certificates)"
            ),
        ) from None
    except OSError as error:
        raise ToolFailure(
            f"no TLS connection with {host!r}: {error.strerror or error}", code="tls_failed"
        ) from None


class SystemResolver:
    """The operating system's resolver, in a thread of its own, because `getaddrinfo` has no
    timeout.
    """

    def __init__(self, look_up: Callable[..., list[Any]] = socket.getaddrinfo) -> None:
        self._getaddrinfo = look_up
        self._slots = threading.BoundedSemaphore(MAX_LOOKUPS)

    def resolve(self, host: str, deadline: Deadline) -> Sequence[str]:
        if not self._slots.acquire(blocking=False):
            raise ToolFailure(
                f"{MAX_LOOKUPS} name look-ups are still waiting for an answer", code="dns_failed"
            )
        answers: queue.SimpleQueue[tuple[str, ...] | OSError] = queue.SimpleQueue()
        threading.Thread(
            target=self._look_up, args=(host, answers), name="docs-resolve", daemon=True
        ).start()
        while True:
            try:
                answer = answers.get(timeout=deadline.slice(f"resolving {host}"))
            except queue.Empty:
                continue
            if isinstance(answer, OSError):
                raise ToolFailure(
                    f"can't resolve {host!r}: {answer.strerror or answer}",
                    code="dns_failed",
                    advice="if no name resolves, this machine has no network or no name server",
                )
            return answer

    def _look_up(self, host: str, answers: queue.SimpleQueue[tuple[str, ...] | OSError]) -> None:
        try:
            found = self._getaddrinfo(host, PORT, type=socket.SOCK_STREAM)
            answers.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except OSError as error:
            answers.put(error)
        finally:
            self._slots.release()


class SystemConnector:
    """Plain sockets, and the system's certificate authorities (`SSL_CERT_FILE` and `SSL_CERT_DIR`
    are honoured).
    """

    @cached_property
    def tls(self) -> ssl.SSLContext:
        # Not `create_default_context`: that also writes session keys to `SSLKEYLOGFILE`.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_default_certs()
        return context

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection(
            (str(ip_address(address)), port), timeout_s
        )  # an address: no look-up
