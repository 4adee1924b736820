"""One request to a server, as the layers above and below the SDK share it: what went wrong, and how to break it off.

The SDK carries the sender's context through to the task that does the sending, so the variable below is seen by the
HTTP transport when it carries out exactly that request (and when it reconnects for it).
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import anyio

T = TypeVar("T")

FaultKind = Literal[
    "unreachable",  # nothing was sent
    "connection_lost",  # it was sent, or may have been
    "session_lost",  # the server has forgotten the session; nothing was done
    "unauthorized",
    "rate_limited",
    "http_error",
    "too_large",
    "protocol_error",
    "not_started",
    "credential_missing",
    "not_permitted",
    "timeout",
]
NOTHING_DONE: Final[frozenset[FaultKind]] = frozenset(("unreachable", "session_lost", "not_started"))
"""After these a call may be made again: the server can't have acted on it."""


class ServerFault(Exception):
    """A server, or the way to it, failed. `detail` is one line for people; it never holds a header's value.

    `sent`: the server may have acted on the request, so it must not be made again.
    """

    def __init__(self, kind: FaultKind, detail: str, *, retry_after_s: float | None = None, sent: bool = False) -> None:
        super().__init__(detail)
        self.sent = sent
        self.kind: FaultKind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s


class Aborted(Exception):
    """The request was broken off from our side."""


@dataclass(slots=True)
class Exchange:
    """What the transport found out about a request. `abort` ends whatever the transport is waiting for, for good."""

    fault: ServerFault | None = None
    aborted: bool = False
    _scope: anyio.CancelScope | None = None

    async def guarded(self, work: Awaitable[T]) -> T:
        """Awaits, unless and until the exchange is aborted. Raises Aborted."""
        with anyio.CancelScope() as scope:
            self._scope = scope
            if self.aborted:
                scope.cancel()
            try:
                return await work
            finally:
                self._scope = None
        raise Aborted

    def abort(self) -> None:
        self.aborted = True
        if self._scope is not None:
            self._scope.cancel()


EXCHANGE: ContextVar[Exchange | None] = ContextVar("bundle_router_exchange", default=None)
