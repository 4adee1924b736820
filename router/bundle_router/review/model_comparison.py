"""Compares models on labelled steps: each step is really routed with every model and without one.

Rules:
1. A step is right if the first decided bundle (by a route, search or the model) is a needed one, or
   if it needs nothing and nothing was decided; wrong if the first is another; abstained if it needs
   something and nothing was decided. A shortlist decides nothing.
2. Needed shown: all needed bundles are shown or offered behind search.
3. Intervals are 95 %, and the rows of a `group` count as one. Those of shares are Wilson's.
4. Tokens, cost and time are of questions that were asked now. An answer from an earlier run costs
   nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from bundle_router.core.catalog import Catalog, Policy
from bundle_router.core.values import Decision, Reason
from bundle_router.review.evaluation import LabelledRow

Z: Final = 1.959964
DECIDED: Final[frozenset[Reason]] = frozenset(
    ("mapped", "search", "union", "model", "model_cached")
)
Outcome = Literal["right", "wrong", "abstained"]


@dataclass(frozen=True, slots=True)
class RoutedRow:
    """The result of one labelled step.

    `needed_shown` is None if it needs nothing, `failure` is the model's.
    """

    group: str
    outcome: Outcome
    needed_shown: bool | None
    asked: bool = False
    cached: bool = False
    failure: str | None = None
    tokens: int = 0
    cost_usd: float = 0.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval. Without rows all three are None."""

    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """The figures of one model, or of none."""

    model: str | None
    """Its name; None: no model was asked."""
    rows: int
    """Labelled rows that were routed."""
    right: Estimate
    """Share of the rows whose first decided bundle is needed, or that need none and got none."""
    wrong: Estimate
    """Share of the rows whose first decided bundle is not needed."""
    abstained: Estimate
    """Share of the rows that need bundles, for which none was decided."""
    needed_shown: Estimate
    """Of the rows that need bundles, the share that may reach all of them."""
    asked: int
    """Rows for which the model was asked."""
    cached: int
    """How many of these had an answer that was stored before."""
    failures: tuple[tuple[str, int], ...]
    """How often each kind of failure ended a question, in the order of the kinds' names."""
    tokens: Estimate
    """Tokens of one question asked now, in and out."""
    cost_usd: Estimate
    """US dollars that one question asked now costs."""
    ms: Estimate
    """Milliseconds of a step with one question asked now: the median."""
    spent_usd: float
    """US dollars of all questions asked now."""


def catalog_for(row: LabelledRow, catalog: Catalog) -> Catalog:
    """Return the catalog that routes a row.

    A row without an address matches no route, and may use every bundle.
    """
    if row.is_placed:
        return catalog
    return replace(catalog, routes=(), policies=(Policy("eval", allow=("*",)),))


def judge_row(row: LabelledRow, catalog: Catalog, decision: Decision, ms: float) -> RoutedRow:
    """Judge the decision for a row."""
    needed = frozenset(_present_id(catalog, id_) for id_ in row.bundles)
    decided = [choice.id for choice in decision.bundles if choice.reason in DECIDED]
    outcome: Outcome = "right"
    if decided and decided[0] not in needed:
        outcome = "wrong"
    elif needed and not decided:
        outcome = "abstained"
    needed_shown = needed <= {*decision.reachable_ids} if needed else None

    use = decision.model
    if use is None:
        return RoutedRow(row.group, outcome, needed_shown)
    tokens = use.input_tokens + use.output_tokens
    return RoutedRow(
        row.group, outcome, needed_shown, True, use.cached, use.failure, tokens, use.cost_usd, ms
    )


def _present_id(catalog: Catalog, id_: str) -> str:
    """Return the present id of a bundle that a label may call by an older one."""
    bundle = catalog.bundle(id_)
    return id_ if bundle is None else bundle.id


def figures_of(model: str | None, rows: Sequence[RoutedRow]) -> ModelFigures:
    """Return the figures of one model over the rows that were routed with it."""
    needing = [row for row in rows if row.needed_shown is not None]
    questioned = [row for row in rows if row.asked]
    fresh = [row for row in questioned if not row.cached]
    failures = Counter(row.failure for row in questioned if row.failure is not None)

    def share_with(outcome: Outcome) -> Estimate:
        return share(rows, lambda row: row.outcome == outcome)

    return ModelFigures(
        model=model,
        rows=len(rows),
        right=share_with("right"),
        wrong=share_with("wrong"),
        abstained=share_with("abstained"),
        needed_shown=share(needing, lambda row: bool(row.needed_shown)),
        asked=len(questioned),
        cached=len(questioned) - len(fresh),
        failures=tuple(sorted(failures.items())),
        tokens=average(fresh, lambda row: row.tokens),
        cost_usd=average(fresh, lambda row: row.cost_usd),
        ms=middle([row.ms for row in fresh]),
        spent_usd=math.fsum(row.cost_usd for row in fresh),
    )


def share(rows: Sequence[RoutedRow], holds: Callable[[RoutedRow], bool]) -> Estimate:
    """Return the share of the rows for which `holds` is true, with Wilson's interval for as many
    witnesses as there are groups.
    """
    if not rows:
        return Estimate()
    p = sum(map(holds, rows)) / len(rows)
    n = len({*_groups(rows)})
    centre = p + Z * Z / (2 * n)
    half = Z * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    low, high = ((centre + side * half) / (1 + Z * Z / n) for side in (-1, 1))
    return Estimate(p, max(0.0, min(p, low)), min(1.0, max(p, high)))


def average(rows: Sequence[RoutedRow], value: Callable[[RoutedRow], float]) -> Estimate:
    """Return the mean over the rows, with an interval from the deviations of whole groups."""
    if not rows:
        return Estimate()
    mean = math.fsum(map(value, rows)) / len(rows)
    off: dict[str, float] = {}
    for row, group in zip(rows, _groups(rows), strict=True):
        off[group] = off.get(group, 0.0) + value(row) - mean
    half = Z * math.sqrt(math.fsum(one * one for one in off.values())) / len(rows)
    return Estimate(mean, max(0.0, mean - half), mean + half)


def middle(values: Iterable[float]) -> Estimate:
    """Return the median, with its interval from order statistics."""
    ordered = sorted(values)
    if not ordered:
        return Estimate()
    n = len(ordered)
    reach = Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(n / 2 - reach))
    high = min(n - 1, math.ceil(n / 2 + reach))
    return Estimate(statistics.median(ordered), ordered[low], ordered[high])


def _groups(rows: Sequence[RoutedRow]) -> list[str]:
    return [row.group or f"\0{at}" for at, row in enumerate(rows)]
