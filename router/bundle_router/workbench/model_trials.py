"""Routes labelled steps with each model and with none, and keeps the models' answers.

Rules:
1. Each step is routed with all models before the next step: whatever ends the trial, all models saw
   the same steps.
2. `max_cost_usd` is exceeded by the first step at most. A step is not begun if its questions may
   cost more than what is left, going by the dearest so far. A model of unknown price can't be
   bounded: nothing is asked then. One that does not say what a question cost ends the trial.
3. Questions are redacted before they are sent, as in a router. Answers are kept beside the runs for
   a year, so that a repeated question is free; failures are not kept and are tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bundle_router.adapters.system import SystemClock
from bundle_router.core.catalog import Catalog, FallbackStage
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import Activation, Facts, Reply
from bundle_router.errors import NotInstalled, RequestError
from bundle_router.review.model_comparison import (
    ModelFigures,
    RoutedRow,
    catalog_for,
    figures_of,
    judge_row,
)
from bundle_router.wiring.effects import open_diagnostics, open_redactor
from bundle_router.wiring.searching import SearchMaker, open_meanings, open_models

if TYPE_CHECKING:
    from bundle_router.core.search.ranking import Memories
    from bundle_router.engine.selecting import StagedSelector
    from bundle_router.review.evaluation import LabelledRow

YEAR_S: Final = 31_536_000.0


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """The figures, beginning with those without a model.

    `ended` says why rows are missing, if any.
    """

    figures: tuple[ModelFigures, ...]
    rows: int
    ended: str = ""


@dataclass(frozen=True, slots=True)
class ModelTrials:
    """A comparison of models, by litellm's names, under a config and what was learned for it."""

    catalog: Catalog
    names: tuple[str, ...]
    memories: Memories | None = None
    runs: str | Path = "runs"
    max_cost_usd: float | None = None

    async def run(
        self, rows: Sequence[LabelledRow], done: Callable[[int], None] = lambda _: None
    ) -> ModelComparison:
        """Route every row with no model and with each model.

        Raises NotInstalled without the models' library, and RequestError for a cost limit on a
        model of unknown price.
        """
        routed: list[list[RoutedRow]] = [[] for _ in (None, *self.names)]
        reason = ""
        redact = open_redactor(self._ask_model).redact
        async with AsyncExitStack() as stack:
            selectors = await self._open(stack)
            for number, row in enumerate(rows):
                if self.max_cost_usd is not None and (
                    reason := self._why_stopped(routed, number, len(rows))
                ):
                    break
                clean = {
                    "goal": redact(row.goal),
                    "constraints": tuple(map(redact, row.constraints)),
                }
                for kept, one in zip(
                    routed, await self._row(row.model_copy(update=clean), selectors), strict=True
                ):
                    kept.append(one)
                done(number + 1)
        pairs = zip((None, *self.names), routed, strict=True)
        return ModelComparison(
            tuple(figures_of(name, kept) for name, kept in pairs), len(rows), reason
        )

    @property
    def _ask_model(self) -> Catalog:
        """Return the catalog with these models in it, so that their keys are known and redacted."""
        settings = self.catalog.settings
        return replace(
            self.catalog,
            settings=replace(settings, model=replace(settings.model, names=self.names)),
        )

    async def _open(self, stack: AsyncExitStack) -> list[StagedSelector]:
        """Return a selector without a model and one for each model, over one search."""
        from bundle_router.adapters.llm import has_price
        from bundle_router.engine.selecting import SearchSelector, StagedSelector

        settings = self.catalog.settings
        clock = SystemClock()
        diagnostics = open_diagnostics(self.catalog, open_redactor(self._ask_model))
        meanings = open_meanings(self.catalog, clock, diagnostics, self.memories)
        search = SearchSelector(SearchMaker(), diagnostics, self.memories, meanings=meanings)
        stack.push_async_callback(search.close)
        order = _ask_model(settings.fallback.order)
        settings = replace(
            settings, cache=replace(settings.cache, answers="index", answers_ttl_s=YEAR_S)
        )
        chosen = [replace(settings.model, names=(name,)) for name in self.names]
        models = open_models(settings, chosen, self.runs, clock, diagnostics)
        stack.push_async_callback(models[0].close)
        for model in models:
            stack.push_async_callback(model.wait_until_stored)
            if await model.warm_up() == "missing":
                raise NotInstalled(
                    "asking a model needs litellm and instructor",
                    advice="pip install 'bundle-router[model]'",
                )
        if self.max_cost_usd is not None and (
            unpriced := [name for name in self.names if not has_price(name)]
        ):
            raise _unbounded(unpriced[0])
        return [StagedSelector(order, search=search, model=model) for model in (None, *models)]

    async def _row(self, row: LabelledRow, selectors: Sequence[StagedSelector]) -> list[RoutedRow]:
        catalog = catalog_for(row, self.catalog)
        facts = Facts(capabilities=frozenset(row.capabilities))
        decision = decide(Plans(catalog), facts, Activation(), row.as_step())
        if not isinstance(decision, Question):
            return [judge_row(row, catalog, decision, 0.0)] * len(selectors)
        question = decision

        async def one(selector: StagedSelector) -> RoutedRow:
            started = time.perf_counter()
            reply: Reply = await selector.select(question, row.as_request().recent)
            return judge_row(
                row, catalog, conclude(question, reply), (time.perf_counter() - started) * 1e3
            )

        return list(await asyncio.gather(*map(one, selectors)))

    def _why_stopped(self, routed: Sequence[Sequence[RoutedRow]], number: int, rows: int) -> str:
        """Return why no further row is routed; empty if one is."""
        assert self.max_cost_usd is not None  # noqa: S101 - asked only where there is a bound
        for name, answers in zip(self.names, routed[1:], strict=True):
            if any(_is_uncounted(answer) for answer in answers):
                raise _unbounded(name)

        spent = 0.0
        dearest = 0.0
        for answers in routed:
            costs = [answer.cost_usd for answer in answers]
            spent += sum(costs)
            dearest += max(costs, default=0.0)
        if 0.0 < self.max_cost_usd >= spent + dearest:
            return ""
        return (
            f"ended after {number} of {rows} steps: ${spent:.6f} are spent of"
            f" ${self.max_cost_usd:.6f}"
        )


def _unbounded(name: str) -> RequestError:
    return RequestError(
        f"the price of {name} is unknown, so --max-cost can't limit what it costs",
        advice="leave --max-cost out for a model that costs nothing",
    )


def _ask_model(order: Sequence[FallbackStage]) -> tuple[FallbackStage, ...]:
    """Return the order of fallbacks that includes a model: the config's, or with a model after
    search.
    """
    if "model" in order:
        return tuple(order)
    position = order.index("search") + 1 if "search" in order else 0
    return (*order[:position], "model", *order[position:])


def _is_uncounted(row: RoutedRow) -> bool:
    """Return whether a model answered and nobody knows what it cost."""
    return row.asked and not row.cached and not row.failure and not row.cost_usd
