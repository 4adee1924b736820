"""The `Selector` that searches, and the `ToolSearch` over the same index.

Rules:
1. The index is made once for each catalog revision, when the first question comes, in a thread:
   making it takes what importing the library takes, and milliseconds for every hundred tools.
2. What of a step is searched is bounded first, so that no step is slower than a page of text.
3. Same catalog, question, recent steps and memory: same reply, byte for byte. No times in it.
4. An embedder, where one is configured, is asked before the ranking, and never stands in its way
   (see `meaning`).
5. Whatever goes wrong in here is no exception: search was then not heard. Where the library is not
   installed nobody is there to ask, which is said once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import Question
from bundle_router.core.values import Answer, Reason, Recall, RecentStep, Reply, SearchUse
from bundle_router.errors import NotInstalled
from bundle_router.ports import Diagnostics

if TYPE_CHECKING:
    from bundle_router.core.search.index import Vectors
    from bundle_router.core.search.ranking import Memories, Search
    from bundle_router.core.search.sufficiency import Judgement
    from bundle_router.engine.selecting.goal_embedding import GoalVector, Meanings

MAX_INLINE: Final = 500
"""Characters that are searched on the caller's thread (some milliseconds among 500 bundles).

More are in another.
"""
KEPT_REVISIONS: Final = 2
MAX_CANDIDATES: Final = 32
"""Candidates that one question to a model is about, where search can say which are the best."""
MAX_RANKED: Final = 20
"""Candidates that a model is asked about because search ranks them best; the rest of
`MAX_CANDIDATES` goes to those that search knows nothing of, as far as there are such.
"""

NOISE: Final = 0.15
"""Of the best tool's own match, what a tool behind it needs to be told to an agent.

This leaves out one in eight of all tools, and of those that are needed 0 to 1.7 points on five
labelled sets (see tests/benchmarks/RESULTS.md).
"""

MakeSearch = Callable[[Catalog], "Search"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What search made of a question.

    `reply` says so in full; `stand_in` is its answer in place of a failing model, `shortlist` what
    it would offer behind search. `for_model`: the candidates that a model is to choose from, best
    first (none: all of them).
    """

    reply: Reply
    stand_in: Answer | None = None
    shortlist: Answer | None = None
    for_model: tuple[str, ...] = ()


NOT_THERE: Final = SearchResult(Reply())
BROKEN: Final = SearchResult(Reply(failure="internal"))


