"""How long it is remembered that a server gave no list, by a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from bundle_router import load_catalog
from bundle_router.core.tools.transport.tool_servers import EVERYONE, Listing, Scope, ServerStatus
from bundle_router.engine.upstreams import Servers
from bundle_router.errors import ToolFailure
from bundle_router.ports import ToolServers
from bundle_router.testing import FakeClock, FakeDiagnostics


class Down:
    """Tool servers that are up, as far as anybody knows, and give no list."""

    changes = 0

    async def prepare(self) -> None:
        return

    async def definitions(self, server: str, *, scope: Scope = EVERYONE, fresh: bool = False) -> Listing:
        raise ToolFailure(f"server {server!r} gave no list of its tools: it is down", code="unavailable")

    def known(self, server: str, *, scope: Scope = EVERYONE) -> Listing | None:
        return None

    def status(self, *, scope: Scope = EVERYONE) -> Sequence[ServerStatus]:
        return [ServerStatus("s", "streamable-http")]


def test_a_server_that_gave_no_list_is_offered_again_after_1_2_4_and_every_5_seconds(project: Any) -> None:
    project.http("http://127.0.0.1:9/mcp")
    clock = FakeClock()
    servers = Servers(
        load_catalog(project.config), cast(ToolServers, Down()), {}, "trusted-may-skip", clock, FakeDiagnostics()
    )

    def is_left_out() -> bool:
        return "s" in dict(servers.availability().unavailable)

    async def main() -> list[float]:
        waits = []
        for _ in range(6):
            await servers.verify("s", EVERYONE, 1.0)
            assert is_left_out()
            waits.append(0.0)
            while is_left_out():
                clock.advance(0.5)
                waits[-1] += 0.5
        return waits

    assert asyncio.run(main()) == [1, 2, 4, 5, 5, 5]
