"""Intervals by resampling runs.

The measures themselves are the product's (`bundle_router.review.evaluation`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence


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
