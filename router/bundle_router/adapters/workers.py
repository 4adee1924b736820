"""Threads that run functions for event loops, one after the other, and never keep the process from
ending.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, TypeVar

from bundle_router.errors import ToolFailure

T = TypeVar("T")

EXIT_S: Final = 2.0
"""Seconds that the end of the process waits for work on large results."""
_LAST: Final = 100
"""The rank of the request to end: after all work."""
_Job = tuple[int, int, Callable[[], None] | None]
"""Rank, number, and what to run; None ends the thread."""
Stage = Literal["read", "taken_apart", "shaped"]
_RANKS: Final[dict[Stage, int]] = {"shaped": 0, "taken_apart": 1, "read": 2}
"""Priority of each stage.

Later stages run first, so that few large results are in memory at a time.
"""


class Workers:
    """Up to `limit` threads, started on demand, that run functions for any event loop.

    Unlike an executor's they are daemons: a tool that hangs can't keep the process from ending. The
    lowest rank runs first, and of equal ranks the oldest.
    """

    def __init__(self, limit: int, name: str = "bundle-router-tool") -> None:
        self._limit = limit
        self._name = name
        self._numbers = itertools.count()
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, work: Callable[[], T], rank: int = 0) -> asyncio.Future[T]:
        """Return a future of the running loop for the result of `work`, which waits if all threads
        are busy.

        Raises ToolFailure `unavailable` if there is no thread and the system can't start one; a
        later call may succeed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():  # whoever waited has gone away
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # a result, where no error is

        def job() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - handed to whoever awaits the future
                error = raised
            # Before the loop is told: its next work is for this thread, and not for another.
            with self._lock:
                self._busy -= 1
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, error)

        with self._lock:
            self._busy += 1
            if len(self._threads) < min(self._busy, self._limit):
                self._start_thread()
        self._jobs.put((rank, next(self._numbers), job))
        return future

    def _start_thread(self) -> None:
        """Start one more thread; without it, those that there are do the work in turn."""
        thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            if self._threads:
                return
            self._busy -= 1
            raise ToolFailure(f"no thread could be started: {error}", code="unavailable") from error
        self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            _, _, job = self._jobs.get()
            if job is None:
                return
            job()
            del job  # holds the work and its result, until the next job comes

    @property
    def is_busy(self) -> bool:
        """Whether work waits or is under way."""
        return self._busy > 0

    def close(self, wait_s: float = 0.0) -> None:
        """End idle threads. Busy ones end after their work, and are awaited for `wait_s` at most.

        A process should not end before they have: one that is inside an extension written in C++
        (the redactor's automaton) then aborts it.
        """
        with self._lock:
            threads = self._threads
            self._threads = []
        for _ in threads:
            self._jobs.put((_LAST, next(self._numbers), None))
        until_s = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))


@lru_cache(maxsize=1)
def _one_at_a_time(process: int) -> Workers:
    """Return this process's thread for large results, which lives as long as the process."""
    workers = Workers(1, "large-results")
    atexit.register(_end_with_process, workers, process)
    return workers


def _end_with_process(workers: Workers, process: int) -> None:
    """Let the thread end its work before the interpreter ends the thread."""
    if os.getpid() == process:  # a forked process has this callback too, and no such thread
        workers.close(EXIT_S)


def run_in_turn(stage: Stage, work: Callable[[], T]) -> asyncio.Future[T]:
    """Process a large result in this process's one thread for them, and return a future: more
    threads would only keep the GIL from event loops.

    Raises ToolFailure as `Workers.submit` does.
    """
    return _one_at_a_time(os.getpid()).submit(work, _RANKS[stage])
