"""Memory of past steps: which words of a request indicated which bundle, beyond the texts.

A memory is a table of weights (feature of a request → bundle or tool), learned as a *correction* to
the lexical score. A past step that the texts alone ranked right, by a margin, teaches nothing; one
that they ranked wrong moves the weights of its own words, by no more than needed. So few steps
change little, and nothing is learned twice.

Rules:
1. A memory only changes scores of ids that are permitted anyway. It can't name, permit or add an
   id.
2. No run can dominate: at most `PER_RUN` labels of a run count for one bundle, one label moves a
   weight by at most `AGGRESSIVENESS` × `RIVALS` a pass, and memory's addition is kept within
   ±`LIMIT` (the best lexical score being `trust`).
3. Learning is deterministic: it depends neither on the order of the labels, nor on a clock or
   random number.
4. Weights of ids that the config no longer has are dropped (`keeping`).
5. Past steps are no evidence against ids that did not exist then. An id that no label needed keeps
   more of its lexical score (`novelty`): as much as it takes for steps that need such ids not to be
   ranked worse (see `fit`).
6. If replay gained by it, past steps of similar meaning count too (`recall`), within the same
   ±`LIMIT`. Without a vector for the request, or with another embedder, words alone count, as if
   there were no recall.

The learner is the passive-aggressive ranker (Crammer et al., 2006, PA-I), averaged over its passes.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

from bundle_router.core.search.recall import PastText, Recollection
from bundle_router.core.search.text import MAX_WORDS, Analyzer, split_quotes
from bundle_router.core.values.canonical import digest_of

PER_RUN: Final = 3
AGGRESSIVENESS: Final = 0.2
PASSES: Final = 4
RIVALS: Final = 3
"""Maximum wrong ids, best first, that one label may push down."""
MARGIN: Final = 1.0
MIN_WEIGHT: Final = 1e-4
CONSIDERED: Final = 40
"""Number of learned ids up to which each counts as a rival."""
LIMIT: Final = 4.0
MAX_LABELS: Final = 20_000
"""Maximum labels that a memory is learned from, the newest ones.

Learning takes under 2 ms a label.
"""
NOBODY: Final = ""
"""The rival of a label without one: its id must still reach the margin."""
SCHEMA: Final = "bundle-router.memory/3"
NO_VOTES: Final[Mapping[str, float]] = {}


@dataclass(frozen=True, slots=True)
class Label:
    """A past step and the ids it needed.

    `run` groups the steps of one run. `marks` are facts about the step besides its text
    (`step:edit`, `previous:repo.readonly`).
    """

    text: str
    ids: tuple[str, ...]
    run: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A label for the learner: unit-length features, and search's scores (best is 1)."""

    features: Mapping[str, float]
    base: Mapping[str, float]
    ids: frozenset[str]
    run: str


