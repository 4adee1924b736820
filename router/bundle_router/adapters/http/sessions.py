"""Makes aiohttp's sessions, under the rules of `bundle_router.adapters.http`.

`HttpClient` is the usual way to send. A library that takes a session of its own (litellm) gets one
from `open_session`, with `ProxiedRequest` where the library would choose the proxy itself.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final
from weakref import WeakSet

import aiohttp
from aiohttp import BasicAuth
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from aiohttp.typedefs import LooseHeaders
from yarl import URL

from bundle_router.core.servers.transport.proxies import proxy_of

MAX_HEADERS: Final = 128
_AUTOMATIC: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """How long the connections of a client or session may take, and how many there may be."""

    connect_s: float = 10.0
    """Seconds for one connection: the name, TCP, the proxy and TLS together."""
    silent_s: float | None = 300.0
    """Seconds that a server may stay silent within a response; None for ever."""
    keep_s: float = 4.0
    """Seconds that an unused connection is kept.

    Common servers close theirs after 5 s, and a request that is sent into a connection that is
    being closed may or may not be carried out.
    """
    max_connections: int = 0
    """Connections at a time; 0 for any number."""


class _Connector(aiohttp.TCPConnector):
    """A connector whose `close` leaves no connection.

    aiohttp forgets a connection as soon as it is not kept, while TLS still waits for the peer's
    goodbye, which may never come.
    """

    def __init__(self, bounds: HttpBounds, *, reuse: bool, tls: ssl.SSLContext) -> None:
        super().__init__(
            limit=bounds.max_connections,
            keepalive_timeout=bounds.keep_s if reuse else None,
            force_close=not reuse,
            ssl=tls,
        )
        self._transports: WeakSet[asyncio.Transport] = WeakSet()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature of aiohttp
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        if connection.transport is not None:
            self._transports.add(connection.transport)
        return connection

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)
        for transport in tuple(self._transports):
            transport.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn


class ProxiedRequest(aiohttp.ClientRequest):
    """A request whose proxy is chosen by our rules, whatever its sender chose."""

    def update_proxy(
        self,
        proxy: URL | None,
        proxy_auth: BasicAuth | None,
        proxy_headers: LooseHeaders | None,
    ) -> None:
        del proxy
        proxy_url = proxy_of(str(self.url), os.environ)
        super().update_proxy(
            None if proxy_url is None else URL(proxy_url), proxy_auth, proxy_headers
        )


def open_session(
    bounds: HttpBounds | None = None,
    *,
    reuse: bool = True,
    tls: ssl.SSLContext | None = None,
    request_class: type[aiohttp.ClientRequest] = aiohttp.ClientRequest,
    response_class: type[aiohttp.ClientResponse] = aiohttp.ClientResponse,
    trace_configs: Sequence[aiohttp.TraceConfig] = (),
) -> aiohttp.ClientSession:
    """Return a session of the running loop without cookies, netrc, proxies or decompression.

    The caller closes it. `reuse`: keep connections for the next request. aiohttp follows redirects
    unless a request says `allow_redirects=False`, as those of `HttpClient` do.
    """
    bounds = bounds or HttpBounds()
    return aiohttp.ClientSession(
        connector=_Connector(bounds, reuse=reuse, tls=tls or tls_context()),
        timeout=timeout_of(bounds),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
        skip_auto_headers=_AUTOMATIC,
        max_headers=MAX_HEADERS,
        request_class=request_class,
        response_class=response_class,
        trace_configs=list(trace_configs),
    )


def timeout_of(bounds: HttpBounds) -> aiohttp.ClientTimeout:
    """Return the bounds of one request, of which nothing bounds the whole."""
    return aiohttp.ClientTimeout(total=None, connect=bounds.connect_s, sock_read=bounds.silent_s)


def tls_context() -> ssl.SSLContext:
    """Return the TLS context of this process for the certificate authorities it trusts now."""
    return _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@cache
def _tls_context(cert_file: str | None, cert_dir: str | None) -> ssl.SSLContext:
    """Return a context for these variables; loading the authorities takes 20 ms."""
    # Not `create_default_context`: that also writes session keys to `SSLKEYLOGFILE`.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # Some Pythons (Debian's) accept a connection that ends without a close: its body may be cut.
    context.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    context.load_default_certs()
    if cert_file is None and cert_dir is None and not _system_has_authorities():
        _load_certifi(context)
    return context


def _system_has_authorities() -> bool:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is not None:
        return True
    return paths.capath is not None and bool(os.listdir(paths.capath))  # noqa: PTH208


def _load_certifi(context: ssl.SSLContext) -> None:
    """Load certifi's authorities, where it is installed, into a context that has none."""
    try:
        import certifi
    except ImportError:
        return
    context.load_verify_locations(cafile=certifi.where())
