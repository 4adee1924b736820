"""Authorization of HTTP servers by OAuth 2.1: who may be asked, what they may be shown, where tokens are kept.

Rules:
1. A person is needed once: `Person.show` is handed the address to open and `Person.answer` gives what came back. No
   address ever reaches a process; one that is not https (or http on this machine) reaches nobody at all.
2. Without a person, tokens that are kept are used and refreshed, and nothing that a server names is asked for; when
   that does not do the call is `unauthorized`, and `missing` says what a person has to do.
3. A flow that fails ends the request it was for, never the connection.
4. A token goes to the origin it was issued for (see `oauth`), and is kept as `tokens` says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle_router.adapters.mcp.tokens import TokenFile
from bundle_router.core.catalog import Server
from bundle_router.core.tools.transport.tool_servers import Scope
from bundle_router.dataclass import dataclass
from bundle_router.errors import needs_extra

if TYPE_CHECKING:
    from bundle_router.adapters.mcp.receiver import Person

KeepSecret = Callable[[str, str], None]
"""Told the name and the value of every token, so that none is written to a record."""


@dataclass(frozen=True, slots=True)
class Authorization:
    """The OAuth of the servers that have `auth = "oauth"`. With a person, let `Bounds.connect_s` be as long as a person
    takes."""

    folder: Path
    person: Person | None = None
    keep_secret: KeepSecret = lambda _name, _value: None

    def flow(self, server: Server, scope: Scope) -> Any:
        """Return what the HTTP client authorizes its requests with; None for a server that has no such
        authorization."""
        if server.auth is None:
            return None
        with needs_extra("logging in to a tool server", "mcp"):
            from bundle_router.adapters.mcp.oauth import Provider

        return Provider(
            server, self.token_file(server, scope), self.person, lambda value: self.keep_secret(server.name, value)
        )

    def why_unauthorized(self, server: Server, scope: Scope) -> str:
        """Return why the server can't be used before a person authorizes it, and how they do; empty when it can."""
        if server.auth is None or self.person is not None:
            return ""
        from bundle_router.adapters.mcp.receiver import command_for

        why = self.token_file(server, scope).why_unusable(time.time())
        return f"{why} ({command_for(server.name, scope.principal)})" if why else ""

    def token_file(self, server: Server, scope: Scope) -> TokenFile:
        """Return where the tokens of a server and principal are."""
        return TokenFile(self.folder, server.url or "", scope.principal)
