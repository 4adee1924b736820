"""Measures of routing on labelled steps, and the labelled sets. Pure: times are passed in.

    {"goal": "open a bug for the crash", "bundles": ["issues.tracker"],
     "tools": ["issues.create_issue"],
     "workflow": "bugfix", "role": "implementer", "step": "report", "group": "run-7"}

Rules:
1. A row's `bundles` are the needed ones; an empty list says that nothing fits. `query` is another
   name of `goal`.
2. A row with workflow, role and step is judged under policy, like a step of that address. For a row
   without them, every selectable bundle in use is ranked: then only search is measured.
3. Rankings are measured on rows that need something; abstention on those against rows that need
   nothing.
4. The rows of a mean have equal weights. Rows of a `group` belong together: keep them on one side
   of a split.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import AliasChoices, Field, ValidationError

from bundle_router.core.catalog import Catalog
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.search.ranking import NO_MEMORIES, Memories, Search
from bundle_router.core.search.request import Request
from bundle_router.core.search.sufficiency import Judgement, judge
from bundle_router.core.search.trials import mean, ndcg
from bundle_router.core.values import (
    MAX_GOAL,
    MAX_ITEMS,
    Activation,
    Decision,
    Facts,
    Frozen,
    RecentStep,
    Step,
)
from bundle_router.core.values.evidence import Evidence

NOWHERE: Final = "-"
"""Workflow, role and step of a row without them."""
MAX_ROWS: Final = 200_000


# --- measures -------------------------------------------------------------------------------------


def recall(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    """Return the share of needed ids among the first `k`; 0 if nothing is needed."""
    needed_ids = set(gold)
    if not needed_ids:
        return 0.0
    return len(set(ranked[:k]) & needed_ids) / len(needed_ids)


def reciprocal_rank(ranked: Sequence[str], gold: Collection[str]) -> float:
    """Return one over the rank of the first needed id; 0 if none is ranked."""
    return next((1.0 / rank for rank, id_ in enumerate(ranked, start=1) if id_ in gold), 0.0)


def auroc(truths: Sequence[bool], scores: Sequence[float]) -> float | None:
    """Return the probability that a true one scores above a false one, ties counting half.

    None if all are alike.
    """
    true = sum(truths)
    false = len(truths) - true
    if not true or not false:
        return None
    ordered = sorted(zip(scores, truths, strict=True))
    total = 0.0
    position = 0
    while position < len(ordered):
        end = position
        while end < len(ordered) and ordered[end][0] == ordered[position][0]:
            end += 1
        total += (position + end + 1) / 2.0 * sum(truth for _, truth in ordered[position:end])
        position = end
    return (total - true * (true + 1) / 2.0) / (true * false)


def error_at(share: float, right: Sequence[bool], confidence: Sequence[float]) -> float | None:
    """Return the share of errors among the most confident `share` of all.

    Ties at the border count by their mean, so that the order of rows does not matter. None if there
    are no such rows.
    """
    number = round(share * len(right))
    if number == 0:
        return None
    by_confidence: dict[float, list[bool]] = {}
    for truth, sure in zip(right, confidence, strict=True):
        by_confidence.setdefault(sure, []).append(truth)
    wrong = 0.0
    room = number
    for sure in sorted(by_confidence, reverse=True):
        tied = by_confidence[sure]
        counted = min(room, len(tied))
        wrong += tied.count(False) / len(tied) * counted
        room -= counted
    return wrong / number


# --- labelled sets --------------------------------------------------------------------------------


class LabelledRow(Frozen):
    """One line of a labelled set."""

    goal: str = Field(max_length=MAX_GOAL, validation_alias=AliasChoices("goal", "query"))
    bundles: tuple[str, ...] = Field(max_length=MAX_ITEMS)
    tools: tuple[str, ...] = Field(default=(), max_length=1_000)
    constraints: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    recent: tuple[tuple[str, ...], ...] = Field(default=(), max_length=MAX_ITEMS)
    """Bundles of the run's earlier steps, oldest first."""
    workflow: str | None = Field(default=None, min_length=1, max_length=200)
    role: str | None = Field(default=None, min_length=1, max_length=200)
    step: str | None = Field(default=None, min_length=1, max_length=200)
    capabilities: tuple[str, ...] = Field(default=(), max_length=MAX_ITEMS)
    """Present capabilities (`env:X`, `binary:y`), as in case files."""
    group: str = Field(default="", max_length=200)
    id: str = Field(default="", max_length=200)

    @property
    def is_placed(self) -> bool:
        return None not in (self.workflow, self.role, self.step)

    def as_step(self) -> Step:
        workflow = self.workflow or NOWHERE
        role = self.role or NOWHERE
        step = self.step or NOWHERE
        return Step(
            run_id="eval",
            workflow=workflow,
            role=role,
            step=step,
            goal=self.goal,
            constraints=self.constraints,
        )

    def as_request(self) -> Request:
        recent = tuple(RecentStep("", "", "", bundles) for bundles in reversed(self.recent))
        if self.is_placed:
            return Request.of(self.as_step(), recent)
        return Request(self.goal, "\n".join(self.constraints), recent)


