"""An event loop in a thread of its own, for engines that have none. Started on first use, ended by `close`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from bundle_router.errors import RequestError, WrongContext

T = TypeVar("T")

CLEAN_UP_S = 5.0
"""How long an interrupted coroutine may take to record its end."""


def refuse_running_loop(what: str, instead: str) -> None:
    """Raises WrongContext when called on a thread that runs an event loop: waiting there would stop the loop."""
    if asyncio._get_running_loop() is not None:
        raise WrongContext(f"{what} was used inside a running event loop", advice=f"use `{instead}` there")


class Portal:
    """Runs coroutines for threads without a loop, all on one loop, so that what they share belongs to one loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it to the end on the portal's loop and gives its result. An interrupt cancels it and waits a little.

        Raises RequestError when the portal is closed, before or meanwhile.
        """
        ended = threading.Event()

        async def to_the_end() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = self._submit(to_the_end(), work)
        try:
            return future.result()
        except BaseException as interrupted:
            if future.cancel():
                ended.wait(CLEAN_UP_S)
            if self._closed and isinstance(interrupted, CancelledError):
                raise _closed("it was closed while this was under way, which was cancelled") from None
            raise

    def _submit(self, whole: Coroutine[Any, Any, T], work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._closed:
                whole.close()
                work.close()
                raise _closed("this router is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="bundle-router-loop", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(whole, self._loop)

    def close(self) -> None:
        """Cancels what is under way, waits for it to record its end, and stops the loop. May be called again."""
        with self._lock:
            self._closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=CLEAN_UP_S)


def _closed(what: str) -> RequestError:
    return RequestError(what, advice="open another with Router.open(...)")