@dataclass(frozen=True)
class Memory:
    """Learned weights. `trust` is the weight of the lexical score (best is 1) beside them."""

    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rarity: Mapping[str, float] = field(default_factory=dict)
    trust: float = 1.0
    labels: int = 0
    recollection: Recollection | None = None
    seen: frozenset[str] = frozenset()
    """Ids that any label needed. Of others it knows only that no step needed them."""
    novelty: float = 0.0
    """Share of its lexical score that an unseen id keeps besides `trust`, so that new ids have a
    chance.
    """

    def features(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Return the counts of known features weighed by rarity, scaled to length 1."""
        return _unit(
            {
                name: count * self.rarity[name]
                for name, count in counts.items()
                if name in self.rarity
            }
        )

    def scores(
        self, features: Mapping[str, float], votes: Mapping[str, float] = NO_VOTES
    ) -> dict[str, float]:
        """Return the memory's score of each id it knows. `votes`: its recollection's votes."""
        total: dict[str, float] = {}
        weights = self.weights
        for name, value in features.items():
            for id_, weight in weights.get(name, {}).items():
                total[id_] = total.get(id_, 0.0) + weight * value
        for id_, vote in votes.items():
            total[id_] = total.get(id_, 0.0) + vote
        return {id_: max(-LIMIT, min(LIMIT, score)) for id_, score in total.items()}

    def add_to(
        self,
        base: Mapping[str, float],
        features: Mapping[str, float],
        votes: Mapping[str, float] = NO_VOTES,
    ) -> dict[str, float]:
        """Return `trust` times the lexical scores (best is 1) plus the memory's, for ids that
        either scores.
        """
        new = self.trust + self.novelty
        scores = {
            id_: (self.trust if id_ in self.seen else new) * score for id_, score in base.items()
        }
        if votes and self.recollection is not None:
            votes = {**votes, **self.recollection.for_new(base)}
        for id_, score in self.scores(features, votes).items():
            scores[id_] = scores.get(id_, 0.0) + score
        return scores

    def keeping(self, ids: Iterable[str]) -> Memory:
        """Return the memory without knowledge of any other id."""
        known = frozenset(ids)
        weights = {}
        for name, row in self.weights.items():
            known_row = {id_: weight for id_, weight in row.items() if id_ in known}
            if known_row:
                weights[name] = known_row
        recollection = self.recollection
        if recollection is not None:
            recollection = recollection.keeping(known)
        return replace(self, weights=weights, recollection=recollection, seen=self.seen & known)

    @property
    def ids(self) -> frozenset[str]:
        """The ids that its weights or its recollection name."""
        recalled = self.recollection.ids if self.recollection is not None else frozenset()
        return recalled.union(*self.weights.values())

    @property
    def revision(self) -> str:
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the memory as JSON: rows, never objects keyed by data."""
        if self.recollection is not None:
            recalling = {"recollection": self.recollection.to_json()}
        else:
            recalling = {}
        return {
            "schema": SCHEMA,
            **recalling,
            "seen": sorted(self.seen),
            "novelty": self.novelty,
            "trust": self.trust,
            "labels": self.labels,
            "features": [
                {
                    "name": name,
                    "rarity": rarity,
                    "weights": [
                        {"id": id_, "weight": w}
                        for id_, w in sorted(self.weights.get(name, {}).items())
                    ],
                }
                for name, rarity in sorted(self.rarity.items())
            ],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Memory:
        """Return the memory. Raises ValueError if the value has another version."""
        if value.get("schema") != SCHEMA:
            raise ValueError(
                f"not a memory of version {SCHEMA}, and has to be learned again:"
                f" {value.get('schema')!r}"
            )
        rows = value["features"]
        return cls(
            {
                row["name"]: {w["id"]: float(w["weight"]) for w in row["weights"]}
                for row in rows
                if row["weights"]
            },
            {row["name"]: float(row["rarity"]) for row in rows},
            float(value["trust"]),
            int(value["labels"]),
            Recollection.from_json(value["recollection"]) if "recollection" in value else None,
            frozenset(map(str, value["seen"])),
            float(value["novelty"]),
        )


def count_features(text: str, marks: Iterable[str], analyzer: Analyzer) -> dict[str, float]:
    """Return the features of a request: its words and its marks (`@`), with damped counts."""
    stems = Counter(analyzer.stems(split_quotes(text)[0], limit=MAX_WORDS))
    counts = {stem: 1.0 + math.log(count) for stem, count in stems.items()}
    counts.update((f"@{mark}", 1.0) for mark in marks)
    return counts


def bound_labels(labels: Sequence[Label]) -> list[Label]:
    """Return the labels that count: each text once per run, and at most `PER_RUN` of a run for any
    one id.
    """
    keys: set[tuple[str, str, tuple[str, ...]]] = set()
    used: Counter[tuple[str, str]] = Counter()
    bound: list[Label] = []
    for label in reversed(labels[-MAX_LABELS:]):
        key = (label.run, label.text, label.ids)
        votes = [(label.run, id_) for id_ in label.ids]
        if key in keys or not votes or any(used[pair] >= PER_RUN for pair in votes):
            continue
        keys.add(key)
        used.update(votes)
        bound.append(label)
    return bound[::-1]


def in_order(labels: Iterable[Label]) -> list[Label]:
    """Return the labels in a canonical order, which does not depend on theirs."""
    return sorted(
        labels, key=lambda label: (_salted_digest(0, label.run + "\0" + label.text), label.ids)
    )


def past_texts(labels: Sequence[Label]) -> list[PastText]:
    """Return the labels as past texts for recall."""
    return [PastText(label.text, label.ids, label.run) for label in labels]


def make_examples(
    labels: Sequence[Label], analyzer: Analyzer, base: Callable[[Label], Mapping[str, float]]
) -> tuple[list[Example], dict[str, float]]:
    """Return the labels with their features, in a canonical order, and each feature's rarity."""
    ordered = in_order(labels)
    counts = [count_features(label.text, label.marks, analyzer) for label in ordered]
    holders = Counter(name for row in counts for name in row)
    rarity = {name: math.log1p(len(counts) / number) for name, number in sorted(holders.items())}

    examples = []
    for label, row in zip(ordered, counts, strict=True):
        features = _unit({name: count * rarity[name] for name, count in row.items()})
        examples.append(Example(features, base(label), frozenset(label.ids), label.run))
    return examples, rarity


def learn(
    examples: Sequence[Example], rarity: Mapping[str, float], *, trust: float, novelty: float = 0.0
) -> Memory:
    """Return the weights learned from examples, on top of `trust` times their lexical scores.

    The rivals of a label's ids are those that search ranked for it; also all ids with weights, as
    long as they are few.
    """
    weights: dict[str, dict[str, float]] = {}
    sums: dict[str, dict[str, float]] = {}
    ids: set[str] = set()
    for number in range(PASSES):
        for position in sorted(range(len(examples)), key=lambda i: _salted_digest(number, str(i))):
            _learn_one(examples[position], weights, ids, trust)
        for name, row in weights.items():
            total = sums.setdefault(name, {})
            for id_, weight in row.items():
                total[id_] = total.get(id_, 0.0) + weight
    by_name: dict[str, dict[str, float]] = {}
    for name, total in sorted(sums.items()):
        means = {
            id_: mean
            for id_ in sorted(total)
            if abs(mean := round(total[id_] / PASSES, 6)) > MIN_WEIGHT
        }
        if means:
            by_name[name] = means
    seen_ids = frozenset(id_ for example in examples for id_ in example.ids)
    return Memory(by_name, dict(rarity), trust, len(examples), seen=seen_ids, novelty=novelty)


def _learn_one(
    example: Example, weights: dict[str, dict[str, float]], known: set[str], trust: float
) -> None:
    """Take one step of the ranker.

    `weights`: feature to id to weight; `known`: the ids that have weights.
    """
    if not example.ids:
        return
    features = example.features
    base = example.base
    ids = example.ids
    others = base if len(known) > CONSIDERED else base.keys() | known
    learned = dict.fromkeys(ids.union(others), 0.0)
    for name, value in features.items():
        row = weights.get(name, {})
        for id_ in (
            row.keys() & learned.keys()
        ):  # of hundreds of ids in a common word's row, these alone compete
            learned[id_] += row[id_] * value
    scores = {id_: trust * base.get(id_, 0.0) + score for id_, score in learned.items()}
    worst = min(sorted(ids), key=scores.__getitem__)
    rivals = heapq.nsmallest(RIVALS, [(-scores[id_], id_) for id_ in others if id_ not in ids])
    for negative, rival in rivals or [(0.0, NOBODY)]:
        loss = MARGIN - scores[worst] - negative
        if loss <= 0.0:
            break
        step = min(AGGRESSIVENESS, loss / 2.0)
        moves = {worst: step} if rival == NOBODY else {worst: step, rival: -step}
        known.update(moves)
        for name, value in features.items():
            row = weights.setdefault(name, {})
            for id_, by in moves.items():
                row[id_] = row.get(id_, 0.0) + by * value


def _salted_digest(salt: int, text: str) -> bytes:
    return sha256(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).digest()[:8]


def _unit(values: dict[str, float]) -> dict[str, float]:
    length = math.sqrt(sum(value * value for value in values.values()))
    if length > 0.0:
        return {name: value / length for name, value in values.items()}
    return {}
