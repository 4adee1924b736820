"""Authorization of HTTP servers by OAuth 2.1: the person who authorizes, and the tokens that are
kept.

Rules:
1. A person authorizes a server once: `Person.show` receives the address to open, `Person.answer`
   returns the redirect. The address is never passed to a process. An address that is neither https
   nor http on this machine is not shown.
2. Without a person, kept tokens are used and refreshed, and no address that a server names is
   requested. If that is not enough, the call is `unauthorized` and `why_unauthorized` says what a
   person has to do.
3. A failed flow ends only the request that started it, never the connection, which asks nobody a
   second time.
4. A token is sent only to the origin it was issued for (see `oauth`). See `tokens` for how it is
   stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.adapters.mcp.tokens import TokenFile
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.errors import needs_extra

if TYPE_CHECKING:
    from bundle_router.adapters.mcp.oauth import Provider
    from bundle_router.adapters.mcp.receiver import Person

KeepSecret = Callable[[str, str], None]
"""Callback with the name and value of every token, so that no record contains one."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """OAuth for the servers that have `auth = "oauth"`.

    With a `person`, `Bounds.connect_s` is theirs.
    """

    folder: Path
    person: Person | None = None
    keep_secret: KeepSecret = lambda _name, _value: None

    def flow(self, server: Server, scope: Scope) -> Provider | None:
        """Return the authentication flow for the HTTP client, or None for a server without
        `auth`.
        """
        if server.auth is None:
            return None
        with needs_extra("logging in to a tool server", "mcp"):
            from bundle_router.adapters.mcp.oauth import Provider

        return Provider(
            server,
            self.token_file(server, scope),
            self.person,
            lambda value: self.keep_secret(server.name, value),
        )

    def why_unauthorized(self, server: Server, scope: Scope) -> str:
        """Return why a person has to authorize the server first, and how; empty if nobody has
        to.
        """
        if server.auth is None or self.person is not None:
            return ""
        from bundle_router.adapters.mcp.receiver import command_for

        why = self.token_file(server, scope).why_unusable(time.time())
        return f"{why} ({command_for(server.name, scope.principal)})" if why else ""

    def token_file(self, server: Server, scope: Scope) -> TokenFile:
        """Return the token file of a server and principal."""
        return TokenFile(self.folder, server.url or "", scope.principal)
