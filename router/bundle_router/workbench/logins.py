"""A person's authorization of a tool server: get it, store it and delete it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import Catalog, Server
from bundle_router.wiring.effects import open_diagnostics, open_redactor, token_folder

LOGIN_S: Final = 300.0
"""Seconds that a person has to authorize a server."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The outcome of a login.

    `asked` is false where the server accepted a stored token, or needed none.
    """

    tools: int
    asked: bool
    kept: bool


def log_in(
    catalog: Catalog,
    server: Server,
    *,
    principal: str,
    show: Callable[[str], None],
    port: int,
    timeout_s: float,
) -> LoggedIn:
    """Have a person authorize a server.

    `show` gets the address for their browser, which is sent back to `port` of 127.0.0.1 (0: any
    free one). Raises RequestError, and ToolFailure after `timeout_s`.
    """
    from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
    from bundle_router.adapters.mcp.authorization import Authorization
    from bundle_router.adapters.mcp.receiver import Receiver
    from bundle_router.adapters.system import SystemClock
    from bundle_router.core.servers.transport.bounds import bounds_for
    from bundle_router.core.servers.transport.tool_servers import Scope

    redactor = open_redactor(catalog)
    person = Receiver(show, port)
    authorization = Authorization(token_folder(), person, redactor.keep)
    scope = Scope(principal=principal)

    async def main() -> LoggedIn:
        sessions = open_mcp_sessions(
            {server.name: server},
            ConnectionSetting(replace(bounds_for(catalog.settings.limits), connect_s=timeout_s)),
            clock=SystemClock(),
            diagnostics=open_diagnostics(catalog, redactor),
            authorization=authorization,
        )
        try:
            listing = await sessions.definitions(server.name, scope=scope, fresh=True)
        finally:
            await sessions.close()
        is_kept = not authorization.token_file(server, scope).why_unusable(time.time())
        return LoggedIn(len(listing.tools), person.asked, is_kept)

    try:
        return asyncio.run(main())
    finally:
        person.close()


def log_out(server: Server, principal: str) -> bool:
    """Delete the tokens of a server.

    Return False where there were none. A refresh under way is waited for, since it would write new
    ones.
    """
    from bundle_router.adapters.mcp.authorization import Authorization
    from bundle_router.core.servers.transport.tool_servers import Scope

    file = Authorization(token_folder()).token_file(server, Scope(principal=principal))

    async def remove() -> bool:
        async with file.locked():
            return file.remove()

    return file.stamp is not None and asyncio.run(remove())
