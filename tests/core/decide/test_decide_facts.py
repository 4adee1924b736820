"""What is worked out once follows the facts all the same, and what earlier steps asked for is
counted.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from bundle_router.core.catalog import Bundle, Policy, Route
from bundle_router.core.decide.decide import decide
from bundle_router.core.decide.plans import Plans, permitted_tools
from bundle_router.core.values import Activation, AskedTool, Decision, Drift, Entry, Facts, Step
from bundle_router.testing import small_catalog

STEP = Step(run_id="r", workflow="w", role="r", step="s")
BUNDLES: Mapping[str, list[str] | Bundle] = {
    "x": ["s.a", "s.b"],
    "found": Bundle("found", "", ("s.a", "s.b", "s.c"), mode="deferred", effects=("read",)),
    "late": ["t.a"],
}


@pytest.mark.parametrize(
    "changed", [Facts(drifted=(Drift("s", "a"),)), Facts(unavailable=(("s", "down"),))]
)
def test_what_a_call_may_use_follows_the_facts_of_the_moment(changed: Facts) -> None:
    plans = Plans(small_catalog(BUNDLES, routes=[Route("r", bundles=("x",))]))
    for facts in (Facts(), changed, Facts(), changed):
        tools = permitted_tools(plans, facts, STEP, ["x"])
        assert dict(tools) == dict(
            permitted_tools(Plans(small_catalog(BUNDLES)), facts, STEP, ["x"])
        )
        assert ("s.a" in tools) is (facts != changed)


def test_a_bounded_number_of_sets_of_tools_is_kept() -> None:
    plans = Plans(small_catalog({f"x{n}": [f"s.t{n}"] for n in range(40)}))
    verdicts = plans.of(STEP, ()).verdicts
    facts = Facts()
    for number in range(40):
        assert dict(permitted_tools(plans, facts, STEP, [f"x{number}"])) == {
            f"s.t{number}": f"x{number}"
        }
        assert [len(judged.tools) <= 16 for judged in verdicts._judged] == [
            True
        ]  # seen nowhere else


def test_a_decision_lacks_only_what_is_left_out_because_its_server_is_not_there_yet() -> None:
    routes, facts = (
        [Route("r", bundles=("x", "late"))],
        Facts(unavailable=(("t", "no list yet"),), pending=("t",)),
    )
    denied = Policy("all", allow=("*",), deny=("bundle:late",))
    for policies, degraded in (([Policy("all", allow=("*",))], True), ([denied], False)):
        decision = decide(
            Plans(small_catalog(BUNDLES, routes=routes, policies=policies)),
            facts,
            Activation(),
            STEP,
        )
        assert isinstance(decision, Decision)
        assert (decision.degraded, [row.id for row in decision.left_out]) == (degraded, ["late"])


def test_tools_that_earlier_steps_asked_for_count_and_what_has_no_room_is_left_out() -> None:
    catalog = small_catalog(BUNDLES, routes=[Route("r", bundles=("found", "late"))])
    asked = tuple(AskedTool(f"s.{name}", place, place) for place, name in enumerate("cba", 1))
    before = Activation(
        (Entry("found", "mapped", 1, tools=asked), Entry("late", "mapped", 1, place=9))
    )
    for most, tools, left in ((None, 4, []), (3, 3, ["s.c"]), (1, 1, ["s.a", "s.b", "s.c"])):
        decision = decide(
            Plans(catalog), Facts(), before, STEP.model_copy(update={"max_tools": most})
        )
        assert isinstance(decision, Decision)
        assert (decision.exposure.tools, decision.exposure.tokens) == (tools, 10 * tools)
        assert [(row.id, row.code, row.tool) for row in decision.left_out] == [
            ("found", "over_budget", tool) for tool in left
        ]
    down = decide(Plans(catalog), Facts(drifted=(Drift("s", "b"),)), before, STEP)
    assert isinstance(down, Decision)
    assert down.exposure.tools == 3


def test_what_goes_into_the_array_follows_the_tools_that_are_permitted_now() -> None:
    plans = Plans(small_catalog(BUNDLES, routes=[Route("r", bundles=("x",))]))
    counts = []
    for facts in (Facts(), Facts(drifted=(Drift("s", "a"),)), Facts()):
        decision = decide(plans, facts, Activation(), STEP)
        assert isinstance(decision, Decision)
        counts.append((decision.exposure.tools, decision.exposure.tokens))
    assert counts == [(2, 20), (1, 10), (2, 20)]
