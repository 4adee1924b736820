"""The `Selector` that searches.

Rules:
1. The index is made once for each catalog revision, when the first question comes, in a thread: making it takes what
   importing the library takes, and milliseconds for every hundred tools.
2. What of a step is searched is bounded first, so that no step is slower than a page of text.
3. Same catalog, question, recent steps and memory: same reply, byte for byte. No times in it.
4. Whatever goes wrong in here is no exception: search was then not heard. Where the library is not installed nobody is
   there to ask, which is said once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from router.core.catalog import Catalog
from router.core.corpus import request_of
from router.core.decide import Question
from router.core.models import Answer, Reason, RecentStep, Reply, SearchUse, Step
from router.core.search.memory import Memory
from router.core.search.ranking import Search
from router.core.sufficiency import Judgement, judge
from router.errors import NotInstalled
from router.ports import Diagnostics

MAX_INLINE: Final = 500
"""Characters that are searched on the caller's thread (some milliseconds among 500 bundles). More are in another."""
KEPT_REVISIONS: Final = 2

MakeSearch = Callable[[Catalog], Search]


@dataclass(frozen=True, slots=True)
class Found:
    """What search made of a question. `reply` says so in full; `stand_in` is its answer in place of a failing model."""

    reply: Reply
    stand_in: Answer | None = None


NOT_THERE: Final = Found(Reply())
BROKEN: Final = Found(Reply(failure="internal"))


class SearchSelector:
    """Searches the candidates of a question. May be used from many threads and event loops at once.

    `make` gives the search of a catalog and raises NotInstalled where there can be none. `memory` is what was
    learned from past steps.
    """

    def __init__(self, make: MakeSearch, diagnostics: Diagnostics, memory: Memory | None = None) -> None:
        self._make = make
        self._diagnostics = diagnostics
        self._memory = memory
        self._revisions = (("memory", memory.revision),) if memory is not None else ()
        self._lock = threading.Lock()
        self._made: OrderedDict[str, Search | None] = OrderedDict()

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        """See `Selector`. Where search is not enough the reply has no answer, and says what was found."""
        return (await self.find(question, recent)).reply

    async def find(self, question: Question, recent: Sequence[RecentStep]) -> Found:
        """As `consider`, without holding the event loop for longer than a short step takes."""
        if question.catalog.revision in self._made and _size(question.step) <= MAX_INLINE:
            return self.consider(question, recent)
        return await asyncio.to_thread(self.consider, question, recent)

    def consider(self, question: Question, recent: Sequence[RecentStep]) -> Found:
        """Ranks the candidates and judges the ranking. Blocks; the first time for as long as the index takes."""
        try:
            search = self.search_for(question.catalog)
            if search is None:
                return NOT_THERE
            ranking = search.rank_bundles(
                request_of(question.step, recent), frozenset(question.candidates), self._memory
            )
            judged = judge(question.catalog, question.step, ranking)
            return self._found(judged, search.index.revision)
        except Exception as error:  # noqa: BLE001 - rule 4: the caller's step goes on, whatever is wrong in here
            self._diagnostics.event("error", "search.broke", error=error)
            return BROKEN

    def search_for(self, catalog: Catalog) -> Search | None:
        """The search of this catalog, made if need be; None where the library is not installed."""
        with self._lock:
            if catalog.revision not in self._made:
                self._made[catalog.revision] = self._try_to_make(catalog)
                while len(self._made) > KEPT_REVISIONS:
                    self._made.popitem(last=False)
            return self._made[catalog.revision]

    def _try_to_make(self, catalog: Catalog) -> Search | None:
        try:
            return self._make(catalog)
        except NotInstalled as error:
            self._diagnostics.event("warning", "search.unavailable", cause=error.message, advice=error.advice)
            return None

    def _found(self, judged: Judgement, index: str) -> Found:
        use = judged.use
        revisions = (("index", index), *self._revisions, ("thresholds", use.thresholds))
        reply = Reply(search=use, revisions=revisions)
        if judged.ids:
            reason: Reason = "union" if use.verdict == "union" else "search"
            return Found(replace(reply, answer=Answer(judged.ids, "search", reason, use.why, use.ranked)))
        return Found(reply, _stand_in(use, judged.stand_in) if judged.stand_in is not None else None)


def _stand_in(use: SearchUse, id_: str) -> Answer:
    return Answer(
        (id_,), "search", "search", f"in its place the best that search found and that only reads: {id_}", use.ranked
    )


def _size(step: Step) -> int:
    return len(step.goal) + sum(map(len, step.constraints))
