"""The features of a ranking of bundles, by which others judge whether search is enough.

Nothing is decided here. `Evidence` is recorded with the decision. `relevance` is the probability
that any bundle fits at all, from weights fitted on labelled requests (see `RELEVANCE`), and is
compared with a floor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul, sub
from typing import Final

_WISH: Final = re.compile(
    r"\b(?:can|could|would|will) you\b|\bi(?:'d| would)? (?:want|need|like|am looking|am trying)\b"
    r"|\bi'?m (?:looking|trying|interested|planning|having|not|searching|curious)\b"
    r"|\b(?:please|help me|assist|assistance|show me|find me|give me|tell me about|provide me|let"
    r" me know)\b"
    r"|\blooking for\b"
    r"|\bis there (?:a|any)\b|\bare there any\b|\bhow (?:can|do) i\b|\bwhere can i\b"
    r"|\bwhat(?:'s| is| are) the (?:latest|current|best|top|recent)\b",
    re.IGNORECASE,
)
_FRESH: Final = re.compile(
    r"\b(?:latest|current|currently|today|tonight|now|recent|recently|upcoming|nearby|near"
    r" me|available|live|real-?time"
    r"|this (?:week|weekend|month|year|season)|tomorrow|updates?|up-to-date)\b",
    re.IGNORECASE,
)
_SELF: Final = re.compile(r"\b(?:i|i'm|my|me)\b", re.IGNORECASE)
_SENTENCE_END: Final = re.compile(r"[.!?]\s")
_LOOKED_AT: Final = 4_000
"""Characters of a text whose phrasing is examined."""
_ROUNDS: Final = 12


@dataclass(frozen=True, slots=True)
class Evidence:
    """The features of one ranking.

    All values lie in 0..1 unless said otherwise; all are 0 when nothing was found.
    """

    strength: float = 0.0
    """The best bundle's raw score, in fully matched rarest words (0 and up, rarely over 6)."""
    known: float = 0.0
    """Share of the request's words (by rarity) that any bundle has, permitted or not; low means a
    novel request.
    """
    coverage: float = 0.0
    """Share of the known words that the best bundle (its text or its best tool) has."""
    margin: float = 0.0
    """How far the second is behind the first."""
    entropy: float = 0.0
    """How evenly the score is spread (1: all alike)."""
    agreement: float = 0.0
    """Share of the scorers (own text, best tool, meaning, and all together with memory) that rank
    the same bundle first.
    """
    remembered: float = 0.0
    """The most that memory adds to a permitted bundle (0 and up)."""
    relevance: float = 0.0
    """Probability that any bundle fits."""
    likeness: float = 0.0
    """The cosine of the request and the nearest bundle, where an embedder was used (0: words
    alone).
    """


@dataclass(frozen=True, slots=True)
class Logistic:
    """A fitted probability: bias and a weight for each named feature."""

    bias: float
    weights: tuple[tuple[str, float], ...]

    def __call__(self, features: Mapping[str, float]) -> float:
        total = self.bias + sum(weight * features.get(name, 0.0) for name, weight in self.weights)
        return 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, total))))


def relevance_features(evidence: Evidence, text: str) -> dict[str, float]:
    """Return the features that `relevance` is computed from: the match and the text's phrasing."""
    match = {"strength": evidence.strength, "known": evidence.known, "coverage": evidence.coverage}
    return {**match, "remembered": evidence.remembered, **phrasing(text)}


def phrasing(text: str) -> dict[str, float]:
    """Return a text's phrasing: wishes, questions about the present or itself, and number of
    sentences.
    """
    head = text[:_LOOKED_AT]
    wishes = len(_WISH.findall(head))
    return {
        "wishes": min(wishes, 4) / 4.0,
        "wish": float(wishes > 0),
        "fresh": float(_FRESH.search(head) is not None),
        "self": float(_SELF.search(head) is not None),
        "sentences": min(len(_SENTENCE_END.findall(head)), 6) / 6.0,
    }