def read_labelled(text: str) -> tuple[LabelledRow, ...]:
    """Return the rows of a labelled set (JSON Lines, blanks ignored).

    Raises ValueError, which names the line.
    """
    rows: list[LabelledRow] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if len(rows) == MAX_ROWS:
            raise ValueError(f"line {number}: more than {MAX_ROWS:,} rows")
        try:
            rows.append(LabelledRow.model_validate(json.loads(line)))
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_context=False)[0]
            raise ValueError(
                f"line {number}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from None
        except (ValueError, RecursionError) as wrong:
            raise ValueError(f"line {number}: not JSON: {wrong}") from None
    return tuple(rows)


def unknown_ids(rows: Iterable[LabelledRow], catalog: Catalog) -> tuple[str, ...]:
    """Return needed bundles that the catalog does not have: the set can't be measured on it."""
    return tuple(
        sorted({id_ for row in rows for id_ in row.bundles if catalog.bundle(id_) is None})
    )


# --- one row --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankedRow:
    """The result of one row.

    `settled`: `mapping`, or search's verdict. `shown`: bundles shown without a search by the agent;
    `tokens` of them. `confidence` is search's probability if there is a calibration, else its
    margin.
    """

    row: LabelledRow
    gold: frozenset[str]
    bundles: tuple[str, ...]
    tools: tuple[str, ...]
    settled: str
    shown: tuple[str, ...]
    tokens: int
    confidence: float
    evidence: Evidence
    unpickable: tuple[str, ...] = ()
    """Needed bundles that search may not pick here: they are never ranked, and count as not
    found.
    """


def rank_row(
    row: LabelledRow, catalog: Catalog, search: Search, memories: Memories = NO_MEMORIES
) -> RankedRow:
    """Rank and judge one row under the catalog."""
    facts = Facts(capabilities=frozenset(row.capabilities))
    step = row.as_step()
    request = row.as_request()
    plans = Plans(catalog)
    permitted = _permitted_ids(row, step, plans, facts)
    ranking = search.rank_bundles(request, permitted, memories.bundles)
    judgement = judge(catalog, step, ranking)
    wanted_tools = frozenset(
        tool for id_ in permitted for tool in search.corpus.members.get(id_, ())
    )
    # As for agents' searches: by a query alone, without its step (see `ToolSearch`).
    if row.tools:
        tools = search.rank_tools(Request(request.text), wanted_tools, memories, k=10)
    else:
        tools = ()
    settled, shown_ids, tokens = _settle_row(row, step, plans, facts, judgement)
    use = judgement.use
    gold = frozenset(
        bundle.id for id_ in row.bundles if (bundle := catalog.bundle(id_)) is not None
    )
    return RankedRow(
        row=row,
        gold=gold,
        bundles=tuple(scored.id for scored in ranking.scored),
        tools=tuple(scored.id for scored in tools),
        settled=settled,
        shown=shown_ids,
        tokens=tokens,
        confidence=use.probability or 0.0,
        evidence=ranking.evidence,
        unpickable=tuple(sorted(gold - permitted)),
    )


def _permitted_ids(row: LabelledRow, step: Step, plans: Plans, facts: Facts) -> frozenset[str]:
    if row.is_placed:
        return frozenset(plans.of(step, ()).verdicts.candidates(facts, None, ()).ids)
    return frozenset(
        b.id for b in plans.catalog.bundles.values() if b.enabled and b.selectable and not b.always
    )


def _settle_row(
    row: LabelledRow, step: Step, plans: Plans, facts: Facts, judged: Judgement
) -> tuple[str, tuple[str, ...], int]:
    catalog = plans.catalog
    judgement = judged
    if row.is_placed:
        outcome = decide(plans, facts, Activation(), step)
        if isinstance(outcome, Decision):
            return outcome.source, tuple(outcome.reachable_ids), outcome.exposure.tokens
        judgement = _judge_within(judged, outcome)

    tools = {tool for id_ in judgement.ids for tool in catalog.bundles[id_].tools}
    cards = [catalog.cards[tool] for tool in sorted(tools) if tool in catalog.cards]
    tokens = sum(card.tokens for card in cards)
    return judgement.use.verdict, judgement.ids, tokens


def _judge_within(judged: Judgement, question: Question) -> Judgement:
    """Return the judgement restricted to the question's own candidates."""
    candidates = frozenset(question.candidates)
    return Judgement(judged.use, tuple(id_ for id_ in judged.ids if id_ in candidates))


# --- a whole set ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of a set.

    None: not measurable on it (no row of the kind). Shares and errors are in 0..1.
    """

    rows: int
    """Rows that need something."""
    abstain: int
    """Rows that need nothing."""
    groups: int
    """Groups of the rows; one without a group is its own."""
    recall: tuple[tuple[int, float], ...]
    """For each k, the share of what is needed among the first k bundles: the mean of the rows that
    need something.
    """
    bundle_ndcg: float | None
    """nDCG of the ranking of bundles, over rows that need something."""
    tool_ndcg: float | None
    """nDCG of the ranking of tools, over rows that name tools."""
    mrr: float | None
    """Mean reciprocal rank of the first needed bundle."""
    abstention: float | None
    """How well relevance tells rows that need something from the others: area under the curve."""
    settled: tuple[tuple[str, int], ...]
    """Rows by what settled them."""
    served: float | None
    """Of the rows that need something, the share that is shown all of it unasked, whatever settled
    them.
    """
    shown_unasked: float
    """The share of all rows for which search showed bundles by itself."""
    wrong_unasked: float | None
    """Of these, the share without what was needed."""
    errors: tuple[tuple[float, float | None], ...]
    """For each share, the error if the most confident share of rows were answered by the first
    bundle.
    """
    tokens: float
    """Tokens of the bundles that a row is shown unasked: the mean."""
    all_tokens: int
    """Tokens of the whole catalog."""
    ms: float
    """Milliseconds of a row: the median."""
    unpickable: tuple[str, ...] = ()
    """Needed bundles that search may not pick: not selectable, or not permitted at that row."""


def measure(
    ranked: Sequence[RankedRow],
    elapsed_ms: Sequence[float],
    catalog: Catalog,
    *,
    ks: Sequence[int] = (1, 3, 5),
    shares: Sequence[float] = (0.5, 0.8),
) -> Measures:
    """Return the figures of a set from its rows' results and times."""
    needing = [item for item in ranked if item.row.bundles]
    unasked = [item for item in ranked if item.settled in ("enough", "union")]
    bundle_ndcg, tool_ndcg, mrr = _ranking_figures(needing)

    groups = {item.row.group or f"\0{number}" for number, item in enumerate(ranked)}
    verdicts = Counter(item.settled for item in ranked)
    needs_any = [bool(item.row.bundles) for item in ranked]
    relevances = [item.evidence.relevance for item in ranked]

    unpickable: set[str] = set()
    for item in ranked:
        unpickable.update(item.unpickable)
    shown_unasked = 0.0
    if ranked:
        shown_unasked = len(unasked) / len(ranked)
    median_ms = 0.0
    if elapsed_ms:
        median_ms = statistics.median(elapsed_ms)

    return Measures(
        rows=len(needing),
        abstain=len(ranked) - len(needing),
        groups=len(groups),
        recall=tuple((k, _mean_recall(needing, k)) for k in ks),
        bundle_ndcg=bundle_ndcg,
        tool_ndcg=tool_ndcg,
        mrr=mrr,
        abstention=auroc(needs_any, relevances),
        settled=tuple(sorted(verdicts.items())),
        served=_mean_or_none([_is_served(item) for item in needing]),
        shown_unasked=shown_unasked,
        wrong_unasked=_mean_or_none([item.gold.isdisjoint(item.shown) for item in unasked]),
        errors=_errors_at(ranked, shares),
        tokens=mean(item.tokens for item in ranked),
        all_tokens=sum(card.tokens for card in catalog.cards.values()),
        ms=median_ms,
        unpickable=tuple(sorted(unpickable)),
    )


def _ranking_figures(
    needing: Sequence[RankedRow],
) -> tuple[float | None, float | None, float | None]:
    """Return how well search ranks: nDCG of bundles, nDCG of tools, mean reciprocal rank."""
    with_tools = [item for item in needing if item.row.tools]
    bundle_ndcg = _mean_or_none([ndcg(item.bundles, item.gold) for item in needing])
    tool_ndcg = _mean_or_none([ndcg(item.tools, item.row.tools) for item in with_tools])
    mrr = _mean_or_none([reciprocal_rank(item.bundles, item.gold) for item in needing])
    return bundle_ndcg, tool_ndcg, mrr


def _mean_or_none(figures: Sequence[float]) -> float | None:
    return mean(figures) if figures else None


def _mean_recall(rows: Sequence[RankedRow], k: int) -> float:
    return mean(recall(item.bundles, item.gold, k) for item in rows)


def _is_served(item: RankedRow) -> bool:
    return bool(item.gold) and item.gold <= {*item.shown}


def _errors_at(
    ranked: Sequence[RankedRow], shares: Sequence[float]
) -> tuple[tuple[float, float | None], ...]:
    right = [item.bundles[:1] != () and item.bundles[0] in item.gold for item in ranked]
    confidences = [item.confidence for item in ranked]
    return tuple((share, error_at(share, right, confidences)) for share in shares)