class SearchSelector:
    """Searches the candidates of a question. May be used from many threads and event loops at once.

    `make` gives the search of a catalog and raises NotInstalled where there can be none. `memory`
    is what was learned from past steps, `meanings` what asks an embedder.
    """

    def __init__(
        self,
        make: MakeSearch,
        diagnostics: Diagnostics,
        memories: Memories | None = None,
        *,
        meanings: Meanings | None = None,
    ) -> None:
        self._make = make
        self._diagnostics = diagnostics
        self._meanings = meanings
        self.memories = memories
        """What was learned from past steps, of bundles and of tools."""
        self._memory = memory = memories.bundles if memories is not None else None
        self._revisions = (("memory", memory.revision),) if memory is not None else ()
        self._lock = threading.Lock()
        self._made: OrderedDict[str, Search | None] = OrderedDict()

    @property
    def has_embedder(self) -> bool:
        return self._meanings is not None

    def understand(
        self, catalog: Catalog, text: str
    ) -> tuple[Search | None, tuple[float, ...] | None]:
        """Return the search of a catalog, and the text's vector where there is one in time.

        Blocks.
        """
        search = self.search_for(catalog)
        understood = self._understand_goal(catalog, text) if search is not None else None
        if search is None or understood is None or understood.vector is None:
            return search, None
        return self._with_vectors(catalog, search, understood.vectors), understood.vector

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        """See `Selector`.

        Where search is not enough the reply has no answer, and says what was found.
        """
        return (await self.find(question, recent)).reply

    async def find(self, question: Question, recent: Sequence[RecentStep]) -> SearchResult:
        """As `consider`, without holding the event loop for longer than a short step takes."""
        ready = self._meanings is None and question.catalog.revision in self._made
        if (
            ready
            and len(question.step.goal) + sum(map(len, question.step.constraints)) <= MAX_INLINE
        ):
            return self.consider(question, recent)
        return await asyncio.to_thread(self.consider, question, recent)

    def consider(self, question: Question, recent: Sequence[RecentStep]) -> SearchResult:
        """Rank the candidates and judge the ranking.

        Blocks; the first time for as long as the index takes.
        """
        # Loaded when something is asked: a step that the mapping settles needs none of it.
        from bundle_router.core.search.corpus import request_of
        from bundle_router.core.search.sufficiency import judge

        try:
            search = self.search_for(question.catalog)
            if search is None:
                return NOT_THERE
            request = request_of(question.step, recent)
            understood = self._understand_goal(question.catalog, request.text)
            if understood is not None and understood.vector is not None:
                search = self._with_vectors(question.catalog, search, understood.vectors)
                request = replace(request, vector=understood.vector)
            ranking = search.rank_bundles(request, frozenset(question.candidates), self._memory)
            judgement = judge(question.catalog, question.step, ranking)
            outcome = self._build_result(judgement, search, understood)
            ranked_ids = [row.id for row in ranking.scored]
            outcome = replace(
                outcome, for_model=_for_model(question, ranked_ids, search.corpus.silent)
            )
            if outcome.reply.answer is not None and not judgement.shortlist:
                return outcome
            return replace(outcome, shortlist=_shortlist(question, judgement))
        except Exception as error:  # noqa: BLE001 - rule 5: the caller's step goes on, whatever is wrong in here
            self._diagnostics.event("error", "search.broke", error=error)
            return BROKEN

    def search_for(self, catalog: Catalog) -> Search | None:
        """Return the search of this catalog, made if need be; None where the library is not
        installed.
        """
        with self._lock:
            if catalog.revision not in self._made:
                self._made[catalog.revision] = self._try_to_make(catalog)
                while len(self._made) > KEPT_REVISIONS:
                    self._made.popitem(last=False)
            return self._made[catalog.revision]

    def _understand_goal(self, catalog: Catalog, goal: str) -> GoalVector | None:
        if self._meanings is None:
            return None
        return self._meanings.vector_of(catalog, goal)

    def _with_vectors(self, catalog: Catalog, search: Search, vectors: Vectors | None) -> Search:
        """Return the search over these vectors, kept: what it has worked out about the catalog goes
        with it.
        """
        if search.vectors is vectors:
            return search
        with_vectors = replace(search, vectors=vectors)
        with self._lock:
            if catalog.revision in self._made:
                self._made[catalog.revision] = with_vectors
        return with_vectors

    def warm_up(self, catalog: Catalog) -> None:
        """Make the index, and wait until the catalog's texts are embedded, or could not be.

        Blocks.
        """
        if self.search_for(catalog) is not None and self._meanings is not None:
            self._meanings.warm_up(catalog)

    async def close(self) -> None:
        """Let go of the embedder; idempotent."""
        if self._meanings is not None:
            await asyncio.to_thread(self._meanings.close)

    def _try_to_make(self, catalog: Catalog) -> Search | None:
        try:
            return self._make(catalog)
        except NotInstalled as error:
            self._diagnostics.event(
                "warning", "search.unavailable", cause=error.message, advice=error.advice
            )
            return None

    def _build_result(
        self, judged: Judgement, search: Search, understood: GoalVector | None
    ) -> SearchResult:
        meaning = understood.use if understood is not None else None
        meaning = meaning if search.by_meaning else "not_ranking"
        use = replace(judged.use, embeddings=meaning, recall=self._recall(understood))
        if understood is not None and understood.vectors is not None:
            made_by = understood.vectors.revision
        else:
            made_by = None
        embeddings = (("embeddings", made_by),) if made_by is not None else ()
        revisions = (
            ("index", search.index.revision),
            *embeddings,
            *self._revisions,
            ("thresholds", use.thresholds),
        )
        reply = Reply(search=use, revisions=revisions)
        if judged.ids:
            reason: Reason = "union" if use.verdict == "union" else "search"
            return SearchResult(
                replace(reply, answer=Answer(judged.ids, "search", reason, use.why, use.ranked))
            )
        return SearchResult(
            reply, _stand_in(use, judged.stand_in) if judged.stand_in is not None else None
        )

    def _recall(self, understood: GoalVector | None) -> Recall | None:
        recollection = self._memory.recollection if self._memory is not None else None
        if recollection is None:
            return None
        if understood is None:
            return "no_embedder"
        if understood.vectors is None:
            return "not_heard"
        if understood.vectors.revision == recollection.embedder:
            return "used"
        return "other_embedder"


