"""The person who authorizes a server in a browser: which addresses may be shown, and the local
address (127.0.0.1) that receives the redirect, open only meanwhile.

Rules:
1. Only a redirect with the `state` of the address that was shown ends the wait. Any other request
   (another page's guess, a port scan) is answered with one sentence and ignored.
2. The Host header must be exactly this address, so a name that was made to resolve to this machine
   gets nothing.
3. Requests are bounded in bytes and time (`http_listener`). Nothing of them appears on the page
   that answers, or anywhere else.
4. The page that answers the redirect says how the authorization ended: it is sent by `finish`,
   after the code was exchanged for a token.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.errors import RequestError

if TYPE_CHECKING:
    from bundle_router.adapters.http_listener import Listener

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"
HEAD_S: Final = 10.0
"""Seconds within which the head of a request has to arrive."""
_KNOWN_ERRORS: Final = (
    "access_denied",
    "invalid_request",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_response_type",
)
_HEADERS: Final = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)
_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!&*+,;=%-]{1,8192}")
"""The characters of a URL by RFC 3986, without quotes, brackets and dollars."""
_PAGE: Final = "<!doctype html><title>Bundle Router</title><p>{sentence}</p>"

Redirect = tuple[str, str | None, str | None]
"""The `code`, `state` and `iss` of a redirect."""


class Person(Protocol):
    """Someone who can open an address in a browser."""

    @property
    def redirect_uri(self) -> str:
        """Address that the browser is redirected to, such as `http://127.0.0.1:8123/callback`."""

    async def show(self, url: str) -> None:
        """Show the address. It is untrusted text: only the person opens it, no program does."""

    async def answer(self) -> Redirect: ...

    async def finish(self, is_authorized: bool) -> None:
        """Say how the authorization ended, whatever was shown or answered before."""


class Receiver:
    """A `Person` to whom `show_url` shows addresses.

    The port is bound at construction, because its address is registered first. It listens once an
    address was shown, until `finish`.
    """

    def __init__(self, show_url: Callable[[str], None], port: int = 0) -> None:
        """Bind the port. Raises RequestError if it is taken."""
        self._show_url = show_url
        self._socket = _bind_socket(port)
        self._port: int = self._socket.getsockname()[1]
        self._state = ""
        self._listener: Listener | None = None
        self._redirect: asyncio.Future[Redirect] | None = None
        self._ended: asyncio.Future[bool] | None = None
        self.asked = False

    @property
    def redirect_uri(self) -> str:
        return f"http://{HOST}:{self._port}{PATH}"

    async def show(self, url: str) -> None:
        from bundle_router.adapters.http_listener import Listener

        self._state = (parse_qs(urlsplit(url).query).get("state") or [""])[-1]
        loop = asyncio.get_running_loop()
        self._redirect = loop.create_future()
        self._ended = loop.create_future()
        if self._listener is None:
            self._socket.listen()
            self._listener = Listener(self._serve, self._socket, HEAD_S)
            self._listener.start()
        self.asked = True
        self._show_url(url)

    async def answer(self) -> Redirect:
        """Wait for the redirect. Raises ServerFault if the person or the issuer refused."""
        assert self._redirect is not None  # noqa: S101 - shown before it is answered
        return await self._redirect

    async def finish(self, is_authorized: bool) -> None:
        """Answer the redirect, and close the port. On the loop that `show` was awaited on."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(is_authorized)
        if self._listener is not None:
            await self._listener.close()

    def close(self) -> None:
        """Close the port where nothing was shown."""
        self._socket.close()

    # --- the browser ------------------------------------------------------------------------------

    async def _serve(self, scope: dict[str, Any], _receive: object, send: Any) -> None:
        """Answer a request. The application that the listener serves (ASGI)."""
        status, sentence = await self._page_for(scope)
        body = _PAGE.format(sentence=sentence).encode("ascii")
        headers = [*_HEADERS, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _page_for(self, scope: dict[str, Any]) -> tuple[int, str]:
        """Return the status and sentence for a request.

        Completes the wait if the request is the awaited redirect.
        """
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if hosts != [f"{HOST}:{self._port}"]:
            return 421, "This address answers to its own name only."
        if scope["method"] != "GET" or scope["raw_path"] != PATH.encode():
            return 404, "There is nothing at this path."
        try:
            fields = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=32)
        except ValueError:
            return 400, "This is not the expected answer."
        state = fields.get("state", [])
        if (
            len(state) != 1
            or not self._state
            or not secrets.compare_digest(state[0].encode(), self._state.encode())
        ):
            return 400, "This is not the expected answer."
        return await self._end_wait(fields)

    async def _end_wait(self, fields: dict[str, list[str]]) -> tuple[int, str]:
        """Hand the redirect to `answer`, and wait for how the authorization ends."""
        redirect, ended = self._redirect, self._ended
        if redirect is None or ended is None or redirect.done():
            return 400, "This answer was given before."
        codes = fields.get("code", [])
        errors = fields.get("error", [])
        issuers = fields.get("iss", [])
        # two: the redirect URI may be registered with an `iss` of its own
        if errors or len(codes) != 1 or len(issuers) > 1:
            if len(errors) == 1 and errors[0] in _KNOWN_ERRORS:
                kind = errors[0]
            else:
                kind = "no code came back"
            redirect.set_exception(
                ServerFault("unauthorized", f"the authorization was declined ({kind})")
            )
        else:
            redirect.set_result((codes[0], fields["state"][0], next(iter(issuers), None)))
        if await asyncio.shield(ended):
            return 200, "Authorized. You can close this page and go back to the terminal."
        return 200, "Not authorized. The terminal says why."


def _bind_socket(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.bind((HOST, port))
    except (OSError, OverflowError) as error:
        made.close()
        why = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
        raise RequestError(
            f"can't listen on port {port} of {HOST}: {why}", advice="choose another one"
        ) from None
    made.setblocking(False)
    return made


def is_safe_to_show(url: str) -> bool:
    """Return whether an address may be shown to a person: https, or http on this machine.

    It must hold nothing that a terminal, a shell or a reader could misread, wherever it is pasted,
    and no parameter twice, as a reader could take either one.
    """
    if not _CHARACTERS.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not parts.hostname or parts.username is not None:
        return False
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    if len(names) != len(set(names)):
        return False
    if parts.scheme == "https":
        return True
    return parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")


def command_for(server: str, principal: str) -> str:
    """Return the command that authorizes a server."""
    return f"bundle-router login {server}" + (
        f" --principal {shlex.quote(principal)}" if principal else ""
    )
