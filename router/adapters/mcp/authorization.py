"""Authorization of HTTP servers by OAuth 2.1: who may be asked, what they may be shown, where tokens are kept.

Rules:
1. A person is needed once: `Person.show` is handed the address to open and `Person.answer` gives what came back. No
   address ever reaches a process; one that is not https (or http on this machine) reaches nobody at all.
2. Without a person, tokens that are kept are used and refreshed; when that fails the call is `unauthorized`.
3. A flow that fails ends the request it was for, never the connection.
4. A token goes to the origin it was issued for (see `http`), and is kept as `tokens` says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from router.adapters.mcp.person import Person
from router.adapters.mcp.tokens import TokenFile
from router.core.catalog import Server
from router.ports import Scope


def auth_for(folder: Path, person: Person | None = None) -> Callable[[Server, Scope], Any]:
    """For `open_mcp_sessions(auth_for=...)`: the flow of each HTTP server without a configured `Authorization` header,
    where there are tokens or somebody to ask. With a person, let `Bounds.connect_s` be as long as a person takes."""

    def choose(server: Server, scope: Scope) -> Any:
        kept = TokenFile(folder, server.url or "", scope.principal)
        if any(name.lower() == "authorization" for name, _ in server.headers):
            return None
        if person is None and not kept.exists():
            return None
        from router.adapters.mcp.oauth import Provider

        return Provider(server.url or "", kept, person)

    return choose
