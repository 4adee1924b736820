"""The faults of a server or of the way to it; their kinds are codes of failed calls."""

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
NOTHING_DONE: Final[frozenset[FaultKind]] = frozenset(
    ("unreachable", "session_lost", "not_started")
)
"""Kinds after which a call may be retried: the server can't have acted on it."""


OUR_OWN: Final[frozenset[FaultKind]] = frozenset(("not_permitted", "credential_missing", "closed"))
"""Kinds that say nothing about the server's health, because it was not asked."""
NEVER_AGAIN: Final[frozenset[FaultKind]] = OUR_OWN | {"timeout"}
"""Kinds after which a retry would end the same way."""
LIST_AGAIN: Final[frozenset[FaultKind]] = NOTHING_DONE | {"connection_lost"}
"""Kinds after which a list is requested once more: listing has no effects, and a process may start
the second time.
"""
MAX_MESSAGE: Final = 2_000
"""Maximum characters of a server's error message that are passed on."""


class ServerFault(Exception):
    """A server, or the way to it, failed.

    `detail` is one line for people and never holds a header's value.

    `sent`: the server may have acted on the request, so it must not be retried. `counted`: it is
    not counted against the server, as the failure of its connection is already, or its request
    waited too long in our queue. `words`: the server's own, unchecked; for its call's result alone,
    since `detail` is also read where no server may speak. `unnamed`: likewise, of an error that
    named no request, and may be about this one.
    """

    counted = False

    def __init__(
        self,
        kind: FaultKind,
        detail: str,
        *,
        retry_after_s: float | None = None,
        sent: bool = False,
        words: str = "",
        unnamed: str = "",
    ) -> None:
        super().__init__(detail)
        self.words = words
        self.unnamed = unnamed
        self.sent = sent
        self.kind: FaultKind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s


class RpcError(Exception):
    """The server answered with a JSON-RPC error.

    `message` is the server's text, `data` its additional data.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Busy(Exception):
    """The queue of waiting calls is full, or the call's time ran out before its turn."""


class CircuitOpen(Exception):
    """The server failed too often, and is not contacted for `again_in_s` seconds."""

    def __init__(self, again_in_s: float) -> None:
        super().__init__(again_in_s)
        self.again_in_s = again_in_s
