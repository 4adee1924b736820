"""An agent that calls one tool at every step must not drag its bundle into everything.

The bound, with numbers.

Of the sample's conversations (tests/data/routing), two thirds are past runs and one third is held
back, in turn. An attacker plays a share of the past runs. Counted: held-back steps whose needed
bundle stands first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

import pytest
from bundle_router.adapters.embeddings import VectorStore, vectors_for
from bundle_router.core.search.corpus import texts_of
from bundle_router.core.search.index import Embedding
from bundle_router.core.search.meaning import Passage, passage, passages_of
from bundle_router.core.search.memory import (
    Label,
    Memory,
    bound_labels,
    learn,
    make_examples,
    past_texts,
)
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.recall import Recollection, key_of
from bundle_router.core.search.request import Request
from bundle_router.core.values import RecentStep
from bundle_router.review.learning.fitting import fit
from bundle_router.review.learning.labels import label_steps
from bundle_router.wiring.searching import make_search

from tests.profiles import ALL

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")

TARGET: Final = "MathAPI"
FOLDS: Final = 3
MAX_DROP: Final = 0.05
"""Of top-1 on honest held-back steps, against honest logs, while the attacker plays up to a quarter
of the runs.
"""
SHARE: Final = 0.25
"""Of the past runs, what the attacker plays: the most that is promised to move little."""
PULL: Final = 4.0
"""How much of what is recalled counts: the harder of those that were tried."""
MAX_DRAGGED: Final = 0.04
"""Share of honest held-back steps whose first bundle is the attacker's, and wrong."""


def beside(kit: Any, turn: Any, tool: str) -> Any:
    """Everything as usual, and the one tool at every step."""
    return kit.Turn(turn.goal, tuple(dict.fromkeys((*turn.picks, TARGET))), (*turn.calls, tool))


def instead(kit: Any, turn: Any, tool: str) -> Any:
    """The one tool instead of everything else."""
    return kit.Turn(turn.goal, (TARGET,), (tool,))


def asking(kit: Any, turn: Any, tool: str) -> Any:
    """Everything as usual, and the one tool asked for at every step, though it is not shown: free
    of charge.
    """
    return kit.Turn(turn.goal, turn.picks, (*turn.calls, tool))


ATTACKS: Final = {"beside": beside, "instead": instead, "asking": asking}
HARDEST: Final = "instead"
"""The attack that moves most.

With an embedder it stands for all by default; `.ci/run` tries each.
"""


@pytest.fixture(scope="module")
def setting(kit: Any) -> tuple[Any, dict[str, list[Any]], Search]:
    catalog, runs = kit.sample()
    return catalog, runs, make_search(catalog)


def split(runs: dict[str, list[Any]], fold: int) -> tuple[list[str], list[str]]:
    ids = sorted(runs)
    return [id_ for at, id_ in enumerate(ids) if at % FOLDS != fold], ids[fold::FOLDS]


def logs(kit: Any, setting: Any, past: list[str], attack: str, share: float) -> Any:
    """What the past runs leave, a share of them the attacker's."""
    catalog, runs, _ = setting
    tool = catalog.bundles[TARGET].tools[0]
    bad = set(past[:: round(1 / share)][: round(share * len(past))]) if share else set()
    change = ATTACKS[attack]
    played = {
        id_: [change(kit, turn, tool) if id_ in bad else turn for turn in runs[id_]] for id_ in past
    }
    return kit.Deployment(catalog).play(played)


def firsts(setting: Any, held: list[str], memory: Memory | None) -> Counter[str]:
    """Of the held-back steps: how many there are, rank a needed bundle first, and rank the
    attacker's first wrongly.
    """
    catalog, runs, search = setting
    everyone = frozenset(catalog.bundles)
    counts: Counter[str] = Counter()
    for run_id in held:
        recent: tuple[RecentStep, ...] = ()
        for turn in runs[run_id]:
            address = tuple(
                f"{n}:{v}" for n, v in zip(("workflow", "role", "step"), turn.address, strict=True)
            )
            request = Request(turn.goal, "\n".join(turn.address), recent, address)
            scored = search.rank_bundles(request, everyone, memory).scored
            first = scored[0].id if scored else ""
            counts.update(
                {
                    "steps": 1,
                    "right": first in turn.picks,
                    "dragged": first == TARGET not in turn.picks,
                }
            )
            recent = (RecentStep(turn.address[1], turn.address[2], turn.goal, turn.picks), *recent)[
                :5
            ]
    return counts


