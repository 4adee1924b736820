"""The `Selector` of a whole router: the stages of `[fallback] order`, one after the other.

Rules:
1. A stage that picks something ends it. `default` ends it too: the core shows the declared default,
   or nothing.
2. What search found is in the reply whoever answers, and if nobody does.
3. A model that fails is never followed by more than search found: what search settles by itself;
   else the shortlist, behind search, where `[fallback] order` has one after the model; else the
   best plausible bundle that only reads. All are marked degraded. With none of them, the core falls
   back to the default.
4. What a model picked is not overruled. Whether the shortlist is offered behind search beside it,
   where that has a turn after it, is said by `[model] beside`: where the model called itself unsure
   (`doubt`), `always` or `never`. A model that picks nothing doubts that anything fits: search
   settles nothing against it, and the shortlist has its turn. That is not degraded.
5. A model is asked about the best that search ranked and what search knows nothing of, in that
   order, and about `MAX_CANDIDATES` at most. Where search has no turn before it, it ranks more
   candidates than that for this alone, and what it says of them is not in the reply.
6. Where search settles a step of several wishes, its shortlist (where it has a turn) stands beside
   that, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from bundle_router.core.catalog import Beside, Catalog, FallbackStage
from bundle_router.core.decide.decide import Question
from bundle_router.core.decide.plans import Candidates
from bundle_router.core.values import Answer, RecentStep, Reply
from bundle_router.engine.selecting.search import MAX_CANDIDATES, SearchResult, SearchSelector
from bundle_router.ports import Readiness, Selector


class Model(Selector, Protocol):
    """A selector that has to be warmed up and closed."""

    async def warm_up(self) -> Readiness: ...

    async def close(self) -> None: ...


class StagedSelector:
    """Search and a model in order; either may be absent.

    May be used from many threads and event loops at once.
    """

    def __init__(
        self,
        order: Sequence[FallbackStage],
        *,
        search: SearchSelector | None = None,
        model: Model | None = None,
    ) -> None:
        before_default = order[: order.index("default")] if "default" in order else order
        self._order = tuple(before_default)
        self.search = search if {"search", "shortlist"} & {*self._order} else None
        self.index = search
        self.model = model if "model" in self._order else None

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        """See `Selector`."""
        search_result: SearchResult | None = None
        unsettled: Reply | None = None  # of a model that failed, or picked nothing
        for stage in self._order:
            if stage == "search" and self.search is not None:
                search_result = await self.search.find(question, recent)
                is_doubted = unsettled is not None and unsettled.answer is not None
                if search_result.reply.answer is not None and not is_doubted:
                    return self._offer_shortlist(
                        _in_place_of(unsettled, search_result, search_result.reply.answer),
                        search_result,
                    )
            elif stage == "model" and self.model is not None:
                ranked = search_result
                is_too_long = len(question.candidates) > MAX_CANDIDATES
                if ranked is None and is_too_long and self.index is not None:
                    ranked = await self.index.find(question, recent)
                reply = await self.model.select(_narrow_question(question, ranked), recent)
                if reply.answer is not None and reply.answer.ids:
                    if _brings_shortlist(question.catalog.settings.model.beside, reply):
                        reply = self._offer_shortlist(reply, search_result)
                    return _with_search(reply, search_result)
                unsettled = reply
            elif stage == "shortlist" and self.search is not None:
                search_result = search_result or await self.search.find(question, recent)
                if search_result.shortlist is not None:
                    return _in_place_of(unsettled, search_result, search_result.shortlist)

        if search_result is None:
            return unsettled or Reply()
        if unsettled is None:
            return search_result.reply
        if unsettled.failure is not None and search_result.stand_in is not None:
            return _in_place_of(unsettled, search_result, search_result.stand_in)
        return _with_search(unsettled, search_result)

    def _offer_shortlist(self, reply: Reply, result: SearchResult | None) -> Reply:
        """Return the reply with the shortlist beside what was picked (rules 4 and 6)."""
        if "shortlist" not in self._order:
            return reply
        answer = reply.answer
        if answer is None or not answer.ids:
            return reply

        offered: tuple[str, ...] = ()
        if result is not None and result.shortlist:
            offered = tuple(id_ for id_ in result.shortlist.ids if id_ not in answer.ids)
        return replace(reply, answer=replace(answer, offered=offered))

    def preview(self, question: Question) -> Reply | None:
        """Return what search says before any model is asked, without a run's recent steps; None
        where a model is first.
        """
        if self.search is None or self._order[:1] != ("search",):
            return None
        search_result = self.search.consider(question, ())
        if search_result.reply.answer is not None:
            return self._offer_shortlist(search_result.reply, search_result)
        offers = self.model is None and "shortlist" in self._order
        if not offers or search_result.shortlist is None:
            return search_result.reply
        return _in_place_of(None, search_result, search_result.shortlist)

    async def warm_up(self, catalog: Catalog) -> Readiness:
        """Make the index, load what models need, and return whether they can be asked.

        Contacts only an embedder.
        """
        readiness, _ = await asyncio.gather(self._warm_model(), self._warm_search(catalog))
        return readiness

    async def _warm_model(self) -> Readiness:
        if self.model is None:
            return "missing"
        return await self.model.warm_up()

    async def _warm_search(self, catalog: Catalog) -> None:
        if self.search is not None:
            await asyncio.to_thread(self.search.warm_up, catalog)

    @property
    def has_upstream(self) -> bool:
        """Whether a model or an embedder may be asked, whose end is awaited."""
        return self.model is not None or (self.search is not None and self.search.has_embedder)

    async def close(self) -> None:
        """Let go of what the model and the embedder hold."""
        if self.model is not None:
            await self.model.close()
        if self.index is not None:
            await self.index.close()


def _narrow_question(question: Question, result: SearchResult | None) -> Question:
    """Return the question about what search leaves of the candidates."""
    ids = result.for_model if result is not None else ()
    if len(ids) < 2:
        return question
    return replace(question, permitted=Candidates(ids))


def _brings_shortlist(beside: Beside, reply: Reply) -> bool:
    """Return whether a model's picks are to have the shortlist beside them (rule 4)."""
    if beside == "doubt":
        return reply.model is None or not reply.model.sure
    return beside == "always"


def _with_search(reply: Reply, result: SearchResult | None) -> Reply:
    if result is None:
        return reply
    return replace(reply, search=result.reply.search, revisions=result.reply.revisions)


def _in_place_of(unsettled: Reply | None, result: SearchResult, answer: Answer) -> Reply:
    """Return search's answer; where a model was asked before, with what it said and cost."""
    if unsettled is None:
        return replace(result.reply, answer=answer)
    answered = replace(answer, model=unsettled.model)
    if unsettled.answer is not None:
        said = unsettled.answer.justification
        why = f"the model picked nothing ({said})" if said else "the model picked nothing"
        answered = replace(answered, justification=why)
    return replace(result.reply, answer=answered, failure=unsettled.failure, model=unsettled.model)
