"""Threads that run functions for event loops, one after the other, and never keep the process from
ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final, Literal, TypeVar

from bundle_router.errors import ToolFailure

T = TypeVar("T")

_LAST: Final = 100
_SWITCH_S: Final = 0.000_2
_IDLE_S: Final = 1.0
_NEVER: Final = 2**31 - 1
FULL_EVERY: Final = 10_000
Action = Callable[[], None]
_Job = tuple[int, int, Action | None]
Stage = Literal["read", "taken_apart", "shaped"]
_RANKS: Final[dict[Stage, int]] = {"shaped": 0, "taken_apart": 1, "read": 2}
"""Priority of each stage.

Later stages run first, so that few large results are in memory at a time.
"""


class Workers:
    """Up to `limit` threads, started on demand, that run functions for any event loop.

    Unlike an executor's they are daemons: a tool that hangs can't keep the process from ending.
    With `when_idle`, which is called after a second without work, the lowest rank runs first, and
    of equal ranks the oldest.
    """

    def __init__(
        self, limit: int, name: str = "bundle-router-tool", when_idle: Action | None = None
    ) -> None:
        self._limit = limit
        self._name = name
        self._when_idle = when_idle
        self._numbers = itertools.count()
        self._waiting: queue.PriorityQueue[_Job] | queue.SimpleQueue[_Job]
        self._waiting = queue.PriorityQueue() if when_idle else queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, work: Callable[[], T], rank: int = 0) -> asyncio.Future[T]:
        """Return a future of the running loop for the result of `work`, which waits if all threads
        are busy. Raises ToolFailure `unavailable` if there is no thread and the system can't start
        one; a later call may succeed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                settle = partial(future.set_result, work())
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits the future, not swallowed
                settle = partial(future.set_exception, error)
            with (
                self._lock
            ):  # before the loop is told: its next work is for this thread, and not for another
                self._busy -= 1
            with contextlib.suppress(
                RuntimeError
            ):  # the loop was closed: nobody is waiting any more
                loop.call_soon_threadsafe(lambda: future.done() or settle())

        with self._lock:
            self._busy += 1
            if len(self._threads) < min(self._busy, self._limit):
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                try:
                    thread.start()
                except (
                    RuntimeError
                ) as error:  # the system can't start one: the existing threads do the work in turn
                    if not self._threads:
                        self._busy -= 1
                        raise ToolFailure(
                            f"no thread could be started: {error}", code="unavailable"
                        ) from error
                else:
                    self._threads.append(thread)
        self._waiting.put((rank, next(self._numbers), job))
        return future

    def _serve(self) -> None:
        idle_s = None
        while True:
            try:
                job = self._waiting.get(timeout=idle_s)[2]
                idle_s = _IDLE_S if self._when_idle else None
            except queue.Empty:
                job, idle_s = self._when_idle, None
            if job is None:
                return
            job()

    def close(self, wait_s: float = 0.0) -> None:
        """End idle threads. A busy one ends after its work, and is awaited for `wait_s` at most."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._waiting.put((_LAST, next(self._numbers), None))
        for thread in threads:
            thread.join(wait_s)


class _LargeResults(Workers):
    """One thread, and the interpreter's settings: other ones while it has work, in pieces of large
    results.
    """

    def __init__(self) -> None:
        super().__init__(1, "large-results", self._restore)
        self._thresholds, self._interval = gc.get_threshold(), sys.getswitchinterval()
        self._pieces, self._is_frozen = 0, False

    def process(self, stage: Stage, work: Callable[[], T]) -> T:
        sys.setswitchinterval(
            min(sys.getswitchinterval(), _SWITCH_S)
        )  # an event loop waits for the GIL repeatedly
        gc.set_threshold(*gc.get_threshold()[:2], _NEVER)
        self._pieces += 1
        if self._pieces == 1 and not gc.get_freeze_count():  # what an engine froze itself stays so
            gc.freeze()
            self._is_frozen = True
        if self._pieces >= FULL_EVERY and stage == "read":
            gc.collect()
            self._pieces = 1
        return work()

    def _restore(self) -> None:
        if self._is_frozen:
            gc.unfreeze()
        self._pieces, self._is_frozen = 0, False
        sys.setswitchinterval(self._interval)
        gc.set_threshold(*self._thresholds)  # last: who waits for the rest looks at it


@lru_cache(maxsize=1)
def _one_at_a_time(_process: int) -> _LargeResults:
    return _LargeResults()  # lives as long as the process


def run_in_turn(stage: Stage, work: Callable[[], T]) -> asyncio.Future[T]:
    """Process a large result in this process's one thread for them, and return a future: more
    threads would only keep the GIL from event loops. Raises ToolFailure as `Workers.submit` does.

    A full garbage collection would stop every loop for 100 ms. So there is none until a second has
    passed without large results, except once in `FULL_EVERY` of them: over what came since the
    first, while few are taken apart.
    """
    workers = _one_at_a_time(os.getpid())
    return workers.submit(partial(workers.process, stage, work), _RANKS[stage])
