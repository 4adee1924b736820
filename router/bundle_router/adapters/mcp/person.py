"""Whoever authorizes a server in a browser, and what may be put before them."""

from __future__ import annotations

import re
import shlex
from typing import Final, Protocol
from urllib.parse import urlsplit

_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!&*+,;=%-]{1,8192}")
"""Those of RFC 3986 without quotes, brackets and dollars."""


class Person(Protocol):
    """Whoever can open an address in a browser."""

    @property
    def redirect_uri(self) -> str:
        """Where the browser is sent afterwards, such as `http://127.0.0.1:8123/callback`."""

    async def show(self, url: str) -> None:
        """Shows the address; it is untrusted text, to be opened by the person and by nothing else."""

    async def answer(self) -> tuple[str, str | None, str | None]:
        """`code`, `state` and `iss` of the redirect."""


def is_safe_to_show(url: str) -> bool:
    """Whether the address may be put before a person: https, or http on this machine, and of nothing that a terminal, a
    shell or an eye could take for something else, wherever they paste it."""
    if not _CHARACTERS.fullmatch(url):
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    return (
        bool(parts.hostname)
        and parts.username is None
        and (parts.scheme == "https" or (parts.scheme == "http" and local))
    )


def command_for(server: str, principal: str) -> str:
    """What a person types to authorize a server."""
    return f"bundle-router login {server}" + (f" --principal {shlex.quote(principal)}" if principal else "")
