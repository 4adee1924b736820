"""Calibrates search's confidence: the probability that the best-ranked bundle is right, fitted on
past steps.

Rules:
1. A row is a labelled step, ranked today with what other runs taught. It is true if its best bundle
   is a needed one.
2. One run weighs at most `RUN_WEIGHT` rows, in the fit and in the count that has to reach
   `MIN_LABELS`.
3. Every judged probability comes from a fit on other runs. `judge` itself is asked what it would
   settle.
4. A calibration is proposed only if the decisions it settles are wrong no more often than its
   thresholds allow: reading 0.90, writing 0.97 (or as `[search]` says), executing never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from bundle_router.core.catalog import MIN_LABELS, Calibration, Catalog
from bundle_router.core.search.learned_values import calibration_version
from bundle_router.core.search.memory import Memory, bound_labels
from bundle_router.core.search.ranking import Ranking, Search
from bundle_router.core.search.sufficiency import features_of, judge
from bundle_router.core.values.evidence import fit_logistic
from bundle_router.review.evaluation import auroc
from bundle_router.review.learning.fitting import base_scores, relearn
from bundle_router.review.learning.labels import LabelledStep

FEATURES: Final = (
    "matched",
    "distinct",
    "clear",
    "agreement",
    "remembered",
    "likeness",
    "strength",
    "coverage",
    "margin",
    "entropy",
)
"""What a deployment's own labels weigh: what `SHIPPED` weighs, what only a deployment has (memory,
an embedder), and the factors of the products. The factors tell right from wrong on the catalog that
they were fitted on, above all beside a memory, which changes the scores that they are computed
from. On other catalogs the products alone do better.
"""
FOLDS: Final = 5
RUN_WEIGHT: Final = 5.0
MIN_WRONG: Final = 10
"""Minimum rows with a wrong best bundle for a fit: right ones alone do not show what a wrong one
looks like.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A step as input of the fit."""

    step: LabelledStep
    ranking: Ranking
    right: bool
    weight: float


@dataclass(frozen=True, slots=True)
class SettledShare:
    """How search would settle some steps by itself: with one bundle, and how many of these are
    wrong; with a union, and how many of these lack every needed bundle.
    """

    steps: int = 0
    enough: int = 0
    wrong: int = 0
    unions: int = 0
    unions_wrong: int = 0

    @property
    def share(self) -> float:
        return self.enough / self.steps if self.steps else 0.0

    @property
    def error(self) -> float:
        return self.wrong / self.enough if self.enough else 0.0


@dataclass(frozen=True, slots=True)
class CalibrationFit:
    """`calibration` is None if none is proposed; `why` says so in words.

    `labels` counts rows by rule 2, `missing` those that are lacking; without `enough` rows, the
    present values stay in force. `before` is measured with those, `after` with the calibration,
    both on steps it has not seen; `by_effect` splits `after` by the best bundle's effects. `auroc`:
    how well the probability tells right from wrong.
    """

    calibration: Calibration | None
    why: str
    labels: int
    missing: int
    enough: bool = False
    before: SettledShare = SettledShare()
    after: SettledShare = SettledShare()
    by_effect: tuple[tuple[str, SettledShare], ...] = ()
    auroc: float | None = None


def calibrate(
    steps: Sequence[LabelledStep], search: Search, memory: Memory | None, catalog: Catalog
) -> CalibrationFit:
    """Fit the probability that the best bundle is right.

    `memory`: the one to be in force beside it.
    """
    labels = int(sum(_weights(steps)))
    rows = _rows(steps, search, memory) if labels >= MIN_LABELS else []
    labels = int(sum(row.weight for row in rows)) if rows else labels
    missing = max(0, MIN_LABELS - labels)
    if missing:
        return CalibrationFit(
            None, f"{missing} more labels are needed ({labels} of {MIN_LABELS})", labels, missing
        )
    wrong = sum(not row.right for row in rows)
    if wrong < MIN_WRONG:
        reason = (
            f"search was wrong {wrong} times, too seldom to learn what that looks like ({MIN_WRONG}"
            " are needed)"
        )
        return CalibrationFit(None, reason, labels, 0)
    old_share = _settled_share(rows, [catalog] * len(rows))
    folds = [
        _with_calibration(catalog, fit_rows([row for row in rows if _fold(row) != fold]))
        for fold in range(FOLDS)
    ]
    under = [folds[_fold(row)] for row in rows]
    new_share = _settled_share(rows, under)
    by_effect = tuple(
        (effect, _settled_share(*_only(rows, under, catalog, writes=effect == "write")))
        for effect in ("read", "write")
    )
    area = auroc(
        [row.right for row in rows],
        [_probability(row, c) for row, c in zip(rows, under, strict=True)],
    )
    fitted = CalibrationFit(
        fit_rows(rows), "", labels, 0, True, old_share, new_share, by_effect, area
    )
    for effect, settled in by_effect:
        allowed = 1.0 - _threshold(catalog, effect)
        if settled.error > allowed:
            reason = (
                f"of what it would settle for bundles that {effect}, {settled.error:.1%} are wrong,"
                f" over {allowed:.1%}"
            )
            return replace(fitted, calibration=None, why=reason)
    reason = (
        f"settles {new_share.share:.0%} of the steps ({old_share.share:.0%} now),"
        f" {new_share.error:.1%} of them wrong"
    )
    return replace(fitted, why=reason)


def fit_rows(rows: Sequence[Row]) -> Calibration:
    """Return the logistic of the rows. Its version is the digest of its numbers."""
    logistic = fit_logistic(
        [features_of(row.ranking.evidence) for row in rows],
        [row.right for row in rows],
        FEATURES,
        weights=[row.weight for row in rows],
    )
    weights = tuple(sorted(logistic.weights))
    labels = int(sum(row.weight for row in rows))
    return Calibration(
        calibration_version(logistic.bias, weights, labels), labels, logistic.bias, weights
    )


def _rows(steps: Sequence[LabelledStep], search: Search, memory: Memory | None) -> list[Row]:
    """Return the steps ranked with what other folds' runs taught, but those whose best bundle is
    over its quota.
    """
    memories = _fold_memories(steps, search, memory)
    rows = []
    for step, weight in zip(steps, _weights(steps), strict=True):
        with_ = memories[fold_of(step.past.run_id)]
        ranking = search.rank_bundles(step.past.request, step.permitted, with_)
        first = ranking.scored[0].id if ranking.scored else ""
        if first not in step.neutral:
            rows.append(Row(step, ranking, first in step.counted, weight))
    return rows


def _fold_memories(
    steps: Sequence[LabelledStep], search: Search, memory: Memory | None
) -> list[Memory | None]:
    if memory is None:
        return [None] * FOLDS
    base = base_scores(steps, search)
    labels = bound_labels([step.label for step in steps])
    memories = []
    for fold in range(FOLDS):
        rest = [label for label in labels if fold_of(label.run) != fold]
        memories.append(relearn(memory, rest, search, base))
    return list(memories)


def _weights(steps: Sequence[LabelledStep]) -> list[float]:
    number = Counter(step.past.run_id for step in steps)
    return [min(1.0, RUN_WEIGHT / number[step.past.run_id]) for step in steps]


def _settled_share(rows: Sequence[Row], under: Sequence[Catalog]) -> SettledShare:
    enough = wrong = unions = unions_wrong = 0
    for row, catalog in zip(rows, under, strict=True):
        judgement = judge(catalog, row.step.past.step, row.ranking)
        helped = any(id_ in row.step.needed for id_ in judgement.ids)
        if judgement.use.verdict == "enough":
            enough = enough + 1
            wrong = wrong + (not helped)
        elif judgement.use.verdict == "union":
            unions = unions + 1
            unions_wrong = unions_wrong + (not helped)
    return SettledShare(len(rows), enough, wrong, unions, unions_wrong)


def _only(
    rows: Sequence[Row], under: Sequence[Catalog], catalog: Catalog, *, writes: bool
) -> tuple[list[Row], list[Catalog]]:
    """Return the rows whose best bundle writes, or those where it does not."""
    pairs = [
        (row, one)
        for row, one in zip(rows, under, strict=True)
        if row.ranking.scored
        and ("write" in catalog.bundles[row.ranking.scored[0].id].effects) == writes
    ]
    return [row for row, _ in pairs], [one for _, one in pairs]


def _probability(row: Row, under: Catalog) -> float:
    probability = judge(under, row.step.past.step, row.ranking).use.probability
    return 0.0 if probability is None else probability


def _threshold(catalog: Catalog, effect: str) -> float:
    search = catalog.settings.search
    if effect == "write":
        return search.write_threshold
    return search.read_threshold


def _with_calibration(catalog: Catalog, calibration: Calibration) -> Catalog:
    """Return the catalog with this calibration in force, even if a fold has fewer labels than a
    proposal needs.
    """
    settings = catalog.settings
    full = replace(calibration, labels=max(calibration.labels, MIN_LABELS))
    return replace(
        catalog, settings=replace(settings, search=replace(settings.search, calibration=full))
    )


def _fold(row: Row) -> int:
    return fold_of(row.step.past.run_id)


def fold_of(run_id: str) -> int:
    """Return a run's fold, from its id."""
    return sha256(b"calibration\0" + run_id.encode()).digest()[0] % FOLDS
