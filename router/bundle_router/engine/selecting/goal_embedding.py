"""Embeddings for search: of a catalog in the background, of a step's goal under a deadline.

Rules:
1. Optional at every moment. What is not there in time, or is not sound, is not used: the step is
   ranked by words alone, and the reply says why.
2. A catalog's vectors are made once, in a daemon thread that the first question begins: of bundles
   first, which are used while those of tools are made. Until then embedders are `not_ready`.
   `warm_up` waits for all of them.
3. A step waits no longer than the deadline. A breaker keeps steps from waiting for an embedder that
   is down.
4. Only successes are remembered, the last `KEPT_GOALS` of them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.search.index import Embedding, Vectors
from bundle_router.core.values import EmbeddingUse, Failure
from bundle_router.core.values.breaker import Breaker, BreakerTerms, End, Ticket
from bundle_router.ports import Clock, Diagnostics, Embedder

KEPT_GOALS: Final = 512
KEPT_REVISIONS: Final = 2
TERMS: Final = BreakerTerms(base_s=30.0, growth=2.0, max_open_s=600.0)
_BLAMELESS: Final[frozenset[Failure]] = frozenset(
    ("not_ready", "bad_request", "context_window", "no_key", "not_sent")
)

MakeVectors = Callable[[Catalog], Iterable[Vectors | Embedding]]


@dataclass(frozen=True, slots=True)
class GoalVector:
    """A goal's vector and what it may be compared with; or neither, and why not."""

    use: EmbeddingUse
    vector: tuple[float, ...] | None = None
    vectors: Vectors | None = None


@dataclass
class _Making:
    """The vectors of one catalog: being made until `done` is set.

    `made` is what there is of them until now, `whole` whether that is all.
    """

    made: Vectors | None = None
    whole: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Meanings:
    """Asks one embedder. May be used from many threads at once.

    `make` gives the vectors of a catalog, more of them each time, or the failure in place of them;
    it blocks for as long as that takes.
    """

    def __init__(
        self,
        embedder: Embedder,
        make: MakeVectors,
        clock: Clock,
        diagnostics: Diagnostics,
        *,
        deadline_s: float,
    ) -> None:
        self._embedder = embedder
        self._make = make
        self._clock = clock
        self._diagnostics = diagnostics
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._breaker = Breaker(TERMS)
        self._catalogs: OrderedDict[str, _Making] = OrderedDict()
        self._goals: OrderedDict[str, tuple[float, ...]] = OrderedDict()

    def vector_of(self, catalog: Catalog, goal: str) -> GoalVector:
        """Return the goal's vector. Blocks for at most about the deadline."""
        from bundle_router.core.search.meaning import passage  # loaded when an embedder is asked

        text = passage(goal)
        making = self._begin_vectors(catalog)
        vectors = making.made
        if vectors is None:
            return GoalVector("circuit_open" if making.done.is_set() else "not_ready")
        with self._lock:
            vector = self._goals.get(text)
            if vector is not None:
                self._goals.move_to_end(text)
                return GoalVector("used", vector, vectors)
        return self._embed_goal(text, vectors)

    def warm_up(self, catalog: Catalog) -> bool:
        """Wait until the catalog's vectors are made, or could not be.

        Return whether all of them are.
        """
        making = self._begin_vectors(catalog)
        making.done.wait()
        return making.whole

    def close(self) -> None:
        """Let go of the embedder. Blocks for a moment; idempotent."""
        self._embedder.close()

    # --- goals ------------------------------------------------------------------------------------

    def _embed_goal(self, text: str, vectors: Vectors) -> GoalVector:
        from bundle_router.core.search.meaning import fault_in

        ticket = self._admit_request()
        if ticket is None:
            return GoalVector("circuit_open")
        embedder = self._embedder
        reply = self._ask_safely(
            lambda: embedder.embed((embedder.prompts[0] + text,), timeout_s=self._deadline_s)
        )
        if reply.failure is None and (fault := fault_in(reply.vectors, 1, vectors.dimension)):
            reply = Embedding(failure="invalid_output", detail=fault)
        self._settle(ticket, reply)
        if reply.failure is not None:
            self._diagnostics.event(
                "warning", "embedding.failed", failure=reply.failure, detail=reply.detail
            )
            return GoalVector(reply.failure)
        with self._lock:
            self._goals[text] = reply.vectors[0]
            while len(self._goals) > KEPT_GOALS:
                self._goals.popitem(last=False)
        return GoalVector("used", reply.vectors[0], vectors)

    def _ask_safely(self, ask: Callable[[], Embedding]) -> Embedding:
        try:
            return ask()
        except Exception as error:  # noqa: BLE001 - rule 1: whatever an embedder's library raises, the step goes on
            self._diagnostics.event("error", "embedding.broke", error=error)
            return Embedding(failure="internal")

    # --- catalogs ---------------------------------------------------------------------------------

    def _begin_vectors(self, catalog: Catalog) -> _Making:
        """Return the catalog's vectors, begun if need be; begun anew when the breaker lets a failed
        one try again.
        """
        with self._lock:
            last_making = self._catalogs.get(catalog.revision)
            if last_making is not None and (not last_making.done.is_set() or last_making.whole):
                return last_making
        ticket = self._admit_request()
        with self._lock:
            current = self._catalogs.get(catalog.revision)
            if current is not last_making and current is not None:
                if ticket is not None:
                    self._breaker = self._breaker.release(ticket)
                return current  # another thread began it
            making = _Making(last_making.made if last_making is not None else None)
            if ticket is None:
                making.done.set()
                return last_making or making
            self._catalogs[catalog.revision] = making
            while len(self._catalogs) > KEPT_REVISIONS:
                self._catalogs.popitem(last=False)
        threading.Thread(
            target=self._fill,
            args=(making, catalog, ticket),
            name="bundle-router-vectors",
            daemon=True,
        ).start()
        return making

    def _fill(self, making: _Making, catalog: Catalog, ticket: Ticket) -> None:
        progress: Vectors | Embedding = Embedding(failure="internal")
        try:
            for progress in self._make(catalog):
                making.made = making.made if isinstance(progress, Embedding) else progress
        except Exception as error:  # noqa: BLE001 - as in _safely; nobody waits here for an exception
            self._diagnostics.event("error", "embedding.broke", error=error)
            progress = Embedding(failure="internal")
        if isinstance(progress, Embedding):
            failure = progress.failure or "internal"
            self._diagnostics.event(
                "warning", "embeddings.unavailable", failure=failure, detail=progress.detail
            )
            # Whatever it was, the same texts would fail again: no new attempt before the breaker's
            # time.
            self._settle(
                ticket,
                Embedding(failure=failure, retry_after_s=progress.retry_after_s),
                end="grave",
            )
        else:
            making.whole = True
            self._settle(ticket, Embedding())
        making.done.set()

    # --- the breaker ------------------------------------------------------------------------------

    def _admit_request(self) -> Ticket | None:
        with self._lock:
            self._breaker, ticket = self._breaker.admit(self._clock.monotonic_ns())
            return ticket

    def _settle(self, ticket: Ticket, reply: Embedding, *, end: End | None = None) -> None:
        if end is None:
            end = _end_of(reply.failure)
        with self._lock:
            self._breaker = self._breaker.settle(
                ticket, end, self._clock.monotonic_ns(), reply.retry_after_s
            )


def _end_of(failure: Failure | None) -> End:
    if failure is None:
        return "answered"
    if failure == "auth":
        return "grave"
    if failure in _BLAMELESS:
        return "blameless"
    return "failed"
