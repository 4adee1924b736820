"""Decisions that are kept for a catalog are the decisions that `decide` takes, whatever was kept
before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
from bundle_router.core.catalog import (
    ActivationSettings,
    Bundle,
    Catalog,
    Fallback,
    Policy,
    Route,
    Settings,
)
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.values import (
    Activation,
    Address,
    AskedTool,
    Decision,
    Drift,
    Entry,
    Facts,
    Grant,
    Seen,
    Step,
    StepPolicy,
)
from bundle_router.engine.route import DecisionCache
from bundle_router.testing import fake_router, small_catalog
from hypothesis import given
from hypothesis import strategies as st

from tests.core.decide.test_decide_properties import IDS, activations, catalogs, facts_, steps
from tests.profiles import examples

STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "s"}
DOWN = (("s", "down"),)
LATER = (Entry("y", "mapped", 2, place=1), Entry("z", "mapped", 1))
"""What a run has that was at bundles z and y before."""
MATTERS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "facts.capabilities": ({}, {"capabilities": frozenset()}),
    "facts.unavailable": ({}, {"unavailable": DOWN}),
    "facts.drifted": ({}, {"drifted": (Drift("s", "x"),)}),
    "facts.pending": ({"unavailable": DOWN}, {"unavailable": DOWN, "pending": ("s",)}),
    "facts.grants": ({}, {"grants": (Grant(Address(("w", "r", "s")), StepPolicy(deny=("x",))),)}),
    "facts.seen": ({}, {"seen": (Seen("private", "s.a", 1),)}),
    "step.workflow": ({}, {"workflow": "other"}),
    "step.role": ({}, {"role": "other"}),
    "step.step": ({}, {"step": "other"}),
    "step.policy": ({}, {"policy": StepPolicy(deny=("x",))}),
    "step.max_bundles": ({}, {"max_bundles": 1}),
    "step.max_tools": ({}, {"max_tools": 1}),
    "step.max_tokens": ({}, {"max_tokens": 10}),
    "entry.id": ({"entries": LATER[:1]}, {"entries": (replace(LATER[0], id="z"),)}),
    "entry.origin": ({"entries": LATER}, {"entries": (replace(LATER[0], origin="search"), LATER[1])}),
    "entry.used": ({"entries": LATER}, {"entries": (replace(LATER[0], used=1), replace(LATER[1], used=2))}),
    "entry.inherited": ({"entries": LATER}, {"entries": (replace(LATER[0], inherited=True), LATER[1])}),
    "entry.place": ({"entries": LATER}, {"entries": (replace(LATER[0], place=3), LATER[1])}),
    "entry.tools": ({"entries": LATER}, {"entries": (replace(LATER[0], tools=(AskedTool("t.z", 2, 1),)), LATER[1])}),
    "an offer that was used, and one that was not": (
        {"step": "asks nobody", "entries": (LATER[0], replace(LATER[1], origin="shortlist", used=0))},
        {"step": "asks nobody", "entries": (replace(LATER[0], used=3), replace(LATER[1], origin="shortlist"))},
    ),
    "an offer, and the same at a later time": (
        {"step": "offers", "entries": LATER[:1]},
        {"step": "offers", "entries": (replace(LATER[0], used=9),)},
    ),
    "another time": ({"entries": LATER}, {"entries": tuple(replace(one, used=one.used + 7) for one in LATER)}),
}  # fmt: skip
IGNORED = {
    "run_id", "goal", "constraints", "principal", "parent_run_id", "inherit", "labels", "workspace", "key", "branch",
    "parent_decision_id", "fixed_list", "carries", "hands_back", "approvals",
}  # fmt: skip
"""Of a step, what a decision without a question does not depend on."""


def catalog() -> Catalog:
    needs = Bundle(
        "x", "What it is for.", ("s.x", "s.x2"), effects=("read",), requires_env=("TOKEN",)
    )
    tools: dict[str, list[str] | Bundle] = {
        "a": ["s.a"],
        "x": needs,
        "y": ["t.y", "t.y2"],
        "z": ["t.z"],
    }
    routes = [
        Route("closed", workflow=("w",), role=("r",), step=("s",), bundles=("a", "x")),
        Route("asks nobody", step=("asks nobody",), bundles=("a",), ask=("none",)),
        Route("offers", step=("offers",), ask=("z",)),
        Route("elsewhere", bundles=("z",)),
    ]
    fallback = Fallback(("search", "shortlist"))
    return small_catalog(
        tools,
        routes=routes,
        policies=[
            Policy("everything", allow=("*",)),
            Policy("once read", deny=("x",), seen=("private",)),
        ],
        settings=Settings(activation=ActivationSettings(True, 5), fallback=fallback),
    )


def cache() -> DecisionCache:
    return DecisionCache(Plans(catalog()))


def situation(changes: Mapping[str, Any]) -> tuple[Facts, Activation, Step]:
    values = {"capabilities": frozenset({"env:TOKEN"}), **STEP, **changes}
    facts = Facts(
        **{field.name: values[field.name] for field in fields(Facts) if field.name in values}
    )
    step = Step.model_validate({name: values[name] for name in Step.model_fields if name in values})
    return facts, Activation(values.get("entries", ())), step


def anew(facts: Facts, before: Activation, step: Step) -> Decision:
    return decided(decide(Plans(catalog()), facts, before, step))


def placed(activation: Activation, at: Callable[[int], int]) -> Activation:
    """Return the activation with its entries, and what was asked for, at other places."""
    return Activation(
        tuple(
            replace(
                entry,
                place=at(entry.place),
                tools=tuple(replace(tool, place=at(tool.place)) for tool in entry.tools),
            )
            for entry in activation.entries
        )
    )


def decided(decision: Decision | Question) -> Decision:
    assert isinstance(decision, Decision)
    return decision


def test_every_input_of_a_decision_is_varied_below_or_said_not_to_count() -> None:
    named = {
        *(f"facts.{field.name}" for field in fields(Facts) if field.compare),
        *(f"step.{name}" for name in Step.model_fields if name not in IGNORED),
        *(f"entry.{field.name}" for field in fields(Entry)),
    }
    assert named - MATTERS.keys() == {
        "facts.revisions"
    }  # recorded with the decision and read by nothing in it


@pytest.mark.parametrize("name", MATTERS)
def test_no_input_is_taken_for_another(name: str) -> None:
    one, other = map(situation, MATTERS[name])
    assert replace(anew(*one), before=other[1]) != anew(*other), "the row shows nothing"
    for first, second in ((one, other), (other, one)):
        shared = cache()
        for asked in (first, second, first):
            assert shared.decide(*asked) == anew(*asked)


def test_what_is_kept_is_given_again_to_another_run_at_another_time() -> None:
    shared = cache()
    facts, before, step = situation({"entries": LATER})
    first = decided(shared.decide(facts, before, step))
    later = placed(before, lambda place: place + 20)
    later = Activation(tuple(replace(entry, used=entry.used + 7) for entry in later.entries))
    values = {
        "goal": "g",
        "constraints": ("c",),
        "principal": "p",
        "labels": {"l": "v"},
        "key": "k",
        "branch": "b",
    }
    for again in (before, later):
        step = Step.model_validate(STEP | values | {"run_id": "r-2"})
        decision = decided(shared.decide(replace(facts), again, step))
        assert (decision.bundles is first.bundles, decision) == (True, anew(facts, again, step))


def test_a_bounded_number_is_kept() -> None:
    shared = cache()
    facts, before, step = situation({})
    asked = [step.model_copy(update={"max_tokens": 1_000 + more}) for more in range(1_025)]
    made = [
        shared.decide(facts, before, one) for one in (*asked[:-1], asked[0], asked[-1], asked[0])
    ]
    bundles = [decided(one).bundles for one in made]
    assert bundles[1_024] is bundles[0]  # so many are kept
    assert bundles[1_026] is not bundles[0]  # and not one more


def test_a_run_whose_bundles_come_and_go_is_decided_once_a_turn_of_its_steps() -> None:
    """Each newcomer gets a place after all others, so places rise for as long as the run lasts."""
    tools: dict[str, list[str]] = {f"b{n}": [f"s.t{n}"] for n in range(6)}
    routes = [Route(f"r{n}", step=(f"s{n}",), bundles=(f"b{n}",)) for n in range(6)]
    settings = Settings(activation=ActivationSettings(True, 3))
    shared = DecisionCache(Plans(small_catalog(tools, routes=routes, settings=settings)))
    activation = Activation()
    turns: list[list[Decision]] = []
    for _ in range(4):
        turn = []
        for n in range(6):
            step = Step(run_id="r", workflow="w", role="r", step=f"s{n}")
            turn.append(decided(shared.decide(Facts(), activation, step)))
            activation = turn[-1].after
        turns.append(turn)
    assert [entry.place for entry in activation.entries] == [21, 22, 23]
    assert [entry.used for entry in activation.entries] == [22, 23, 24]
    for second, last in zip(turns[1], turns[3], strict=True):
        assert last.bundles is second.bundles


@pytest.mark.parametrize("name", ["step.policy", "facts.grants"])
def test_what_rests_on_policies_of_steps_is_not_kept(name: str) -> None:
    """They may hold thousands of patterns, and be others at each step."""
    shared, asked = cache(), situation(MATTERS[name][1])
    first, again = (decided(shared.decide(*asked)) for _ in range(2))
    assert (first == again, first.bundles is again.bundles) == (True, False)


def test_runs_of_one_router_come_by_the_same_step_with_budgets_of_their_own() -> None:
    with fake_router(catalog()) as router:
        shown = [router.route_sync(Step(run_id=f"r-{at}", workflow="w", role="r", step="s", max_tools=most)).bundle_ids
                 for at, most in enumerate((None, 1, None, 0))]  # fmt: skip
    assert shown == [["a"], ["a"], ["a"], []]


@given(catalogs(), st.tuples(facts_, facts_), activations, steps, st.integers(0, 9))
@examples(200)
def test_what_is_kept_is_what_would_be_decided_anew(
    catalog: Catalog, facts: tuple[Facts, Facts], before: Activation, step: Step, later: int
) -> None:
    moved = Activation(tuple(replace(entry, used=entry.used + later) for entry in before.entries))
    turned = Activation(tuple(replace(entry, used=9 - entry.used) for entry in before.entries))
    raised = placed(before, lambda place: 2 * place + later)
    reversed_ = placed(before, lambda place: 99 - place)
    mapped = replace(catalog, routes=(Route("r", bundles=(*IDS[:2], "unknown")),))
    caches = [DecisionCache(Plans(routed)) for routed in (catalog, mapped)]
    situations = (before, moved, turned, raised, reversed_)
    for cached, known, activation in product(caches, facts, situations):
        kept = cached.decide(known, activation, step)
        made = decide(Plans(cached.plans.catalog), known, activation, step)
        assert kept == made if isinstance(made, Decision) else isinstance(kept, Question)
