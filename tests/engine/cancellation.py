"""Cancels a call at each of its awaits, one after the other, and looks at what it leaves."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from bundle_router import Router
from bundle_router.engine import engine as engine_module
from bundle_router.engine.run_records import OpenRun

WAYS: Final = ("as it begins to wait", "as what it waits for is there", "before its thread begins")
MOST: Final = 300
"""Awaits of one call at most."""


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    future.set_result(work())


class HeldExecutor(ThreadPoolExecutor):
    """Begins work only after `let_go`, from `hold` on."""

    def __init__(self) -> None:
        super().__init__(8)
        self._held: list[tuple[Future[Any], Callable[[], Any]]] | None = None

    def hold(self) -> None:
        self._held = []

    def let_go(self) -> None:
        held, self._held = self._held or [], None
        for future, work in held:
            if future.set_running_or_notify_cancel():
                super().submit(_do, future, work)

    def submit(self, work: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        if self._held is None:
            return super().submit(work, *values, **named)
        future = Future[Any]()
        self._held.append((future, partial(work, *values, **named)))
        return future


Make = Callable[[], Coroutine[Any, Any, Any]]


async def _cancelled_at(
    work: Coroutine[Any, Any, Any], at: int, way: str, seen: list[int], threads: HeldExecutor
) -> Any:
    try:
        return await _steps(work, at, way, seen, threads)
    finally:
        threads.let_go()


@types.coroutine
def _steps(
    work: Coroutine[Any, Any, Any], at: int, way: str, seen: list[int], threads: HeldExecutor
) -> Generator[Any, Any, Any]:
    """Run the work, and cancel the task of this coroutine at the given await of it."""
    task, value, error = asyncio.current_task(), None, None
    assert task is not None
    while True:
        if way == WAYS[2] and seen[0] == at - 1:
            threads.hold()
        try:
            waits_for = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value
        seen[0] += 1
        if seen[0] == at:
            if way != WAYS[1] or waits_for is None:
                task.cancel()
            else:
                waits_for.add_done_callback(lambda _: task.cancel())
        value = error = None
        try:
            value = yield waits_for
        except BaseException as raised:  # noqa: BLE001 - it is the work's
            error = raised
            threads.let_go()


async def cancel_at_each_turn(router: Router, run_id: str, make: Make, turns: int) -> int:
    """Cancel the call after each number of turns of the event loop, so also between the awaits of
    other tasks that work for it. Return how many were cancelled. After each all is as after
    `cancel_at_each_await`.
    """
    cancelled = 0
    for number in range(turns):
        before = asyncio.all_tasks()
        task = asyncio.create_task(make())
        for _ in range(number):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,), timeout=60)
        assert task.done(), f"turn {number}: it does not end"
        await _settled(router, run_id, before, f"turn {number}")
        cancelled += task.cancelled()
        await asyncio.wait_for(make(), 60)
    return cancelled


async def cancel_at_each_await(router: Router, run_id: str, make: Make) -> int:
    """Cancel the call that `make` makes at its first await, its second … in both ways, until it
    ends before. Return how many were cancelled. After each no task, hold, turn or reservation is
    left, and the call can be made.
    """
    cancelled = 0
    asyncio.get_running_loop().set_default_executor(threads := HeldExecutor())
    for way in WAYS:
        for at in range(1, MOST):
            before, seen = asyncio.all_tasks(), [0]
            task = asyncio.create_task(_cancelled_at(make(), at, way, seen, threads))
            await asyncio.wait((task,), timeout=60)
            assert task.done(), f"await {at}, {way}: it does not end"
            await _settled(router, run_id, before, f"await {at} of {seen[0]}, {way}")
            if task.cancelled():
                cancelled += 1
            elif seen[0] < at:
                break
            else:
                task.result()
            await asyncio.wait_for(make(), 60)
        else:
            raise AssertionError("it waits too often")
    return cancelled


def _run(router: Router, run_id: str) -> OpenRun:
    run = router._engines.newest.runs.get(run_id)
    assert run is not None
    return run


async def _settled(router: Router, run_id: str, before: set[asyncio.Task[Any]], at: str) -> None:
    run = _run(router, run_id)
    turns = router._engines.newest._turns.get(asyncio.get_running_loop())
    left: Any = None
    for _ in range(3_000):
        left = {
            "tasks": asyncio.all_tasks() - before,
            "leases": run.uses.count - run.pending.ends.count(run.uses.end_hold),
            "reservations": dict(run.passing),
            "turns": turns is not None and turns._value != engine_module.TOGETHER,
            "waiting": run._waiting,
            "lock": run.lock.locked(),
        }
        if not any(left.values()):
            return
        await asyncio.sleep(0.001)  # for threads
    raise AssertionError(f"{at}: {left}")


def check_records(router: Router, run_id: str, records: list[dict[str, Any]]) -> None:
    """Each call that began has an end, and the totals of the run count what the records say."""
    router_run = _run(router, run_id)
    begun = {row["call_id"] for row in records if row["type"] == "call.started"}
    ended = [
        row["call_id"] for row in records if row["type"] in ("call.finished", "request.passed")
    ]
    assert begun <= {*ended}, "a call has no end"
    assert len(ended) == len({*ended}), "a call has two ends"
    assert router_run.fold.run_spent.calls == len(ended)
