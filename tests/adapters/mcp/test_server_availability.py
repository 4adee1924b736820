"""How long it is remembered that a server gave no list, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from bundle_router import load_catalog
from bundle_router.core.servers.transport.tool_servers import EVERYONE, Listing, Scope, ServerStatus
from bundle_router.engine.upstreams import Servers
from bundle_router.errors import ToolFailure
from bundle_router.ports import ToolServers
from bundle_router.testing import FakeClock, FakeDiagnostics

TRUSTED = '[servers.t]\ntrust = "trusted"\nurl = "http://127.0.0.1:9/mcp"'


class Down:
    """Tool servers that are up, as far as anybody knows, and give no list."""

    changes = 0

    async def prepare(self) -> None:
        return

    async def definitions(
        self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
    ) -> Listing:
        raise ToolFailure(
            f"server {server!r} gave no list of its tools: it is down", code="unavailable"
        )

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        return None

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
        return [ServerStatus("s", "streamable-http")]


def test_a_server_that_gave_no_list_is_offered_again_after_1_2_4_and_every_5_seconds(
    project: Any,
) -> None:
    project.http("http://127.0.0.1:9/mcp")
    clock = FakeClock()
    servers = Servers(
        load_catalog(project.config),
        cast(ToolServers, Down()),
        {},
        "trusted-may-skip",
        clock,
        FakeDiagnostics(),
    )

    def is_left_out() -> bool:
        return "s" in dict(servers.availability().unavailable)

    async def main() -> list[float]:
        waits = []
        for _ in range(6):
            await servers.verify("s", EVERYONE)
            assert is_left_out()
            waits.append(0.0)
            while is_left_out():
                clock.advance(0.5)
                waits[-1] += 0.5
        return waits

    assert asyncio.run(main()) == [1, 2, 4, 5, 5, 5]


def test_a_server_that_failed_at_once_is_still_known_as_away_when_the_last_of_the_others_has_answered(
    project: Any,
) -> None:
    project.http("http://127.0.0.1:9/mcp", tools='tools = ["s.*", "t.*"]', more=TRUSTED)
    clock = FakeClock()

    class SlowBeside(Down):
        async def definitions(
            self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
        ) -> Listing:
            if server == "t":
                await asyncio.sleep(0)
                clock.advance(3.0)
            return await super().definitions(server, scope=scope, fresh=fresh)

        def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
            return [ServerStatus(name, "streamable-http") for name in ("s", "t")]

    servers = Servers(
        load_catalog(project.config),
        cast(ToolServers, SlowBeside()),
        {},
        "trusted-may-skip",
        clock,
        FakeDiagnostics(),
    )
    asyncio.run(servers.discover(("s", "t"), EVERYONE))
    assert {"s", "t"} <= dict(servers.availability().unavailable).keys()


def test_a_server_that_may_take_long_to_start_is_waited_for_after_the_others_were_given_up(
    project: Any,
) -> None:
    tools = 'tools = ["s.*", "t.*"]'
    project.http("http://127.0.0.1:9/mcp", tools=tools, more=TRUSTED, connect_s=300)
    is_downloaded = asyncio.Event()

    class Downloading(Down):
        async def definitions(
            self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
        ) -> Listing:
            if server == "t":
                try:
                    await asyncio.Event().wait()
                finally:
                    is_downloaded.set()
            await is_downloaded.wait()
            return Listing("s", ())

        def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
            return [ServerStatus(name, "streamable-http") for name in ("s", "t")]

    servers = Servers(
        load_catalog(project.config),
        cast(ToolServers, Downloading()),
        {},
        "trusted-may-skip",
        FakeClock(),
        FakeDiagnostics(),
    )
    asyncio.run(servers.discover(("s", "t"), EVERYONE, wait_s=0.0))
    assert servers.availability().pending == ("t",)


def test_a_server_that_was_left_alone_is_asked_before_it_counts_as_back(project: Any) -> None:
    """Its old list may still hold; that says nothing about whether it is there."""
    project.http("http://127.0.0.1:9/mcp")

    class LeftAlone(Down):
        listing = Listing("s", ())

        async def definitions(
            self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False
        ) -> Listing:
            return (
                await super().definitions(server, scope=scope, fresh=fresh)
                if fresh
                else self.listing
            )

        def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
            return self.listing

        def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
            return [ServerStatus("s", "streamable-http", circuit="half_open")]

    servers = Servers(
        load_catalog(project.config),
        cast(ToolServers, LeftAlone()),
        {},
        "trusted-may-skip",
        FakeClock(),
        FakeDiagnostics(),
    )
    asyncio.run(servers.verify("s", EVERYONE))
    assert "it is down" in dict(servers.availability().unavailable)["s"]
