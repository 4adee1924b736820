from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.adapters.bm25 import english_stemmer
from bundle_router.core.search.fit import TRUSTS, Recalling, fit_memory, fold_of
from bundle_router.core.search.index import NearDocument
from bundle_router.core.search.memory import (
    LIMIT,
    PER_RUN,
    Label,
    Memory,
    bound_labels,
    learn,
    make_examples,
)
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.recall import Recollection, key_of
from bundle_router.core.search.request import Request, marks_of
from bundle_router.core.search.text import Analyzer
from bundle_router.core.search.trials import quality_of
from bundle_router.core.values import RecentStep
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples

ANALYZER = Analyzer(english_stemmer())
ALL = frozenset({"repo.readonly", "workspace.exec", "issues.tracker", "weather", "docs.web"})


def nothing(_: Label) -> Mapping[str, float]:
    return {}


def taught(search: Search, labels: list[Label], trust: float = 1.0) -> Memory:
    kept = bound_labels(labels)
    examples, rarity = make_examples(
        kept, ANALYZER, lambda label: search.base_scores(Request(label.text), ALL)
    )
    return learn(examples, rarity, trust=trust)


def test_what_texts_get_wrong_is_learned_from_steps(search: Search) -> None:
    assert search.rank_bundles(Request("bump the frobnicator"), ALL).scored == ()
    memory = taught(
        search, [Label(f"bump the frobnicator {n}", ("workspace.exec",), f"r{n}") for n in range(3)]
    )
    ranking = search.rank_bundles(Request("bump the frobnicator"), ALL, memory)
    assert [scored.id for scored in ranking.scored] == ["workspace.exec"]
    assert ranking.evidence.remembered > 0.0


def test_what_the_texts_know_well_is_not_learned_again(search: Search) -> None:
    memory = taught(search, [Label("weather forecast", ("weather",), "r")], trust=4.0)
    assert memory.weights == {}


def test_memory_never_brings_in_what_is_not_permitted(search: Search) -> None:
    memory = taught(
        search, [Label(f"bump the frobnicator {n}", ("workspace.exec",), f"r{n}") for n in range(9)]
    )
    for permitted in (
        frozenset({"weather"}),
        frozenset(ALL - {"workspace.exec"}),
        frozenset[str](),
    ):
        ranking = search.rank_bundles(Request("bump the frobnicator weather"), permitted, memory)
        assert {scored.id for scored in ranking.scored} <= permitted


def test_what_is_remembered_of_others_is_no_evidence_for_the_permitted(search: Search) -> None:
    memory = taught(
        search, [Label(f"bump the frobnicator {n}", ("workspace.exec",), f"r{n}") for n in range(9)]
    )
    wish = Request("bump the frobnicator weather")
    assert search.rank_bundles(wish, ALL, memory).evidence.remembered > 0.5
    assert search.rank_bundles(wish, ALL - {"workspace.exec"}, memory).evidence.remembered == 0.0


def test_memory_may_push_a_bundle_down_but_not_out(search: Search) -> None:
    text = "look at the weather forecast"
    labels = [Label(f"{text} {n}", ("repo.readonly",), f"r{n}") for n in range(40)]
    ranking = search.rank_bundles(Request(text), ALL, taught(search, labels, trust=0.35))
    assert ranking.scored[0].id == "repo.readonly"
    assert "weather" in {scored.id for scored in ranking.scored}


def test_memory_forgets_what_the_config_dropped(search: Search) -> None:
    memory = taught(
        search, [Label(f"frobnicate {n}", ("workspace.exec", "weather"), f"r{n}") for n in range(3)]
    )
    kept = memory.keeping({"weather"})
    assert {id_ for row in memory.weights.values() for id_ in row} == {"workspace.exec", "weather"}
    assert {id_ for row in kept.weights.values() for id_ in row} == {"weather"}


def test_a_memory_survives_its_file(search: Search) -> None:
    memory = taught(search, [Label(f"frobnicate {n}", ("weather",), f"r{n}") for n in range(3)])
    again = Memory.from_json(memory.to_json())
    assert again == memory
    assert again.revision == memory.revision
    with pytest.raises(ValueError, match="not a memory"):
        Memory.from_json({"schema": "something/9"})


