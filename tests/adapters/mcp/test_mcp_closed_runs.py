"""Runs that are closed while others still call: a process of such a run ends with the last call
that holds it.
"""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.core.servers.transport.tool_servers import Scope
from bundle_router.errors import ToolFailure

from tests.adapters.mcp.own_processes import own_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
SERVER = 'tools = ["s.sleep", "s.pid"]'


def servers() -> list[int]:
    """Return the processes of servers, which have a supervisor for a parent."""
    return own_processes()[1:]


def test_a_process_that_a_call_holds_when_its_run_is_closed_ends_with_that_call(
    project: Any, bench: Any
) -> None:
    project.stdio(tools=SERVER)
    project.pin()
    go = project.root / "go"
    with project.open() as router, ThreadPoolExecutor(2) as threads:
        router.route_sync(project.step())
        assert router.call_sync("r", "s.pid").ok
        call = threads.submit(router.call_sync, "r", "s.sleep", {"file": str(go)})
        asyncio.run(bench.until(lambda: project.records()[-1]["tool"] == "sleep"))
        router.close_run_sync("r")
        assert len(servers()) == 1, "nobody waits for another's call, and it is not interrupted"
        go.touch()
        assert call.result(300).ok
        asyncio.run(bench.until(lambda: servers() == []))


def test_a_call_that_waits_for_its_turn_when_its_run_is_closed_leaves_no_process(
    project: Any, bench: Any
) -> None:
    project.stdio(tools=SERVER)
    (project.config / "router.toml").write_text("[limits]\nmax_concurrent_calls = 1\n")
    project.pin()
    go = project.root / "go"
    with project.open() as router, ThreadPoolExecutor(3) as threads:
        router.route_sync(project.step())
        first = threads.submit(router.call_sync, "r", "s.sleep", {"file": str(go)})
        second = threads.submit(router.call_sync, "r", "s.sleep", {"file": str(go)})
        asyncio.run(bench.until(lambda: len(project.records()) == 2))
        router.close_run_sync("r")
        go.touch()
        assert (first.result(300).ok, second.result(300).ok) == (True, True)
        asyncio.run(bench.until(lambda: servers() == []))


@pytest.mark.parametrize("tool", ["call", "tools"])
def test_what_is_asked_of_a_closed_run_starts_a_server_that_ends_with_it(
    project: Any, bench: Any, tool: str
) -> None:
    project.stdio(tools=SERVER)

    async def main() -> None:
        async with project.open(development="unpinned") as router:
            await router.route(project.step())
            first = (await router.call("r", "s.pid")).text
            await router.close_run("r")
            assert servers() == []
            if tool == "tools":
                assert (await router.tools("r")).tools
            else:
                late = [await router.call("r", "s.pid") for _ in range(2)]
                assert len({first, *(result.text for result in late)}) == 3
            await bench.until(lambda: servers() == [])
            await router.route(project.step())
            again = [(await router.call("r", "s.pid")).text for _ in range(2)]
            assert servers() == [int(pid) for pid in {*again}], "routing opens the run again"

    asyncio.run(main())


def test_a_run_that_was_only_idle_keeps_its_server_when_an_agent_comes_back(project: Any) -> None:
    project.stdio(tools=SERVER)

    async def main() -> None:
        async with project.open(development="unpinned") as router:
            await router.route(project.step())
            assert (await router.call("r", "s.pid")).ok
            await router.endpoint.close_idle("r")
            assert servers() == []
            pids = {(await router.call("r", "s.pid")).text for _ in range(2)}
            assert servers() == [int(pid) for pid in pids]

    asyncio.run(main())


def test_a_subscription_of_a_closed_run_is_refused(bench: Any) -> None:
    async def main(sessions: McpSessions) -> None:
        scope = Scope(run_id="r")
        assert bench.said(await bench.call(sessions, "echo", text="x", scope=scope)) == "x"
        assert sessions.mark_closed("r")
        await sessions.close_run("r")
        with pytest.raises(ToolFailure, match="was closed"):
            await sessions.follow("s", "memo://x", lambda: None, scope=scope)
        assert servers() == []

    bench.run(main, bench.stdio())


def test_threads_that_call_on_while_their_run_is_closed_leave_no_process(
    project: Any, bench: Any
) -> None:
    project.stdio(tools=SERVER)
    project.pin()
    with project.open() as router, ThreadPoolExecutor(4) as threads:
        router.route_sync(project.step())

        def calls(number: int) -> list[str]:
            return [router.call_sync("r", "s.pid").outcome for _ in range(5)]

        made = [threads.submit(calls, number) for number in range(4)]
        asyncio.run(
            bench.until(lambda: any(row["type"] == "call.finished" for row in project.records()))
        )
        router.close_run_sync("r")
        assert {outcome for future in made for outcome in future.result(300)} == {"ok"}
        asyncio.run(bench.until(lambda: servers() == []))
