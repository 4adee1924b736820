"""Admits or refuses a request by its head alone. Pure.

Rules:
1. Names are compared whole, never by prefix, and a header that decides must occur only once.
   `localhost:@evil` and a second Host are refused.
2. Host and Origin are checked first: a web page that reaches us by a name it made resolve to this
   machine learns nothing, not even whether its token is valid. No answer carries a CORS header. A
   probe may call us by any IP address (a kubelet uses the pod's), as nobody: no page can make one
   its name.
3. The token is checked before the path: without one, every path and method gets the same answer. (A
   browser that requests a page is redirected to the sign-in, whatever the page.)
   A token that is not the service's own may be an issuer's (`issuer`), by keys that are here: none
   is fetched while a request is judged.
4. The path is judged as it was sent. Escapes and double slashes are not interpreted. One slash at
   the end of an MCP address is cut off before anything else, since many clients append it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bundle_router.core.values import RUN_ID
from bundle_router.service.address import OwnNames, is_address
from bundle_router.service.keys import NOBODY, Caller, Keys
from bundle_router.service.refusals import Refusal

Headers = Sequence[tuple[bytes, bytes]]
"""Headers as in ASGI, with names in lower case."""

ROOT: Final = "/mcp"
_PREFIX: Final = f"{ROOT}/runs/"
_DECISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
PROGRAMS: Final = (b"/v1/", b"/mcp", b"/metrics", b"/openapi.json")
"""Path prefixes that need a token in the request, not a cookie."""
SIGN_IN: Final = b"/sign-in"
_NAME: Final = "use one of these names, or start the service with --name"
_OWN: Final = "send no Origin, as programs do, or open the service's own pages"
_OWN_SITE: Final = (b"none", b"same-origin")
_BEARER: Final = re.compile(rb"(?i:bearer) +([^\s]{1,8192}) *")
MAX_OWN_TOKEN: Final = 1_024
"""Bytes that a token of the service's own has at most."""
_DOTS_OF_A_JWT: Final = 2
_PATH: Final = re.compile(rb"/|(?:/(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._~@:+-]{1,600})+")
"""A valid path: no escape, no empty, long, `.` or `..` segment, no slash at its end."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The target of an MCP request: a run, and the decision in the path (None: the current one)."""

    run_id: str
    decision: str | None = None


class TokenIssuer(Protocol):
    """Judges the tokens of an issuer (`service.issuer`)."""

    @property
    def is_due(self) -> bool: ...

    def caller(self, token: bytes) -> Caller | Refusal: ...

    def challenge(self) -> Refusal: ...

    def over_rate(self, caller: Caller) -> Refusal | None: ...


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission depends on."""

    names: OwnNames
    """The service's names."""
    keys: Keys
    """Its tokens."""
    open_to_all: frozenset[bytes] = frozenset()
    """The paths that need no token."""
    probes: frozenset[bytes] = frozenset()
    """Those of them that may be asked by an address (rule 2)."""
    browsers: Callable[[Headers], Caller | None] | None = None
    """Finds the caller of a browser's cookie, for pages only."""
    renew: Callable[[], Awaitable[bool]] | None = None
    """Reloads the tokens, and the issuer's keys, when an unknown one arrives or they are due."""
    issuer: TokenIssuer | None = None
    """Judges tokens that are not the service's own."""


def judge(raw_path: bytes, headers: Headers, by: Admission) -> Caller | Refusal:
    """Return the caller of a request, or the refusal."""
    refusal = _refuse_stranger(headers, by.names)
    if refusal is not None:
        is_probe = refusal.code == "wrong_host" and raw_path in by.probes
        return NOBODY if is_probe and _is_called_by_address(headers) else refusal
    bearer = _bearer(headers)
    caller = _caller(bearer, by.keys, destination_of(raw_path))
    if caller is not None:
        return caller
    unauthorized = UNAUTHORIZED if by.issuer is None else by.issuer.challenge()
    if by.issuer is not None and bearer.count(b".") == _DOTS_OF_A_JWT:
        found = by.issuer.caller(bearer)
        if isinstance(found, Caller):
            return found
        unauthorized = found

    is_open = raw_path in by.open_to_all
    if by.browsers is not None and not raw_path.startswith(PROGRAMS):
        caller = by.browsers(headers)
        if caller is None and not is_open and _wants_a_page(headers):
            return _led_to_sign_in(raw_path)
    if caller is not None:
        return caller
    return NOBODY if is_open else unauthorized


def _wants_a_page(headers: Headers) -> bool:
    return any(b"text/html" in value for value in values_of(headers, b"accept"))


def is_misplaced(raw_path: bytes) -> bool:
    """Return whether the path is malformed."""
    return _PATH.fullmatch(raw_path) is None


