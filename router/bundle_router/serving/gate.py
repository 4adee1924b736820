"""What is let in, judged by the head of a request alone. Pure.

Rules:
1. Names are compared whole, never by prefix, and a header that decides may stand there once. `localhost:@evil` and a
   second Host are strangers.
2. Host and Origin come first: a page in a browser, led here by a name that it made resolve to this machine, learns
   nothing, not even whether its token would do. No answer carries a CORS header.
3. The token comes before the path: without one, every path and method is answered alike.
4. The path is judged as it was sent. An escape or a second slash is not taken to mean anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.models import RUN_ID
from bundle_router.serving.keys import Keys

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI has them: names in lower case."""

METHODS: Final = ("GET", "POST", "DELETE")
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_PREFIX: Final = "/mcp/runs/"
_DECISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
_OWN_SITE: Final = (b"none", b"same-origin")
_BEARER: Final = re.compile(rb"[Bb]earer +([^\s]{1,1024}) *")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer other than the one hoped for: an HTTP status and a sentence."""

    status: int
    sentence: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Destination:
    """What a request speaks to: a run, and the decision of it that the path names (None: whichever is current)."""

    run_id: str
    decision: str | None = None


def judge(method: str, raw_path: bytes, headers: Headers, *, keys: Keys, port: int) -> Destination | Refusal:
    """The run that a request may speak to, or why it may not."""
    to = destination_of(raw_path)
    return (
        _stranger(headers, port)
        or _unknown(headers, keys, to)
        or _misplaced(raw_path, to)
        or _malformed(method, headers)
        or to
        or Refusal(404, "There is nothing here.")
    )


def path_of(run_id: str, decision: str | None = None) -> str:
    """The path that a run is served at, under a decision of it where one is named."""
    return f"{_PREFIX}{run_id}/decisions/{decision}" if decision else f"{_PREFIX}{run_id}"


def destination_of(raw_path: bytes) -> Destination | None:
    """The run, and the decision of it, that a path names; None where it names none."""
    path = raw_path.decode("latin-1")
    run_id, slash, decision = path.removeprefix(_PREFIX).partition("/decisions/")
    if not path.startswith(_PREFIX) or not RUN_ID.fullmatch(run_id):
        return None
    if not slash:
        return Destination(run_id)
    return Destination(run_id, decision) if _DECISION.fullmatch(decision) else None


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for found, value in headers if found == name]


def _stranger(headers: Headers, port: int) -> Refusal | None:
    """A request that was not made to this address, or was made by a page of another."""
    own = [f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")]
    hosts = _values(headers, b"host")
    if len(hosts) != 1 or hosts[0] not in own:
        return Refusal(421, f"This endpoint answers to the Host 127.0.0.1:{port} or localhost:{port} only.")
    origins = _values(headers, b"origin")
    if len(origins) > 1 or any(origin not in [b"http://" + host for host in own] for origin in origins):
        return Refusal(403, "This endpoint is not for pages of other origins.")
    if any(site not in _OWN_SITE for site in _values(headers, b"sec-fetch-site")):
        return Refusal(403, "This endpoint is not for pages of other sites.")
    return None


def _unknown(headers: Headers, keys: Keys, to: Destination | None) -> Refusal | None:
    given = _values(headers, b"authorization")
    bearer = _BEARER.fullmatch(given[0]) if len(given) == 1 else None
    run_id, decision = (to.run_id, to.decision) if to is not None else (None, None)
    if bearer is None or not keys.opens(bearer[1], run_id, decision):
        sentence = "Send 'Authorization: Bearer' with the endpoint's token, or with the token of this run."
        return Refusal(401, sentence, ((b"www-authenticate", b"Bearer"),))
    return None


def _misplaced(raw_path: bytes, to: Destination | None) -> Refusal | None:
    if to is not None:
        return None
    if raw_path == b"/mcp":
        return Refusal(404, "This version serves runs only: connect to /mcp/runs/ and the id of a run.")
    return Refusal(404, "There is nothing here: connect to /mcp/runs/ and the id of a run.")


def _malformed(method: str, headers: Headers) -> Refusal | None:
    if method not in METHODS:
        allowed = ", ".join(METHODS)
        return Refusal(405, f"The methods here are {allowed}.", ((b"allow", allowed.encode()),))
    if method == "POST":
        types = _values(headers, b"content-type")
        if len(types) != 1 or types[0].partition(b";")[0].strip().lower() != b"application/json":
            return Refusal(400, "Send one JSON-RPC message with 'Content-Type: application/json'.")
    lengths = _values(headers, b"content-length")
    if any(not length.isdigit() or len(length) > 18 or int(length) > MAX_BODY_BYTES for length in lengths):
        return TOO_LARGE
    return None


TOO_LARGE: Final = Refusal(413, f"A message may have {MAX_BODY_BYTES:,} bytes at most.")
TOO_SLOW: Final = Refusal(408, "The message did not arrive in time.")
BUSY: Final = Refusal(503, "Too many requests are under way: try again when some have ended.")
CLOSING: Final = Refusal(503, "This endpoint is being stopped.")
