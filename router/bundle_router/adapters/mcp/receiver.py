"""The person who authorizes a server in a browser: which addresses may be shown, and the local
address (127.0.0.1) that receives the redirect, open only meanwhile.

Rules:
1. Only a redirect with the `state` of the address that was shown ends the wait. Any other request
   (another page's guess, a port scan) is answered with one sentence and ignored.
2. The Host header must be exactly this address, so a name that was made to resolve to this machine
   gets nothing.
3. Requests are bounded in bytes and time. Nothing of them appears on the page that answers, or
   anywhere else.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import socket
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import parse_qs, parse_qsl, urlsplit

from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.errors import RequestError

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"
HEAD_S: Final = 10.0
MAX_HEAD_BYTES: Final = 16_384
_KNOWN_ERRORS: Final = (
    "access_denied",
    "invalid_request",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_response_type",
)
_HEAD: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length:"
    " {length}\r\nContent-Security-Policy: default-src 'none'\r\nReferrer-Policy:"
    " no-referrer\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection:"
    " close\r\n\r\n"
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


class Receiver:
    """A `Person` to whom `show_url` shows addresses.

    The port is bound at construction, because its address is registered first. It listens once an
    address was shown, until the redirect arrives or `close` is called.
    """

    def __init__(self, show_url: Callable[[str], None], port: int = 0) -> None:
        """Bind the port. Raises RequestError if it is taken."""
        self._show_url = show_url
        self._socket = _bind_socket(port)
        self._port: int = self._socket.getsockname()[1]
        self._state = ""
        self._server: asyncio.Server | None = None
        self._redirect: asyncio.Future[Redirect] | None = None
        self.asked = False

    @property
    def redirect_uri(self) -> str:
        return f"http://{HOST}:{self._port}{PATH}"

    async def show(self, url: str) -> None:
        self._state = (parse_qs(urlsplit(url).query).get("state") or [""])[-1]
        self._redirect = asyncio.get_running_loop().create_future()
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, sock=self._socket, limit=MAX_HEAD_BYTES
            )
        self.asked = True
        self._show_url(url)

    async def answer(self) -> Redirect:
        """Wait for the redirect. Raises ServerFault if the person or the issuer refused."""
        assert self._redirect is not None  # noqa: S101 - shown before it is answered
        return await self._redirect

    def close(self) -> None:
        """Close the port.

        Call this when the flow has ended, on its loop or after that loop has ended.
        """
        if self._server is not None:
            self._server.close()
        self._socket.close()

    # --- the browser ------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, sentence = self._take(head.decode("latin-1"))
            body = _PAGE.format(sentence=sentence)
            writer.write((_HEAD.format(status=status, length=len(body)) + body).encode("ascii"))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return  # the peer sent no request, or is gone
        finally:
            writer.close()

    def _take(self, head: str) -> tuple[str, str]:
        """Return the status and sentence for a request.

        Completes the wait if the request is the awaited redirect.
        """
        lines = head.split("\r\n")
        method, _, rest = lines[0].partition(" ")
        hosts = [line[5:].strip() for line in lines[1:] if line[:5].lower() == "host:"]
        if hosts != [f"{HOST}:{self._port}"]:
            return "421 Misdirected Request", "This address answers to its own name only."
        path, _, query = rest.rpartition(" ")[0].partition("?")
        if method != "GET" or path != PATH:
            return "404 Not Found", "There is nothing at this path."
        try:
            fields = parse_qs(query, max_num_fields=32)
        except ValueError:
            return "400 Bad Request", "This is not the expected answer."
        state = fields.get("state", [])
        if (
            len(state) != 1
            or not self._state
            or not secrets.compare_digest(state[0].encode(), self._state.encode())
        ):
            return "400 Bad Request", "This is not the expected answer."
        return self._resolve(fields)

    def _resolve(self, fields: dict[str, list[str]]) -> tuple[str, str]:
        done = self._redirect
        if done is None or done.done():
            return "400 Bad Request", "This answer was given before."
        codes, errors, issuers = (fields.get(name, []) for name in ("code", "error", "iss"))
        if (
            errors or len(codes) != 1 or len(issuers) > 1
        ):  # the redirect URI may be registered with an `iss` of its own
            if len(errors) == 1 and errors[0] in _KNOWN_ERRORS:
                kind = errors[0]
            else:
                kind = "no code came back"
            done.set_exception(
                ServerFault("unauthorized", f"the authorization was declined ({kind})")
            )
            return "200 OK", "Not authorized. You can close this page."
        done.set_result((codes[0], fields["state"][0], next(iter(issuers), None)))
        return "200 OK", "Authorized. You can close this page and go back to the terminal."


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
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return (
        bool(parts.hostname)
        and len(names) == len(set(names))
        and parts.username is None
        and (parts.scheme == "https" or (parts.scheme == "http" and local))
    )


def command_for(server: str, principal: str) -> str:
    """Return the command that authorizes a server."""
    return f"bundle-router login {server}" + (
        f" --principal {shlex.quote(principal)}" if principal else ""
    )
