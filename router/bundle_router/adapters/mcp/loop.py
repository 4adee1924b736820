"""The sessions' own event loop, in a thread: started on first need, ended by `close`.

Why a thread of its own: connections belong to the loop they were opened on, while calls come from any loop and thread
(the Router serves both); and a caller that blocks its loop must not delay another's call. What it costs is measured in
tests/benchmarks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import Context
from typing import Any, TypeVar

from bundle_router.errors import RequestError, ToolFailure

T = TypeVar("T")

END_S = 2.0


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
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._pending: set[Future[Any]] = set()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs what `make` gives, over there, and awaits it here. Cancelling cancels it, without waiting for that."""
        loop = self._started()
        # The submission's context is what the coroutine sees: nothing of the caller's but what `context` puts there.
        future = self._context().run(asyncio.run_coroutine_threadsafe, make(), loop)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return await asyncio.wrap_future(future)

    @property
    def ident(self) -> int | None:
        thread = self._thread
        return thread.ident if thread is not None else None

    @property
    def is_started(self) -> bool:
        return self._loop is not None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._closed:
                raise RequestError("the sessions with tool servers are closed")
            if self._loop is None:
                self._loop, self._thread = self._begun()
            return self._loop

    def _begun(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        """Raises ToolFailure `unavailable` where the system has no thread or descriptor to give; the next may have."""
        loop = None
        workers = _Workers(thread_name_prefix=self._name)
        try:
            workers.submit(int)  # so that there is one, and what needs a thread over there can be done
            loop = asyncio.new_event_loop()
            loop.set_default_executor(workers)
            thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
            thread.start()
        except (OSError, RuntimeError) as error:
            workers.shutdown(wait=False)
            if loop is not None:
                loop.close()
            raise ToolFailure(f"tool servers can't be reached from here: {error}", code="unavailable") from error
        return loop, thread

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def close(self) -> None:
        """Ends the loop and its thread, after what was handed over had `END_S` to end. Blocks; idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._closed = True
        wait(list(self._pending), timeout=END_S)
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
