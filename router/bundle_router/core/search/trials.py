"""Measures how well past steps were ranked, and whether one way is better than another by more than
luck.

Rules:
1. The quality of a ranking is its nDCG@10: whether the needed ids come first, and whether all of
   them come early.
2. A gain must be more than luck: its mean over the steps is at least `MIN_GAIN`, and `MIN_SIGMAS`
   standard errors. The steps of a run count as one witness.
3. No single id decides: `least` is the smallest difference that remains when the steps of any one
   id are left out (of ids that at most half of the steps needed). It may not turn a gain into a
   loss. Of the candidates that gain, the most careful one is taken that is not clearly worse, by
   that measure, than the best. Otherwise somebody could play steps for one bundle, and so decide
   how much past steps count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DEPTH: Final = 10
MIN_GAIN: Final = 0.005
MIN_SIGMAS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Witness:
    """The step that a difference belongs to."""

    ids: frozenset[str]
    run: str


@dataclass(frozen=True, slots=True)
class Difference:
    """`mean` over steps, its standard error `sigma`, and the `least` mean without the steps of any
    one id.
    """

    mean: float
    sigma: float
    least: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate in the replay: mean quality, its gain over no memory (with a `pull` above 0:
    over the choice without recall), and the gain's standard error. `least`: the gain by rule 3.
    """

    trust: float
    quality: float
    gain: float
    sigma: float
    pull: float = 0.0
    least: float = 0.0

    @classmethod
    def of(cls, trust: float, after: Sequence[float], over: Difference, pull: float = 0.0) -> Trial:
        return cls(trust, mean(after), over.mean, over.sigma, pull, over.least)

    @property
    def pays(self) -> bool:
        return self.gain >= max(MIN_GAIN, MIN_SIGMAS * self.sigma) and self.least >= 0.0


def quality_of(scores: Mapping[str, float], ids: frozenset[str]) -> float:
    """Return the ranking's nDCG@10, equal scores by id."""
    return ndcg(
        [id_ for id_, _ in sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:DEPTH]],
        ids,
    )


def ndcg(ranked: Sequence[str], gold: Collection[str]) -> float:
    """Return the normalised discounted cumulative gain of the first ten, with all needed ids of
    equal value.
    """
    gain = math.fsum(
        1.0 / math.log2(rank + 2) for rank, id_ in enumerate(ranked[:DEPTH]) if id_ in gold
    )
    ideal = math.fsum(1.0 / math.log2(rank + 2) for rank in range(min(DEPTH, len({*gold}))))
    return gain / ideal if ideal > 0.0 else 0.0


def difference(
    after: Sequence[float], before: Sequence[float], steps: Sequence[Witness]
) -> Difference:
    """Return the difference between two rankings of the same steps, from their qualities."""
    number = len(steps)
    if not number:
        return Difference(0.0, 0.0, 0.0)
    differences = [a - b for a, b in zip(after, before, strict=True)]
    total = math.fsum(differences)
    by_run: dict[str, float] = {}
    by_id: dict[str, list[float]] = {}
    for step, one in zip(steps, differences, strict=True):
        by_run[step.run] = by_run.get(step.run, 0.0) + one - total / number
        for id_ in step.ids:
            by_id.setdefault(id_, []).append(one)
    spared = [
        (total - math.fsum(own)) / (number - len(own))
        for own in by_id.values()
        if len(own) * 2 <= number
    ]
    sigma = math.sqrt(math.fsum(value * value for value in by_run.values())) / number
    return Difference(total / number, sigma, min((total / number, *spared)))


def choose_trial(
    trials: Sequence[Trial], qualities: Sequence[Sequence[float]], steps: Sequence[Witness]
) -> Trial | None:
    """Choose a candidate (careful ones first) by the qualities of the steps; None if none gains."""
    paying = [index for index, trial in enumerate(trials) if trial.pays]
    if not paying:
        return None
    best = max(paying, key=lambda at: (trials[at].least, -at))
    for at in paying:
        loss = difference(qualities[best], qualities[at], steps)
        if loss.least <= loss.sigma:
            return trials[at]
    return trials[best]


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 for no values."""
    every = list(values)
    return math.fsum(every) / len(every) if every else 0.0
