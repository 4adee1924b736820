"""What stays between steps: what search or a model picked never moves what the mapping brought in,
and nothing of what was there before goes without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from bundle_router.core.decide.activation import UNTRUSTED, inherit
from bundle_router.core.decide.decide import Question, decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.replayed import conclude
from bundle_router.core.values import (
    REASONS,
    Activation,
    Answer,
    AskedTool,
    Decision,
    Entry,
    Facts,
    Reason,
    Reply,
    Source,
    Step,
)
from bundle_router.testing import fake_router, small_catalog

ROUTES = [
    Route("map x", step=("x",), bundles=("x",)),
    Route("map z", step=("z",), bundles=("z",)),
    Route("ask", step=("ask",), ask=("*",)),
    Route("map x and y", step=("x and y",), bundles=("x", "y")),
    Route("ask beside x", step=("ask beside x",), bundles=("x",), ask=("*",)),
    Route("nothing", step=("nothing",)),
    Route("closed", step=("closed",), bundles=("c",)),
]


def catalog(bundles: Mapping[str, list[str] | Bundle] | None = None, **settings: object) -> Catalog:
    made = {"x": ["s.x"], "y": ["s.y"], "z": ["s.z"], "c": ["s.c"], **(bundles or {})}
    return small_catalog(made, routes=ROUTES, settings=Settings(**settings))  # type: ignore[arg-type]  # a table


def picking(*ids: str, reason: Reason = "model") -> Answer:
    source: Source = (
        "shortlist"
        if reason == "shortlist"
        else "search"
        if reason in ("search", "union")
        else "model"
    )
    return Answer(ids, source, reason, "said")


def taken(
    over: Catalog, before: Activation, at: str, answer: Answer | None = None, **changes: object
) -> Decision:
    step = Step.model_validate({"run_id": "r", "workflow": "w", "role": "r", "step": at} | changes)
    made = decide(Plans(over), Facts(), before, step)
    return conclude(made, Reply(made.key, answer)) if isinstance(made, Question) else made


def run(over: Catalog, steps: Sequence[tuple[str, Answer | None]]) -> list[Decision]:
    decisions: list[Decision] = []
    for at, answer in steps:
        decisions.append(
            taken(over, decisions[-1].after if decisions else Activation(), at, answer)
        )
    return decisions


def shown(decision: Decision) -> list[tuple[str, str, str]]:
    return [(chosen.id, chosen.reason, chosen.evidence) for chosen in decision.bundles]


def left_out(decision: Decision) -> dict[str, str]:
    return {row.id: row.code for row in decision.left_out}


def origins(activation: Activation) -> dict[str, str]:
    return {entry.id: entry.origin for entry in activation.entries}


def test_the_untrusted_origins_are_those_that_an_intent_can_bring_about() -> None:
    assert set(REASONS) - UNTRUSTED == {"mapped", "always", "sticky", "inherited"}


@pytest.mark.parametrize("picked", [("y",), ("x",), ("x", "y"), (), ("x", "z")])
@pytest.mark.parametrize("reason", ["search", "model", "model_cached", "union"])
def test_what_was_picked_on_the_way_changes_nothing_that_a_closed_route_shows(
    picked: tuple[str, ...], reason: Reason
) -> None:
    over = catalog(fallback=Fallback(default=("y",)))
    quiet = run(over, [("x", None), ("z", None), ("ask", None), ("closed", None)])
    loud = run(
        over, [("x", None), ("z", None), ("ask", picking(*picked, reason=reason)), ("closed", None)]
    )
    assert shown(quiet[-1]) == shown(loud[-1]) == [
        ("c", "mapped", "route 'closed'"),
        ("z", "sticky", "from an earlier step (mapped)"),
        ("x", "sticky", "from an earlier step (mapped)"),
    ]  # fmt: skip


def test_the_first_trusted_origin_stays_whoever_picks_the_bundle_later() -> None:
    over = catalog()
    kept = run(over, [("x", None), ("ask", picking("x", "y")), ("z", None)])[-1].after
    assert origins(kept) == {"x": "mapped", "y": "model", "z": "mapped"}
    mapped = run(
        over, [("ask", picking("x", "y")), ("x", None), ("ask", picking("y", reason="search"))]
    )[-1].after
    assert origins(mapped) == {"x": "mapped", "y": "model"}


def test_the_declared_default_counts_as_untrusted() -> None:
    over = catalog(fallback=Fallback(default=("y",)))
    decisions = run(over, [("ask", None), ("ask", None), ("closed", None)])
    assert decisions[0].source == "default"
    assert decisions[0].bundle_ids == ["y"]
    assert decisions[-1].bundle_ids == ["c"]
    assert left_out(decisions[-1]) == {"y": "not_mapped"}
    assert "brought in by default" in decisions[-1].left_out[0].detail


BIG = {"big": [f"s.b{n}" for n in range(24)]}


def test_what_was_picked_goes_first_however_lately_it_was_used() -> None:
    over = catalog({"y": ["s.y1", "s.y2"]}, activation=ActivationSettings(max_tools=4))
    decisions = run(over, [("x", None), ("z", None), ("ask", picking("y")), ("closed", None)])
    assert decisions[-1].evicted == ("y",)
    assert left_out(decisions[-1]) == {"y": "evicted"}
    assert decisions[-1].after.ids == ("c", "x", "z")


def test_a_pick_that_leaves_no_room_sets_the_mapped_aside_for_its_step_and_does_not_stay() -> None:
    decisions = run(
        catalog(BIG),
        [("x", None), ("ask", picking("big")), ("ask", picking("y")), ("closed", None)],
    )
    picked = decisions[1]
    assert picked.bundle_ids == ["big"]
    assert (picked.evicted, left_out(picked)) == ((), {"x": "over_budget"})
    assert "it stays for later steps" in picked.left_out[0].detail
    assert picked.after.ids == ("x",)
    assert decisions[2].bundle_ids == ["y", "x"]
    assert decisions[3].bundle_ids == ["c", "x"]


def test_a_pick_over_the_cap_stays_where_it_pushes_nothing_out() -> None:
    over = catalog({"big": [f"s.b{n}" for n in range(30)]})
    decisions = run(over, [("ask", picking("big")), ("ask", picking("y"))])
    assert decisions[0].after.ids == ("big",)
    assert decisions[1].evicted == ("big",)


def test_what_is_set_aside_is_told_of_in_the_order_of_the_ids() -> None:
    before = entries(*((id_, "mapped", 1, False) for id_ in "cxyz"))
    aside = taken(catalog(BIG), before, "ask", picking("big"))
    assert [(row.id, row.code) for row in aside.left_out] == [
        (id_, "over_budget") for id_ in "cxyz"
    ]


@pytest.mark.parametrize("used", [0, 3])
def test_what_waits_behind_search_takes_no_room(used: int) -> None:
    before = entries(("x", "mapped", 1, False), ("big", "shortlist", used, False))
    offered = taken(catalog(BIG), before, "ask", picking("big", reason="shortlist"))
    assert (set(offered.reachable_ids), offered.evicted, offered.left_out) == ({"x", "big"}, (), ())
    if used:
        later = taken(catalog(BIG), before, "ask", picking("z"))
        assert (set(later.bundle_ids), later.evicted, later.left_out) == ({"x", "z", "big"}, (), ())


def test_what_nobody_used_is_offered_again_where_it_is_among_the_best_again() -> None:
    decisions = run(catalog(), [("ask", picking("y", reason="shortlist"))] * 2)
    assert shown(decisions[0]) == shown(decisions[1]) == [("y", "shortlist", "said")]
    assert decisions[1].left_out == ()


def test_a_step_whose_offers_are_all_there_already_or_refused_says_what_it_got() -> None:
    offer = picking("y", reason="shortlist")
    there = taken(catalog(), entries(("y", "mapped", 1, False)), "ask", offer)
    assert (there.source, shown(there)) == (
        "shortlist",
        [("y", "sticky", "from an earlier step (mapped)")],
    )
    refused = taken(catalog(), Activation(), "ask", offer, max_bundles=0)
    assert (refused.source, refused.bundle_ids) == ("none", [])
    default = taken(
        catalog(fallback=Fallback(default=("z",))), Activation(), "ask", offer, max_bundles=1
    )
    assert (default.source, default.bundle_ids) == ("default", ["z"])


def test_what_was_offered_and_used_goes_with_its_bundle() -> None:
    before = entries(("gone", "shortlist", 3, False))
    assert taken(catalog(), before, "ask", picking("y")).after.ids == ("y",)


def test_a_bundle_of_globs_and_one_with_nothing_in_it_stay_like_any_other() -> None:
    globs, empty = Bundle("y", "x", (), patterns=("s.*",), effects=("read",)), Bundle("z", "x", ())
    over = catalog({"y": globs, "z": empty}, activation=ActivationSettings(max_tools=1))
    decisions = run(over, [("z", None), ("ask", picking("y")), ("ask", picking("y")), ("x", None)])
    assert [decision.bundle_ids for decision in decisions] == [
        ["z"],
        ["y", "z"],
        ["y", "z"],
        ["x", "z"],
    ]
    assert decisions[-1].evicted == ("y",)


def test_a_tool_asked_for_too_long_ago_is_told_of_unless_the_step_shows_it_anyway() -> None:
    deferred = Bundle("y", "x", ("s.x", "s.y1", "s.y2"), effects=("read",), mode="deferred")
    over = catalog({"y": deferred}, activation=ActivationSettings(max_tools=1))
    asked = tuple(
        AskedTool(tool, place, place) for place, tool in enumerate(deferred.tools, start=1)
    )
    before = Activation((Entry("y", "mapped", 3, tools=asked),))
    told = [row for row in taken(over, before, "ask", picking("y")).left_out if row.tool]
    assert [(row.id, row.code, row.tool, row.detail) for row in told] == [
        ("y", "evicted", tool, "asked for before the last 1 that were; search still finds it")
        for tool in ("s.x", "s.y1")
    ]
    beside = taken(over, before, "x and y")
    assert [(row.tool, row.detail) for row in beside.left_out if row.tool] == [
        ("s.y1", "asked for before the last 1 that were; search still finds it")
    ]


def test_what_left_the_set_is_named_even_when_the_same_step_shows_it() -> None:
    over = catalog(BIG, activation=ActivationSettings(max_tools=24))
    first = run(over, [("ask", picking("big")), ("x", None)])
    assert (first[1].bundle_ids, first[1].evicted, left_out(first[1])) == (
        ["x"],
        ("big",),
        {"big": "evicted"},
    )
    beside = taken(
        over, Activation((Entry("big", "model", 1), Entry("z", "mapped", 0))), "ask", picking("big")
    )
    assert (beside.bundle_ids, beside.evicted, left_out(beside)) == (
        ["big"],
        ("big",),
        {"z": "over_budget"},
    )


def test_a_route_that_says_this_step_has_none_shows_nothing_and_says_what_it_holds_back() -> None:
    decisions = run(
        catalog(), [("x", None), ("ask", picking("y")), ("nothing", None), ("ask", picking("z"))]
    )
    none = decisions[2]
    assert (none.bundle_ids, none.source, none.route) == ([], "mapping", "nothing")
    assert left_out(none) == {"x": "not_mapped", "y": "not_mapped"}
    assert all(
        "route 'nothing' says that this step has none" in row.detail for row in none.left_out
    )
    assert set(decisions[3].bundle_ids) == {"x", "y", "z"}  # held back, not forgotten


def test_a_step_that_has_none_still_sees_what_is_shown_always() -> None:
    over = catalog({"notes": Bundle("notes", "x", ("s.n",), always=True)})
    assert run(over, [("x", None), ("nothing", None)])[-1].bundle_ids == ["notes"]


def test_what_a_sub_agent_inherits_at_a_role_without_a_route_is_left_out_with_a_reason() -> None:
    over = small_catalog(
        {"x": ["s.x"], "w": ["s.w"], "a": ["s.a"]},
        routes=[Route("lead", role=("lead",), bundles=("x", "w"))],
        policies=[Policy("p", allow=("*",)), Policy("q", role=("unmapped",), deny=("w", "a"))],
        settings=Settings(fallback=Fallback(("search", "model", "default"))),
    )
    router = fake_router(over)
    router.route_sync(Step(run_id="top", workflow="w", role="lead", step="s"))
    child = router.route_sync(
        Step(run_id="kid", workflow="w", role="unmapped", step="s", parent_run_id="top")
    )
    assert (child.bundle_ids, child.source) == ([], "none")
    assert [(row.id, row.code) for row in child.left_out] == [
        ("w", "policy_denied"),
        ("x", "not_mapped"),
    ]
    assert (
        child.left_out[1].detail
        == "no route covers this step, so nothing stays from the parent run"
    )
    again = router.route_sync(Step(run_id="kid", workflow="w", role="lead", step="s"))
    assert [chosen.reason for chosen in again.bundles] == ["mapped", "mapped"]


def test_what_came_from_the_parent_is_marked_until_the_mapping_of_this_run_brings_it_in() -> None:
    parent = run(catalog(), [("x", None), ("ask", picking("y"))])[-1].after
    started = inherit(parent)
    assert all(entry.inherited for entry in started.entries)
    asking = taken(catalog(), started, "ask", picking("x", "z"))
    assert shown(asking) == [("x", "model", "said"), ("z", "model", "said"),
                             ("y", "inherited", "from the parent run (model)")]  # fmt: skip
    closed = taken(catalog(), asking.after, "closed")
    assert shown(closed)[1:] == [("x", "inherited", "from the parent run (mapped)")]
    mapped = taken(catalog(), closed.after, "x")
    assert [e.id for e in mapped.after.entries if e.inherited] == ["y"]
    assert ("x", "sticky", "from an earlier step (mapped)") in shown(
        taken(catalog(), mapped.after, "z")
    )


def renamed(*, cap: int = 24) -> Catalog:
    new = Bundle("new", "x", ("s.o1", "s.o2"), effects=("read",), aliases=("old", "older"))
    routes = [
        Route("n", step=("n",), bundles=("new",)),
        Route("o", step=("o",), bundles=("old",)),
        *ROUTES,
    ]
    settings = Settings(activation=ActivationSettings(max_tools=cap))
    return small_catalog({"new": new, "x": ["s.x"], "c": ["s.c"]}, routes=routes, settings=settings)


def entries(*rows: tuple[str, Reason, int, bool]) -> Activation:
    return Activation(tuple(Entry(*row) for row in sorted(rows)))


@pytest.mark.parametrize("at", ["n", "o"])
def test_a_renamed_bundle_is_neither_shown_nor_counted_nor_evicted_twice(at: str) -> None:
    before = entries(("old", "mapped", 1, False), ("x", "mapped", 2, False))
    decision = taken(renamed(cap=3), before, at)
    assert (decision.bundle_ids, decision.evicted, decision.left_out) == (["new", "x"], (), ())
    assert decision.after.ids == ("new", "x")
    assert decision.before == before
    gone = taken(renamed(cap=2), before, at)
    assert (gone.bundle_ids, gone.evicted, left_out(gone)) == (["new"], ("x",), {"x": "evicted"})
    other = taken(renamed(cap=2), before, "closed")
    assert (other.bundle_ids, other.evicted, left_out(other)) == (
        ["c", "x"],
        ("new",),
        {"new": "evicted"},
    )


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        ([("new", "model", 5, True), ("old", "mapped", 2, True)], Entry("new", "mapped", 5, True)),
        (
            [("new", "mapped", 2, False), ("old", "search", 5, True)],
            Entry("new", "mapped", 5, False),
        ),
        (
            [("old", "search", 5, True), ("older", "model", 7, False)],
            Entry("new", "search", 7, False),
        ),
        ([("older", "always", 5, True)], Entry("new", "always", 5, True)),
    ],
)
def test_entries_of_one_bundle_under_several_names_become_one(
    rows: Iterable[tuple[str, Reason, int, bool]], merged: Entry
) -> None:
    assert taken(renamed(), entries(*rows), "nothing").after == Activation((merged,))


def test_what_the_catalog_no_longer_knows_is_left_out_by_name_and_not_kept() -> None:
    decision = taken(catalog(), entries(("gone", "mapped", 1, False)), "closed")
    assert left_out(decision) == {"gone": "unknown_bundle"}
    assert decision.after.ids == ("c",)


def test_what_is_shown_always_comes_before_what_was_picked_also_in_the_budgets() -> None:
    over = catalog({"notes": Bundle("notes", "x", ("s.n",), always=True)})
    both = taken(over, Activation(), "ask beside x", picking("y"))
    assert both.bundle_ids == ["x", "notes", "y"]
    tight = taken(over, Activation(), "ask beside x", picking("y"), max_bundles=2)
    assert (tight.bundle_ids, left_out(tight)) == (["x", "notes"], {"y": "over_budget"})


def test_explain_says_why_what_was_there_before_is_held_back_or_stays() -> None:
    from bundle_router.core.records.explanation import explain

    over = catalog()
    before = run(over, [("x", None), ("ask", picking("y"))])[-1].after

    def told(at: str, target: str) -> str:
        step = Step(run_id="r", workflow="w", role="r", step=at)
        (chain,) = explain(over, Facts(), before, step, f"bundle:{target}").chains
        return next(check.detail for check in chain.checks if check.code == "not_mapped")

    assert told("closed", "x") == "it stays from an earlier step (mapped)"
    assert told("closed", "y") == "brought in by model; a route that does not ask ignores that"
    assert told("nothing", "x").startswith("route 'nothing' says that this step has none")
    assert told("closed", "z") == "route 'closed' does not name it"
