"""Who shares what, and in which era, as an engine meets it: principals apart, and servers of both
eras.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from bundle_router import Router


def called(server: Any) -> list[dict[str, str]]:
    """The headers of each tool call that reached the server."""
    return [
        {name.lower(): value for name, value in headers.items()}
        for method, _, headers in server.seen
        if method == "tools/call"
    ]


@pytest.mark.parametrize("stateful", [True, False])
def test_principals_share_no_session_of_a_server_and_see_no_tools_of_each_others_lists(
    project: Any, bench: Any, stateful: bool
) -> None:
    """G-13.

    A server that keeps sessions gives each run its own; one that keeps none serves a principal's as
    one.
    """
    with bench.faults.serving() as server:
        server.stateful = stateful
        project.http(server.url, tools='tools = ["s.echo"]')
        runs = {"a-1": "ann", "a-2": "ann", "b-1": "ben"}

        async def main(router: Router) -> None:
            for run_id, principal in runs.items():
                await router.route(project.step(run_id, principal=principal))
            texts = await asyncio.gather(
                *(router.call(run_id, "s.echo", {"text": run_id}) for run_id in runs)
            )
            assert [result.text for result in texts] == list(runs)

        async def whole() -> None:
            async with asyncio.timeout(300), project.open(development="unpinned") as router:
                await main(router)

        asyncio.run(whole())
        calls = called(server)
        initialised = [method for method, _, _ in server.seen].count("initialize")
        listed = server.faults.lists
    assert not any("authorization" in headers for headers in calls)
    assert listed == 2, "a list for each principal"
    if stateful:
        assert len({headers["mcp-session-id"] for headers in calls}) == 3
    else:
        assert initialised == 2, "a connection for each principal"


@contextmanager
def modern() -> Iterator[str]:
    """The address of a server of the SDK, which speaks the modern era, in a thread."""
    mcpserver = pytest.importorskip("mcp.server.mcpserver")
    uvicorn = pytest.importorskip("uvicorn")
    made = mcpserver.MCPServer("modern")

    def echo(text: str) -> str:
        """Says it again."""
        return text

    made.add_tool(echo)
    config = uvicorn.Config(
        made.streamable_http_app(),
        host="127.0.0.1",
        port=0,
        log_level="critical",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()


def test_servers_of_both_eras_show_all_their_tools_side_by_side(project: Any, bench: Any) -> None:
    """G-16."""
    with bench.faults.serving() as handshake, modern() as url:
        more = f'[servers.t]\ntrust = "trusted"\nurl = "{url}"\n'
        project.http(handshake.url, tools='tools = ["s.*", "t.*"]', more=more)
        with project.open(development="unpinned") as router:
            router.route_sync(project.step())
            shown = {tool.name for tool in router.tools_sync("r").active}
            for server in ("s", "t"):
                assert router.call_sync("r", f"{server}.echo", {"text": server}).text == server
    assert "t.echo" in shown
    assert {f"s.{tool['name']}" for tool in bench.faults.TOOLS} <= shown
    assert {method for method, _, _ in handshake.seen} >= {"server/discover", "initialize"}, (
        "asked, then as it can"
    )
