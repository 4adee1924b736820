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
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any caller. `context` makes the context that each of them runs in, seen from the caller."""

    def __init__(self, name: str, context: Callable[[], Context]) -> None:
        self._name = name
        self._context = context
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs what `make` gives, over there, and awaits it here. Cancelling cancels it, without waiting for that."""
        loop = self._started()
        # The submission's context is what the coroutine sees: nothing of the caller's but what `context` puts there.
        future = self._context().run(asyncio.run_coroutine_threadsafe, make(), loop)
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
                raise RuntimeError("the sessions are closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return self._loop

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
        """Ends the loop and its thread. Blocks until they have ended; idempotent."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            self._closed = True
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
