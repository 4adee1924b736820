"""An event loop waits for nobody: not for a process that has a run, nor for a store that blocks,
nor for a thread.
"""

from __future__ import annotations

import asyncio
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.core.catalog import Route
from bundle_router.core.values import Answer, Reply
from bundle_router.testing import FakeRouter, fake_router, small_catalog
from bundle_router.tool import LocalServer

WAIT_S = 300
"""Seconds after which a test that stands still ends."""


def step(run_id: str = "r-1", **changes: Any) -> Step:
    return Step(run_id=run_id, workflow="w", role="r", step="s", **changes)


@pytest.fixture
def router(tmp_path: Path) -> Router:
    def look() -> str:
        """Look."""
        return "seen"

    (tmp_path / "config").mkdir()
    (tmp_path / "config/routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["mine"]\n')
    (tmp_path / "config/policy.toml").write_text('[[policies]]\nname = "all"\nallow = ["mine"]\n')
    mine = LocalServer([look], "Look at things.", effects=["read"])
    return Router.open(
        tmp_path / "config", runs=tmp_path / "runs", workspace=tmp_path, local={"mine": mine}
    )


def test_runs_go_on_while_another_process_has_one_of_them(router: Router, tmp_path: Path) -> None:
    """Two calls of one run at once: the second one found the first one's thread waiting with the
    run's lock.
    """

    async def main() -> None:
        for run_id in ("r-1", "r-2"):
            await router.route(step(run_id))
        with (tmp_path / "runs/r-1/lock").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            waiting = [asyncio.create_task(router.call("r-1", "mine.look", {})) for _ in range(3)]
            waiting.append(
                asyncio.create_task(router.call("r-1", "search_tools", {"query": "look"}))
            )
            routing = asyncio.create_task(router.route(step()))
            for _ in range(5):
                assert (await router.call("r-2", "mine.look", {})).ok
            assert not any(task.done() for task in (routing, *waiting))
        assert all(result.ok for result in await asyncio.gather(*waiting))
        await routing
        await router.close()

    asyncio.run(main())
    assert Archive(tmp_path / "runs").verify("r-1").ok


def test_a_new_config_is_stored_with_a_run_that_another_process_has_without_standing_still(
    router: Router, tmp_path: Path
) -> None:
    async def main() -> None:
        await router.route(step())
        await router.route(step("r-2"))
        (tmp_path / "config/router.toml").write_text("[limits]\nmax_result_chars = 9000\n")
        router.reload()
        with (tmp_path / "runs/r-1/lock").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            routing = asyncio.create_task(router.route(step()))
            assert (await router.route(step("r-2"))).bundle_ids == ["mine"]
            assert not routing.done()
        assert (await routing).bundle_ids == ["mine"]
        await router.close()

    asyncio.run(main())


def test_a_call_that_is_cancelled_while_another_process_has_the_run_leaves_nothing(
    router: Router, tmp_path: Path
) -> None:
    async def main() -> None:
        await router.route(step())
        with (tmp_path / "runs/r-1/lock").open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            call = asyncio.create_task(router.call("r-1", "mine.look", {}))
            for _ in range(20):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert (await router.close_run("r-1")).ended
        await router.close()

    asyncio.run(main())
    assert [record["type"] for record in Archive(tmp_path / "runs").records("r-1")] == [
        "route.decided"
    ]


def blocking(before: Callable[[str], None]) -> FakeRouter:
    """A router over a store that blocks, as one across a network does."""
    catalog = small_catalog(
        {"a": ["s.look", "s.wait"]},
        routes=[Route("asked", step=("asked",), ask=("*",)), Route("all", bundles=("a",))],
    )
    router = fake_router(catalog, selector=lambda question: ["a"])
    router.fakes.store.blocks = True
    router.fakes.store.before = lambda operation, run_id: before(operation)
    return router


def sticking() -> tuple[FakeRouter, asyncio.Event, threading.Event, threading.Event]:
    """A router over a store in which the next append stays once `stuck` is set: it sets `entered`,
    and waits for `go_on`.
    """
    loop, entered, go_on, stuck = (
        asyncio.get_running_loop(),
        asyncio.Event(),
        threading.Event(),
        threading.Event(),
    )

    def before(operation: str) -> None:
        if operation == "append" and stuck.is_set():
            stuck.clear()
            loop.call_soon_threadsafe(entered.set)
            assert go_on.wait(WAIT_S)

    return blocking(before), entered, go_on, stuck


def test_a_store_that_blocks_is_used_by_threads_alone() -> None:
    used, on_loop = set[str](), set[str]()

    def before(operation: str) -> None:
        used.add(operation)
        if asyncio._get_running_loop() is not None:
            on_loop.add(operation)

    async def main() -> None:
        router = blocking(before)
        for changes in ({}, {"key": "k"}, {"key": "k"}, {"step": "asked"}, {"branch": "b"}):
            decision = await router.route(step().model_copy(update=changes))
        await router.route(
            step("child", parent_run_id="r-1", parent_decision_id=decision.decision_id)
        )
        for run_id in ("r-1", "child"):
            for key in ("", "one", "one"):
                assert (await router.call(run_id, "s.look", {}, key=key)).ok
            await router.tools(run_id)
            await router.call(run_id, "search_tools", {"query": "look"})
            await router.missed(run_id, "s.none")
            assert (await router.close_run(run_id)).ended
        await router.close()

    asyncio.run(main())
    assert {"open", "create", "news", "append", "record", "close"} <= used
    assert on_loop == set()


def test_an_event_loop_takes_no_lock_that_a_thread_has_while_the_store_blocks() -> None:
    """A call's start stays in the store.

    Meanwhile another call of its run ends, a third begins, and the run closes.
    """

    async def main() -> None:
        router, entered, go_on, stuck = sticking()
        await router.route(step())
        stuck.set()
        first = asyncio.create_task(router.call("r-1", "s.look", {}))
        await entered.wait()
        others = [
            asyncio.create_task(work)
            for work in (router.call("r-1", "s.look", {}), router.route(step()))
        ]
        closing = asyncio.create_task(router.close_run("r-1"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not any(task.done() for task in (first, *others))
        go_on.set()
        assert (await first).ok
        await asyncio.gather(*others, closing)
        await router.close()
        assert router.fakes.store.log("r-1").closed

    asyncio.run(main())


def test_a_call_that_is_cancelled_while_a_thread_writes_its_start_has_an_end() -> None:
    async def main() -> None:
        router, entered, go_on, stuck = sticking()
        await router.route(step())
        stuck.set()
        call = asyncio.create_task(router.call("r-1", "s.look", {}))
        await entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        assert (await router.close_run("r-1")).ended
        started, finished = router.fakes.records("r-1")[1:]
        assert (started["call_id"], finished["outcome"]) == (finished["call_id"], "cancelled")
        await router.close()

    asyncio.run(main())


def test_the_end_of_a_run_is_written_by_a_thread_before_its_last_call_returns() -> None:
    closed_on_loop = list[bool]()

    async def main() -> None:
        entered, go_on = asyncio.Event(), asyncio.Event()

        class Slow:
            async def select(self, question: Any, recent: Any) -> Any:
                entered.set()
                await go_on.wait()
                return Reply(answer=Answer(("a",), "model", "model", "picked"))

        catalog = small_catalog(
            {"a": ["s.look"], "b": ["s.wait"]}, routes=[Route("asked", ask=("*",))]
        )
        router = fake_router(catalog, selector=Slow())
        routing = asyncio.create_task(router.route(step()))
        await entered.wait()
        router.fakes.store.before = lambda operation, run_id: (
            closed_on_loop.append(asyncio._get_running_loop() is not None)
            if operation == "close"
            else None
        )
        await router.close_run("r-1")
        go_on.set()
        await routing
        assert router.fakes.store.log("r-1").closed
        await router.close()

    asyncio.run(main())
    assert closed_on_loop == [False]
