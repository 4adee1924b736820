"""The network access of the `docs` server: which names and addresses are asked, and how.

Rules:
1. A name is resolved once per request, and every address in the answer is checked. One refused
   address refuses the whole answer, because DNS rebinding gives mixed answers.
2. The connection goes to one of exactly those checked addresses, through the environment's proxy
   too. Nothing after the check resolves a name again.
3. The certificate is checked against the URL's name, with the system's authorities.
4. `.netrc` and cookies are not used.

`bundle_router.adapters.http` keeps rules 2 to 4. Tests replace what `Network` names.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bundle_router.adapters.loop import LoopThread
from bundle_router.errors import ToolFailure

MAX_LOOKUPS: Final = 16
"""Maximum hanging look-ups.

`getaddrinfo` can't be interrupted, so a hanging one keeps its thread.
"""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port, as text. Raises ToolFailure `dns_failed`."""


@dataclass(frozen=True, slots=True)
class Network:
    """What requests are sent by."""

    resolve: Resolve
    tls: ssl.SSLContext | None = None
    """None: the authorities of this system (`SSL_CERT_FILE` and `SSL_CERT_DIR` are honoured)."""
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The environment, whose variables name the proxies."""
    loop: LoopThread = field(default_factory=lambda: LoopThread("bundle-router-docs"))
    """Where requests run. It outlives them: a connection that is ended takes some time to close."""

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host. Raises ToolFailure `dns_failed`."""
        addresses = await self.resolve(host, port)
        if not addresses:
            raise ToolFailure(f"{host!r} has no address", code="dns_failed")
        return addresses


class SystemResolver:
    """The operating system's resolver, in a daemon thread for each look-up: `getaddrinfo` has no
    timeout, and an event loop has few threads, which it waits for at its end.
    """

    def __init__(self, look_up: Callable[..., list[Any]] = socket.getaddrinfo) -> None:
        self._getaddrinfo = look_up
        self._slots = threading.BoundedSemaphore(MAX_LOOKUPS)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host. Raises ToolFailure `dns_failed`."""
        if not self._slots.acquire(blocking=False):
            raise ToolFailure(
                f"{MAX_LOOKUPS} name look-ups are still waiting for an answer", code="dns_failed"
            )
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def look_up() -> None:
            give = self._look_up(host, port, answer)
            with suppress(RuntimeError):  # the caller's time was up, and its loop is closed
                loop.call_soon_threadsafe(give)

        threading.Thread(target=look_up, name="docs-resolve", daemon=True).start()
        try:
            return await answer
        except OSError as error:
            raise ToolFailure(
                f"can't resolve {host!r}: {error.strerror or error}",
                code="dns_failed",
                advice="if no name resolves, this machine has no network or no name server",
            ) from None

    def _look_up(
        self, host: str, port: int, answer: asyncio.Future[Sequence[str]]
    ) -> Callable[[], None]:
        """Return what gives the answer, on the loop that waits for it."""
        try:
            entries = self._getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return partial(_fail, answer, error)
        finally:
            self._slots.release()
        addresses = tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))
        return partial(_succeed, answer, addresses)


def _succeed(answer: asyncio.Future[Sequence[str]], addresses: Sequence[str]) -> None:
    if not answer.done():
        answer.set_result(addresses)


def _fail(answer: asyncio.Future[Sequence[str]], error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)