def path_of(run_id: str, decision: str | None = None) -> str:
    """Return the path of a run over MCP, with a decision if one is given."""
    if decision:
        return f"{_PREFIX}{run_id}/decisions/{decision}"
    return f"{_PREFIX}{run_id}"


def destination_of(raw_path: bytes) -> Destination | None:
    """Return the run and decision that an MCP path names; None for any other path."""
    path = raw_path.decode("latin-1")
    run_id, slash, decision = path.removeprefix(_PREFIX).partition("/decisions/")
    if not path.startswith(_PREFIX) or not RUN_ID.fullmatch(run_id):
        return None
    if not slash:
        return Destination(run_id)
    if not _DECISION.fullmatch(decision):
        return None
    return Destination(run_id, decision)


def without_slash(raw_path: bytes) -> bytes:
    """Return an MCP address without the one slash at its end; any other path as it is.

    >>> without_slash(b"/mcp/runs/r-42/")
    b'/mcp/runs/r-42'
    >>> without_slash(b"/v1/runs/")
    b'/v1/runs/'
    """
    address = raw_path[:-1]
    if raw_path.endswith(b"/") and (address == ROOT.encode() or destination_of(address)):
        return address
    return raw_path


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Return every value of a header, in order."""
    if len(once := dict(headers)) == len(headers):  # no name twice: found without a look at each
        return [once[name]] if name in once else []
    return [value for found, value in headers if found == name]


def cookie_of(headers: Headers, name: bytes) -> bytes:
    """Return the value of a cookie; empty if it is not there, or there more than once.

    Found by splitting, in time linear in the header: `http.cookies` of Python before 3.11.10 takes
    seconds for 30 KB of backslashes, and no token was looked at by then.
    """
    values = [
        value
        for header in values_of(headers, b"cookie")
        for key, _, value in (part.strip().partition(b"=") for part in header.split(b";"))
        if key == name
    ]
    return values[0] if len(values) == 1 else b""


def is_too_long(headers: Headers, max_bytes: int) -> bool:
    """Return whether a declared length is invalid, or exceeds the maximum of a body."""
    lengths = values_of(headers, b"content-length")
    return any(
        not length.isdigit() or len(length) > 18 or int(length) > max_bytes for length in lengths
    )


def is_json(headers: Headers) -> bool:
    """Return whether exactly one header declares the body to be JSON."""
    types = values_of(headers, b"content-type")
    return len(types) == 1 and types[0].partition(b";")[0].strip().lower() == b"application/json"


def _is_called_by_address(headers: Headers) -> bool:
    """Return whether a request that no page sent calls the service by an IP address."""
    hosts = values_of(headers, b"host")
    of_a_page = (b"origin", b"sec-fetch-site")
    if any(values_of(headers, name) for name in of_a_page):
        return False
    return len(hosts) == 1 and is_address(hosts[0])


def _refuse_stranger(headers: Headers, names: OwnNames) -> Refusal | None:
    """Return the refusal of a request to another address, or from a page of another origin; else
    None.
    """
    hosts = values_of(headers, b"host")
    if len(hosts) != 1 or not names.answer_to(hosts[0]):
        return Refusal(421, "wrong_host", f"The header Host must be {names.words}.", advice=_NAME)

    origins = values_of(headers, b"origin")
    if len(origins) > 1 or not names.origins.issuperset(origins):
        sentence = "The header Origin names another site than this service."
        return Refusal(403, "wrong_origin", sentence, advice=_OWN)

    sites = values_of(headers, b"sec-fetch-site")
    if any(site not in _OWN_SITE for site in sites):
        sentence = "A page of another site sent this request (Sec-Fetch-Site)."
        return Refusal(403, "wrong_origin", sentence, advice=_OWN)
    return None


def _led_to_sign_in(raw_path: bytes) -> Refusal:
    back = b"" if raw_path == b"/" or is_misplaced(raw_path) else b"?to=" + raw_path
    sentence = "Sign in with the endpoint's token, or with one of your own."
    return Refusal(303, "unauthorized", sentence, ((b"location", SIGN_IN + back),), "open /sign-in")


def _bearer(headers: Headers) -> bytes:
    """Return the token of a request; empty without exactly one."""
    values = values_of(headers, b"authorization")
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    return bearer[1] if bearer is not None else b""


def _caller(token: bytes, keys: Keys, to: Destination | None) -> Caller | None:
    if not 0 < len(token) <= MAX_OWN_TOKEN:
        return None
    run_id, decision = (to.run_id, to.decision) if to is not None else (None, None)
    return keys.caller(token, run_id, decision)


UNAUTHORIZED: Final = Refusal(
    401,
    "unauthorized",
    "Send 'Authorization: Bearer TOKEN' with a valid token of this service (at /mcp/runs also the"
    " run's).",
    ((b"www-authenticate", b"Bearer"),),
    "use the token that `bundle-router serve` printed, or make one with `bundle-router token`",
)
