"""Search, then a model, then nobody: what each leads to, what is recorded, and what may never
happen.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.catalog import Bundle, Calibration, Catalog
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import outcome_json, reply_json
from bundle_router.core.records.replayed import conclude, replay
from bundle_router.core.search.ranking import Search
from bundle_router.core.values import Activation, Decision, Facts, RecentStep, Reply
from bundle_router.core.values.canonical import encode
from bundle_router.engine.selecting import SearchSelector
from bundle_router.engine.selecting.search import MAX_CANDIDATES
from bundle_router.errors import NotInstalled
from bundle_router.testing import FakeDiagnostics, fake_router
from hypothesis import given
from hypothesis import strategies as st

from tests.core.decide.test_decide_properties import injections
from tests.engine.selecting.catalogs import (
    BUNDLES,
    EITHER,
    NOVEL,
    RUNS,
    SURE,
    UNSURE,
    WRITES,
    Model,
    catalog,
    question,
    search_over,
    settled,
    staged,
    step,
)
from tests.profiles import examples

ROOT = Path(__file__).parents[3]
WITH_SHORTLIST = ("search", "model", "shortlist", "default")


def outcome(decision: Decision) -> tuple[str, bool, list[str]]:
    return decision.source, decision.degraded, decision.bundle_ids


@pytest.mark.parametrize(
    ("goal", "says", "came"),
    [
        (SURE, ["issues.write"], ("search", False, ["docs.fetch"])),
        (EITHER, ["issues.write"], ("search", False, ["repo.readonly", "docs.fetch"])),
        (UNSURE, ["issues.write"], ("model", False, ["issues.write"])),
        (WRITES, ["issues.write"], ("model", False, ["issues.write"])),
        (RUNS, ["shell.run"], ("model", False, ["shell.run"])),
        (NOVEL, ["docs.fetch"], ("model", False, ["docs.fetch"])),
        (NOVEL, [], ("default", False, ["repo.readonly"])),
        (UNSURE, "timeout", ("search", True, ["repo.readonly"])),
        (UNSURE, "circuit_open", ("search", True, ["repo.readonly"])),
        (WRITES, "timeout", ("default", True, ["repo.readonly"])),
        (RUNS, "not_ready", ("default", True, ["repo.readonly"])),
        (NOVEL, "timeout", ("default", True, ["repo.readonly"])),
        (SURE, None, ("search", False, ["docs.fetch"])),
        (UNSURE, None, ("default", False, ["repo.readonly"])),
        (NOVEL, None, ("default", False, ["repo.readonly"])),
    ],
)
def test_search_first_then_the_model_then_the_fallback(
    goal: str, says: Any, came: tuple[str, bool, list[str]]
) -> None:
    model = Model(says) if says is not None else None
    reply, decision = settled(catalog(default=("repo.readonly",)), goal, model)
    assert outcome(decision) == came
    assert decision.search == reply.search
    assert decision.search is not None
    if goal != NOVEL:
        assert decision.candidates == decision.search.ranked, (
            "the ranking is recorded whoever answered"
        )
    if model is not None:
        assert model.asked == (goal not in (SURE, EITHER))
        assert (decision.model is not None) is (goal not in (SURE, EITHER))


class ListeningModel(Model):
    """Remembers what it was asked about."""

    def __init__(self) -> None:
        super().__init__(["docs.fetch"])
        self.candidates: tuple[str, ...] = ()

    async def select(self, question: Question, recent: Sequence[RecentStep]) -> Reply:
        self.candidates = question.candidates
        return await super().select(question, recent)


def test_a_model_that_is_asked_first_is_asked_about_the_best_of_many() -> None:
    """The first 32 by name would hide the others for ever."""
    known = [
        Bundle(
            f"many.b{at:02}",
            f"Ledgers and accounts kept in drawer {at}",
            ("repo.grep",),
            effects=("read",),
        )
        for at in range(50)
    ]
    unknown = [
        Bundle(
            f"zz.z{at}",
            "Zz",
            ("strangers.mail",),
            effects=("read",),
            trust="untrusted",
            mode="meta",
        )
        for at in range(5)
    ]
    model = ListeningModel()
    of = catalog(order=("model", "default"), bundles=(*known, *unknown, *BUNDLES))
    settled(of, UNSURE, model)
    assert len(model.candidates) == MAX_CANDIDATES
    assert {"repo.readonly", "issues.write"} <= {*model.candidates[:3]}, "best first"
    assert {bundle.id for bundle in unknown} <= {*model.candidates}


@pytest.mark.parametrize(
    ("order", "goal", "says", "came"),
    [
        (
            ("model", "search", "default"),
            SURE,
            ["issues.write"],
            ("model", False, ["issues.write"]),
        ),
        (("model", "search", "default"), SURE, "timeout", ("search", True, ["docs.fetch"])),
        (("model", "search", "default"), UNSURE, "timeout", ("search", True, ["repo.readonly"])),
        (("model", "search", "default"), NOVEL, "timeout", ("default", True, ["strangers.mail"])),
        (("model", "default"), SURE, "timeout", ("default", True, ["strangers.mail"])),
        (("search", "default"), UNSURE, ["docs.fetch"], ("default", False, ["strangers.mail"])),
        (("search",), UNSURE, ["docs.fetch"], ("none", False, [])),
        (
            ("search", "default", "model"),
            UNSURE,
            ["docs.fetch"],
            ("default", False, ["strangers.mail"]),
        ),
        (("default", "search"), SURE, ["docs.fetch"], ("default", False, ["strangers.mail"])),
        ((), SURE, ["docs.fetch"], ("none", False, [])),
    ],
)
def test_the_order_of_the_config_is_the_order_of_the_stages(
    order: Any, goal: str, says: Any, came: tuple[str, bool, list[str]]
) -> None:
    _, decision = settled(catalog(order=order, default=("strangers.mail",)), goal, Model(says))
    assert outcome(decision) == came


def test_a_model_that_says_that_nothing_fits_is_not_overruled_by_search() -> None:
    _, decision = settled(catalog(order=("model", "search", "default")), SURE, Model([]))
    assert outcome(decision) == ("none", False, [])
    assert "nothing was selected" in decision.justification


def test_beside_a_pick_in_doubt_the_shortlist_is_offered_behind_search_and_replayed() -> None:
    of = catalog(order=WITH_SHORTLIST)
    with fake_router(of, selector=staged(of, Model(["issues.write", "shell.run"]))) as router:
        decision = router.route_sync(step(UNSURE))
        (record,) = router.fakes.records("r")
    assert decision.source == "model"
    assert decision.bundle_ids == ["issues.write", "shell.run"]
    assert "repo.readonly" in decision.offered
    offered = [row for row in decision.bundles if row.id in decision.offered]
    assert all(row.mode is not None for row in offered), "behind search, whatever their own mode"
    assert {row.evidence for row in offered} == {"search ranks it, and the model is not sure"}
    assert decision.reachable_ids == [*decision.bundle_ids, *decision.offered]
    assert record["reply"]["offered"] == decision.offered
    assert record["model"]["sure"] is False
    assert replay(json.loads(encode(record)), of).outcome == "identical"
    _, alone = settled(
        catalog(order=("search", "model", "default")), UNSURE, Model(["issues.write"])
    )
    assert (alone.bundle_ids, alone.offered) == (["issues.write"], [])


@pytest.mark.parametrize(
    ("beside", "sure", "is_offered"),
    [
        ("doubt", True, False),
        ("doubt", False, True),
        ("doubt", None, True),
        ("always", True, True),
        ("always", False, True),
        ("never", True, False),
        ("never", False, False),
    ],
)
def test_a_sure_pick_limits_the_step_to_what_was_picked(
    beside: Any, sure: bool | None, is_offered: bool
) -> None:
    of = catalog(order=WITH_SHORTLIST, beside=beside)
    selector = staged(of, Model(["issues.write"], sure=sure))
    with fake_router(of, selector=selector, results={"repo.read": "text"}) as router:
        decision = router.route_sync(step(UNSURE))
        result = router.call_sync("r", "repo.read", {})
    assert decision.bundle_ids == ["issues.write"]
    assert bool(decision.offered) == is_offered
    assert ("repo.readonly" in decision.offered) == is_offered
    assert (result.outcome == "ok") == is_offered, "what was neither picked nor offered is refused"


@pytest.mark.parametrize("beside", ["doubt", "always", "never"])
@pytest.mark.parametrize("order", [("search", "model", "shortlist"), ("model", "shortlist")])
def test_a_model_that_picks_nothing_leads_to_the_shortlist(beside: Any, order: Any) -> None:
    of = catalog(order=order, beside=beside)
    with fake_router(of, selector=staged(of, Model([]))) as router:
        decision = router.route_sync(step(UNSURE))
        (record,) = router.fakes.records("r")
    assert (decision.source, decision.degraded, decision.bundle_ids) == ("shortlist", False, [])
    assert "repo.readonly" in decision.offered
    assert "the model picked nothing" in decision.justification
    assert decision.model is not None
    assert decision.model.attempts == 1, "its cost is recorded"
    assert replay(json.loads(encode(record)), of).outcome == "identical"


def test_a_degraded_decision_says_whose_failure_it_is_and_what_stands_in() -> None:
    _, decision = settled(catalog(), UNSURE, Model("rate_limited"))
    assert "the model was not heard (rate_limited)" in decision.justification
    assert (
        "in its place the best that search found and that only reads: repo.readonly"
        in decision.justification
    )
    assert decision.model is not None
    assert decision.model.failure == "rate_limited"


def test_what_was_ranked_and_not_shown_is_left_out_with_a_code() -> None:
    _, decision = settled(catalog(), UNSURE, Model(["repo.readonly"]))
    assert {row.id: row.code for row in decision.left_out} == {
        "issues.write": "not_selected",
        "strangers.mail": "below_floor",
    }
    _, nothing = settled(catalog(floor=1.0), UNSURE)
    assert {row.code for row in nothing.left_out} == {"below_floor"}


def test_a_route_that_asks_keeps_its_own_bundles_and_search_adds_to_them() -> None:
    from bundle_router.core.catalog import Route

    of = replace(
        catalog(), routes=(Route("spike", bundles=("issues.write",), ask=("docs.*", "repo.*")),)
    )
    _, sure = settled(of, SURE)
    assert outcome(sure) == ("search", False, ["issues.write", "docs.fetch"])
    _, unsure = settled(of, NOVEL, Model("timeout"))
    assert outcome(unsure) == ("mapping", True, ["issues.write"])


# --- records --------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [SURE, EITHER, UNSURE, WRITES, NOVEL])
@pytest.mark.parametrize("says", [None, "timeout", ["issues.write"], ["nonsense"], []])
def test_every_way_through_is_recorded_and_replays_to_the_same_bytes(goal: str, says: Any) -> None:
    of = catalog(default=("repo.readonly",))
    model = Model(says) if says is not None else None
    with fake_router(of, selector=staged(of, model)) as router:
        router.route_sync(step(SURE, step="before"))
        router.route_sync(step(goal))
        records = router.fakes.records("r")
    for record in records:
        assert replay(json.loads(encode(record)), of).outcome == "identical"
        assert [row["name"] for row in record["facts"]["revisions"]] == ["index", "thresholds"]
        assert record["search"]["thresholds"] == "shipped/3"


def test_a_calibration_in_force_is_named_in_the_record() -> None:
    of = catalog(calibration=Calibration("2026-11", 400, 9.0, (("margin", 1.0),)))
    with fake_router(of, selector=staged(of)) as router:
        router.route_sync(step(WRITES))
        (record,) = router.fakes.records("r")
    assert {"name": "thresholds", "revision": "2026-11"} in record["facts"]["revisions"]
    assert (record["source"], record["search"]["threshold"]) == ("search", 0.97)
    assert record["search"]["probability"] > 0.99


def test_a_mapped_decision_rests_on_nothing_learned() -> None:
    from bundle_router.core.catalog import Route

    of = replace(catalog(), routes=(Route("all", bundles=("docs.fetch",)),))
    with fake_router(of, selector=staged(of)) as router:
        router.route_sync(step(SURE))
        (record,) = router.fakes.records("r")
    assert (record["facts"]["revisions"], record["search"], record["reply"]) == ([], None, None)


def test_earlier_steps_of_the_run_are_searched_with() -> None:
    of = catalog()
    asked = question(of, "and now the other one of these")
    recent = (RecentStep("x", "y", SURE, ("docs.fetch",)),)
    with_history = asyncio.run(staged(of).select(asked, recent)).search
    assert with_history is not None
    assert with_history.ranked[0].id == "docs.fetch"
    assert with_history.verdict == "novel", "history ranks, and settles nothing by itself"


# --- what may never happen ------------------------------------------------------------------------


def test_no_injected_intent_changes_what_is_permitted_or_shows_what_acts() -> None:
    """S-05: text in the intent moves a ranking, never the set it is made over."""
    of = catalog()
    selector = SearchSelector(search_over, FakeDiagnostics())
    texts = injections()
    assert len(texts) >= 1100
    permitted = question(of, "x").candidates
    for text in texts:
        goal = text.encode("utf-8", "replace").decode()[:32_768]
        asked = question(of, goal, policy={"deny": ("shell.*",)})
        assert asked.candidates == tuple(id_ for id_ in permitted if id_ != "shell.run")
        reply = selector.consider(asked, ()).reply
        decision = conclude(asked, reply)
        assert reply.failure is None
        assert set(decision.bundle_ids) <= {
            "repo.readonly",
            "docs.fetch",
            "strangers.mail",
        }, "search alone only reads"
        assert {row.id for row in decision.candidates} <= set(asked.candidates)


LONG = "a" * 32_768


@pytest.mark.parametrize(
    "more",
    [
        {"goal": LONG},
        {"goal": " " * 32_768},
        {"goal": "," * 32_768},
        {"goal": "a, and then " * 2_700},
        {"goal": "\n" * 32_768},
        {"goal": "\ufdfa" * 32_768},
        {"goal": "aA" * 16_384},
        {"goal": "x", "constraints": (LONG,) * 100},
        {"goal": LONG, "constraints": ("word " * 6_500,) * 100},
    ],
    ids=[
        "letter",
        "spaces",
        "commas",
        "clauses",
        "lines",
        "expanding",
        "camel",
        "constraints",
        "both",
    ],
)
def test_no_step_is_slower_than_a_page_of_text(more: dict[str, Any]) -> None:
    """S-14. Bounded by the alarm: the worst of these takes tens of milliseconds."""
    of = catalog()
    selector = staged(of)

    async def bounded() -> Reply:
        async with asyncio.timeout(300):
            return await selector.select(question(of, **more), ())

    reply = asyncio.run(bounded())
    assert reply.failure is None
    assert reply.search is not None


@given(st.text(max_size=120), st.lists(st.text(max_size=30), max_size=3), st.booleans())
@examples(150)
def test_the_same_question_gets_the_same_bytes_from_an_index_made_anew(
    goal: str, constraints: list[str], with_recent: bool
) -> None:
    recent = (RecentStep("x", "y", goal, ("docs.fetch",)),) if with_recent else ()
    replies = []
    for _ in range(2):
        of = catalog()
        asked = question(of, goal, constraints=tuple(constraints))
        reply = SearchSelector(search_over, FakeDiagnostics()).consider(asked, recent).reply
        replies.append(
            encode([reply_json(reply), outcome_json(conclude(asked, reply)), reply.revisions])
        )
    assert replies[0] == replies[1]


def test_the_same_question_gets_the_same_bytes_under_any_hash_seed() -> None:
    script = (
        "from tests.engine.selecting.catalogs import *\nfrom bundle_router.core.records.decision_record"
        " import outcome_json\nfrom bundle_router.core.values.canonical import encode\nfor goal in"
        " (SURE, EITHER, UNSURE, WRITES): print(encode(outcome_json(settled(catalog(), goal)[1])))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(printed) == 1
    assert printed.pop().count("\n") == 4


# --- the index ------------------------------------------------------------------------------------


def test_the_index_is_made_once_for_a_revision_by_whoever_asks_first() -> None:
    made: list[str] = []
    together = threading.Barrier(8)
    second = threading.Event()

    def make(of: Catalog) -> Search:
        made.append(of.revision)
        if len(made) > 1:
            second.set()
        second.wait(0.3)  # for another maker, who must not come
        return search_over(of)

    selector = SearchSelector(make, FakeDiagnostics())
    of = catalog()

    def ask(_: int) -> Reply:
        together.wait(300)
        return asyncio.run(selector.select(question(of, SURE), ()))

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(ask, range(8)))
    assert len(made) == 1
    assert len({encode(reply_json(reply)) for reply in replies}) == 1
    asyncio.run(selector.select(question(catalog(floor=0.5), SURE), ()))
    assert len(made) == 2, "another config is another catalog"
    for floor in (0.4, 0.5, 0.4):
        asyncio.run(selector.select(question(catalog(floor=floor), SURE), ()))
    assert len(made) == 3, "two are kept"
    asyncio.run(selector.select(question(of, SURE), ()))
    assert len(made) == 4, "the first was let go of"


@pytest.mark.parametrize("says", [None, "timeout", ["docs.fetch"]])
def test_where_the_library_is_missing_the_next_stage_is_asked_and_it_is_said_once(
    says: Any,
) -> None:
    def make(of: Catalog) -> Search:
        raise NotInstalled("search needs bm25s", advice="install bundle-router[search]")

    of = catalog(default=("repo.readonly",))
    diagnostics = FakeDiagnostics()
    model = Model(says) if says is not None else None
    selector = staged(of, model, make=make, diagnostics=diagnostics)
    for _ in range(3):
        asked = question(of, SURE)
        decision = conclude(asked, asyncio.run(selector.select(asked, ())))
    assert decision.search is None
    assert decision.degraded is (says == "timeout"), (
        "nobody was there to ask: that is declared behaviour"
    )
    assert [name for _, name, _ in diagnostics.events] == ["search.unavailable"]


@pytest.mark.parametrize(
    ("says", "came"), [(None, ("default", True)), (["docs.fetch"], ("model", False))]
)
def test_a_search_that_breaks_is_not_heard_and_raises_nothing(
    says: Sequence[str] | None, came: Any
) -> None:
    def make(of: Catalog) -> Search:
        raise OSError("the index is gone")

    of = catalog(default=("repo.readonly",))
    diagnostics = FakeDiagnostics()
    selector = staged(
        of, Model(says) if says is not None else None, make=make, diagnostics=diagnostics
    )
    asked = question(of, SURE)
    decision = conclude(asked, asyncio.run(selector.select(asked, ())))
    assert (decision.source, decision.degraded) == came
    assert ("error", "search.broke") in {(level, name) for level, name, _ in diagnostics.events}


def test_warming_up_makes_the_index_and_closing_closes_the_model() -> None:
    made: list[str] = []

    def make(of: Catalog) -> Search:
        made.append(of.revision)
        return search_over(of)

    of = catalog()
    model = Model([])
    selector = staged(of, model, make=make)
    assert asyncio.run(selector.warm_up(of)) == "ready"
    assert made == [of.revision]
    asyncio.run(selector.close())
    assert model.closed
    assert asyncio.run(staged(of).warm_up(of)) == "missing"


def test_explaining_searches_and_asks_no_model() -> None:
    of = catalog()
    model = Model(["issues.write"])
    selector = staged(of, model)
    found = selector.preview(question(of, SURE))
    assert found is not None
    assert found.answer is not None
    assert model.asked == 0
    first = catalog(order=("model", "search"))
    assert staged(first, model).preview(question(first, SURE)) is None


def test_nobody_is_asked_for_a_choice_of_one() -> None:
    of = catalog(default=("repo.readonly",))
    taken = decide(Plans(of), Facts(), Activation(), step(SURE, policy={"allow": ("docs.fetch",)}))
    assert isinstance(taken, Decision)
    assert taken.bundle_ids == []
