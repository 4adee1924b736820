"""Fits a memory by replaying a deployment's past steps, and uses it only if the replay gains.

Rules:
1. Replay is leave-run-out: a step is ranked with what was learned from other runs only.
2. "No memory" is one of the candidates, so the chosen one never replays worse than none.
3. A gain must be more than luck, and must not depend on a single id (see `trials`).
4. It must not lose where tomorrow's ids are new. So steps are also replayed with what was learned
   from steps that needed none of their ids ("held out"), where the quality, one standard error
   below the measured one, may fall by at most `MOST_LOST`. New ids keep as much of their lexical
   score (`novelty`) as that takes. If none of `NOVELTIES` suffices, a more careful `trust` is
   taken, or no memory.
5. Recall of past steps by meaning is chosen last, and only if it gains by rule 3 over the choice
   without it, which may be a memory of words or none, and does not lose by rule 4, for which new
   ids get a share of its weight, too. So without an embedder that choice remains.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from bundle_router.core.search.memory import (
    NO_VOTES,
    Example,
    Label,
    Memory,
    bound_labels,
    in_order,
    learn,
    make_examples,
    past_texts,
)
from bundle_router.core.search.recall import (
    MAX_REMEMBERED,
    NEW_SHARES,
    PULLS,
    PastText,
    Recollection,
)
from bundle_router.core.search.text import Analyzer
from bundle_router.core.search.trials import (
    MIN_SIGMAS,
    Difference,
    Trial,
    Witness,
    choose_trial,
    difference,
    mean,
    quality_of,
)

TRUSTS: Final = (0.35, 0.6, 1.0, 2.0, 4.0)
FOLDS: Final = 4
MIN_LABELS: Final = 20
NOVELTIES: Final = (0.25, 0.5, 1.0)
MOST_LOST: Final = 0.01
"""Maximum loss of quality for new ids, with one standard error counted against it."""
MAX_REPLAYED: Final = 600
"""Maximum steps that are replayed to choose `trust`; the memory itself learns from all of them."""


_Past = Example | Label | PastText
_Votes = tuple[Mapping[str, float], Mapping[str, float]]
"""Votes of remembered steps for a label's ids, and what the ids get then that none of these
needed.
"""


@dataclass(frozen=True, slots=True)
class Recalling:
    """How past steps are compared while fitting.

    `votes` returns a recollection's votes for the ids that search ranked for a label; none without
    a vector.
    """

    embedder: str
    votes: Callable[[Label, Recollection], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RecallFit:
    """The result of replaying recall.

    `memory` is the memory of words with recall; None if recall did not gain, or lost on steps whose
    ids were held out (`new`: the gain there over no memory).
    """

    memory: Memory | None
    before: float
    after: float
    trials: tuple[Trial, ...]
    new: float = 0.0


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A past step, and a memory that was learned without it."""

    example: Example
    memory: Memory

    def keeping(self, novelty: float) -> _Replayed:
        return replace(self, memory=replace(self.memory, novelty=novelty))

    def quality(self, votes: Mapping[str, float] = NO_VOTES) -> float:
        return quality_of(
            self.memory.add_to(self.example.base, self.example.features, votes), self.example.ids
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of replay.

    `memory` is None if none gained; `before` and `after` are the replayed quality, `new` the gain
    (or loss) on steps whose ids were held out. `recall` is the result for recalling steps by
    meaning, if there was an embedder.
    """

    memory: Memory | None
    before: float
    after: float
    trials: tuple[Trial, ...]
    labels: int
    recall: RecallFit | None = None
    new: float = 0.0


def fit_memory(
    labels: Sequence[Label],
    analyzer: Analyzer,
    base: Callable[[Label], Mapping[str, float]],
    *,
    trusts: Sequence[float] = TRUSTS,
    recalling: Recalling | None = None,
) -> Fit:
    """Learn from `labels`.

    `base` returns search's own scores of a label's permitted ids (best is 1).
    """
    fitted, known_quality, new = _fit_words(labels, analyzer, base, trusts)
    if recalling is None or not fitted.trials:
        return fitted
    return replace(
        fitted, recall=_fit_recall(bound_labels(labels), known_quality, new, fitted, recalling)
    )


def _fit_words(
    labels: Sequence[Label],
    analyzer: Analyzer,
    base: Callable[[Label], Mapping[str, float]],
    trusts: Sequence[float],
) -> tuple[Fit, list[_Replayed], list[_Replayed]]:
    """Return the fit of the memory of words, and each step as ranked with the chosen memory
    (perhaps none), as learned from other runs, and as learned from steps that needed none of its
    ids.
    """
    bound = bound_labels(labels)
    examples, rarity = make_examples(bound, analyzer, base)
    replayed = examples[:MAX_REPLAYED]
    none = [quality_of(example.base, example.ids) for example in replayed]
    old_mean = mean(none)
    if len(replayed) < MIN_LABELS or len({example.run for example in replayed}) < FOLDS:
        return Fit(None, old_mean, old_mean, (), len(bound)), [], []
    careful = sorted(trusts, reverse=True)
    ranked = {
        trust: [
            step.keeping(NOVELTIES[0]) for step in _replay(replayed, rarity, trust, _fold_of_run)
        ]
        for trust in careful
    }
    replays = {trust: [step.quality() for step in steps] for trust, steps in ranked.items()}
    witnesses = [Witness(example.ids, example.run) for example in replayed]
    trials = tuple(
        Trial.of(trust, qualities, difference(qualities, none, witnesses))
        for trust, qualities in replays.items()
    )
    best = choose_trial(trials, list(replays.values()), witnesses)
    lost = 0.0
    for trial in [
        t for t in reversed(trials) if best is not None and t.trust >= best.trust and t.pays
    ]:
        held = _replay(replayed, rarity, trial.trust, _fold_of_ids)
        for novelty in NOVELTIES:
            first = novelty == NOVELTIES[0]
            fair = [step.keeping(novelty) for step in ranked[trial.trust]]
            qualities = replays[trial.trust] if first else [step.quality() for step in fair]
            if not Trial.of(trial.trust, qualities, difference(qualities, none, witnesses)).pays:
                break
            fair_held = [step.keeping(novelty) for step in held]
            new = difference([step.quality() for step in fair_held], none, witnesses)
            lost = new.mean
            if _spares_new(new):
                memory = learn(examples, rarity, trust=trial.trust, novelty=novelty)
                return (
                    Fit(memory, old_mean, mean(qualities), trials, len(bound), new=lost),
                    fair,
                    fair_held,
                )
    alone = [_Replayed(step, Memory()) for step in replayed]
    return Fit(None, old_mean, old_mean, trials, len(bound), new=lost), alone, alone


def _spares_new(new: Difference) -> bool:
    """Return whether steps whose ids were held out lose too little to matter (rule 4)."""
    return new.mean - MIN_SIGMAS * new.sigma >= -MOST_LOST


def _fit_recall(
    kept: Sequence[Label],
    replayed: Sequence[_Replayed],
    held: Sequence[_Replayed],
    words: Fit,
    recalling: Recalling,
) -> RecallFit | None:
    """Fit recall (rule 5). None if no step has a vector."""
    trust = words.memory.trust if words.memory is not None else 1.0
    remembered = Recollection.of(past_texts(kept[-MAX_REMEMBERED:]), recalling.embedder, 1.0, 1.0)
    recalled = in_order(kept)[: len(replayed)]
    votes = _votes(zip(recalled, replayed, strict=True), remembered, _fold_of_run, recalling)
    if not any(pulled for pulled, _ in votes):
        return None
    witnesses = [Witness(frozenset(label.ids), label.run) for label in recalled]
    old_qualities = [step.quality() for step in replayed]
    new_qualities = {pull: _qualities(replayed, votes, pull) for pull in PULLS}
    trials = tuple(
        Trial.of(trust, qualities, difference(qualities, old_qualities, witnesses), pull)
        for pull, qualities in new_qualities.items()
    )
    best = choose_trial(trials, list(new_qualities.values()), witnesses)
    lost = 0.0
    if best is not None:
        none = [quality_of(step.example.base, step.example.ids) for step in replayed]
        held_votes = _votes(zip(recalled, held, strict=True), remembered, _fold_of_ids, recalling)
        careful = [pull for pull in reversed(PULLS) if pull <= best.pull]
        for pull, novelty in itertools.product(careful, NEW_SHARES):
            qualities = _qualities(replayed, votes, pull, novelty)
            if not Trial.of(trust, qualities, difference(qualities, old_qualities, witnesses)).pays:
                continue
            new = difference(_qualities(held, held_votes, pull, novelty), none, witnesses)
            lost = new.mean
            if _spares_new(new):
                memory = words.memory or Memory(trust=trust, labels=words.labels)
                memory = replace(
                    memory, recollection=replace(remembered, pull=pull, novelty=novelty)
                )
                return RecallFit(memory, mean(old_qualities), mean(qualities), trials, lost)
    return RecallFit(None, mean(old_qualities), mean(old_qualities), trials, lost)


def _votes(
    asked: Iterable[tuple[Label, _Replayed]],
    remembered: Recollection,
    places: Callable[[_Past], frozenset[int]],
    recalling: Recalling,
) -> list[_Votes]:
    """Return the votes for every label of the steps in other folds."""
    recollections = [
        replace(
            remembered, steps=tuple(step for step in remembered.steps if fold not in places(step))
        )
        for fold in range(FOLDS)
    ]
    rows = [(label, step.example.base, recollections[min(places(label))]) for label, step in asked]
    return [
        (pulled, other.for_new(base))
        if (pulled := recalling.votes(label, other))
        else (pulled, pulled)
        for label, base, other in rows
    ]


def _qualities(
    steps: Sequence[_Replayed], votes: Sequence[_Votes], pull: float, novelty: float = 0.0
) -> list[float]:
    extra = pull * novelty
    weighed = (
        {id_: pull * vote for id_, vote in pulled.items()}
        | {id_: extra * share for id_, share in new.items()}
        for pulled, new in votes
    )
    return [step.quality(one) for step, one in zip(steps, weighed, strict=True)]


def _replay(
    examples: Sequence[Example],
    rarity: Mapping[str, float],
    trust: float,
    places: Callable[[Example], frozenset[int]],
) -> list[_Replayed]:
    """Return every step with a memory learned from examples of other folds.

    `places` returns an example's folds; the first one ranks it.
    """
    example_places = [places(example) for example in examples]
    memories = [
        learn(
            [
                example
                for example, own in zip(examples, example_places, strict=True)
                if fold not in own
            ],
            rarity,
            trust=trust,
        )
        for fold in range(FOLDS)
    ]
    return [
        _Replayed(example, memories[min(own)])
        for example, own in zip(examples, example_places, strict=True)
    ]


def _fold_of_run(step: _Past) -> frozenset[int]:
    return frozenset((fold_of(step.run),))


def _fold_of_ids(step: _Past) -> frozenset[int]:
    return frozenset(fold_of(f"id\0{id_}") for id_ in step.ids)


def fold_of(name: str) -> int:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[0] % FOLDS