def spread(scores: Sequence[float]) -> float:
    """Return the entropy of the best ten scores, sharpened, as a share of its maximum."""
    positive = [score for score in scores if score > 0.0]
    best = sorted(positive, reverse=True)[:10]
    sharpened = [score**3 for score in best]
    total = sum(sharpened)
    if len(sharpened) < 2 or total <= 0.0:
        return 0.0
    # The cube of a tiny score may be 0, which has no logarithm.
    shares = [value / total for value in sharpened if value > 0.0]
    entropy = -sum(share * math.log(share) for share in shares)
    return entropy / math.log(len(sharpened))


def fit_logistic(
    rows: Sequence[Mapping[str, float]],
    truths: Sequence[bool],
    names: Sequence[str],
    *,
    weights: Sequence[float] | None = None,
) -> Logistic:
    """Fit a logistic regression by Newton's method on standardised features, with slopes slightly
    regularised.
    """
    n = len(rows)
    if n == 0:
        return Logistic(0.0, tuple((name, 0.0) for name in names))
    mass = list(weights) if weights is not None else [1.0] * n
    total = sum(mass)
    columns = [[row.get(name, 0.0) for row in rows] for name in names]
    means = [sum(column) / n for column in columns]
    scales = [
        math.sqrt(sum((value - mean) ** 2 for value in column) / n) or 1.0
        for column, mean in zip(columns, means, strict=True)
    ]
    table = [
        [
            1.0,
            *(
                (row.get(name, 0.0) - mean) / scale
                for name, mean, scale in zip(names, means, scales, strict=True)
            ),
        ]
        for row in rows
    ]
    fitted = [0.0] * (len(names) + 1)
    penalties = [1e-6, *[0.01] * len(names)]
    for _ in range(_ROUNDS):
        slope = [penalty * value for penalty, value in zip(penalties, fitted, strict=True)]
        bend = [
            [one if index == place else 0.0 for place in range(len(fitted))]
            for index, one in enumerate(penalties)
        ]
        for row, truth, part in zip(table, truths, mass, strict=True):
            z = sum(map(mul, fitted, row))
            chance = 1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, z))))
            error = part * (chance - float(truth)) / total
            curve = part * chance * (1.0 - chance) / total
            for index, value in enumerate(row):
                slope[index] += error * value
                bent = bend[index]
                scaled = curve * value
                for place in range(index + 1):
                    bent[place] += scaled * row[place]
        fitted = list(map(sub, fitted, _solve_positive(bend, slope)))
    plain = [value / scale for value, scale in zip(fitted[1:], scales, strict=True)]
    bias = fitted[0] - sum(map(mul, plain, means))
    return Logistic(
        round(bias, 4),
        tuple((name, round(slope, 4)) for name, slope in zip(names, plain, strict=True)),
    )


def _solve_positive(lower: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Solve a symmetric positive system of equations, given by its lower half (Cholesky)."""
    root: list[list[float]] = []
    half: list[float] = []
    for index, row in enumerate(lower):
        solved: list[float] = []
        for value, above in zip(row[:index], root, strict=True):
            solved.append((value - sum(map(mul, solved, above))) / above[-1])
        root.append([*solved, math.sqrt(row[index] - sum(map(mul, solved, solved)))])
        half.append((right[index] - sum(map(mul, solved, half))) / root[index][index])
    for index in reversed(range(len(half))):
        half[index] = (
            half[index]
            - sum(root[column][index] * half[column] for column in range(index + 1, len(half)))
        ) / root[index][index]
    return half


RELEVANCE: Final = Logistic(
    -4.2284,
    (
        ("strength", 1.651),
        ("known", 3.7252),
        ("coverage", 1.7127),
        ("wishes", 2.0315),
        ("wish", 1.2561),
        ("fresh", 1.2403),
        ("self", 1.2887),
        ("sentences", -4.4057),
    ),
)
"""Fitted on MetaTool's awareness queries (511; half of them need no tool) and 345 requests of six
other sets, which all need one and weigh double. Phrasing separates the two: without it the area
under the curve is 0.81, with it 0.95. An engine whose goals are written by a program should fit its
own (`fit_logistic`).
"""
