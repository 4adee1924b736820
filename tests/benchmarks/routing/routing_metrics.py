"""Recall, nDCG, AUROC, and intervals by resampling runs."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Collection, Sequence


def recall(ranked: Sequence[str], gold: Collection[str], k: int) -> float:
    wanted = set(gold)
    return len(set(ranked[:k]) & wanted) / len(wanted) if wanted else 0.0


def ndcg(ranked: Sequence[str], gold: Collection[str], k: int = 10) -> float:
    wanted = set(gold)
    ideal = sum(1.0 / math.log2(rank + 2) for rank in range(min(k, len(wanted))))
    found = sum(1.0 / math.log2(rank + 2) for rank, id_ in enumerate(ranked[:k]) if id_ in wanted)
    return found / ideal if ideal else 0.0


def reciprocal_rank(ranked: Sequence[str], gold: Collection[str]) -> float:
    wanted = set(gold)
    return next((1.0 / rank for rank, id_ in enumerate(ranked, start=1) if id_ in wanted), 0.0)


def auroc(truths: Sequence[bool], scores: Sequence[float]) -> float:
    """Chance that a true one scores above a false one, ties counting half."""
    ordered = sorted(zip(scores, truths, strict=True))
    total, position, true = 0.0, 0, sum(truths)
    false = len(truths) - true
    while position < len(ordered):
        end = position
        while end < len(ordered) and ordered[end][0] == ordered[position][0]:
            end += 1
        middle = (position + end + 1) / 2.0
        total += middle * sum(truth for _, truth in ordered[position:end])
        position = end
    return (total - true * (true + 1) / 2.0) / (true * false) if true and false else 0.0


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def half_width(values: Sequence[float], runs: Sequence[str], *, rounds: int = 300) -> float:
    """Half the 95 % interval of the mean, whole runs resampled with a fixed seed."""
    by_run: dict[str, list[float]] = defaultdict(list)
    for value, run in zip(values, runs, strict=True):
        by_run[run].append(value)
    groups = [(sum(group), len(group)) for _, group in sorted(by_run.items())]
    if len(groups) < 2:
        return 0.0
    source = random.Random(11)
    means = []
    for _ in range(rounds):
        drawn = source.choices(groups, k=len(groups))
        means.append(sum(total for total, _ in drawn) / sum(number for _, number in drawn))
    means.sort()
    return (means[int(rounds * 0.975) - 1] - means[int(rounds * 0.025)]) / 2.0
