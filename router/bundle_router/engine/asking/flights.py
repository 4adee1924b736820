"""Single flight: callers with the same question share one answer, whatever threads and loops they
are on.

Rules:
1. The work runs on the background loop and belongs to none of those who wait: cancelling one leaves
   it to the others.
2. When the last waiter has gone it is cancelled: nobody pays for an answer that nobody hears.
3. A flight that has landed is gone. Who comes later starts a new one (or finds the answer in the
   cache).
4. What landed is heard, also by a waiter whose own loop was held up until its time was over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bundle_router.ports import BackgroundLoop

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


@dataclass(eq=False)
class _Flight(Generic[T]):
    waiters: list[asyncio.Future[T | None]] = field(default_factory=list)
    task: Future[None] | None = None


class Flights(Generic[T]):
    """What is under way, by key."""

    def __init__(self, loop: BackgroundLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._flying: dict[str, _Flight[T]] = {}

    async def join(self, key: str, work: Work[T], *, within_s: float) -> T | None:
        """Return what `work` gives, started now or by whoever asked before.

        None when it was stopped or raised.

        Raises TimeoutError when it is not there `within_s` seconds from now.
        """
        waiter: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        with self._lock:
            flight = self._flying.get(key)
            if flight is None:
                flight = self._flying[key] = _Flight()
                flight.task = self._loop.submit(self._run_flight(key, flight, work))
            flight.waiters.append(waiter)
        try:
            async with asyncio.timeout(within_s):
                return await waiter
        except TimeoutError:
            if waiter.done() and not waiter.cancelled():
                return waiter.result()
            raise
        finally:
            self._leave(key, flight, waiter)

    def _leave(self, key: str, flight: _Flight[T], waiter: asyncio.Future[T | None]) -> None:
        with self._lock:
            if waiter in flight.waiters:
                flight.waiters.remove(waiter)
                if not flight.waiters and self._flying.get(key) is flight:
                    del self._flying[key]
                    if flight.task is not None:
                        flight.task.cancel()

    async def _run_flight(self, key: str, flight: _Flight[T], work: Work[T]) -> None:
        landed: T | None = None
        try:
            landed = await work()
        finally:
            with self._lock:
                if self._flying.get(key) is flight:
                    del self._flying[key]
                waiters = flight.waiters
                flight.waiters = []
            for waiter in waiters:
                _settle_waiter(waiter, landed)


def _settle_waiter(waiter: asyncio.Future[T | None], landed: T | None) -> None:
    def settle() -> None:
        if not waiter.done():
            waiter.set_result(landed)

    try:
        waiter.get_loop().call_soon_threadsafe(settle)
    except RuntimeError:
        return  # its loop is closed: whoever waited there has gone
