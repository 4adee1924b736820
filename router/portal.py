"""An event loop in a thread of its own, for engines that have none. Started on first use, ended by `close`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from router.errors import WrongContext

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

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it to the end on the portal's loop and gives its result. An interrupt cancels it and waits a little."""
        ended = threading.Event()

        async def to_the_end() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(to_the_end(), self._started())
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                ended.wait(CLEAN_UP_S)
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="bundle-router-loop", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def close(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