class Learned:
    """What is learned of logs, by fold: what several tests look at is played, labelled and fitted
    once.
    """

    def __init__(self, kit: Any) -> None:
        self._kit = kit
        self._labelled: dict[tuple[str, float, int], Any] = {}
        self._fitted: dict[tuple[str, float, int, int], Memory | None] = {}

    def labels(self, setting: Any, attack: str, share: float, fold: int) -> Any:
        where = (attack if share else "", share, fold)
        if where not in self._labelled:
            past, _ = split(setting[1], fold)
            deployment = logs(self._kit, setting, past, attack, share)
            self._labelled[where] = label_steps(
                deployment.past(), deployment.catalogs, deployment.catalog
            )
        return self._labelled[where]

    def memory(self, setting: Any, attack: str, share: float, fold: int) -> Memory | None:
        where = (attack if share else "", share, fold, id(setting[2]))
        if where not in self._fitted:
            self._fitted[where] = fit(
                self.labels(setting, attack, share, fold).steps, setting[2]
            ).memory
        return self._fitted[where]


@pytest.fixture(scope="module")
def learned(kit: Any) -> Learned:
    return Learned(kit)


@pytest.fixture(scope="module")
def honest() -> dict[str | float, Counter[str]]:
    """What was counted without an attacker, by what it was counted over: every attack is held
    against the same.
    """
    return {}