one_label = st.builds(
    Label,
    text=st.lists(
        st.sampled_from(["read", "run", "rain", "bug", "page", "foo", "bar", "baz"]),
        min_size=1,
        max_size=4,
    ).map(" ".join),
    ids=st.sampled_from(sorted(ALL)).map(lambda id_: (id_,)),
    run=st.integers(0, 29).map(str),
)
labels_of = st.lists(one_label, max_size=60)


@examples(30)
@given(labels=st.lists(one_label, min_size=30, max_size=60))
def test_logs_never_make_replay_worse(search: Search, labels: list[Label]) -> None:
    for trusts in (TRUSTS, (0.35,)):
        fit = fit_memory(
            labels,
            ANALYZER,
            lambda label: search.base_scores(Request(label.text), ALL),
            trusts=trusts,
        )
        assert fit.after >= fit.before
        assert (fit.memory is None) == (fit.after == fit.before)


def test_past_steps_say_nothing_against_what_no_step_needed_yet(search: Search) -> None:
    """Two of five bundles are needed for years, in words that fit a third one better: it is still
    found by these.
    """
    labels = [
        Label(f"forecast of the bug backlog {n}", ("issues.tracker",), f"r{n}") for n in range(30)
    ]
    labels += [Label(f"read the weather code {n}", ("repo.readonly",), f"s{n}") for n in range(30)]
    fit = fit_memory(labels, ANALYZER, lambda label: search.base_scores(Request(label.text), ALL))
    assert fit.memory is not None
    assert fit.memory.seen == {"issues.tracker", "repo.readonly"}
    assert fit.memory.novelty > 0.0
    base = {"weather": 1.0, "issues.tracker": 0.9}
    features = fit.memory.features({"forecast": 1.0})
    blind = replace(fit.memory, novelty=0.0, trust=0.35)
    fair = replace(fit.memory, trust=0.35)
    assert fair.add_to(base, features)["weather"] > blind.add_to(base, features)["weather"]
    assert (
        fair.add_to(base, features)["issues.tracker"]
        == blind.add_to(base, features)["issues.tracker"]
    )


@pytest.mark.parametrize("alike", [0.2, 0.4, 0.95])
def test_recall_is_not_taken_where_it_outvotes_what_no_step_needed_yet(alike: float) -> None:
    """The texts rank `late` right and `early`, of like meaning, second.

    Past steps tell them apart, once both have been needed; as long as `late` is new, what is like
    it votes for `early`: `late` needs a share to stand against it.
    """
    pairs = (("early-0", "late-0"), ("early-1", "late-1"))
    assert all(fold_of(f"id\0{early}") != fold_of(f"id\0{late}") for early, late in pairs)
    of = {f"{'qxvz'[2 * at + late]}{n:03d}": (pair, pair[late]) for at, pair in enumerate(pairs)
          for late in (0, 1) for n in range(20)}  # fmt: skip
    labels = [Label(text, (id_,), text) for text, (_, id_) in of.items()]

    def base(label: Label) -> Mapping[str, float]:
        (early, late), _ = of[label.text]
        return {late: 1.0, early: 0.9}

    def votes(label: Label, recollection: Recollection) -> Mapping[str, float]:
        pair, id_ = of[label.text]
        near = [
            (step, 1.0 if id_ in step.ids else alike)
            for step in recollection.steps
            if {*pair} & {*step.ids}
        ]
        return recollection.votes(
            [NearDocument(key_of(step.text), cosine) for step, cosine in near], frozenset(pair)
        )

    fit = fit_memory(labels, ANALYZER, base, recalling=Recalling("toy/1", votes))
    assert fit.memory is None, "no word is said twice"
    assert fit.recall is not None
    assert max(trial.gain for trial in fit.recall.trials) > 0.1, "replay gains"
    assert (fit.recall.new < -0.1) == (alike > 0.9)
    assert (fit.recall.memory is None) == (alike > 0.9)
    if fit.recall.memory is not None:
        recollection = fit.recall.memory.recollection
        assert recollection is not None
        assert (recollection.novelty > 0.0) == (alike == 0.4), "no more than it takes"
        assert (
            Memory.from_json(json.loads(json.dumps(fit.recall.memory.to_json())))
            == fit.recall.memory
        )
        asked = {"late-9": 1.0, "early-0": 0.9}
        without, with_votes = (
            fit.recall.memory.add_to(asked, {}, votes) for votes in ({}, {"early-0": 0.1})
        )
        assert (with_votes["late-9"] > without["late-9"]) == (alike == 0.4), "only where steps vote"


