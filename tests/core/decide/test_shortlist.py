"""Never empty-handed: what is offered behind search where nothing is sure, and what may never come
of it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Fallback, OfferSettings, Policy, Route
from bundle_router.core.decide.decide import decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.replayed import replay
from bundle_router.core.search.documents import MIN_WORDS
from bundle_router.core.values import Activation, Decision, Facts
from bundle_router.core.values.canonical import encode
from bundle_router.testing import FakeRouter, fake_router

from tests.engine.selecting.catalogs import (
    BUNDLES,
    EITHER,
    LIKELY,
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

ORDER = ("search", "model", "shortlist", "default")


def offering(**settings: Any) -> Catalog:
    return catalog(**{"order": ORDER, **settings})


def modes(decision: Decision) -> dict[str, str | None]:
    return {chosen.id: chosen.mode for chosen in decision.bundles}


@pytest.mark.parametrize("goal", [UNSURE, WRITES, RUNS, NOVEL])
def test_a_step_that_nothing_settles_is_offered_the_best_of_what_it_may_have_behind_search(
    goal: str,
) -> None:
    reply, decision = settled(offering(), goal)
    assert (decision.source, decision.degraded) == ("shortlist", False)
    assert {chosen.reason for chosen in decision.bundles} == {"shortlist"}
    assert modes(decision) == {
        bundle.id: "meta" if bundle.mode == "meta" else "deferred" for bundle in BUNDLES
    }, "few candidates are all offered"
    assert (decision.exposure.tools, decision.exposure.tokens) == (0, 0)
    assert "waits behind search" in decision.justification
    assert decision.search == reply.search


def test_the_best_ranked_comes_first_and_no_more_than_allowed() -> None:
    _, decision = settled(offering(max_shortlist=2), UNSURE)
    assert sorted(modes(decision)) == ["issues.write", "repo.readonly"]
    _, none = settled(offering(max_shortlist=0), UNSURE)
    assert (none.source, none.bundle_ids) == ("none", [])


@pytest.mark.parametrize(("goal", "source"), [(SURE, "search")])
def test_what_search_is_sure_of_is_shown_as_it_is(goal: str, source: str) -> None:
    _, decision = settled(offering(), goal)
    assert decision.source == source
    assert set(modes(decision).values()) == {None}


def test_beside_what_search_is_sure_of_the_others_are_offered_where_the_step_has_several_wishes() -> (
    None
):
    several = f"{SURE.capitalize()}, the page about timeouts. Then open a ticket in Paris."
    reply, decision = settled(offering(), several)
    assert reply.search is not None
    assert reply.search.verdict == "enough"
    assert (decision.source, decision.bundles[0].id, decision.bundles[0].mode) == (
        "search",
        "docs.fetch",
        None,
    )
    beside = decision.bundles[1:]
    assert {row.id for row in beside} == {bundle.id for bundle in BUNDLES} - {"docs.fetch"}
    assert {row.reason for row in beside} == {"shortlist"}
    assert all(row.mode is not None and "several wishes" in row.evidence for row in beside)
    for alone in (SURE, f"{SURE.capitalize()}, the page about timeouts."):
        assert settled(offering(), alone)[1].bundle_ids == ["docs.fetch"], "one wish, one bundle"
    _, without = settled(catalog(order=("search", "model", "default")), several)
    assert without.bundle_ids == ["docs.fetch"], "no shortlist where [fallback] order has none"
    of = offering(offer=OfferSettings(write="none"))
    router = running(of)
    codes = {row.id: row.code for row in router.route_sync(step(several)).left_out}
    assert codes["issues.write"] == "not_offered"
    assert replay(json.loads(encode(router.fakes.records("r")[-1])), of).outcome == "identical"


def test_several_are_shown_together_where_one_is_likely_right_and_else_offered() -> None:
    _, decision = settled(offering(), EITHER)
    assert (decision.source, {row.reason for row in decision.bundles}) == ("search", {"union"})
    _, decision = settled(offering(), LIKELY)
    assert decision.source == "shortlist"


@pytest.mark.parametrize(
    ("says", "source", "degraded"),
    [
        (["issues.write"], "model", False),
        ([], "shortlist", False),
        ("timeout", "shortlist", True),
    ],
)
def test_a_model_is_asked_first_and_is_not_overruled(
    says: Any, source: str, degraded: bool
) -> None:
    _, decision = settled(offering(), WRITES, Model(says))
    assert (decision.source, decision.degraded) == (source, degraded)


def test_a_declared_default_is_shown_beside_what_is_offered() -> None:
    _, decision = settled(offering(default=("repo.readonly",), max_shortlist=2), WRITES)
    first = decision.bundles[0]
    assert (first.id, first.reason, first.mode) == ("repo.readonly", "default", None)
    assert decision.source == "shortlist"


@pytest.mark.parametrize(
    ("offer", "absent"),
    [
        (OfferSettings(write="none"), {"issues.write"}),
        (OfferSettings(execute="none"), {"shell.run"}),
        (OfferSettings(read="none"), {"repo.readonly", "docs.fetch", "strangers.mail"}),
        (OfferSettings("none", "none", "none"), {bundle.id for bundle in BUNDLES}),
    ],
)
def test_an_operator_can_forbid_to_offer_any_effect(offer: OfferSettings, absent: set[str]) -> None:
    for goal in (SURE, EITHER, UNSURE, NOVEL):
        _, decision = settled(offering(offer=offer), goal)
        assert not absent & set(decision.bundle_ids)


def test_what_an_operator_keeps_out_of_a_shortlist_is_said_so_and_older_records_replay() -> None:
    of = offering(offer=OfferSettings(write="none"))
    router = running(of)
    for goal in (WRITES, NOVEL):
        decision = router.route_sync(step(goal))
        codes = {row.id: row.code for row in decision.left_out}
        assert (decision.source, codes["issues.write"]) == ("shortlist", "not_offered")
        record = json.loads(encode(router.fakes.records("r")[-1]))
        assert replay(record, of).outcome == "identical"
        del record["search"]["withheld"]
        said = {row.id: row.code for row in replay(record, of).decision.left_out}
        assert said["issues.write"] in (
            "below_floor",
            "not_selected",
        ), "as it was recorded before there was a code"
    _, alone = settled(of, f"{SURE} ticket")
    assert alone.source == "search"
    assert {row.id: row.code for row in alone.left_out}["issues.write"] == "below_floor", (
        "nothing was offered"
    )
    _, picked = settled(of, WRITES, Model(["repo.readonly"]))
    assert {row.id: row.code for row in picked.left_out}["issues.write"] == "not_selected", (
        "the model could pick it"
    )


def test_an_operator_can_keep_search_from_showing_anything_directly() -> None:
    for goal in (SURE, EITHER):
        _, decision = settled(offering(offer=OfferSettings(read="meta")), goal)
        assert decision.source == "shortlist"
        assert modes(decision)["docs.fetch"] == "meta"


def test_undeclared_effects_count_as_executing() -> None:
    bundles = tuple(replace(bundle, effects=()) for bundle in BUNDLES)
    _, decision = settled(offering(bundles=bundles, offer=OfferSettings(execute="none")), UNSURE)
    assert decision.bundle_ids == []


def test_nothing_outside_of_policy_is_offered() -> None:
    reading = Policy("reading", allow=("*",), effects=("read", "network"), min_trust="trusted")
    for goal in (UNSURE, WRITES, RUNS, NOVEL):
        _, decision = settled(replace(offering(), policies=(reading,)), goal)
        assert decision.reachable_ids
        assert set(decision.reachable_ids) <= {"repo.readonly", "docs.fetch"}


def test_the_only_bundle_that_may_be_picked_is_offered_without_a_question() -> None:
    of = replace(offering(), policies=(Policy("one", allow=("bundle:shell.run",)),))
    decision = decide(Plans(of), Facts(), Activation(), step(NOVEL))
    assert isinstance(decision, Decision)
    assert (decision.source, modes(decision)) == ("shortlist", {"shell.run": "deferred"})
    assert decision.justification.startswith(
        "no route covers this step; it is the only bundle that may be picked;"
    )
    for other in (
        replace(of, policies=()),
        replace(offering(offer=OfferSettings(execute="none")), policies=of.policies),
    ):
        nothing = decide(Plans(other), Facts(), Activation(), step(NOVEL))
        assert isinstance(nothing, Decision)
        assert (nothing.source, nothing.bundle_ids) == ("none", [])
        assert nothing.justification == "no route covers this step; nothing is shown"


def test_a_route_that_asks_keeps_its_own_bundles_and_is_offered_others() -> None:
    of = replace(
        offering(), routes=(Route("spike", bundles=("issues.write",), ask=("docs.*", "repo.*")),)
    )
    _, decision = settled(of, NOVEL)
    assert modes(decision) == {
        "issues.write": None,
        "docs.fetch": "deferred",
        "repo.readonly": "deferred",
    }


# --- a run ----------------------------------------------------------------------------------------


def running(of: Catalog) -> FakeRouter:
    return fake_router(of, selector=staged(of))


def test_what_was_offered_and_not_used_is_gone_at_the_next_step_and_the_record_says_so() -> None:
    router = running(offering(max_shortlist=2))
    router.route_sync(step(UNSURE))
    after = router.route_sync(step(SURE))
    assert after.bundle_ids == ["docs.fetch"]
    assert {(row.id, row.code, row.detail) for row in after.left_out} >= {
        (
            "issues.write",
            "not_selected",
            "it was offered at an earlier step, and nothing of it was used",
        )
    }


def test_what_was_offered_and_used_stays_behind_search() -> None:
    router = running(offering(max_shortlist=2))
    router.route_sync(step(UNSURE))
    router.call_sync("r", "issues.open", {})
    after = router.route_sync(step(SURE))
    assert modes(after) == {"docs.fetch": None, "issues.write": "deferred"}
    assert [chosen.reason for chosen in after.bundles] == ["search", "sticky"]
    tools = router.tools_sync("r")
    assert "issues__close" not in json.dumps(tools.tools)
    assert "issues.close" in {tool.name for tool in tools.deferred}


def test_offered_tools_are_not_in_the_array_and_the_model_is_told_of_their_bundles() -> None:
    router = running(offering())
    router.route_sync(step(UNSURE))
    tools = router.tools_sync("r")
    assert not tools.active
    assert "repo.readonly 2" in tools.guidance
    assert {tool.name for tool in tools.deferred} == {
        tool for bundle in BUNDLES if bundle.mode != "meta" for tool in bundle.tools
    }
    assert tools.meta == ("strangers.mail",)


def test_a_later_answer_shows_an_offered_bundle_as_it_is() -> None:
    of = replace(
        offering(max_shortlist=2),
        routes=(Route("edit", step=("edit",), bundles=("issues.write",)),),
    )
    router = running(of)
    router.route_sync(step(UNSURE))
    edit = router.route_sync(step(UNSURE, step="edit"))
    assert (modes(edit)["issues.write"], edit.exposure.tools) == (None, 2)
    after = router.route_sync(step(UNSURE))
    assert ("issues.write", "sticky", None) in [(c.id, c.reason, c.mode) for c in after.bundles]


def test_a_step_of_a_route_that_does_not_ask_ignores_what_was_offered_and_used() -> None:
    of = replace(offering(), routes=(Route("edit", step=("edit",), bundles=("docs.fetch",)),))
    router = running(of)
    router.route_sync(step(UNSURE))
    router.call_sync("r", "issues.open", {})
    assert router.route_sync(step(UNSURE, step="edit")).bundle_ids == ["docs.fetch"]


def test_an_offered_run_is_recorded_and_replays_to_the_same_bytes() -> None:
    of = offering()
    router = running(of)
    for goal in (UNSURE, NOVEL, SURE):
        router.route_sync(step(goal))
    for record in router.fakes.records("r"):
        if record["type"] == "route.decided":
            assert replay(json.loads(encode(record)), of).outcome == "identical"
            assert DecisionRecord.from_json(record).to_json()["bundles"] == record["bundles"]
    first = router.fakes.records("r")[0]
    assert {row["mode"] for row in first["bundles"]} == {"deferred", "meta"}


# --- what a model is asked ------------------------------------------------------------------------


def test_a_model_is_asked_about_the_best_ranked_and_about_what_search_knows_nothing_of() -> None:
    many = tuple(
        Bundle(
            f"b{n:03}", f"mend kettle number {chr(97 + n % 26)}{n}", (f"x.t{n}",), effects=("read",)
        )
        for n in range(120)
    )
    blank = Bundle("zz", "Misc.", ("x.zz",), effects=("read",))
    of = offering(bundles=(*many, blank, *BUNDLES))
    seen: list[tuple[str, ...]] = []

    class Listening(Model):
        async def select(self, question: Any, recent: Any) -> Any:
            seen.append(question.candidates)
            return await super().select(question, recent)

    asked = question(of, "open a ticket about the kettle and read the source code")
    asyncio.run(staged(of, Listening([]), make=search_over).select(asked, ()))
    assert seen[0][-1] == "zz", f"fewer than {MIN_WORDS} words of it are known"
    assert len(seen[0]) == 32
    assert "issues.write" in seen[0][:3]
    assert set(seen[0]) <= set(asked.candidates)


def test_the_order_of_the_config_may_leave_the_shortlist_out() -> None:
    assert Fallback().order == ORDER
    _, decision = settled(catalog(order=("search", "model", "default")), UNSURE)
    assert (decision.source, decision.bundle_ids) == ("none", [])