def _stand_in(use: SearchUse, id_: str) -> Answer:
    return Answer(
        (id_,),
        "search",
        "search",
        f"in its place the best that search found and that only reads: {id_}",
        use.ranked,
    )


def _shortlist(question: Question, judged: Judgement) -> Answer | None:
    """Return what search would offer behind search: the best that it ranked; where all fit, the
    others too.
    """
    from bundle_router.core.exposure.placing import may_be_offered
    from bundle_router.core.search.sufficiency import shortlist_length

    catalog = question.catalog
    ids = judged.shortlist
    if len(question.candidates) <= shortlist_length(catalog, question.step):
        for id_ in question.candidates:
            if id_ not in judged.shortlist and may_be_offered(catalog, catalog.bundles[id_]):
                ids = (*ids, id_)
    if not ids:
        return None
    return Answer(ids, "shortlist", "shortlist", judged.use.why, judged.use.ranked)


def _for_model(
    question: Question, ranked: Sequence[str], silent: frozenset[str]
) -> tuple[str, ...]:
    """Return at most `MAX_CANDIDATES`: the best ranked, and those that search knows nothing of."""
    order = [*ranked, *(id_ for id_ in question.candidates if id_ not in {*ranked})]
    if len(order) <= MAX_CANDIDATES:
        return tuple(order)

    rest = order[MAX_RANKED:]
    unknown = [id_ for id_ in rest if id_ in silent][: MAX_CANDIDATES - MAX_RANKED]
    next_best = [id_ for id_ in rest if id_ not in unknown]
    best = [*order[:MAX_RANKED], *next_best][: MAX_CANDIDATES - len(unknown)]
    return (*best, *unknown)


class RankedTools:
    """Ranks tools inside what is permitted, those that nobody has read apart and with a quota for
    each server. A tool gains from its bundle as that is ranked with what was learned, and by what
    was learned of itself. An agent's query is understood by the embedder too, where one is
    configured and heard in time.
    """

    def __init__(self, search: SearchSelector, diagnostics: Diagnostics) -> None:
        self._search = search
        self._diagnostics = diagnostics

    def rank_tools(
        self,
        catalog: Catalog,
        query: str,
        permitted: frozenset[str],
        k: int,
        *,
        answering: bool = False,
    ) -> Sequence[str]:
        """See `ToolSearch`."""
        from bundle_router.core.search.ranking import NO_MEMORIES
        from bundle_router.core.search.request import Request

        try:
            if answering:
                search, vector = self._search.understand(catalog, query)
            else:  # an array must not depend on who can be asked at the moment
                search = self._search.search_for(catalog)
                vector = None
            if search is None:
                return ()
            memories = self._search.memories or NO_MEMORIES
            known_tools = permitted & frozenset(search.corpus.servers)
            ranked = search.rank_tools(Request(query, vector=vector), known_tools, memories, k=k)
            return [row.id for row in ranked if not answering or row.own >= NOISE]
        except Exception as error:  # noqa: BLE001 - as in `SearchSelector`: an agent's step goes on, whatever is wrong here
            self._diagnostics.event("error", "search.broke", error=error)
            return ()
