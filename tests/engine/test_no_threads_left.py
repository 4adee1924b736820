"""Threads that can't be had cost no call, and what a thread did for somebody who went away is
undone.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from functools import partial

import pytest
from bundle_router import Step, load_catalog
from bundle_router.adapters.workers import Stage, Workers, run_in_turn
from bundle_router.engine.run_records import in_thread
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

    workers = Workers(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ToolFailure):
            workers.submit(int)
    assert await workers.submit(lambda: 7) == 7
    workers.close(1)


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


AT_EXIT = """
import asyncio, atexit, os, threading
from bundle_router.adapters.workers import run_in_turn

exiting = threading.Event()

def work():
    exiting.wait()
    for _ in range(1_000_000):  # the interpreter would end meanwhile
        pass
    os.write(1, b"the work has ended")

async def main():
    run_in_turn("shaped", work)

asyncio.run(main())
atexit.register(exiting.set)
"""


def test_a_process_ends_after_the_work_on_a_large_result() -> None:
    """Else the interpreter ends the thread inside an extension written in C++, and aborts by it."""
    ran = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"the work has ended", b"")


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
