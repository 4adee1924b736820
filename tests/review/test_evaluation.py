"""The measures of routing, by hand and by algebra, and labelled sets against a config."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from bundle_router.core.catalog import Policy, Route
from bundle_router.core.search.trials import ndcg
from bundle_router.review.evaluation import (
    LabelledRow,
    auroc,
    error_at,
    measure,
    rank_row,
    read_labelled,
    recall,
    reciprocal_rank,
    unknown_ids,
)
from bundle_router.wiring.searching import make_search
from hypothesis import given
from hypothesis import strategies as st

needs_search = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("bm25s"),
    reason="the extra bundle-router[search] is not installed",
)


def test_ranking_measures_by_hand() -> None:
    ranked = ["a", "b", "c", "d"]
    assert recall(ranked, ["b", "d", "x"], 2) == pytest.approx(1 / 3)
    assert recall(ranked, [], 2) == 0.0
    assert reciprocal_rank(ranked, ["c", "d"]) == pytest.approx(1 / 3)
    assert reciprocal_rank(ranked, ["x"]) == 0.0
    ideal = 1 + 1 / math.log2(3)
    assert ndcg(ranked, ["b", "d"]) == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / ideal)
    assert ndcg(ranked, ["a", "b"]) == 1.0
    assert ndcg([f"t{n}" for n in range(12)], ["t11"]) == 0.0


ids = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)


@given(ids, st.sets(st.sampled_from("abcdefgh"), min_size=1))
def test_measures_lie_between_0_and_1_and_more_is_never_worse(
    ranked: list[str], gold: set[str]
) -> None:
    values = [recall(ranked, gold, k) for k in range(1, 9)]
    assert values == sorted(values)
    for value in (*values, ndcg(ranked, gold), reciprocal_rank(ranked, gold)):
        assert 0.0 <= value <= 1.0
    assert ndcg(sorted(gold), gold) == 1.0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=20))
def test_auroc_is_the_chance_that_a_true_one_scores_above_a_false_one(
    rows: list[tuple[bool, int]],
) -> None:
    truths, scores = [t for t, _ in rows], [float(s) for _, s in rows]
    true = [s for t, s in zip(truths, scores, strict=True) if t]
    false = [s for t, s in zip(truths, scores, strict=True) if not t]
    found = auroc(truths, scores)
    if not true or not false:
        assert found is None
        return
    wins = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(true, false))
    assert found == pytest.approx(wins / (len(true) * len(false)))


def test_the_error_at_a_share_is_that_of_the_surest_rows() -> None:
    right, sure = [True, True, False, False], [0.9, 0.8, 0.7, 0.1]
    assert error_at(0.5, right, sure) == 0.0
    assert error_at(0.75, right, sure) == pytest.approx(1 / 3)
    assert error_at(1.0, right, sure) == 0.5
    assert error_at(0.1, right, sure) is None
    assert error_at(0.5, [True, False, False, True], [0.5] * 4) == 0.5, (
        "ties count by their mean, in any order"
    )


def test_a_labelled_set_names_the_line_that_is_wrong() -> None:
    good = json.dumps({"query": "find it", "bundles": ["repo.readonly"]})
    assert (
        read_labelled(f"{good}\n\n{good}\n")
        == (LabelledRow(goal="find it", bundles=("repo.readonly",)),) * 2
    )
    for line, said in (
        ("nonsense", "not JSON"),
        ('{"goal": "x"}', "bundles"),
        (good[:-1] + ', "gaol": 1}', "gaol"),
    ):
        with pytest.raises(ValueError, match=rf"line 2: .*{said}"):
            read_labelled(f"{good}\n{line}\n")


def rows(*given_: dict[str, Any]) -> list[LabelledRow]:
    return [LabelledRow.model_validate(row) for row in given_]


@needs_search
def test_a_set_is_measured_against_a_config(kit: Any) -> None:
    catalog = kit.workshop(
        routes=[Route("write", step=("write",), bundles=("mail",))],
        policies=[Policy("all", allow=("*",)), Policy("no docs", step=("plan",), deny=("docs.*",))],
    )
    search = make_search(catalog)
    here = {"workflow": "w", "role": "r"}
    labelled = rows(
        {
            "goal": "read and search the source code",
            "bundles": ["repo.readonly"],
            "tools": ["repo.grep"],
            "group": "a",
        },
        {"goal": "is the weather as the code will be", "bundles": ["weather"], "group": "a"},
        {"goal": "tell the client", "bundles": ["mail"], **here, "step": "write"},
        {"goal": "read documentation", "bundles": ["docs.web"], **here, "step": "plan"},
        {"goal": "zzz qqq", "bundles": []},
        {"goal": "search the source code", "bundles": ["nowhere"]},
    )
    ranked = [rank_row(row, catalog, search) for row in labelled]
    assert [item.settled for item in ranked[:3]] == ["enough", "ambiguous", "mapping"]
    assert ranked[2].shown == ("mail",)
    assert ranked[3].unpickable == ("docs.web",), "policy keeps it from that step"
    found = measure(ranked, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], catalog)
    assert (found.rows, found.abstain, found.groups) == (5, 1, 5)
    assert dict(found.recall)[1] == pytest.approx(2 / 5)
    assert found.served == pytest.approx(2 / 5)
    assert found.abstention is not None
    assert found.abstention > 0.5
    assert found.all_tokens == 90
    assert found.tokens == pytest.approx(sum(item.tokens for item in ranked) / 6)
    assert ranked[0].tokens == 20
    assert found.ms == 3.5
    assert unknown_ids(labelled, catalog) == ("nowhere",)


@needs_search
def test_what_ships_shows_half_of_a_labelled_set_and_is_seldom_wrong_about_it(kit: Any) -> None:
    catalog, runs = kit.sample()
    turns = [turn for row in runs.values() for turn in row]
    labelled = rows(*({"goal": turn.goal, "bundles": list(turn.picks)} for turn in turns))
    search = make_search(catalog)
    shown = [
        item
        for item in (rank_row(row, catalog, search) for row in labelled)
        if item.settled == "enough"
    ]
    assert len(shown) > len(labelled) / 3
    assert sum(not item.gold & {*item.shown} for item in shown) <= len(shown) / 20


@needs_search
def test_a_learned_memory_is_measured_like_the_rest(kit: Any, deployment: Any) -> None:
    from bundle_router.core.search.learned_values import NOTHING
    from bundle_router.core.search.ranking import Memories
    from bundle_router.review.learning.report import learn

    search = make_search(deployment.catalog)
    then = learn(
        deployment.past(), deployment.catalogs, deployment.catalog, search, NOTHING
    ).proposed
    (row,) = rows({"goal": "log a snag about the kitchen", "bundles": ["issues.tracker"]})
    assert rank_row(row, deployment.catalog, search).bundles[:1] != ("issues.tracker",)
    assert rank_row(row, deployment.catalog, search, Memories(then.memory)).bundles[:1] == (
        "issues.tracker",
    )
