"""Event loops that are closed with calls under way, and cancel nothing: what the calls leave."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bundle_router import Router
from bundle_router.adapters.archive import Archive
from bundle_router.engine.upstreams import Servers
from bundle_router.tool import LocalServer

TOOLS = 'tools = ["s.hang", "s.echo"]'


def leave_under_way(
    router: Router, tool: str, is_under_way: Callable[[], Any], bench: Any, **arguments: Any
) -> Any:
    """Call on a loop that is closed during the call, and return the call's coroutine."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(
        lambda *_told: None
    )  # a task was destroyed: that is the caller's own doing
    call = loop.create_task(router.call("r", tool, arguments))
    loop.run_until_complete(bench.until(is_under_way))
    loop.close()
    return call.get_coro()


def begun(project: Any, calls: int) -> Callable[[], bool]:
    """Return what says whether so many calls of the run have begun."""
    path = project.root / "runs" / "r" / "tool-calls.jsonl"
    return lambda: (
        path.exists() and sum(row["type"] == "call.started" for row in project.records()) == calls
    )


def ends(project: Any) -> list[tuple[str, str]]:
    return [
        (row["outcome"], row["code"]) for row in project.records() if row["type"] == "call.finished"
    ]


def status(router: Router) -> Any:
    servers = router._versions.newest._servers
    assert isinstance(servers, Servers)
    return servers.sessions.status()[0]


@pytest.mark.parametrize("kind", ["stdio", "first stdio", "http"])
def test_a_call_on_a_loop_that_is_closed_is_recorded_as_cancelled_and_holds_nothing(
    project: Any, bench: Any, kind: str
) -> None:
    with bench.faults.serving() as server:
        if kind == "http":
            project.http(server.url, TOOLS)
        else:
            project.stdio(tools=TOOLS)
        project.pin()
        with project.open() as router:
            router.route_sync(project.step())
            if kind == "stdio":  # else the call waits for the server's start on another loop
                assert router.call_sync("r", "s.echo", {"text": "x"}).ok
            leave_under_way(
                router, "s.hang", begun(project, 2 if kind == "stdio" else 1), bench
            ).close()
            asyncio.run(bench.until(lambda: status(router).running == 0))
            assert router.call_sync("r", "s.echo", {"text": "y"}).ok
            assert router.close_run_sync("r").ended
    assert ends(project)[-2:] == [("cancelled", "cancelled"), ("ok", "")]


def test_a_call_that_the_garbage_collector_closes_is_recorded_as_cancelled(
    project: Any, bench: Any
) -> None:
    project.stdio(tools='tools = ["s.sleep", "s.echo"]')
    project.pin()
    go, wrong = project.root / "go", list[Any]()
    with project.open() as router:
        router.route_sync(project.step())
        assert router.call_sync("r", "s.echo", {"text": "x"}).ok
        call = weakref.ref(
            leave_under_way(router, "s.sleep", begun(project, 2), bench, file=str(go))
        )
        before, sys.unraisablehook = sys.unraisablehook, wrong.append
        try:
            go.touch()  # the answer is for nobody, and then nobody has the call
            asyncio.run(bench.until(lambda: gc.collect() >= 0 and call() is None))
        finally:
            sys.unraisablehook = before
        assert [told.exc_value for told in wrong] == []
        assert router.close_run_sync("r").ended
    assert ends(project) == [("ok", ""), ("cancelled", "cancelled")]


@pytest.mark.parametrize("kind", ["a function", "a coroutine"])
def test_a_local_call_on_a_loop_that_is_closed_is_recorded_with_what_its_run_does_next(
    project: Any, bench: Any, kind: str
) -> None:
    running: list[str] = []
    go = threading.Event()

    def wait() -> str:
        """Wait."""
        running.append("x")
        assert go.wait(300)
        return "done"

    async def wait_here() -> str:
        """Wait."""
        running.append("x")
        await asyncio.Event().wait()
        return "done"

    tool = wait if kind == "a function" else wait_here
    mine = LocalServer([tool], "Mine.", effects=["read"])
    project.config.mkdir()
    (project.config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["mine"]\n')
    (project.config / "policy.toml").write_text(
        '[[policies]]\nname = "all"\nallow = ["bundle:*"]\n'
    )
    with project.open(local={"mine": mine}) as router:
        router.route_sync(project.step())
        leave_under_way(router, f"mine.{tool.__name__}", lambda: running, bench).close()
        go.set()
        router.route_sync(project.step())
        assert ends(project) == [("cancelled", "cancelled")]
        assert router.close_run_sync("r").ended


def test_a_closed_run_ends_with_the_last_call_that_ends(project: Any, bench: Any) -> None:
    project.stdio(tools='tools = ["s.hang", "s.sleep"]')
    project.pin()
    go = project.root / "go"
    with project.open() as router, ThreadPoolExecutor(1) as threads:
        router.route_sync(project.step())
        call = leave_under_way(router, "s.hang", begun(project, 1), bench)
        other = threads.submit(router.call_sync, "r", "s.sleep", {"file": str(go)})
        asyncio.run(bench.until(begun(project, 2)))
        assert not router._versions.newest.runs.close("r").ended
        call.close()
        go.touch()
        assert other.result(300).ok
        assert Archive(project.root / "runs").summary("r").state == "closed"
    assert sorted(ends(project)) == [("cancelled", "cancelled"), ("ok", "")]


def test_a_run_that_was_closed_before_the_loop_of_its_last_call_ends_with_its_router(
    project: Any, bench: Any
) -> None:
    project.stdio(tools=TOOLS)
    project.pin()
    with project.open() as router:
        router.route_sync(project.step())
        call = leave_under_way(router, "s.hang", begun(project, 1), bench)
        assert not router._versions.newest.runs.close("r").ended, "the call is under way"
        call.close()
    assert ends(project) == [("cancelled", "cancelled")]
    assert Archive(project.root / "runs").summary("r").state == "closed"
