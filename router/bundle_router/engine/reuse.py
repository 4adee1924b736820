"""Reuses the results of calls that only read (`bundle_router.core.results.reusable_results` says
which).

Rules:
1. Every call comes here admitted: policy, pins and arguments were judged, and its start is on disk.
   The record of a call that reuses a result names the call it came from.
2. Equal calls at one time are made once; the others wait. If the call fails or is cancelled, each
   of them makes its own.
3. A result that was read before a change ended is not kept, and no call waits for a call that began
   before a change.
4. Callers may be on any thread and event loop. Nothing is awaited while the lock is held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from bundle_router.core.catalog import Catalog, Reuse
from bundle_router.core.results.reusable_results import (
    CachedResult,
    ResultCache,
    ReusableCall,
    is_read_only,
    key_of,
    may_keep,
    place_of,
    reuse_of,
)
from bundle_router.core.servers.transport.tool_servers import CallOutcome
from bundle_router.ports import Clock

S_IN_NS: Final = 1_000_000_000


Work = Callable[[], Awaitable[CallOutcome]]


@dataclass(eq=False, slots=True)
class _CallUnderWay:
    """A call under way. `stale`: a change began after it."""

    place: str
    done: Future[CachedResult | None]
    stale: bool = False


class ResultReuse:
    """The results that a process keeps for reuse."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cache = ResultCache()
        self._under_way: dict[str, _CallUnderWay] = {}
        self._lock = (
            threading.RLock()
        )  # the garbage collector may close a coroutine of whoever has it

    async def get_or_call(
        self, catalog: Catalog, reusable_call: ReusableCall, call_id: str, work: Work
    ) -> CallOutcome:
        """Return a kept result of the same call, or else the outcome of `work`."""
        reuse = reuse_of(catalog, reusable_call.tool)
        if reuse is None:
            return await self.call_fresh(catalog, reusable_call.tool, work)
        key = key_of(catalog, reusable_call, reuse)
        with self._lock:
            cached = self._cache.get(key, self._clock.monotonic_ns())
            leader = self._under_way.get(key)
            if cached is None and leader is None:
                new_call = self._under_way[key] = _CallUnderWay(
                    place_of(catalog, reusable_call.tool), Future()
                )
        if cached is None and leader is None:
            return await self._lead(new_call, key, reuse, call_id, work)
        if leader is not None:
            # Shielded, as one who goes away must not take the answer from the others.
            cached = await asyncio.shield(asyncio.wrap_future(leader.done))
        if cached is not None:
            return CallOutcome("ok", "", cached.shaped, cached.call_id)
        return await work()

    async def call_fresh(self, catalog: Catalog, tool: str, work: Work) -> CallOutcome:
        """Return the outcome of `work`, never a kept one, and drop the kept results that the call
        may change.
        """
        if is_read_only(catalog, tool):
            return await work()
        with self._changing(place_of(catalog, tool)):
            return await work()

    async def _lead(
        self, leader: _CallUnderWay, key: str, reuse: Reuse, call_id: str, work: Work
    ) -> CallOutcome:
        cached: CachedResult | None = None
        try:
            outcome = await work()
            if outcome.outcome == "ok":
                until_ns = self._clock.monotonic_ns() + int(reuse.ttl_s * S_IN_NS)
                cached = may_keep(outcome.shaped, call_id, until_ns)
            return outcome
        finally:
            with self._lock:
                if self._under_way.get(key) is leader:
                    del self._under_way[key]
                if cached is not None and not leader.stale:
                    self._cache.put(key, leader.place, cached)
            leader.done.set_result(cached)

    @contextmanager
    def _changing(self, place: str) -> Iterator[None]:
        """Mark the place as changing."""
        self._empty(place)
        try:
            yield
        finally:
            self._empty(place)

    def _empty(self, place: str) -> None:
        with self._lock:
            self._cache.empty(place)
            for key in [key for key, leader in self._under_way.items() if leader.place == place]:
                self._under_way.pop(key).stale = True
