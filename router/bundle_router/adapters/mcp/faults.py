"""What can be wrong with a server, or with the way to it. Kinds are the codes of calls that failed so."""

from __future__ import annotations

from typing import Any, Final, Literal

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
