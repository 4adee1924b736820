"""Results of calls that only read, used again (see `bundle_router.core.tools.reusable_results` for which).

Rules:
1. Every call comes here admitted: policy, pins and arguments were judged for it, and its start is on disk. A result
   that is used again stands in the record of the call that used it, with the call it came from.
2. The same call that is under way is made once: who comes meanwhile waits for it. If nothing comes of it that may be
   used again (it fails, is cancelled), each of those makes the call itself.
3. Nothing that was read before a change ended is kept, and nobody joins a call that began before one.
4. Callers may be on any thread and event loop. Nothing is awaited while the lock is held.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from bundle_router.core.catalog import Catalog, Reuse
from bundle_router.core.models import Block, Outcome
from bundle_router.core.models.artifacts import Artifact
from bundle_router.core.tools.reusable_results import (
    KeptResult,
    ResultCache,
    ReusableCall,
    is_read_only,
    key_of,
    may_keep,
    place_of,
    reuse_of,
)
from bundle_router.core.tools.shaping import ShapedResult
from bundle_router.core.tools.transport.pass_through import ServerReply
from bundle_router.dataclass import dataclass
from bundle_router.ports import Clock

S_IN_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What making a call gave, shaped. `source` is the call whose result it is, where that is another; `answer` the
    server's own, where an agent's client is to have it; `whole` the result as it came, where that was asked for;
    `queued_ms` how long it waited here for its turn."""

    outcome: Outcome
    code: str
    shaped: ShapedResult
    source: str = ""
    answer: ServerReply | None = None
    stored: tuple[Artifact, ...] = ()
    joined: tuple[tuple[str, str], ...] = ()
    whole: tuple[Block, ...] | None = None
    queued_ms: float = 0.0


Work = Callable[[], Awaitable[CallOutcome]]


@dataclass(eq=False, slots=True)
class _CallUnderWay:
    """A call under way. `stale`: something may have changed since it began."""

    place: str
    done: Future[KeptResult | None]
    stale: bool = False


class ResultReuse:
    """The results that a process keeps to use them again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cache = ResultCache()
        self._under_way: dict[str, _CallUnderWay] = {}
        self._lock = threading.Lock()

    async def get_or_call(self, catalog: Catalog, asked: ReusableCall, call_id: str, work: Work) -> CallOutcome:
        """Return what `work` comes to, or what the same call came to before."""
        reuse = reuse_of(catalog, asked.tool)
        if reuse is None:
            return await self.call_fresh(catalog, asked.tool, work)
        key = key_of(catalog, asked, reuse)
        with self._lock:
            kept = self._cache.get(key, self._clock.monotonic_ns())
            leader = self._under_way.get(key)
            if kept is None and leader is None:
                own = self._under_way[key] = _CallUnderWay(place_of(catalog, asked.tool), Future())
        if kept is None and leader is None:
            return await self._lead(own, key, reuse, call_id, work)
        if leader is not None:
            # Shielded, as one who goes away must not take the answer from the others.
            kept = await asyncio.shield(asyncio.wrap_future(leader.done))
        return CallOutcome("ok", "", kept.shaped, kept.call_id) if kept is not None else await work()

    async def call_fresh(self, catalog: Catalog, tool: str, work: Work) -> CallOutcome:
        """Return what `work` comes to, in no case what was kept. What it may change is stale."""
        if is_read_only(catalog, tool):
            return await work()
        with self._changing(place_of(catalog, tool)):
            return await work()

    async def _lead(self, leader: _CallUnderWay, key: str, reuse: Reuse, call_id: str, work: Work) -> CallOutcome:
        kept: KeptResult | None = None
        try:
            outcome = await work()
            if outcome.outcome == "ok":
                until_ns = self._clock.monotonic_ns() + int(reuse.ttl_s * S_IN_NS)
                kept = may_keep(outcome.shaped, call_id, until_ns)
            return outcome
        finally:
            with self._lock:
                if self._under_way.get(key) is leader:
                    del self._under_way[key]
                if kept is not None and not leader.stale:
                    self._cache.put(key, leader.place, kept)
            leader.done.set_result(kept)

    @contextmanager
    def _changing(self, place: str) -> Iterator[None]:
        """While something there may change."""
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
