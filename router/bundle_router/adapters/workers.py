"""Threads that do one thing after the other for event loops, and never keep the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from bundle_router.errors import ToolFailure

T = TypeVar("T")


class Workers:
    """Up to `limit` threads, started as they are needed, that run functions for any event loop.

    Unlike an executor's, they are daemons: a tool that does not come back can't keep the process from ending.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """A future of the running loop for what `work` returns. Waits its turn when all threads are busy.

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
                thread = threading.Thread(target=self._serve, name="bundle-router-tool", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system has none to give: those there are do it in turn
                    if not self._threads:
                        self._busy -= 1
                        raise ToolFailure(f"no thread could be started: {error}", code="unavailable") from error
                else:
                    self._threads.append(thread)
        self._waiting.put(job)
        return future

    def _serve(self) -> None:
        while (job := self._waiting.get()) is not None:
            job()
            with self._lock:
                self._busy -= 1

    def close(self, wait_s: float = 0.0) -> None:
        """Lets idle threads end; one that is busy ends after its work, and is waited for so long at most."""
        with self._lock:
            threads, self._threads = self._threads, []
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join(wait_s)
