"""Signing in with a browser: a token is typed once, or a link is followed, then a cookie stands for
it.

Rules:
1. The cookie is not a token: it names a session of this process, which ends with the process, after
   `SESSION_S`, or with its token (expired, or taken out of the file). No script can read it, and no
   other site's page can send it.
2. It is valid for pages only, never below `/v1` or `/mcp`: a program sends its token.
3. A link holds a code that is used once (`sign_in_codes`), and stands for the service's own token.
   It is used up by a browser that goes there alone: not by HEAD, and not by a browser that looks
   ahead. Its answer leads to an address without the code, which it tells no other page.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from base64 import b64encode
from collections import OrderedDict
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from bundle_router.errors import RequestError
from bundle_router.service.gate import SIGN_IN, Headers, cookie_of, is_misplaced
from bundle_router.service.keys import Caller, Keys
from bundle_router.service.pages.queries import fields_of, first
from bundle_router.service.refusals import Refusal, refusal_of
from bundle_router.service.sign_in_codes import SignInCodes

PATH: Final = SIGN_IN.decode()
SESSION_S: Final = 12 * 3600.0
MAX_SESSIONS: Final = 1_000
MAX_FIELDS: Final = 10
_STYLE: Final = """
:root{color-scheme:light dark;--a:light-dark(#0f6d66,#5fd0c5)}
body{font:15px/1.5 system-ui,sans-serif;margin:18vh auto;width:min(22rem,90vw)}
h1{font-size:1.4rem}
input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem}
button{font:inherit;font-weight:600;padding:.45rem 1.1rem;border:0;border-radius:8px}
button{background:var(--a);color:Canvas}
:focus-visible{outline:3px solid var(--a)}
"""
_STYLE_HASH: Final = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "strict-origin",
}
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8">
<title>Bundle Router: sign in</title>
<meta name="viewport" content="width=device-width"><style>{style}</style>
<main><h1>Bundle Router</h1><form method="post" action="/sign-in">{back}<p><label>Token<br>
<input name="token" type="password" autocomplete="current-password" required autofocus></label></p>
<p><button>Sign in</button></p></form><p role="alert">{notice}</p>
<p>A token, and a link that signs in once, are printed by <code>bundle-router serve</code>;
a token is made by <code>bundle-router token NAME --tokens FILE --scope review</code>
for the FILE that <code>serve --tokens FILE</code> reads.</p></main></html>"""
_NO_TOKEN: Final = Refusal(401, "unauthorized", "That is no token of this service.")
_USED: Final = "This link was used already, or is too old. Sign in with a token."
_LOOK_AHEAD: Final = ("sec-purpose", "purpose", "x-purpose", "x-moz")
"""Headers by which a browser says that nobody went to the address yet."""


class BrowserSessions:
    """The sessions of browsers.

    `port` tells the cookies of several services on one machine apart; `codes` are those of its
    links.
    """

    def __init__(self, keys: Keys, codes: SignInCodes, port: int, *, secure: bool) -> None:
        self._keys = keys
        self._codes = codes
        self._secure = secure
        self._cookie = f"bundle_router_{port}"
        self._cookie_bytes = self._cookie.encode()
        self._sessions: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def caller(self, headers: Headers) -> Caller | None:
        """Return the caller of the session that a request's cookie names; None if there is none, it
        has ended, or its token has.
        """
        session = self._sessions.get(self._session_of(headers))
        if session is None:
            return None
        token, until = session
        return self._keys.holder(token) if time.monotonic() < until else None

    def _session_of(self, headers: Headers) -> bytes:
        """Return the digest under which the session of a request's cookie would be kept."""
        return hashlib.sha256(cookie_of(headers, self._cookie_bytes)).digest()

    def routes(self) -> list[BaseRoute]:
        """Return the routes of signing in."""
        return [
            Route(PATH, self._ask, methods=["GET"]),
            Route(PATH, self._begin, methods=["POST"]),
            Route("/sign-out", self._end, methods=["POST"]),
        ]

    async def _ask(self, request: Request) -> Response:
        try:
            query = fields_of(request.scope["query_string"].decode("latin-1"), MAX_FIELDS)
        except RequestError as error:
            return _form("", notice=error.message, status=413)
        code = first(query, "code")
        if not code or request.method == "HEAD":
            return _form(first(query, "to"))
        if any(name in request.headers for name in _LOOK_AHEAD):
            # The browser throws this away, and asks again when somebody goes there.
            return Response(status_code=503, headers=_POLICY)
        if not self._codes.redeem(code):
            return _form("", notice=_USED, status=401)
        return self._signed_in(_digest(self._keys.key), "/")

    async def _begin(self, request: Request) -> Response:
        try:
            form = fields_of((await request.body()).decode("utf-8", "replace"), MAX_FIELDS)
        except RequestError as error:
            return _form("", notice=error.message, status=413)
        token = _digest(first(form, "token").strip())
        holder = self._keys.holder(token)
        refusal = _NO_TOKEN if holder is None else refusal_of(holder, "review")
        if refusal is not None:
            return _form(
                first(form, "to"),
                notice=f"{refusal.sentence} {refusal.advice}",
                status=refusal.status,
            )
        return self._signed_in(token, _place(first(form, "to")))

    def _signed_in(self, token: bytes, place: str) -> Response:
        """Begin a session of a token, by its digest, and lead its browser on to a page."""
        name = secrets.token_urlsafe(32)
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        self._sessions[_digest(name)] = (token, time.monotonic() + SESSION_S)
        answer = RedirectResponse(place, 303, _POLICY)
        answer.set_cookie(
            self._cookie, name, httponly=True, samesite="strict", secure=self._secure, path="/"
        )
        return answer

    async def _end(self, request: Request) -> Response:
        self._sessions.pop(self._session_of(request.scope["headers"]), None)
        answer = RedirectResponse(PATH, 303, _POLICY)
        answer.delete_cookie(self._cookie)
        return answer


def _form(to: str, *, notice: str = "", status: int = 200) -> Response:
    place = _place(to)
    back = f'<input name="to" type="hidden" value="{place}">' if place != "/" else ""
    return HTMLResponse(_PAGE.format(style=_STYLE, notice=notice, back=back), status, _POLICY)


def _place(to: str) -> str:
    """Return the path of our page to go on to; it can't name another host."""
    if not to.isascii() or is_misplaced(to.encode()):
        return "/"
    return to


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
