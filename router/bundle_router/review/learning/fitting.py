"""Measures memories learned from past steps, and decides whether to propose them.

Rules:
1. Nothing is measured on the steps it was learned from. There are two measurements: every step
   replayed with what the other runs taught (`fit_memory`), and the newest quarter of the runs with
   what the older ones taught.
2. A memory is proposed only if the first gains, by more than luck, and neither the second loses nor
   a replay of steps whose bundles were held out. So a memory never makes the replay of the logs it
   was learned from worse.
3. The proposed memory is learned from all the steps, in the way that was measured.
4. With an embedder, recall of past steps by meaning is also proposed by the same two measurements,
   each against the memory that is proposed without it. If it can't be measured, does not gain, or
   loses where ids are new, words alone are used.
5. An embedder that the config names ranks. Memories are fitted on top of that ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.search.fit import (
    MAX_REPLAYED,
    MIN_LABELS,
    Fit,
    Recalling,
    fit_memory,
)
from bundle_router.core.search.memory import (
    NO_VOTES,
    Label,
    Memory,
    bound_labels,
    count_features,
    in_order,
    learn,
    make_examples,
)
from bundle_router.core.search.passes import order
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.recall import Recollection
from bundle_router.core.search.request import Request
from bundle_router.core.search.trials import Trial, Witness, difference, mean, quality_of
from bundle_router.review.evaluation import reciprocal_rank
from bundle_router.review.learning.labels import LabelledStep

HELD_BACK: Final = 0.25
MIN_HELD_BACK: Final = 10
"""Minimum steps of a held-back part for it to be measured."""
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Quality:
    """Rankings of some steps: how often a needed bundle comes first, the mean reciprocal rank, and
    their mean.
    """

    steps: int = 0
    first: float = 0.0
    mrr: float = 0.0

    @property
    def mean(self) -> float:
        return (self.first + self.mrr) / 2.0


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """`memory` is None if none is proposed; `why` says so in words.

    `enough` is false if there are too few labels: then the present memory stays. `replay` is the
    leave-run-out replay, `before` and `after` are the held-back runs without and with what the
    older runs taught.
    """

    memory: Memory | None
    why: str
    enough: bool
    replay: Fit
    before: Quality
    after: Quality
    recall: str = ""
    """Why past steps are, or are not, recalled by meaning. Empty without an embedder."""


@dataclass(frozen=True)
class EmbeddingFit:
    """How past steps rank with embeddings, beside words alone. A figure for people: an embedder
    that the config names ranks, whatever it says.
    """

    trial: Trial
    why: str
    """The figures as a sentence."""


def fit_embeddings(steps: Sequence[LabelledStep], search: Search) -> EmbeddingFit | None:
    """Measure how much embeddings gain over words alone.

    None without vectors, or without a step.
    """
    by_label = {step.label: step for step in steps}
    labels = in_order(bound_labels([*by_label]))[:MAX_REPLAYED]
    if search.vectors is None or not search.by_meaning or not labels:
        return None
    asked = [by_label[label] for label in labels]
    ways = [base_scores(asked, variant) for variant in (replace(search, by_meaning=False), search)]
    words, combination = (
        [quality_of(scores[label], frozenset(label.ids)) for label in labels] for scores in ways
    )
    witnesses = [Witness(frozenset(label.ids), label.run) for label in labels]
    trial = Trial.of(1.0, combination, difference(combination, words, witnesses))
    margin = 1.96 * trial.sigma
    reason = (
        f"quality {mean(words):.3f} by words alone, {trial.quality:.3f} with them"
        f" ({trial.gain:+.3f}, 95 % {trial.gain - margin:+.3f} to {trial.gain + margin:+.3f};"
        f" {len(labels)} steps)"
    )
    return EmbeddingFit(trial, reason)


def split_by_age(steps: Sequence[LabelledStep]) -> tuple[list[LabelledStep], list[LabelledStep]]:
    """Return the older runs, and the newest quarter of the runs. `steps` come oldest run first."""
    runs = list(dict.fromkeys(step.past.run_id for step in steps))
    newest = frozenset(runs[len(runs) - int(len(runs) * HELD_BACK) :])
    older = [step for step in steps if step.past.run_id not in newest]
    return older, [step for step in steps if step.past.run_id in newest]


def base_scores(steps: Sequence[LabelledStep], search: Search) -> dict[Label, Mapping[str, float]]:
    """Return search's own scores of each step's permitted bundles; neutral ones are left out."""
    found: dict[Label, Mapping[str, float]] = {}
    for step in steps:
        scores = search.base_scores(step.past.request, step.permitted)
        found[step.label] = {id_: score for id_, score in scores.items() if id_ not in step.neutral}
    return found


def fit(steps: Sequence[LabelledStep], search: Search) -> MemoryFit:
    """Learn a memory from the steps, measure it, and propose it if it gains.

    `steps`: oldest run first.
    """
    by_label = {step.label: step for step in steps}

    def votes(label: Label, recollection: Recollection) -> Mapping[str, float]:
        step = by_label[label]
        return search.recall(step.past.request, step.permitted - step.neutral, recollection)

    older, newest = ([step.label for step in part] for part in split_by_age(steps))
    return _Fitting(older, newest, search, base_scores(steps, search), votes).propose()


def fit_tools(steps: Sequence[LabelledStep], search: Search) -> MemoryFit:
    """Return a memory of the tools that steps called, learned and measured like one of bundles, on
    top of how an agent's search for the step's words ranks tools.
    """
    older, newest = split_by_age(steps)
    permitted = {step.tool_label: step.permitted for step in steps if step.tool_label is not None}

    def votes(label: Label, recollection: Recollection) -> Mapping[str, float]:
        return search.recall(Request(label.text), search.tools_of(permitted[label]), recollection)

    base = {
        label: search.base_tool_scores(Request(label.text), bundles)
        for label, bundles in permitted.items()
    }
    return _Fitting(_tool_labels(older), _tool_labels(newest), search, base, votes).propose()


def _tool_labels(steps: Sequence[LabelledStep]) -> list[Label]:
    return [step.tool_label for step in steps if step.tool_label is not None]


@dataclass(frozen=True)
class _Fitting:
    """Labels of the older and of the newest runs, the scores of search alone, and the votes of
    recalled steps.
    """

    older: Sequence[Label]
    newest: Sequence[Label]
    search: Search
    base: Mapping[Label, Mapping[str, float]]
    votes: Callable[[Label, Recollection], Mapping[str, float]]

    def propose(self) -> MemoryFit:
        """Return replay's choice, if what the older runs teach in that way does not make the newest
        worse.
        """
        search = self.search
        labels = [*self.older, *self.newest]
        base = self.base
        if search.vectors is not None:
            recalling = Recalling(search.vectors.revision, self.votes)
        else:
            recalling = None
        replay = fit_memory(labels, search.analyzer, base.__getitem__, recalling=recalling)
        old_quality = self._measure(None)
        if replay.memory is None:
            reason, enough = _why_not(replay, labels)
            return self._with_recall(
                MemoryFit(None, reason, enough, replay, old_quality, old_quality)
            )
        new_quality = self._measure(replay.memory)
        if new_quality.mean < old_quality.mean - ROUNDING:
            reason = (
                f"what the older runs taught makes the newest worse ({old_quality.mean:.3f} →"
                f" {new_quality.mean:.3f})"
            )
            return self._with_recall(
                MemoryFit(None, reason, True, replay, old_quality, new_quality)
            )
        reason = (
            f"replay gains {replay.after - replay.before:+.3f}, where what is needed is new"
            f" {replay.new:+.3f}"
        )
        return self._with_recall(
            MemoryFit(replay.memory, reason, True, replay, old_quality, new_quality)
        )

    def _with_recall(self, words: MemoryFit) -> MemoryFit:
        """Fit recall (rule 4).

        If the newest runs reject the memory of words, a recall on top of it can't be judged.
        """
        recall = words.replay.recall
        if recall is None:
            return words
        if recall.memory is None or (words.replay.memory is not None and words.memory is None):
            best = max(recall.trials, key=lambda trial: trial.quality)
            new = f", where what is needed is new {recall.new:+.3f}" if recall.new < 0.0 else ""
            reason = (
                f"by words alone; by meaning too: {best.gain:+.3f} ± {best.sigma:.3f} in"
                f" replay{new}"
            )
            return replace(words, recall=reason)
        quality = self._measure(recall.memory)
        if quality.mean < words.after.mean - ROUNDING:
            reason = (
                f"by words alone; by meaning too the newest runs get worse ({words.after.mean:.3f}"
                f" → {quality.mean:.3f})"
            )
            return replace(words, recall=reason)
        gain = recall.after - recall.before
        reason = f"by meaning too: replay gains {gain:+.3f} over words alone"
        reason += f", where what is needed is new {recall.new:+.3f} over no memory"
        return replace(words, memory=recall.memory, enough=True, after=quality, recall=reason)

    def _measure(self, memory: Memory | None) -> Quality:
        """Return how well the newest runs are ranked with what the older ones teach, learned as
        `memory` was. Too few newest runs are not measured.
        """
        if len(self.newest) < MIN_HELD_BACK:
            return Quality()
        earlier = Memory()
        if memory is not None:
            earlier = relearn(memory, bound_labels(self.older), self.search, self.base)

        first_hits = []
        reciprocal_ranks = []
        for label in self.newest:
            ids = self._rank(label, earlier)
            first_hits.append(float(ids[:1] != [] and ids[0] in label.ids))
            reciprocal_ranks.append(reciprocal_rank(ids, label.ids))
        return Quality(len(first_hits), mean(first_hits), mean(reciprocal_ranks))

    def _rank(self, label: Label, memory: Memory) -> list[str]:
        features = memory.features(count_features(label.text, label.marks, self.search.analyzer))
        if memory.recollection is not None:
            votes = self.votes(label, memory.recollection)
        else:
            votes = NO_VOTES
        return [row.id for row in order(memory.add_to(self.base[label], features, votes))]


def relearn(
    memory: Memory,
    labels: Sequence[Label],
    search: Search,
    base: Mapping[Label, Mapping[str, float]],
) -> Memory:
    """Return a memory of these labels only, learned as `memory` was."""
    examples, rarity = make_examples(labels, search.analyzer, lambda label: base[label])
    words = Memory(trust=memory.trust)
    if memory.rarity:
        words = learn(examples, rarity, trust=memory.trust, novelty=memory.novelty)
    runs = frozenset(label.run for label in labels)
    recollection = memory.recollection.for_runs(runs) if memory.recollection is not None else None
    return replace(words, recollection=recollection)


def _why_not(replay: Fit, labels: Sequence[Label]) -> tuple[str, bool]:
    runs = len({label.run for label in labels})
    if replay.trials:
        best = max(replay.trials, key=lambda trial: trial.quality)
        if best.pays and replay.new < 0.0:
            return (
                (
                    f"replay gains {best.gain:+.3f}, but with bundles that are new it loses"
                    f" {replay.new:+.3f}"
                ),
                True,
            )
        return (
            f"replay gains too little to be more than luck ({best.gain:+.3f} ± {best.sigma:.3f})",
            True,
        )
    missing = max(0, MIN_LABELS - replay.labels)
    if missing:
        need = f"{missing} more labels"
    else:
        need = f"more than the {runs} runs (of different ids) there are"
    return f"too little to go by: {need} are needed", False
