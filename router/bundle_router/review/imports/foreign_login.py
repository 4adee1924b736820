"""How another program logs in to a server over OAuth.

Claude Code writes `oauth` with `clientId` and `callbackPort`, Gemini CLI `oauth` with `enabled`,
`clientId`, `clientSecret` and `scopes`, Cursor `auth` with `CLIENT_ID` and `CLIENT_SECRET`; others
`auth = "oauth"` or `oauth = true`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ForeignLogin:
    """A server's OAuth settings that mean something here, and the names of the others."""

    client_id: str | None = None
    """The registered client's id."""
    port: int | None = None
    """The port that the registered client's redirect address has."""
    has_secret: bool = False
    """Whether the registered client has a secret."""
    unsupported: tuple[str, ...] = ()
    """Settings without an equivalent here, by their names there."""


def read_login(entry: Mapping[str, Any]) -> ForeignLogin | None:
    """Return how a server's entry says that its program logs in; None if it doesn't."""
    login = entry.get("oauth", entry.get("auth"))
    if login in (True, "oauth", "OAuth"):
        return ForeignLogin()
    if not isinstance(login, dict):
        return None
    settings = {_plain(key): value for key, value in login.items()}
    if settings.pop("enabled", True) is False:
        return None

    client_id = str(settings.pop("clientid", ""))
    port = settings.pop("callbackport", None)
    secret = settings.pop("clientsecret", None)
    return ForeignLogin(
        client_id=client_id or None,
        port=port if isinstance(port, int) else None,
        has_secret=bool(secret),
        unsupported=tuple(key for key in login if _plain(key) in settings),
    )


def is_login(key: str, value: Any) -> bool:
    """Return whether a setting is one that `read_login` understands."""
    if key not in ("oauth", "auth"):
        return False
    return isinstance(value, bool | dict) or value in ("oauth", "OAuth", "none")


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")
