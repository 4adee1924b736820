"""Prints what a model behind search could be worth at most: one that is always right, and ones that
are less often.

    python tests/benchmarks/routing/ceilings.py [--data FOLDER] [--sets mcp_mix,livemcp]
        [--queries N]

Every bundle is trusted, pinned and permitted, its effects guessed from its tools' names (see
`steps.py`), without any calibration or memory. The model is asked where search does not settle a
step, about what `StagedSelector` asks one about. A right answer is what the step needs of that
(none, where nothing of it is there), a wrong one is one of the others, drawn with a fixed seed.
"tokens": of a question, at four characters a token. Shares with 95 % intervals, the rows of a group
as one.

Then what `[model] beside` brings and costs, with a model that is right 0.85 of the time and calls
itself sure of 0.9 of its right answers and of half of its wrong ones: what is needed within reach,
and how many bundles a step is shown and offered.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bundle_router.core.catalog import Beside, Catalog
from bundle_router.core.decide.asking.prompt import prompt_for
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import (
    Activation,
    Answer,
    Decision,
    Facts,
    ModelUse,
    RecentStep,
    Reply,
)
from bundle_router.engine.selecting import SearchSelector, StagedSelector
from bundle_router.ports import Readiness
from bundle_router.review.evaluation import LabelledRow
from bundle_router.review.model_comparison import Estimate, RoutedRow, figures_of, judge_row
from bundle_router.testing import FakeDiagnostics

from tests.benchmarks.routing import routing_data
from tests.benchmarks.routing.steps import catalog_of, plain, search_over

RIGHT = (1.0, 0.95, 0.85, 0.7)
MAX_PICKS = 3
BESIDE: tuple[Beside, ...] = ("doubt", "always", "never")
SURE_OF_RIGHT, SURE_OF_WRONG = 0.9, 0.5


@dataclass
class ScriptedModel:
    """Knows what a step needs, and says it as often as it is right."""

    right: float
    draw: random.Random = field(default_factory=lambda: random.Random(5))
    needed: frozenset[str] = frozenset()
    tokens: list[float] = field(default_factory=list)
    among: list[int] = field(default_factory=list)

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        prompt = prompt_for(question.catalog, question.candidates, question.step, recent, MAX_PICKS)
        self.tokens.append((len(prompt.system) + len(prompt.user)) / 4)
        self.among.append(len(question.candidates))
        ids = tuple(id_ for id_ in question.candidates if id_ in self.needed)[:MAX_PICKS]
        share = SURE_OF_RIGHT
        if self.draw.random() >= self.right:
            others = [id_ for id_ in question.candidates if id_ not in self.needed]
            ids = (self.draw.choice(others),) if others else ids
            share = SURE_OF_WRONG
        use = ModelUse("scripted", "", "", sure=self.draw.random() < share)
        return Reply(answer=Answer(ids, "model", "model", "", model=use), model=use)

    async def warm_up(self) -> Readiness:
        return "ready"

    async def close(self) -> None:
        return


def rows_of(data: routing_data.LabelledSet, number: int | None) -> list[LabelledRow]:
    return [
        LabelledRow(
            goal=query.text[:8000] or "-",
            bundles=tuple(dict.fromkeys(plain(id_) for id_ in query.bundles)),
            group=query.run[:200],
            recent=tuple(
                tuple(plain(id_) for id_ in was.bundle_ids)
                for was in reversed(query.request.recent)
            ),
        )
        for query in routing_data.sample(data.queries, number)
    ]


async def measure(
    catalog: Catalog,
    rows: Sequence[LabelledRow],
    search: SearchSelector,
    model: ScriptedModel | None,
) -> list[tuple[RoutedRow, Decision]]:
    selector = StagedSelector(
        ("search", "model", "shortlist", "default"), search=search, model=model
    )
    found = []
    for row in rows:
        asked = decide(Plans(catalog), Facts(), Activation(), row.as_step())
        assert isinstance(asked, Question)
        if model is not None:
            model.needed = frozenset(row.bundles)
        reply = await selector.select(asked, row.as_request().recent)
        decision = conclude(asked, reply)
        found.append((judge_row(row, catalog, decision, 0.0), decision))
    return found


def said(value: Estimate) -> str:
    return (
        "–" if value.value is None else f"{value.value:.3f} ({value.low:.2f} to {value.high:.2f})"
    )


def report(name: str, data: routing_data.LabelledSet, number: int | None) -> None:
    catalog, rows = catalog_of(data, trusted=True), rows_of(data, number)
    search = SearchSelector(search_over, FakeDiagnostics())
    print(f"\n{name}: {len(rows)} steps, {len(catalog.bundles)} bundles")
    print(
        f"  {'model':14}{'right first':24}{'wrong':24}{'needed shown':24}{'asked':>7}{'tokens':>8}{'among':>7}"
    )
    for right in (None, *RIGHT):
        model = ScriptedModel(right) if right is not None else None
        routed = asyncio.run(measure(catalog, rows, search, model))
        found = figures_of(None, [row for row, _ in routed])
        label = "none" if right is None else "perfect" if right == 1.0 else f"right {right:.2f}"
        cells = f"{said(found.right):24}{said(found.wrong):24}{said(found.needed_shown):24}"
        if model is not None and model.tokens:
            cells += f"{found.asked / len(rows):7.3f}{statistics.median(model.tokens):8,.0f}"
            cells += f"{statistics.median(model.among):7.0f}"
        print(f"  {label:14}{cells}", flush=True)

    print(f"  {'beside':14}{'needed in reach':24}{'shown':>7}{'offered':>9}")
    for beside in BESIDE:
        set_so = with_beside(catalog, beside)
        routed = asyncio.run(measure(set_so, rows, search, ScriptedModel(0.85)))
        found = figures_of(None, [row for row, _ in routed])
        shown = statistics.mean(
            sum(chosen.mode is None for chosen in decision.bundles) for _, decision in routed
        )
        offered = statistics.mean(
            sum(chosen.mode is not None for chosen in decision.bundles) for _, decision in routed
        )
        print(f"  {beside:14}{said(found.needed_shown):24}{shown:7.2f}{offered:9.2f}", flush=True)


def with_beside(catalog: Catalog, beside: Beside) -> Catalog:
    model = replace(catalog.settings.model, names=("scripted",), beside=beside)
    return replace(catalog, settings=replace(catalog.settings, model=model))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=routing_data.folder())
    parser.add_argument("--sets", help="names of sets, with commas; default: all that are there")
    parser.add_argument("--queries", type=int, default=None)
    options = parser.parse_args(arguments)
    for name in routing_data.sets_in(options.data, options.sets):
        report(name, routing_data.load(options.data, name), options.queries)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
