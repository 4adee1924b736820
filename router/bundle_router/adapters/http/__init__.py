"""The HTTP client for everything that leaves this process, on aiohttp.

Tool servers, OAuth, models, documents and the deferral proxy all send through it.

    client = HttpClient()
    async with await client.send("GET", "https://example.com/", hops=3) as response:
        body = await response.read(max_bytes=1_000_000)
    await client.close()

Rules:
1. Nothing of the environment is added to a request: no login of `~/.netrc`, no cookies, no header
   that the caller did not give (`Host` and `Content-Length` apart).
2. The proxy of a URL is chosen by `core.servers.transport.proxies`: `NO_PROXY` with suffixes,
   `*.`, networks and ports; this machine never.
3. aiohttp follows no redirect. `HttpClient.send` follows up to `hops` of them, within the origin
   (scheme, host and port) and with the same method and body. Another redirect is the response.
4. With a `judge`, each address is judged before it is connected to, also one that is written in
   the URL. The connection goes to exactly a judged address, behind a proxy too (CONNECT to that
   address), while the certificate and the `Host` header stay the name's. One refused address of a
   name refuses the name, since DNS rebinding gives mixed answers.
5. TLS trusts the system's authorities, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. Session keys
   are never written to a file (`SSLKEYLOGFILE`).
6. A body is read piece by piece within the caller's bound on its decoded bytes. A compressed body
   is decompressed within the same bound.
7. aiohttp sends GET, PUT and DELETE once more where a kept connection turns out to be dead. POST is
   sent once: `HttpError.sent` says whether the server may have got it.

A client and a session belong to one event loop and one purpose, and to whoever made them: there is
no shared one. Importing this package loads aiohttp (70 ms), so import it with the first request.
"""

from __future__ import annotations

from bundle_router.adapters.http.client import (
    AddressRefused,
    BodyTooLarge,
    BodyUnreadable,
    ConnectionLost,
    HttpClient,
    HttpError,
    HttpResponse,
    NotHttp,
    NotReached,
    NotTrusted,
    ServerSilent,
    origin_of,
)
from bundle_router.adapters.http.sessions import (
    HttpBounds,
    ProxiedRequest,
    open_session,
    tls_context,
)

__all__ = [
    "AddressRefused",
    "BodyTooLarge",
    "BodyUnreadable",
    "ConnectionLost",
    "HttpBounds",
    "HttpClient",
    "HttpError",
    "HttpResponse",
    "NotHttp",
    "NotReached",
    "NotTrusted",
    "ProxiedRequest",
    "ServerSilent",
    "open_session",
    "origin_of",
    "tls_context",
]
