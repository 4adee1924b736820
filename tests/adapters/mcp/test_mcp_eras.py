"""Both eras of the protocol, and the transport it has given up, against servers built with the
SDK.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.core.catalog import Server
from bundle_router.core.servers.transport.tool_servers import Scope

mcpserver = pytest.importorskip("mcp.server.mcpserver")
uvicorn = pytest.importorskip("uvicorn")


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an ASGI application on a free port, in a thread."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="critical", ws="none", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Modern:
    """A server of the SDK. `cancelled` is set when a call of `hang` was."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.hanging = threading.Event()
        self.server = mcpserver.MCPServer("modern", instructions="be modern")
        self.server.add_tool(self.echo)
        self.server.add_tool(self.hang)
        self.server.add_tool(self.grow)

    def echo(self, text: str) -> str:
        """Says it again."""
        return text

    async def hang(self) -> str:
        """Never comes back."""
        self.hanging.set()
        try:
            await asyncio.sleep(600)
        finally:
            self.cancelled.set()
        return ""

    async def grow(self, ctx: Any) -> str:
        """Adds a tool and says so."""

        def added() -> str:
            """Was not there before."""
            return "added"

        self.server.add_tool(added)
        await ctx.notify_tools_changed()
        return "grown"


Modern.grow.__annotations__["ctx"] = mcpserver.Context


def http(url: str, **more: Any) -> Server:
    return Server(name="s", transport="streamable-http", url=url + "/mcp", **more)


def names(sessions: McpSessions) -> list[str]:
    listing = sessions.known("s")
    return [] if listing is None else [tool["name"] for tool in listing.tools]


def test_a_modern_server_is_spoken_to_in_its_own_era_and_shared_by_runs(bench: Any) -> None:
    modern = Modern()

    async def main(sessions: McpSessions) -> None:
        for run_id in ("r-1", "r-2"):
            result = await bench.call(sessions, "echo", text="hello", scope=Scope(run_id))
            assert bench.said(result) == "hello"
        listing = await sessions.definitions("s")
        assert (listing.protocol, listing.name, listing.instructions) == (
            "2026-07-28",
            "modern",
            "be modern",
        )
        assert names(sessions) == ["echo", "hang", "grow"]
        assert sessions.status()[0].connections == 1

    with serving(modern.server.streamable_http_app()) as url:
        bench.run(main, http(url))


@pytest.mark.parametrize(
    ("era", "spoken"),
    [("auto", "2026-07-28"), ("handshake", "2025-11-25"), ("modern", "2026-07-28")],
)
def test_an_entry_says_in_which_era_a_server_is_spoken_to(
    bench: Any, era: Any, spoken: str
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"
        assert (await sessions.definitions("s")).protocol == spoken

    with serving(Modern().server.streamable_http_app()) as url:
        bench.run(main, replace(http(url), era=era))


def test_a_server_without_the_modern_era_is_not_spoken_to_where_that_alone_is_asked_for(
    bench: Any,
) -> None:
    async def main(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "protocol_error")
        assert "era = 'modern', and the server speaks 2025-11-25" in bench.said(result)

    with bench.faults.serving() as server:
        bench.run(main, bench.http(server, era="modern"))


@pytest.mark.parametrize("era", ["auto", "handshake"])
@pytest.mark.parametrize("lets_ask", [True, False])
def test_a_server_that_may_ask_lists_what_it_has_for_clients_that_can_be_asked(
    bench: Any, era: Any, lets_ask: bool
) -> None:
    given: tuple[Any, ...] = ("input",) if lets_ask else ()

    async def main(sessions: McpSessions) -> None:
        await sessions.definitions("s")
        asking = [name for name in names(sessions) if name.startswith("asks_")]
        assert asking == (["asks_elicitation", "asks_roots", "asks_sampling"] if lets_ask else [])
        assert (
            bench.said(await bench.call(sessions, "echo", text="hello", scope=Scope("r-1")))
            == "hello"
        )

    bench.run(main, bench.stdio("by_client=1", era=era, trust="trusted", pass_through=given))


def test_a_change_that_a_modern_server_announces_is_seen_without_waiting_for_the_lifetime(
    bench: Any,
) -> None:
    modern = Modern()

    async def main(sessions: McpSessions) -> None:
        await sessions.definitions("s")
        while "added" not in names(sessions):
            # Announced once for every call: the subscription may not have been open at the first.
            await bench.call(sessions, "grow")
            await sessions.definitions("s")

    with serving(modern.server.streamable_http_app()) as url:
        bench.run(main, http(url))


@pytest.mark.parametrize("gives_up", ["cancelled", "timeout"])
def test_giving_up_reaches_a_modern_server(bench: Any, leap: Any, gives_up: str) -> None:
    modern = Modern()

    async def main(sessions: McpSessions) -> None:
        await bench.call(sessions, "echo", text="x")
        task = asyncio.ensure_future(bench.call(sessions, "hang"))
        await bench.until(modern.hanging.is_set)
        if gives_up == "cancelled":
            task.cancel()
        else:
            await leap.until(task)
        await asyncio.gather(task, return_exceptions=True)
        await bench.until(modern.cancelled.is_set)
        assert bench.said(await bench.call(sessions, "echo", text="next")) == "next"

    with serving(modern.server.streamable_http_app()) as url:
        bench.run(main, http(url))


@pytest.mark.parametrize("make", [lambda s: s.sse_app()], ids=["sse"])
def test_a_legacy_server_over_sse_is_spoken_to_where_its_entry_says_so(
    bench: Any, make: Callable[[Any], Any]
) -> None:
    modern = Modern()

    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"
        assert (await sessions.definitions("s")).name == "modern"

    with serving(make(modern.server)) as url:
        bench.run(main, Server(name="s", transport="sse", url=url + "/sse", legacy=True))
