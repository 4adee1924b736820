"""What is let in, judged by the head of a request alone. Pure.

Rules:
1. Names are compared whole, never by prefix, and a header that decides may stand there once. `localhost:@evil` and a
   second Host are strangers.
2. Host and Origin come first: a page in a browser, led here by a name that it made resolve to this machine, learns
   nothing, not even whether its token would do. No answer carries a CORS header.
3. The token comes before the path: without one, every path and method is answered alike. (A browser that asks for a
   page is led to where it can sign in, whatever the page.)
4. The path is judged as it was sent. An escape or a second slash is not taken to mean anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.models import RUN_ID
from bundle_router.serving.address import OwnNames
from bundle_router.serving.keys import NOBODY, Caller, Keys
from bundle_router.serving.refusals import Refusal

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""

ROOT: Final = "/mcp"
_PREFIX: Final = f"{ROOT}/runs/"
_DECISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
PROGRAMS: Final = (b"/v1/", b"/mcp", b"/metrics", b"/openapi.json")
"""Where a token has to be sent as such."""
SIGN_IN: Final = b"/sign-in"
_NAME: Final = "use one of these names, or start the service with --name"
_OWN: Final = "send no Origin, as programs do, or open the service's own pages"
_OWN_SITE: Final = (b"none", b"same-origin")
_BEARER: Final = re.compile(rb"[Bb]earer +([^\s]{1,1024}) *")
_PATH: Final = re.compile(rb"/|(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~@:+-]+)+")
"""What a path may consist of: no escape, no empty, `.` or `..` segment, no slash at its end."""


@dataclass(frozen=True, slots=True)
class Destination:
    """What a request of MCP speaks to: a run, and the decision of it that the path names (None: the current one)."""

    run_id: str
    decision: str | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """What lets a request in: the service's own names, its tokens, the paths that nobody needs one for, what finds
    whose a browser's cookie is (for pages alone), and what looks for new tokens when an unknown one comes."""

    own: OwnNames
    keys: Keys
    open_to_all: frozenset[bytes] = frozenset()
    browsers: Callable[[list[bytes]], Caller | None] | None = None
    renew: Callable[[], Awaitable[bool]] | None = None


def judge(raw_path: bytes, headers: Headers, by: Admission) -> Caller | Refusal:
    """Return who asks, or why the request is not let in."""
    stranger = _refuse_stranger(headers, by.own)
    if stranger is not None:
        return stranger
    caller = _caller(headers, by.keys, destination_of(raw_path))
    if caller is None and by.browsers is not None and not raw_path.startswith(PROGRAMS):
        caller = by.browsers(values_of(headers, b"cookie"))
        if caller is None and raw_path not in by.open_to_all and _wants_a_page(headers):
            return _led_to_sign_in(raw_path)
    return caller or (NOBODY if raw_path in by.open_to_all else UNAUTHORIZED)


def is_misplaced(raw_path: bytes) -> bool:
    """Return whether a path is none that anything here could lie at."""
    return _PATH.fullmatch(raw_path) is None


def path_of(run_id: str, decision: str | None = None) -> str:
    """Return the path that a run is served at over MCP, under a decision of it where one is named."""
    return f"{_PREFIX}{run_id}/decisions/{decision}" if decision else f"{_PREFIX}{run_id}"


def destination_of(raw_path: bytes) -> Destination | None:
    """Return the run, and the decision of it, whose MCP server a path names; None where it names none."""
    path = raw_path.decode("latin-1")
    run_id, slash, decision = path.removeprefix(_PREFIX).partition("/decisions/")
    if not path.startswith(_PREFIX) or not RUN_ID.fullmatch(run_id):
        return None
    if not slash:
        return Destination(run_id)
    return Destination(run_id, decision) if _DECISION.fullmatch(decision) else None


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Return every value of a header, in order."""
    return [value for found, value in headers if found == name]


def is_too_long(headers: Headers, max_bytes: int) -> bool:
    """Return whether a declared length is none, or more than a body may have."""
    lengths = values_of(headers, b"content-length")
    return any(not length.isdigit() or len(length) > 18 or int(length) > max_bytes for length in lengths)


def is_json(headers: Headers) -> bool:
    """Return whether the body is declared to be JSON, once."""
    types = values_of(headers, b"content-type")
    return len(types) == 1 and types[0].partition(b";")[0].strip().lower() == b"application/json"


def _refuse_stranger(headers: Headers, own: OwnNames) -> Refusal | None:
    """Return a request that was not made to this address, or was made by a page of another."""
    hosts = values_of(headers, b"host")
    if len(hosts) != 1 or hosts[0] not in own.hosts:
        return Refusal(421, "wrong_host", f"This endpoint answers to the Host {own.words} only.", advice=_NAME)
    origins = values_of(headers, b"origin")
    if len(origins) > 1 or any(origin not in own.origins for origin in origins):
        return Refusal(403, "wrong_origin", "This endpoint is not for pages of other origins.", advice=_OWN)
    if any(site not in _OWN_SITE for site in values_of(headers, b"sec-fetch-site")):
        return Refusal(403, "wrong_origin", "This endpoint is not for pages of other sites.", advice=_OWN)
    return None


def _wants_a_page(headers: Headers) -> bool:
    return any(b"text/html" in value for value in values_of(headers, b"accept"))


def _led_to_sign_in(raw_path: bytes) -> Refusal:
    back = b"" if raw_path == b"/" or is_misplaced(raw_path) else b"?to=" + raw_path
    sentence = "Sign in with the endpoint's token, or with one of your own."
    return Refusal(303, "unauthorized", sentence, ((b"location", SIGN_IN + back),), "open /sign-in")


def _caller(headers: Headers, keys: Keys, to: Destination | None) -> Caller | None:
    values = values_of(headers, b"authorization")
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    run_id, decision = (to.run_id, to.decision) if to is not None else (None, None)
    return keys.caller(bearer[1], run_id, decision) if bearer is not None else None


UNAUTHORIZED: Final = Refusal(
    401,
    "unauthorized",
    "Send 'Authorization: Bearer' with the endpoint's token, or with the token of this run.",
    ((b"www-authenticate", b"Bearer"),),
    "take the one that `bundle-router serve` printed, or have one made with `bundle-router token`",
)
