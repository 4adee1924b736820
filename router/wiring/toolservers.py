"""Tool servers: behind their pins for a router, and as they are now for whoever reviews them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from router.core.catalog import Catalog, Server
from router.ports import Clock, Diagnostics
from router.wiring.effects import open_diagnostics, open_redactor, package_version

if TYPE_CHECKING:
    from router.core.admission import Admitted
    from router.core.pins import Pins, PinSetting
    from router.servers import Servers

REMOTE: Final = ("streamable-http", "stdio", "sse")


def open_servers(
    catalog: Catalog,
    pins: Mapping[str, Pins],
    setting: PinSetting,
    clock: Clock,
    diagnostics: Diagnostics,
    *,
    development: bool,
    workspace: Path,
) -> Servers:
    """The tool servers of a catalog, behind their pins. Contacts nobody and loads no SDK yet."""
    from router.adapters.mcp import open_mcp_sessions
    from router.servers import Servers

    schemas: dict[str, Mapping[str, Any]] = {}

    def schema_of(server: str, tool: str) -> Mapping[str, Any] | None:
        name = f"{server}.{tool}"
        card = catalog.cards.get(name)
        if card is None:
            return None
        if name not in schemas:
            schemas[name] = card.input_schema()
        return schemas[name]

    sessions = open_mcp_sessions(
        catalog.servers,
        clock=clock,
        diagnostics=diagnostics,
        limits=catalog.settings.limits,
        development=development,
        workspace=workspace,
        client=("bundle-router", package_version()),
        schema_of=schema_of,
    )
    return Servers(catalog, sessions, pins, setting, clock, diagnostics)


def admitted_now(catalog: Catalog, servers: Sequence[Server], *, development: bool) -> list[Admitted | str]:
    """What each of the servers lists now, asked all at once, its tokens counted where that is possible; or why there is
    nothing. Starts processes (stdio) only with `development`, and ends them."""

    from router.adapters.clock import SystemClock
    from router.adapters.mcp import open_mcp_sessions
    from router.adapters.tokens import token_counter
    from router.core.admission import admit
    from router.errors import ToolFailure

    sessions = open_mcp_sessions(
        {server.name: server for server in servers},
        clock=SystemClock(),
        diagnostics=open_diagnostics(catalog, open_redactor(catalog)),
        limits=catalog.settings.limits,
        development=development,
        workspace=Path.cwd(),
        client=("bundle-router", package_version()),
    )
    count = token_counter()

    async def one(server: Server) -> Admitted | str:
        try:
            listing = await sessions.definitions(server.name, fresh=True)
        except ToolFailure as failure:
            return failure.message
        return admit(server, listing.tools, listing.instructions, count=count)

    async def all_of_them() -> list[Admitted | str]:
        try:
            return list(await asyncio.gather(*(one(server) for server in servers)))
        finally:
            await sessions.close()

    return asyncio.run(all_of_them())
