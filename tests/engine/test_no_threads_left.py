"""Threads that can't be had cost no call, and what a thread did for somebody who went away is
undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from bundle_router import Step, load_catalog
from bundle_router.adapters.json_schema import SchemaChecker
from bundle_router.adapters.workers import FULL_EVERY, Stage, Workers, run_in_turn
from bundle_router.engine.open_runs import in_thread
from bundle_router.errors import ToolFailure
from bundle_router.testing import fake_router


def test_what_a_thread_did_for_somebody_who_went_away_is_undone() -> None:
    asyncio.run(_go_away())


async def _go_away() -> None:
    begun, go_on, undone = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        go_on.wait(300)
        return "a lease"

    waiting = asyncio.create_task(in_thread(work, lambda result: undone.set()))
    await asyncio.to_thread(begun.wait, 300)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not undone.is_set()
    go_on.set()
    assert await asyncio.to_thread(undone.wait, 300)


def test_a_thread_that_cannot_be_started_costs_no_later_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asyncio.run(_run_out_of_threads(monkeypatch))


async def _run_out_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, checker = Workers(1), SchemaChecker()
    long = [*["x"] * 20_000, 1]
    schema = {"items": {"type": "string"}}
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ToolFailure):
            workers.submit(int)
        assert await checker.problems("t", schema, long) == ()
    assert await workers.submit(lambda: 7) == 7
    assert await checker.problems("t", schema, long)
    workers.close(1)
    checker.close()


def test_a_call_whose_loop_cannot_be_started_leaves_nothing_unawaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with fake_router(load_catalog("config"), results={"repo.read_file": "# Hello"}) as router:
        router.route_sync(Step(run_id="t-1", workflow="feature", role="planner", step="plan"))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                router.call_sync("t-1", "repo.read_file", {"path": "README.md"})
            gc.collect()
        assert router.call_sync("t-1", "repo.read_file", {"path": "README.md"}).ok


def test_a_router_that_is_dropped_unclosed_ends_its_threads() -> None:
    before = set(threading.enumerate())

    def use() -> set[threading.Thread]:
        router = fake_router(load_catalog("config"), results={"repo.read_file": "# Hello"})
        router.route_sync(Step(run_id="t-1", workflow="feature", role="planner", step="plan"))
        router.call_sync("t-1", "repo.read_file", {"path": "README.md"})
        return set(threading.enumerate()) - before

    started = use()
    assert started
    gc.collect()
    for thread in started:
        thread.join(300)
    assert not any(thread.is_alive() for thread in started)


def test_what_is_further_on_comes_first_and_so_do_what_came_first_among_equals() -> None:
    """Few large results are whole in memory at a time, though many wait to be read."""
    gate = threading.Event()
    done: list[tuple[int, str]] = []

    async def main() -> None:
        first = run_in_turn("read", gate.wait)
        stages: list[Stage] = ["read", "shaped", "read", "taken_apart", "shaped"]
        rest = [
            run_in_turn(stage, partial(done.append, (number, stage)))
            for number, stage in enumerate(stages)
        ]
        gate.set()
        await asyncio.gather(first, *rest)

    asyncio.run(main())
    assert done == [(1, "shaped"), (4, "shaped"), (3, "taken_apart"), (0, "read"), (2, "read")]


def as_soon_as(is_so: Callable[[], bool]) -> None:
    tries = iter(range(3_000))
    while not is_so():
        assert next(tries, None) is not None, "it is not as before"
        threading.Event().wait(0.01)


def test_the_interpreter_changes_hands_often_while_a_large_result_is_worked_at_and_as_before_afterwards() -> (
    None
):
    """An event loop that wakes waits for the interpreter two or three times, each time so long."""
    as_soon_as(lambda: sys.getswitchinterval() > 0.001)

    async def main() -> float:
        return await run_in_turn("read", sys.getswitchinterval)

    assert asyncio.run(main()) <= 0.000_2
    as_soon_as(lambda: sys.getswitchinterval() > 0.001)


@pytest.mark.parametrize("fails", [False, True])
def test_no_collection_goes_through_all_of_a_large_result_and_the_collector_is_as_before_afterwards(
    fails: bool,
) -> None:
    """One takes 100 ms, in which every event loop of the process stands still."""
    as_soon_as(lambda: gc.get_threshold()[2] < 1_000)
    before = gc.get_threshold()
    kept: list[list[int]] = []

    def work() -> None:
        kept.extend([n] for n in range(1_000_000))  # so many new ones that one is due
        if fails:
            raise ValueError("no JSON")

    async def main() -> int:
        gc.collect()
        counted: int = gc.get_stats()[2]["collections"]
        with contextlib.suppress(ValueError):
            await run_in_turn("read", work)
        kept.extend([n] for n in range(10_000))  # it waits for the next stage, and the loop goes on
        counted = int(gc.get_stats()[2]["collections"]) - counted
        kept.clear()
        return counted

    assert asyncio.run(main()) == 0
    as_soon_as(lambda: gc.get_threshold() == before)


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()  # as the suite has it


@pytest.mark.usefixtures("nothing_frozen")
def test_after_many_large_results_the_collector_goes_through_what_they_left_and_not_through_what_was_there() -> (
    None
):
    """A process has some 400,000 objects, which take 100 ms."""
    as_soon_as(lambda: gc.get_threshold()[2] < 1_000)
    seen: list[int] = []

    class Left:
        def __del__(self) -> None:
            seen.append(1)

    async def main() -> None:
        await run_in_turn("read", lambda: None)
        was_there = gc.get_freeze_count()
        left = Left()
        left.itself = left  # type: ignore[attr-defined] # a cycle, which only a collection frees
        gc.collect(1)  # it is old when it is left, and only a full collection finds it
        del left
        await asyncio.gather(*(run_in_turn("read", lambda: None) for _ in range(FULL_EVERY)))
        assert seen
        assert was_there > 50_000
        assert gc.get_freeze_count() > was_there - 1_000

    asyncio.run(main())
    as_soon_as(lambda: not gc.get_freeze_count())


async def in_turn(work: Callable[[], object]) -> None:
    await run_in_turn("read", work)


@pytest.mark.usefixtures("nothing_frozen")
def test_what_an_engine_has_frozen_stays_frozen() -> None:
    as_soon_as(lambda: gc.get_threshold()[2] < 1_000)
    before = gc.get_threshold()
    gc.freeze()
    asyncio.run(in_turn(lambda: None))
    as_soon_as(lambda: gc.get_threshold() == before)
    assert gc.get_freeze_count()
