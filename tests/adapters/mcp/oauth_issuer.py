"""An authorization server that keeps to the letter, and guards tool servers, over HTTP: written
without any library.

    with Issuer() as issuer: ...

Codes are good once, for the redirect, the client and the PKCE challenge they were given for.
Refresh tokens are good once: one that comes a second time ends the whole authorization. Tokens are
good at the resource they were asked for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

METADATA = "/.well-known/oauth-authorization-server"


class Issuer:
    """`requests` are those that came, as (method, path, headers, fields).

    `overrides` replace parts of the metadata, `issued` parts of what comes with a token.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], dict[str, str]]] = []
        self.overrides: dict[str, Any] = {}
        self.lives_s = 3600
        self.refreshable = True
        self.denies = ""
        self.names_itself = True
        self.token_status = 200
        self.refusals: dict[str, dict[str, str]] = {}
        """What a POST to a path is refused with."""
        self.clients: dict[str, list[str]] = {}
        self.registers = True
        self.refreshed = threading.Event()
        self.answers = threading.Event()
        """Cleared, a refresh token is spent and its answer waits."""
        self.answers.set()
        self.issued: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._tokens: dict[str, str] = {}
        self._refreshes: dict[str, tuple[str, str]] = {}
        self._spent: set[str] = set()
        self._lock = threading.Lock()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                return

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                self._answer(*issuer.get(parts.path, dict(self.headers), _single(parts.query)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self._answer(*issuer.post(self.path, dict(self.headers), body))

            def _answer(self, status: int, body: Any, location: str = "") -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                if location:
                    self.send_header("location", location)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # --- what a tool server asks ------------------------------------------------------------------

    def admits(self, authorization: str | None, resource: str) -> bool:
        """Whether a request with this header may be served at the resource."""
        scheme, _, token = (authorization or "").partition(" ")
        return scheme == "Bearer" and self._tokens.get(token) == resource

    def revoke(self, *, refreshes: bool = False) -> None:
        """Takes back every access token, and every refresh token."""
        self._tokens.clear()
        if refreshes:
            self._refreshes.clear()

    @property
    def secrets(self) -> set[str]:
        """Everything it ever gave out."""
        return {*self._tokens, *self._refreshes, *self._spent}

    def grants(self) -> list[str]:
        """The kinds of grant that were asked for."""
        return [
            fields.get("grant_type", "") for _, path, _, fields in self.requests if path == "/token"
        ]

    # --- what a client asks -----------------------------------------------------------------------

    def get(
        self, path: str, headers: dict[str, str], given: dict[str, str]
    ) -> tuple[int, Any, str]:
        self.requests.append(("GET", path, headers, given))
        if path == METADATA:
            return 200, self._metadata(), ""
        if path == "/authorize":
            return self._authorize(given)
        return 404, {}, ""

    def post(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any, str]:
        fields = json.loads(body) if path == "/register" else _single(body.decode())
        self.requests.append(("POST", path, headers, fields))
        if path in self.refusals:
            return 400, self.refusals[path], ""
        with self._lock:
            if path == "/register" and self.registers:
                client = f"client-{len(self.clients) + 1}"
                self.clients[client] = json.loads(body)["redirect_uris"]
                return 201, {**fields, "client_id": client}, ""
            if path == "/token":
                return self._token(fields)
        return 404, {}, ""

    def _metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": self.url + "/authorize",
            "token_endpoint": self.url + "/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "authorization_response_iss_parameter_supported": True,
            **({"registration_endpoint": self.url + "/register"} if self.registers else {}),
            **self.overrides,
        }

    def _authorize(self, given: dict[str, str]) -> tuple[int, Any, str]:
        redirect = given.get("redirect_uri", "")
        if redirect not in self.clients.get(given.get("client_id", ""), []):
            return 400, {"error": "that redirect is not the client's"}, ""
        if (
            given.get("code_challenge_method") != "S256"
            or not given.get("state")
            or not given.get("resource")
        ):
            return 400, {"error": "invalid_request"}, ""
        redirect += "&" if "?" in redirect else "?"
        answer = {"state": given["state"], **({"iss": self.url} if self.names_itself else {})}
        if self.denies:
            return 302, {}, f"{redirect}{urlencode({**answer, 'error': self.denies})}"
        code = secrets.token_urlsafe(16)
        self._codes[code] = given
        return 302, {}, f"{redirect}{urlencode({**answer, 'code': code})}"

    def _token(self, fields: dict[str, str]) -> tuple[int, Any, str]:
        if self.token_status != 200:
            return self.token_status, {"error": "temporarily_unavailable"}, ""
        if fields.get("grant_type") == "refresh_token":
            return self._renewed(fields)
        asked = self._codes.pop(fields.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(
            hashlib.sha256(fields.get("code_verifier", "").encode()).digest()
        )
        same = ("redirect_uri", "client_id", "resource")
        if (
            asked is None
            or challenge.rstrip(b"=").decode() != asked["code_challenge"]
            or any(asked[name] != fields.get(name) for name in same)
        ):
            return 400, {"error": "invalid_grant"}, ""
        return 200, self._issued(asked["client_id"], asked["resource"]), ""

    def _renewed(self, fields: dict[str, str]) -> tuple[int, Any, str]:
        given = fields.get("refresh_token", "")
        if given in self._spent:
            self.revoke(refreshes=True)  # somebody has a copy
        known = self._refreshes.pop(given, None)
        if known is None or known[0] != fields.get("client_id"):
            return 400, {"error": "invalid_grant"}, ""
        self._spent.add(given)
        self.refreshed.set()
        self.answers.wait(300)
        return 200, self._issued(*known), ""

    def _issued(self, client: str, resource: str) -> dict[str, Any]:
        token, refresh = "at-" + secrets.token_urlsafe(24), "rt-" + secrets.token_urlsafe(24)
        self._tokens[token] = resource
        issued: dict[str, Any] = {
            "access_token": token,
            "token_type": "Bearer",
            "expires_in": self.lives_s,
        }
        if self.refreshable:
            self._refreshes[refresh] = (client, resource)
            issued["refresh_token"] = refresh
        return issued | self.issued


def _single(text: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(text).items()}


def guarded_by(issuer: Issuer, base: type[Any]) -> type[Any]:
    """A handler of the fault server that answers only what carries a token of the issuer for this
    very server.
    """

    class Guarded(base):  # type: ignore[misc]  # a module loaded by its path
        def do_GET(self) -> None:
            if self.path == "/.well-known/oauth-protected-resource/mcp":
                found = {"resource": self.server.url, "authorization_servers": [issuer.url]}
                self.answer(200, json.dumps(found).encode())
            elif self.path == "/mcp":
                super().do_GET()
            else:
                self.answer(404, b"{}")

        def do_POST(self) -> None:
            if issuer.admits(self.headers.get("authorization"), self.server.url):
                super().do_POST()
                return
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.server.seen.append(("refused", self.path, dict(self.headers)))
            where = f"http://127.0.0.1:{self.server.server_port}/.well-known/oauth-protected-resource/mcp"
            self.answer(401, b"", extra={"www-authenticate": f'Bearer resource_metadata="{where}"'})

    return Guarded
