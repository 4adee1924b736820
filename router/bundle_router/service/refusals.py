"""Refusals in the form of the address: JSON-RPC below `/mcp`, elsewhere problem details (RFC
9457).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from bundle_router.service.keys import Caller, Scope

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]
"""An ASGI application."""

INVALID_REQUEST: Final = -32600
PROBLEM: Final = "urn:bundle-router:problem:"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not carried out: an HTTP status, a closed code, a sentence, and advice for
    the caller.
    """

    status: int
    code: str
    sentence: str
    headers: tuple[tuple[bytes, bytes], ...] = ()
    advice: str = ""
    errors: tuple[tuple[str, str], ...] = ()
    """JSON pointers into the input, each with its error."""

    def to_json(self) -> dict[str, Any]:
        """Return the problem details. `code` and `advice` are our own members."""
        return {
            "type": PROBLEM + self.code,
            "title": self.code.replace("_", " "),
            "status": self.status,
            "detail": self.sentence,
            "code": self.code,
            "advice": self.advice,
            "errors": [{"pointer": pointer, "detail": detail} for pointer, detail in self.errors],
        }


OTHER_PRINCIPAL: Final = Refusal(
    403,
    "wrong_principal",
    "This token acts for one principal only.",
    advice=(
        "leave the principal out, and name a run; the pages show all runs, and need a token without"
        " a principal"
    ),
)


NO_SUCH_RUN: Final = Refusal(
    404, "unknown_run", "This run has no decision yet.", advice="route a step of it first"
)
"""Answers for a run that does not exist, and for one of another principal. It names no run: an id
that is refused may be a secret in the wrong place.
"""


def missing_scope(scope: Scope, caller: Caller) -> Refusal:
    """Return the refusal for a caller whose token is without the scope.

    Where its issuer could give it one with the scope, a header asks for that (RFC 6750, section
    3.1), and names what the token has already beside it: the next one replaces it.
    """
    sentence = f"This request needs the scope {scope!r}, which this token lacks."
    headers: tuple[tuple[bytes, bytes], ...] = ()
    issued_by = caller.issued_by
    if issued_by is not None and scope in issued_by.scopes:
        needed = [
            f"{issued_by.scope_prefix}{name}"
            for name in issued_by.scopes
            if name == scope or name in caller.scopes
        ]
        fields = (
            'error="insufficient_scope"',
            f'scope="{" ".join(needed)}"',
            f'resource_metadata="{issued_by.metadata}"',
        )
        headers = ((b"www-authenticate", f"Bearer {', '.join(fields)}".encode("ascii", "replace")),)
    return Refusal(403, "forbidden", sentence, headers, "use a token that has it")


def refusal_of(caller: Caller, scope: Scope) -> Refusal | None:
    """Return why a caller may not see the pages that need a scope, and show all runs; None if they
    may.
    """
    if caller.principal:
        return OTHER_PRINCIPAL
    if scope in caller.scopes:
        return None
    return missing_scope(scope, caller)


async def refuse(refusal: Refusal, scope: Message, send: Send, *, close: bool = True) -> None:
    """Answer with the refusal.

    `close` also closes the connection, because the body was not read.
    """
    kind = b"application/problem+json"
    body_of: dict[str, Any] = refusal.to_json()
    if scope["path"].startswith("/mcp"):
        kind = b"application/json"
        message = f"{refusal.sentence} ({refusal.advice})" if refusal.advice else refusal.sentence
        error = {"code": INVALID_REQUEST, "message": message}
        body_of = {"jsonrpc": "2.0", "id": None, "error": error}
    body = json.dumps(body_of).encode()
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        *refusal.headers,
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class RefusalApp:
    """An ASGI application that answers every request with the same refusal."""

    def __init__(self, refusal: Refusal) -> None:
        self._refusal = refusal

    async def __call__(self, scope: Message, _receive: Receive, send: Send) -> None:
        await refuse(self._refusal, scope, send, close=False)


class ScopedMount:
    """A mount for tokens with one scope.

    It shows all runs, so tokens of a single principal are refused. The mounted application finds in
    `scope["config_problems"]` why the config's files are not in force.
    """

    def __init__(self, app: Asgi, scope: Scope, problems: Callable[[], Sequence[str]]) -> None:
        self._app = app
        self._needed = scope
        self._problems = problems

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        refusal = refusal_of(scope["user"], self._needed)
        if refusal is not None:
            await refuse(refusal, scope, send, close=False)
        else:
            await self._app({**scope, "config_problems": self._problems()}, receive, send)
