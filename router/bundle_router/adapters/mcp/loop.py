"""The sessions' own event loop, in a thread: started on first need, ended by `close`. Where the process is ours, and
nobody else's code can hold its loop, the sessions live on that one: going over and back costs 40 to 70 µs of CPU."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context
from typing import Any, TypeVar

from bundle_router.adapters.loop import LoopThread
from bundle_router.errors import ToolFailure

T = TypeVar("T")

END_S = 2.0
_SHARED: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def share_running_loop() -> None:
    """Have sessions that are begun on this loop live on it. Close them before it ends."""
    _SHARED.add(asyncio.get_running_loop())


class _Workers(ThreadPoolExecutor):
    """Where the system has no thread for another worker, the work waits for those there are."""

    def _adjust_thread_count(self) -> None:
        # Not overridable in public, and called when the work is in the queue already.
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


class SessionsLoop:
    """Runs coroutines for any caller. `context` makes the context that each of them runs in, seen from the caller."""

    def __init__(self, name: str, context: Callable[[], Context]) -> None:
        self._name = name
        self._context = context
        self._thread = LoopThread(name, make_executor=self._workers)
        self._here: asyncio.AbstractEventLoop | None = None
        self._pending: set[Future[Any]] = set()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run what `make` gives, over there, and await it here. Cancelling cancels it, without waiting for that.

        Raises ToolFailure `unavailable` where the system has no thread or descriptor to give; the next may have.
        """
        running, context = asyncio.get_running_loop(), self._context()
        if self._here is None and running in _SHARED and not self._thread.is_started:
            self._here = running
        if self._here is running:
            return await running.create_task(make(), context=context)
        try:
            # All that the coroutine sees of the caller is what `context` puts there.
            if self._here is not None:
                future = context.run(asyncio.run_coroutine_threadsafe, make(), self._here)
            else:
                future = self._thread.submit(make(), context=context)
        except (OSError, RuntimeError) as error:
            raise ToolFailure(f"tool servers can't be reached from here: {error}", code="unavailable") from error
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return await asyncio.wrap_future(future)

    def _workers(self) -> ThreadPoolExecutor:
        workers = _Workers(thread_name_prefix=self._name)
        try:
            workers.submit(int)  # so that there is one, and what needs a thread over there can be done
        except RuntimeError:
            workers.shutdown(wait=False)
            raise
        return workers

    def close(self) -> None:
        """End the loop and its thread, after what was handed over had `END_S` to end. Blocks; idempotent."""
        wait(list(self._pending), timeout=END_S)
        self._thread.close()
