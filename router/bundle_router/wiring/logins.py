"""A person's authorization of a tool server: where it is kept, how it is had, and how it is forgotten."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bundle_router.core.catalog import Catalog, Server
from bundle_router.dataclass import dataclass, replace
from bundle_router.wiring.effects import open_diagnostics, open_redactor, package_version

LOGIN_S: Final = 300.0
"""How long a person has to authorize a server."""


def token_folder() -> Path:
    """Return where the tokens of tool servers are kept: the user's own, for all projects and outside of every run."""
    from bundle_router.adapters.mcp.tokens import default_folder

    return default_folder(os.environ)


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """What came of it. `asked` is false where the server took what was kept, or wanted nothing."""

    tools: int
    asked: bool
    kept: bool


def log_in(
    catalog: Catalog, server: Server, *, principal: str, show: Callable[[str], None], port: int, timeout_s: float
) -> LoggedIn:
    """Has a person authorize a server: `show` is handed the address for their browser, which comes back to `port` of
    127.0.0.1 (0: any free one). Raises ToolFailure when it came to nothing in `timeout_s`, and RequestError."""
    from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
    from bundle_router.adapters.mcp.authorization import Authorization
    from bundle_router.adapters.mcp.receiver import Receiver
    from bundle_router.adapters.system import SystemClock
    from bundle_router.core.tools.transport.bounds import bounds_for
    from bundle_router.core.tools.transport.tool_servers import Scope

    redactor = open_redactor(catalog)
    person = Receiver(show, port)
    authorization = Authorization(token_folder(), person, redactor.keep)
    scope = Scope(principal=principal)

    async def main() -> LoggedIn:
        sessions = open_mcp_sessions(
            {server.name: server},
            ConnectionSetting(
                replace(bounds_for(catalog.settings.limits), connect_s=timeout_s),
                client=("bundle-router", package_version()),
            ),
            clock=SystemClock(),
            diagnostics=open_diagnostics(catalog, redactor),
            authorization=authorization,
        )
        try:
            listing = await sessions.definitions(server.name, scope=scope, fresh=True)
        finally:
            await sessions.close()
        kept = not authorization.token_file(server, scope).why_unusable(time.time())
        return LoggedIn(len(listing.tools), person.asked, kept)

    try:
        return asyncio.run(main())
    finally:
        person.close()


def log_out(server: Server, principal: str) -> bool:
    """Forget the tokens of a server; False where there were none."""
    from bundle_router.adapters.mcp.authorization import Authorization
    from bundle_router.core.tools.transport.tool_servers import Scope

    return Authorization(token_folder()).token_file(server, Scope(principal=principal)).remove()
