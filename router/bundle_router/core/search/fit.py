"""Fits a memory by replaying a deployment's own past steps, and switches it on only where that replay gains.

Rules:
1. Replay is leave-run-out: a step is ranked with what was learned from other runs only.
2. "No memory" is one of the candidates, so the chosen one never replays worse than none.
3. A gain must be more than luck, and more than one id's doing (see `trials`).
4. Nor may it lose where tomorrow's ids are new: steps are also replayed with what was learned from steps that needed
   none of their ids ("held out"), and it must be clear that they are not ranked worse: a standard error below what was
   seen, they lose at most `MOST_LOST`. What is new keeps as much of its lexical score (`novelty`) as that takes; where
   nothing of `NOVELTIES` suffices, a more careful `trust` is taken, or no memory.
5. Recalling past steps by meaning is chosen after all that, only where it gains by rule 3 over what was chosen without
   it, be that a memory of words or none. So where it can't be asked, what is left is what was chosen by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from bundle_router.core.search.recall import MAX_REMEMBERED, PULLS, Recollection
from bundle_router.core.search.text import Analyzer
from bundle_router.core.search.trials import MIN_SIGMAS, Trial, Witness, choose_trial, difference, mean, quality_of

TRUSTS: Final = (0.35, 0.6, 1.0, 2.0, 4.0)
FOLDS: Final = 4
MIN_LABELS: Final = 20
NOVELTIES: Final = (0.25, 0.5, 1.0)
MOST_LOST: Final = 0.01
"""Of quality, where ids are new, with one standard error against it."""
MAX_REPLAYED: Final = 600
"""Steps that are replayed to choose `trust`; the memory itself learns from all of them."""


@dataclass(frozen=True, slots=True)
class Recalling:
    """How past steps are compared while fitting. `votes` gives what a recollection says for the ids that search ranked
    for a label; nothing where no vector is there."""

    embedder: str
    votes: Callable[[Label, Recollection], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RecallFit:
    """What replay said of recall. `memory` is the one of words with it, None where it did not gain over that."""

    memory: Memory | None
    before: float
    after: float
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True)
class _Replayed:
    """A past step and a memory that was not learned from it."""

    example: Example
    memory: Memory

    def keeping(self, novelty: float) -> _Replayed:
        return replace(self, memory=replace(self.memory, novelty=novelty))

    def quality(self, votes: Mapping[str, float] = NO_VOTES) -> float:
        return quality_of(self.memory.add_to(self.example.base, self.example.features, votes), self.example.ids)


@dataclass(frozen=True, slots=True)
class Fit:
    """What replay said. `memory` is None where none gained; `before` and `after` are the replayed quality, `new` the
    gain (or loss) on steps whose ids were held out. `recall` is what recalling steps by meaning would add to that,
    where somebody could be asked."""

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
    """Learn from `labels`; `base` gives the scores search alone gave the permitted ids of a label (best is 1)."""
    fitted, replayed = _fit_words(labels, analyzer, base, trusts)
    if recalling is None or not fitted.trials:
        return fitted
    return replace(fitted, recall=_fit_recall(bound_labels(labels), replayed, fitted, recalling))


def _fit_words(
    labels: Sequence[Label], analyzer: Analyzer, base: Callable[[Label], Mapping[str, float]], trusts: Sequence[float]
) -> tuple[Fit, list[_Replayed]]:
    """Return the fit of the memory of words, and how each step was ranked with what it chose (none, maybe)."""
    kept = bound_labels(labels)
    examples, rarity = make_examples(kept, analyzer, base)
    replayed = examples[:MAX_REPLAYED]
    none = [quality_of(example.base, example.ids) for example in replayed]
    before = mean(none)
    if len(replayed) < MIN_LABELS or len({example.run for example in replayed}) < FOLDS:
        return Fit(None, before, before, (), len(kept)), []
    careful = sorted(trusts, reverse=True)
    ranked = {
        trust: [step.keeping(NOVELTIES[0]) for step in _replay(replayed, rarity, trust, _fold_of_run)]
        for trust in careful
    }
    replays = {trust: [step.quality() for step in steps] for trust, steps in ranked.items()}
    witnesses = [Witness(example.ids, example.run) for example in replayed]
    trials = tuple(Trial.of(trust, got, difference(got, none, witnesses)) for trust, got in replays.items())
    best = choose_trial(trials, list(replays.values()), witnesses)
    lost = 0.0
    for trial in [t for t in reversed(trials) if best is not None and t.trust >= best.trust and t.pays]:
        held = _replay(replayed, rarity, trial.trust, _fold_of_ids)
        for novelty in NOVELTIES:
            first, fair = novelty == NOVELTIES[0], [step.keeping(novelty) for step in ranked[trial.trust]]
            got = replays[trial.trust] if first else [step.quality() for step in fair]
            if not Trial.of(trial.trust, got, difference(got, none, witnesses)).pays:
                break
            new = difference([step.keeping(novelty).quality() for step in held], none, witnesses)
            lost = new.mean
            if lost - MIN_SIGMAS * new.sigma >= -MOST_LOST:
                memory = learn(examples, rarity, trust=trial.trust, novelty=novelty)
                return Fit(memory, before, mean(got), trials, len(kept), new=lost), fair
    alone = Memory()
    steps = [_Replayed(example, alone) for example in replayed]
    return Fit(None, before, before, trials, len(kept), new=lost), steps


def _fit_recall(
    kept: Sequence[Label], replayed: Sequence[_Replayed], words: Fit, recalling: Recalling
) -> RecallFit | None:
    """Fit recall (rule 4). None where nobody could be asked for any step."""
    trust = words.memory.trust if words.memory is not None else 1.0
    remembered = Recollection.of(past_texts(kept[-MAX_REMEMBERED:]), recalling.embedder, 1.0)
    by_fold = [
        remembered.for_runs(frozenset(label.run for label in kept if fold_of(label.run) != n)) for n in range(FOLDS)
    ]
    asked = in_order(kept)[: len(replayed)]
    votes = [recalling.votes(label, by_fold[fold_of(label.run)]) for label in asked]
    if not any(votes):
        return None
    witnesses = [Witness(frozenset(label.ids), label.run) for label in asked]
    before = [step.quality() for step in replayed]
    after = {
        pull: [
            step.quality({id_: pull * vote for id_, vote in vote_of.items()})
            for step, vote_of in zip(replayed, votes, strict=True)
        ]
        for pull in PULLS
    }
    trials = tuple(Trial.of(trust, got, difference(got, before, witnesses), pull) for pull, got in after.items())
    best = choose_trial(trials, list(after.values()), witnesses)
    if best is None:
        return RecallFit(None, mean(before), mean(before), trials)
    memory = words.memory or Memory(trust=trust, labels=words.labels)
    memory = replace(memory, recollection=replace(remembered, pull=best.pull))
    return RecallFit(memory, mean(before), best.quality, trials)


def _replay(
    examples: Sequence[Example], rarity: Mapping[str, float], trust: float, places: Callable[[Example], frozenset[int]]
) -> list[_Replayed]:
    """Return every step with what was learned from examples of other folds alone. `places`: an example's folds, of the
    first ranks it."""
    where = [places(example) for example in examples]
    memories = [
        learn([example for example, own in zip(examples, where, strict=True) if fold not in own], rarity, trust=trust)
        for fold in range(FOLDS)
    ]
    return [_Replayed(example, memories[min(own)]) for example, own in zip(examples, where, strict=True)]


def _fold_of_run(example: Example) -> frozenset[int]:
    return frozenset((fold_of(example.run),))


def _fold_of_ids(example: Example) -> frozenset[int]:
    return frozenset(fold_of(f"id\0{id_}") for id_ in example.ids)


def fold_of(name: str) -> int:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[0] % FOLDS
