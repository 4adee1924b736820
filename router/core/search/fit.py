"""Fits a memory by replaying a deployment's own past steps, and switches it on only where that replay gains.

Rules:
1. Replay is leave-run-out: a step is ranked with what was learned from other runs only.
2. "No memory" is one of the candidates, so the chosen one never replays worse than none.
3. A gain must be more than luck: its mean over the steps at least `MIN_GAIN`, and `MIN_SIGMAS` standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from router.core.search.memory import Example, Label, Memory, bounded, learn, make_examples
from router.core.search.text import Analyzer

TRUSTS: Final = (0.35, 0.6, 1.0, 2.0, 4.0)
FOLDS: Final = 4
MIN_GAIN: Final = 0.005
MIN_SIGMAS: Final = 1.0
MIN_LABELS: Final = 20
MAX_REPLAYED: Final = 1_200
"""Steps that are replayed to choose `trust`; the memory itself learns from all of them."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate in the replay: mean quality (half reciprocal rank, half right-at-first), and its gain over none."""

    trust: float
    quality: float
    gain: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What replay said. `memory` is None where none gained; `before` and `after` are the replayed quality."""

    memory: Memory | None
    before: float
    after: float
    trials: tuple[Trial, ...]
    labels: int


def fit_memory(
    labels: Sequence[Label],
    analyzer: Analyzer,
    base: Callable[[Label], Mapping[str, float]],
    *,
    trusts: Sequence[float] = TRUSTS,
) -> Fit:
    """Learns from `labels`; `base` gives the scores search alone gave the permitted ids of a label (best is 1)."""
    kept = bounded(labels)
    examples, rarity = make_examples(kept, analyzer, base)
    replayed = examples[:MAX_REPLAYED]
    none = [quality_of(example.base, example.ids) for example in replayed]
    before = _mean(none)
    if len(replayed) < MIN_LABELS or len({example.run for example in replayed}) < FOLDS:
        return Fit(None, before, before, (), len(kept))
    replays = {trust: _replay(replayed, rarity, trust) for trust in sorted(trusts)}
    runs = [example.run for example in replayed]
    trials = tuple(Trial(trust, _mean(got), *_gain(got, none, runs)) for trust, got in replays.items())
    best = max(trials, key=lambda trial: (trial.quality, trial.trust))
    for trial in reversed(trials):  # the most trusting of the texts that is not clearly worse than the best
        loss, sigma = _gain(replays[best.trust], replays[trial.trust], runs)
        if loss <= sigma:
            best = trial
            break
    if best.gain < MIN_GAIN or best.gain < MIN_SIGMAS * best.sigma:
        return Fit(None, before, before, trials, len(kept))
    return Fit(learn(examples, rarity, trust=best.trust), before, best.quality, trials, len(kept))


def quality_of(scores: Mapping[str, float], ids: frozenset[str]) -> float:
    """Of one ranking: half the reciprocal rank of the first right id, half whether it stands first."""
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    for rank, (id_, _) in enumerate(ranked, start=1):
        if id_ in ids:
            return 0.5 / rank + (0.5 if rank == 1 else 0.0)
    return 0.0


def _replay(examples: Sequence[Example], rarity: Mapping[str, float], trust: float) -> list[float]:
    """The quality of every step, ranked with what was learned from other runs."""
    qualities = [0.0] * len(examples)
    for fold in range(FOLDS):
        memory = learn([example for example in examples if _fold(example.run) != fold], rarity, trust=trust)
        for i, example in enumerate(examples):
            if _fold(example.run) == fold:
                qualities[i] = quality_of(memory.add_to(example.base, example.features), example.ids)
    return qualities


def _gain(after: Sequence[float], before: Sequence[float], runs: Sequence[str]) -> tuple[float, float]:
    """The mean difference, and its standard error with the steps of a run taken together."""
    differences = [a - b for a, b in zip(after, before, strict=True)]
    mean = _mean(differences)
    by_run: dict[str, float] = {}
    for run, difference in zip(runs, differences, strict=True):
        by_run[run] = by_run.get(run, 0.0) + difference - mean
    return mean, math.sqrt(sum(value * value for value in by_run.values())) / max(len(differences), 1)


def _fold(run: str) -> int:
    return sha256(run.encode("utf-8", "surrogatepass")).digest()[0] % FOLDS


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
