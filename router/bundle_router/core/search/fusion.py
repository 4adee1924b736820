"""Arithmetic of scores: relative, blended and added. Scores are kept, never only ranks (see `ranking`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from bundle_router.core.search.memory import NO_VOTES, Memory

LEAST: Final = 1e-6
"""Share of its score that an id keeps at least, if memory speaks against it."""


@dataclass(frozen=True, slots=True)
class ScoredId:
    """One ranked id. `score` is comparable within one ranking, not between two. `own` is a tool's own match relative to
    the best one's (1), without its bundle's share; of a bundle 1."""

    id: str
    score: float
    own: float = 1.0


def with_memory(
    scores: Mapping[str, float],
    memory: Memory | None,
    features: Mapping[str, float],
    permitted: frozenset[str],
    votes: Mapping[str, float] = NO_VOTES,
) -> dict[str, float]:
    """Return the scores of permitted ids plus memory's. Memory can lower an id, but never remove it."""
    base = best_is_one(scores)
    if memory is None:
        return base
    fused = memory.add_to(base, features, votes)
    return {id_: max(score, LEAST * base.get(id_, 0.0)) for id_, score in fused.items() if id_ in permitted}


def best_is_one(scores: Mapping[str, float], best: int | None = None) -> dict[str, float]:
    top = max(scores.values(), default=0.0)
    if top <= 0.0:
        return {}
    if best is not None and len(scores) > best:
        scores = dict(sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:best])
    return {id_: score / top for id_, score in scores.items()}


def add_up(parts: Iterable[tuple[Mapping[str, float], float]], power: float) -> dict[str, float]:
    """Return the sum over clauses of strength × score ** power, relative to the best."""
    total: dict[str, float] = {}
    for scores, strength in parts:
        for id_, score in scores.items():
            total[id_] = total.get(id_, 0.0) + strength * score**power
    return best_is_one(total)


def blend(first: Mapping[str, float], second: Mapping[str, float], share: float) -> dict[str, float]:
    total, rest = {id_: share * score for id_, score in first.items()}, 1.0 - share
    for id_, score in second.items():
        total[id_] = total.get(id_, 0.0) + rest * score
    return total


def order(scores: Mapping[str, float], k: int | None = None) -> list[ScoredId]:
    """Return the best `k`, equal scores by id. Ids without a score above zero are left out."""
    least = 0.0
    if k is not None and len(scores) > k > 0:
        least = sorted(scores.values())[-k] - 2e-9  # rounding, the costliest part, moves no score further than that
    ranked = sorted((-round(score, 9), id_) for id_, score in scores.items() if score >= least)
    return [ScoredId(id_, -negative) for negative, id_ in ranked[:k] if negative < 0.0]