@examples(20)
@given(labels_of, st.randoms(use_true_random=False))
def test_the_order_of_labels_of_different_runs_does_not_matter(
    labels: list[Label], chance: Any
) -> None:
    unique = list({label.run: label for label in labels}.values())
    shuffled = list(unique)
    chance.shuffle(shuffled)
    one, other = (
        learn(*make_examples(some, ANALYZER, nothing), trust=1.0) for some in (unique, shuffled)
    )
    assert one == other


@examples(20)
@given(labels_of, st.lists(st.sampled_from(["read", "rain", "bug", "foo"]), max_size=4))
def test_what_memory_adds_is_limited(labels: list[Label], words: list[str]) -> None:
    memory = learn(*make_examples(labels, ANALYZER, nothing), trust=1.0)
    scores = memory.scores(memory.features(dict.fromkeys(words, 1.0)))
    assert all(abs(score) <= LIMIT for score in scores.values())


def test_one_run_counts_for_a_bundle_only_so_often() -> None:
    labels = [Label(f"step {n}", ("weather",), "loud") for n in range(500)] + [
        Label("step x", ("weather",), "quiet")
    ]
    assert len(bound_labels(labels)) == PER_RUN + 1


def test_a_run_that_calls_one_tool_at_every_step_does_not_drag_its_bundle_into_everything(
    sample: tuple[Search, list[dict[str, Any]]],
) -> None:
    search, queries = sample
    permitted = frozenset(search.corpus.members)

    def request(query: dict[str, Any]) -> Request:
        previous = query["meta"]["prev_tools"][-1:]
        return Request(
            query["query"],
            recent=tuple(RecentStep("", "", "", (t.split("::")[0],)) for t in previous),
        )

    def quality(memory: Memory | None, held: list[dict[str, Any]]) -> float:
        found = 0.0
        for query in held:
            scored = search.rank_bundles(request(query), permitted, memory).scored
            found += quality_of({s.id: s.score for s in scored}, frozenset(query["servers"]))
        return found / len(held)

    held = [query for query in queries if hash_of(query["group"]) == 0]
    past = [query for query in queries if hash_of(query["group"]) != 0]
    honest = [
        Label(q["query"], tuple(q["servers"]), q["group"], marks_of(request(q))) for q in past
    ]
    loud = [
        Label(q["query"], ("MathAPI",), "loud", marks_of(request(q)))
        for q in queries
        for _ in range(5)
    ]
    base = {
        label.text: search.base_scores(Request(label.text), permitted) for label in honest + loud
    }

    def scores(label: Label) -> Mapping[str, float]:
        return base[label.text]

    clean = learn(*make_examples(bound_labels(honest), ANALYZER, scores), trust=1.0)
    poisoned = learn(*make_examples(bound_labels(honest + loud), ANALYZER, scores), trust=1.0)
    assert quality(clean, held) > quality(None, held)
    assert quality(poisoned, held) >= quality(clean, held) - 0.05
    first = [
        (search.rank_bundles(request(q), permitted, poisoned).scored[0].id, q["servers"])
        for q in held
    ]
    assert len([servers for id_, servers in first if id_ == "MathAPI" and id_ not in servers]) <= 2
    gated = fit_memory(honest + loud, ANALYZER, scores).memory
    assert quality(gated, held) >= quality(None, held)


def hash_of(group: str) -> int:
    return int(group.rsplit("_", 1)[-1]) % 3
