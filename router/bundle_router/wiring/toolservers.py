"""Opens tool servers: behind their pins for a router, and without pins for a review."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from bundle_router.core.catalog import TRANSPORTS, Catalog, Server
from bundle_router.ports import Clock, Diagnostics, Redactor
from bundle_router.wiring.effects import open_diagnostics, open_redactor, token_folder

if TYPE_CHECKING:
    from bundle_router.core.servers.admission.admitted import Admitted
    from bundle_router.core.servers.pins.reviewed import Pins
    from bundle_router.core.servers.pins.usable import PinSetting
    from bundle_router.engine.upstreams import Servers

Development = bool | Literal["unpinned"]
"""What a config file can't grant itself: servers that are processes, and trusted servers without
pins.
"""
REMOTE: Final = tuple(name for name, traits in TRANSPORTS.items() if traits.is_remote)
AT_ONCE: Final = 16
"""Servers that a review asks at a time: of some hundred processes that start together many are
late, and each of them may need 100 MB.
"""
MAX_LAST_WORDS: Final = 300


class _LastWords:
    """Diagnostics that keep what each server's process wrote last before it ended: to who reviews
    it, that is the reason, and it need not be looked for among the events.
    """

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._words: dict[str, str] = {}

    def event(self, level: str, name: str, **fields: object) -> None:
        words = fields.get("last_words")
        if name == "server.ended" and words:
            self._words[str(fields["server"])] = str(words)
            level = "info"
        self._diagnostics.event(level, name, **fields)

    def last_words(self, server: str) -> str:
        """Return the last line that a server wrote, at most `MAX_LAST_WORDS` characters."""
        lines = self._words.get(server, "").strip().splitlines()
        return lines[-1].strip()[-MAX_LAST_WORDS:] if lines else ""


class PinnedServers:
    """The tool servers of a config: one set of sessions, and a view of it for each state of the
    pins. Contacts no server and loads no SDK yet.
    """

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        diagnostics: Diagnostics,
        redactor: Redactor,
        *,
        development: Development,
        workspace: Path,
    ) -> None:
        from bundle_router.adapters.mcp import ConnectionSetting, open_mcp_sessions
        from bundle_router.adapters.mcp.authorization import Authorization
        from bundle_router.core.servers.transport.bounds import bounds_for

        self._setting: PinSetting = "trusted-may-skip" if development == "unpinned" else "required"
        self._clock = clock
        self._diagnostics = diagnostics
        self._schema_of = _schemas_of(catalog)
        self.sessions = open_mcp_sessions(
            catalog.servers,
            ConnectionSetting(
                bounds_for(catalog.settings.limits),
                development=bool(development),
                workspace=workspace,
            ),
            clock=clock,
            diagnostics=diagnostics,
            schema_of=lambda server, tool: self._schema_of(server, tool),
            authorization=Authorization(token_folder(), keep_secret=redactor.keep),
        )

    def servers_behind(
        self, catalog: Catalog, pins: Mapping[str, Pins], approved: Collection[str] = ()
    ) -> Servers:
        """Return the servers behind these pins; `catalog` has their cards.

        From now on arguments are checked against those, so a tool whose pin changed can't be used
        behind earlier pins any more (`Servers.narrow`).
        """
        from bundle_router.engine.upstreams import Servers

        self._schema_of = _schemas_of(catalog)
        for name, reviewed in pins.items():
            if reviewed.begins_with_handshake:
                self.sessions.begin_with_handshake(name)
        return Servers(
            catalog, self.sessions, pins, self._setting, self._clock, self._diagnostics, approved
        )


def _schemas_of(catalog: Catalog) -> Callable[[str, str], Mapping[str, Any] | None]:
    """Return a look-up of the cards' schemas that reads each once."""
    schemas: dict[str, Mapping[str, Any]] = {}

    def schema_of(server: str, tool: str) -> Mapping[str, Any] | None:
        name = f"{server}.{tool}"
        card = catalog.cards.get(name)
        if card is None:
            return None
        if name not in schemas:
            schemas[name] = card.input_schema()
        return schemas[name]

    return schema_of


def admitted_now(
    catalog: Catalog, servers: Sequence[Server], *, development: bool
) -> Iterator[tuple[Server, Admitted | str]]:
    """Yield what each server lists now, with its tokens counted where possible, or why there is no
    list, in the order in which they answer; of a process that ended, with what it wrote last.
    `AT_ONCE` are asked at a time. Starts processes (stdio) only with `development`, and ends each
    once it has listed.
    """
    from bundle_router.adapters.system import SystemClock
    from bundle_router.adapters.tokenizer import token_counter
    from bundle_router.core.servers.admission.admit import admit
    from bundle_router.core.servers.admission.cleaning import reveal_line
    from bundle_router.core.servers.transport.tool_servers import Scope
    from bundle_router.errors import ToolFailure

    redactor = open_redactor(catalog)
    diagnostics = _LastWords(open_diagnostics(catalog, redactor))
    workspace = Path.cwd()
    sessions = PinnedServers(
        catalog, SystemClock(), diagnostics, redactor, development=development, workspace=workspace
    ).sessions
    count = token_counter()
    places = asyncio.Semaphore(AT_ONCE)

    async def one(server: Server) -> tuple[Server, Admitted | str]:
        failed = ""
        async with places:
            try:  # a run of its own, whose processes end with it
                listing = await sessions.definitions(
                    server.name, scope=Scope(server.name), fresh=True
                )
            except ToolFailure as failure:
                failed = failure.message
            finally:
                await sessions.close_run(server.name)
        if failed:
            words = reveal_line(redactor.redact(diagnostics.last_words(server.name)))
            return server, f"{failed}; it wrote: {words}" if words else failed
        admitted = admit(server, listing.tools, listing.instructions, count=count)
        return server, replace(admitted, begins_with_handshake=listing.begins_with_handshake)

    async def ask() -> set[asyncio.Task[tuple[Server, Admitted | str]]]:
        return {asyncio.ensure_future(one(server)) for server in servers}

    with asyncio.Runner() as runner:
        try:
            waiting = runner.run(ask())
            while waiting:
                finished, waiting = runner.run(
                    asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                )
                yield from (task.result() for task in finished)
        finally:
            runner.run(sessions.close())
