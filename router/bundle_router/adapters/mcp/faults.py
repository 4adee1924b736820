"""What can be wrong with a server, or with the way to it (kinds are the codes of calls that failed so), and one request
as the layers above and below the SDK share it: what went wrong, and how to break it off.

The SDK carries the sender's context through to the task that does the sending, so `EXCHANGE` is seen by the HTTP
transport when it carries out exactly that request (and when it reconnects for it).
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from bundle_router.core.tools.transport.pass_through import Client
from bundle_router.dataclass import dataclass

if TYPE_CHECKING:
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
    "closed",  # by us
]
NOTHING_DONE: Final[frozenset[FaultKind]] = frozenset(("unreachable", "session_lost", "not_started"))
"""After these a call may be made again: the server can't have acted on it."""


OUR_OWN: Final[frozenset[FaultKind]] = frozenset(("not_permitted", "credential_missing", "closed"))
"""These say nothing of the server's health: it was not asked."""
NEVER_AGAIN: Final[frozenset[FaultKind]] = OUR_OWN | {"timeout"}
"""After these a second try would end the same."""
LIST_AGAIN: Final[frozenset[FaultKind]] = NOTHING_DONE | {"connection_lost"}
"""After these a list is asked for once more: it has no effects, and a process may start the second time."""


class ServerFault(Exception):
    """A server, or the way to it, failed. `detail` is one line for people; it never holds a header's value.

    `sent`: the server may have acted on the request, so it must not be made again. `counted`: another call that ended
    with the same connection has told of it.
    """

    counted = False

    def __init__(self, kind: FaultKind, detail: str, *, retry_after_s: float | None = None, sent: bool = False) -> None:
        super().__init__(detail)
        self.sent = sent
        self.kind: FaultKind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s


class RpcError(Exception):
    """The server answered with a JSON-RPC error. `message` is its own text, `data` whatever it added."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Aborted(Exception):
    """The request was broken off from our side."""


@dataclass(slots=True)
class RequestState:
    """What the transport found out about a request. `abort` ends whatever the transport is waiting for, for good.

    It stands for one request (`taken` once that is under way): what is sent in its context after it, such as the notice
    that it was cancelled, is not part of it. `many`: for a connection that is being made, which is several requests.
    `client`: the agent's own, which hears of what the server says meanwhile.
    """

    fault: ServerFault | None = None
    aborted: bool = False
    taken: bool = False
    many: bool = False
    client: Client | None = None
    _scope: anyio.CancelScope | None = None

    async def guarded(self, work: Awaitable[T]) -> T:
        """Awaits, unless and until the exchange is aborted. Raises Aborted."""
        import anyio  # with the SDK, which is loaded by now

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


EXCHANGE: ContextVar[RequestState | None] = ContextVar("bundle_router_exchange", default=None)