def measured(learned: Learned, setting: Any, attack: str, share: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for fold in range(FOLDS):
        counts += firsts(
            setting, split(setting[1], fold)[1], learned.memory(setting, attack, share, fold)
        )
    return counts


@pytest.mark.parametrize(
    ("ranked_by", "attack"),
    [("setting", attack) for attack in ATTACKS]
    + [("understanding", attack) for attack in (ATTACKS if ALL else [HARDEST])],
)
def test_an_attacker_in_some_runs_moves_little(
    learned: Learned,
    request: pytest.FixtureRequest,
    honest: dict[str | float, Counter[str]],
    attack: str,
    ranked_by: str,
) -> None:
    """By words alone, and with an embedder beside them: also what replay then chooses is no
    attacker's choice.
    """
    deployed = request.getfixturevalue(ranked_by)
    if ranked_by not in honest:
        honest[ranked_by] = measured(learned, deployed, attack, 0.0)
    before, attacked = honest[ranked_by], measured(learned, deployed, attack, SHARE)
    steps = before["steps"]
    assert before["right"] / steps - attacked["right"] / steps <= MAX_DROP, (
        attack,
        before,
        attacked,
    )
    assert attacked["dragged"] / steps <= MAX_DRAGGED, (attack, attacked)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_one_run_may_say_does_not_grow_with_what_it_does(
    kit: Any, setting: Any, attack: str
) -> None:
    catalog, runs, _ = setting
    tool = catalog.bundles[TARGET].tools[0]
    turns = [turn for run in runs.values() for turn in run if TARGET not in turn.picks]
    loud = [ATTACKS[attack](kit, turn, tool) for turn in turns]
    deployment = kit.Deployment(catalog).play({"loud": loud})
    labelled = label_steps(deployment.past(), deployment.catalogs, catalog)
    assert sum(TARGET in step.counted for step in labelled.steps) == 1
    assert len(turns) > 80


def test_without_the_quotas_the_same_attack_drags(kit: Any, setting: Any) -> None:
    """The test above can fail: a learner that believes every call is dragged by a quarter of the
    runs.
    """
    catalog, runs, search = setting
    past, held = split(runs, 0)
    deployment = logs(kit, setting, past, "instead", 0.5)
    labelled = label_steps(deployment.past(), deployment.catalogs, catalog)
    kept = labelled.steps
    believed = [step.label for step in kept]
    tool = catalog.bundles[TARGET].tools[0]
    for step in deployment.past():
        if any(called == tool for _, called in step.called):
            believed += [
                Label(step.request.text, (TARGET,), f"{step.run_id}-{n}") for n in range(3)
            ]
    everyone = frozenset(catalog.bundles)
    examples, rarity = make_examples(
        bound_labels(believed),
        search.analyzer,
        lambda label: search.base_scores(Request(label.text), everyone),
    )
    gullible = firsts(setting, held, learn(examples, rarity, trust=0.35))
    wary = firsts(setting, held, fit(kept, search).memory)
    assert gullible["dragged"] > wary["dragged"]
    assert gullible["right"] < wary["right"]


def test_a_bundle_that_policy_keeps_from_a_step_is_never_brought_in(kit: Any, setting: Any) -> None:
    catalog, runs, search = setting
    past, held = split(runs, 0)
    deployment = logs(kit, setting, past, "instead", 1.0)
    memory = fit(label_steps(deployment.past(), deployment.catalogs, catalog).steps, search).memory
    assert memory is not None, "where every run is the attacker's, that is what the deployment does"
    without = frozenset(catalog.bundles) - {TARGET}
    for run_id in held:
        for turn in runs[run_id]:
            ranked = {
                scored.id
                for scored in search.rank_bundles(Request(turn.goal), without, memory).scored
            }
            assert ranked <= without


# --- recalled by meaning --------------------------------------------------------------------------


def gist(text: str) -> tuple[float, ...]:
    """What a plain embedding model would say: texts of like words, in part or whole, lie close
    together.
    """
    counts = [0.01] * 96
    for word in text.lower().split():
        for at in range(max(1, len(word) - 3)):
            counts[crc32(word[at : at + 4].encode()) % 96] += 1.0 / len(word)
    return tuple(counts)


class Gist:
    """The embedder port over `gist`."""

    name, revision, prompts = "gist/1", "gist/1", ("", "")

    def embed(self, texts: Sequence[str], *, timeout_s: float) -> Embedding:
        return Embedding(tuple(gist(text) for text in texts))

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def understanding(setting: Any) -> tuple[Any, dict[str, list[Any]], Search]:
    catalog, runs, search = setting
    texts = texts_of(catalog)
    goals = {turn.goal for turns in runs.values() for turn in turns}
    past = [Passage(key_of(passage(goal)), "steps", passage(goal)) for goal in sorted(goals)]
    vectors = vectors_for(
        (*passages_of(texts.bundles, texts.tools), *past), Gist(), VectorStore(None, "gist/1")
    )
    assert not isinstance(vectors, Embedding)
    return (
        catalog,
        runs,
        replace(search, vectors=vectors, understood={goal: gist(goal) for goal in goals}),
    )


def recalling(
    learned: Learned, setting: Any, attack: str, share: float, pull: float
) -> tuple[Counter[str], ...]:
    """Recall alone, recall beside a memory of words, and these words alone.

    It is forced: in a deployment, replay would have to ask for it.
    """
    alone, beside_words, words_alone = Counter[str](), Counter[str](), Counter[str]()
    for fold in range(FOLDS):
        _, held = split(setting[1], fold)
        labelled = learned.labels(setting, attack, share, fold)
        kept = past_texts(bound_labels([step.label for step in labelled.steps]))
        recollection = Recollection.of(kept, "gist/1", pull)
        words = replace(learned.memory(setting, attack, share, fold) or Memory(), recollection=None)
        alone += firsts(setting, held, Memory(recollection=recollection))
        beside_words += firsts(setting, held, replace(words, recollection=recollection))
        words_alone += firsts(setting, held, words)
    return alone, beside_words, words_alone


@pytest.mark.parametrize("attack", ATTACKS if ALL else [HARDEST])
def test_an_attacker_moves_little_of_what_is_recalled_by_meaning(
    learned: Learned,
    understanding: Any,
    honest: dict[str | float, Counter[str]],
    attack: str,
) -> None:
    if PULL not in honest:
        honest[PULL], *_ = recalling(learned, understanding, attack, 0.0, PULL)
    before = honest[PULL]
    attacked, beside_words, words_alone = recalling(learned, understanding, attack, SHARE, PULL)
    steps = before["steps"]
    assert before["right"] / steps - attacked["right"] / steps <= MAX_DROP, (before, attacked)
    assert attacked["dragged"] / steps <= MAX_DRAGGED, attacked
    assert beside_words["dragged"] <= words_alone["dragged"], (beside_words, words_alone)


def test_an_attacker_in_most_runs_does_drag_what_is_recalled(
    learned: Learned, understanding: Any
) -> None:
    """The test above can fail: with three quarters of the runs the attacker has more votes than all
    others.
    """
    few, many = (
        recalling(learned, understanding, "instead", share, 4.0)[0] for share in (0.25, 0.75)
    )
    assert many["dragged"] / many["steps"] > MAX_DRAGGED >= few["dragged"] / few["steps"]
