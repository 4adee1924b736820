"""Threads that do one thing after the other for event loops, and never keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeVar

from bundle_router.errors import ToolFailure

T = TypeVar("T")

_LAST: Final = 100
_SWITCH_S: Final = 0.001
_Job = tuple[int, int, Callable[[], None] | None]
Stage = Literal["read", "taken_apart", "shaped"]
_RANKS: Final[dict[Stage, int]] = {"shaped": 0, "taken_apart": 1, "read": 2}
"""What is further on comes first, so that few large results are whole in memory at a time: each collection of garbage
goes through all of them, and holds the interpreter meanwhile."""


class Workers:
    """Up to `limit` threads, started as they are needed, that run functions for any event loop.

    Unlike an executor's, they are daemons: a tool that does not come back can't keep the process from ending.
    """

    def __init__(self, limit: int, name: str = "bundle-router-tool", *, ranked: bool = False) -> None:
        self._limit = limit
        self._name = name
        self._numbers = itertools.count()
        # The first has locks of its own, in Python: twice the price of the second.
        self._waiting: queue.PriorityQueue[_Job] | queue.SimpleQueue[_Job]
        self._waiting = queue.PriorityQueue() if ranked else queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, work: Callable[[], T], rank: int = 0) -> asyncio.Future[T]:
        """Return a future of the running loop for what `work` returns. Waits its turn when all threads are busy: where
        work is `ranked` the lowest rank is first, and what came first among equals.

        Raises ToolFailure `unavailable` where there is no thread and the system has none to give; the next may come."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # a T whenever there is no error

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits the future, not swallowed
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is waiting any more
                loop.call_soon_threadsafe(settle, result, error)

        with self._lock:
            self._busy += 1
            if len(self._threads) < min(self._busy, self._limit):
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has none to give: those there are do it in turn
                    if not self._threads:
                        self._busy -= 1
                        raise ToolFailure(f"no thread could be started: {error}", code="unavailable") from error
                else:
                    self._threads.append(thread)
        self._waiting.put((rank, next(self._numbers), job))
        return future

    def _serve(self) -> None:
        while (job := self._waiting.get()[2]) is not None:
            job()
            with self._lock:
                self._busy -= 1

    def close(self, wait_s: float = 0.0) -> None:
        """Let idle threads end; one that is busy ends after its work, and is waited for so long at most."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._waiting.put((_LAST, next(self._numbers), None))
        for thread in threads:
            thread.join(wait_s)


@lru_cache(maxsize=1)
def _one_at_a_time(_process: int) -> Workers:
    return Workers(1, "large-results", ranked=True)  # it stays for as long as the process


def in_turn(stage: Stage, work: Callable[[], T]) -> asyncio.Future[T]:
    """Return a future for what is done with a large result, by the one thread of the process that has to do with them:
    two at it would only take the interpreter from event loops. Raises ToolFailure as `Workers.submit`."""

    def yielding() -> T:
        before = sys.getswitchinterval()  # an event loop that wakes waits so long for the interpreter, several times
        sys.setswitchinterval(min(before, _SWITCH_S))
        try:
            return work()
        finally:
            sys.setswitchinterval(before)

    return _one_at_a_time(os.getpid()).submit(yielding, _RANKS[stage])
