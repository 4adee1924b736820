"""What a step may see: mapping, policy, capabilities, budgets, stickiness, sub-agents, and what
nobody can widen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import (
    ActivationSettings,
    Bundle,
    Catalog,
    Fallback,
    Policy,
    Route,
    Server,
    Settings,
)
from bundle_router.core.decide.decide import Question, decide, decide_without_answer, settle
from bundle_router.core.decide.plans import Plans
from bundle_router.core.values import (
    Activation,
    Address,
    Answer,
    Candidate,
    Decision,
    Drift,
    Entry,
    Facts,
    Grant,
    Mode,
    ModelUse,
    SearchUse,
    Step,
    StepPolicy,
)
from bundle_router.testing import small_catalog

NOW = Facts()


def step(**changes: object) -> Step:
    base = {"run_id": "r", "workflow": "feature", "role": "implementer", "step": "edit"}
    return Step.model_validate(base | changes)


def decided(
    catalog: Catalog,
    asked: Step,
    facts: Facts = NOW,
    before: Activation = Activation(),  # noqa: B008
) -> Decision:
    taken = decide(Plans(catalog), facts, before, asked)
    return decide_without_answer(taken, None) if isinstance(taken, Question) else taken


def codes(decision: Decision) -> dict[str, str]:
    return {row.tool or row.id: row.code for row in decision.left_out}


TWO = {"repo.readonly": ["repo.read_file", "repo.list_dir"], "workspace.exec": ["workspace.exec"]}


def test_the_first_route_that_covers_the_step_wins_and_its_order_is_kept() -> None:
    catalog = small_catalog(
        TWO,
        routes=[
            Route("reviewers", role=("review*",), bundles=("repo.readonly",)),
            Route(
                "implementers", role=("implementer",), bundles=("workspace.exec", "repo.readonly")
            ),
            Route("rest", bundles=("repo.readonly",)),
        ],
    )
    decision = decided(catalog, step())
    assert decision.bundle_ids == ["workspace.exec", "repo.readonly"]
    assert (decision.route, decision.source, decision.degraded) == (
        "implementers",
        "mapping",
        False,
    )
    assert [chosen.rank for chosen in decision.bundles] == [1, 2]
    assert decided(catalog, step(role="reviewer")).bundle_ids == ["repo.readonly"]


def test_a_glob_route_that_stands_earlier_beats_an_exact_one() -> None:
    catalog = small_catalog(
        TWO,
        routes=[
            Route("glob", workflow=("feat*",), bundles=("repo.readonly",)),
            Route(
                "exact",
                workflow=("feature",),
                role=("implementer",),
                step=("edit",),
                bundles=("workspace.exec",),
            ),
        ],
    )
    assert decided(catalog, step()).route == "glob"


@pytest.mark.parametrize("field", ["workflow", "role", "step"])
def test_a_glob_beside_an_exact_name_covers_what_it_matches_in_any_field(field: str) -> None:
    globbed = Route("globbed", **{field: ("other", "x*")}, bundles=("repo.readonly",))
    catalog = small_catalog(TWO, routes=[globbed, Route("rest")])
    assert [decided(catalog, step(**{field: name})).route for name in ("other", "xyz", "y")] == [
        "globbed", "globbed", "rest",
    ]  # fmt: skip


def test_an_exact_route_that_stands_earlier_beats_a_glob() -> None:
    catalog = small_catalog(
        TWO, routes=[Route("exact", step=("edit",)), Route("glob", step=("e*",))]
    )
    assert decided(catalog, step()).route == "exact"


def test_a_missing_mapping_gives_none() -> None:
    decision = decided(small_catalog(TWO), step())
    assert decision.bundle_ids == []
    assert (decision.source, decision.degraded, decision.route) == ("none", False, None)


def test_a_missing_mapping_gives_none_even_when_earlier_steps_left_something_sticky() -> None:
    before = Activation((Entry("repo.readonly", "mapped", 1),))
    assert decided(small_catalog(TWO), step(), before=before).bundle_ids == []


def test_no_policy_for_the_address_means_nothing_is_allowed() -> None:
    catalog = small_catalog(TWO, routes=[Route("all", bundles=("repo.readonly",))], policies=[])
    decision = decided(catalog, step())
    assert decision.bundle_ids == []
    assert codes(decision) == {"repo.readonly": "not_allowed"}


def test_a_policy_that_only_denies_grants_nothing() -> None:
    catalog = small_catalog(
        TWO,
        routes=[Route("all", bundles=("repo.readonly",))],
        policies=[Policy("no exec", deny=("bundle:workspace.*",))],
    )
    assert codes(decided(catalog, step())) == {"repo.readonly": "not_allowed"}


ROUTE_ALL = [Route("all", bundles=("repo.readonly", "workspace.exec"))]


@pytest.mark.parametrize(
    ("policies", "shown", "left_out"),
    [
        pytest.param([Policy("p", allow=("*",), deny=("workspace.exec",))], ["repo.readonly"],
                     {"workspace.exec": "policy_denied"}, id="deny beats allow"),
        pytest.param([Policy("p", allow=("repo.*",))], ["repo.readonly"], {"workspace.exec": "not_allowed"},
                     id="allow names what it allows"),
        pytest.param([Policy("p", allow=("*",)), Policy("q", allow=("repo.*",))], ["repo.readonly"],
                     {"workspace.exec": "not_allowed"}, id="allowances intersect"),
        pytest.param([Policy("p", allow=("*",)), Policy("q", deny=("repo.*",)), Policy("r", deny=("workspace.*",))], [],
                     {"repo.readonly": "policy_denied", "workspace.exec": "policy_denied"}, id="denials unite"),
        pytest.param([Policy("p", allow=("*",), deny=("tool:repo.list_dir",))], ["repo.readonly", "workspace.exec"],
                     {"repo.list_dir": "policy_denied"}, id="one tool of a bundle is denied, the bundle stays"),
        pytest.param([Policy("p", allow=("tool:repo.read_file",))], ["repo.readonly"],
                     {"repo.list_dir": "not_allowed", "workspace.exec": "not_allowed"}, id="one tool is allowed"),
        pytest.param([Policy("p", allow=("*",), effects=("read", "exec"))], ["repo.readonly", "workspace.exec"], {},
                     id="effects that are permitted"),
        pytest.param([Policy("p", allow=("*",), effects=("write",))], [],
                     {"repo.readonly": "effect_not_allowed", "workspace.exec": "effect_not_allowed"},
                     id="effects that are not"),
        pytest.param([Policy("p", workflow=("bug*",), deny=("*",)), Policy("q", allow=("*",))],
                     ["repo.readonly", "workspace.exec"], {}, id="a policy for another workflow does not apply"),
    ],
)  # fmt: skip
def test_policies_unite_and_only_narrow(
    policies: list[Policy], shown: list[str], left_out: dict[str, str]
) -> None:
    decision = decided(small_catalog(TWO, routes=ROUTE_ALL, policies=policies), step())
    assert decision.bundle_ids == shown
    assert codes(decision) == left_out


def test_denying_a_bundle_takes_its_tools_out_of_what_is_composed_of_it() -> None:
    both = Bundle(
        "work.all",
        "all",
        ("repo.read_file", "workspace.exec"),
        bundles=tuple(TWO),
        effects=("read", "exec"),
    )
    catalog = small_catalog(
        {**TWO, "work.all": both},
        routes=[Route("all", bundles=("work.all",))],
        policies=[Policy("p", allow=("*",), deny=("bundle:workspace.exec",))],
    )
    decision = decided(catalog, step())
    assert decision.bundle_ids == ["work.all"]
    assert codes(decision) == {"workspace.exec": "policy_denied"}
    assert decision.exposure.tools == 1


@pytest.mark.parametrize(
    ("servers", "facts", "changes", "expected"),
    [
        pytest.param([Server("repo", "local", "trusted", enabled=False)], NOW, {}, "disabled", id="server disabled"),
        pytest.param([Server("repo", "local", "trusted", exclude=("*",))], NOW, {}, "disabled", id="server excludes"),
        pytest.param([Server("repo", "local", "trusted", include=("x",))], NOW, {}, "disabled", id="not included"),
        pytest.param([], NOW, {"enabled": False}, "disabled", id="bundle disabled"),
        pytest.param([], NOW, {"requires_env": ("TOKEN",)}, "capability_missing", id="variable missing"),
        pytest.param([], NOW, {"requires_binary": ("rg",)}, "capability_missing", id="program missing"),
        pytest.param([], Facts(unavailable=(("repo", "down"),)), {}, "server_unavailable", id="server away"),
        pytest.param([], Facts(drifted=(Drift("repo", "t"),)), {}, "pin_drift", id="pin drift"),
        pytest.param([Server("repo", "local", "untrusted")], NOW, {}, "trust_too_low", id="trust"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_is_named(
    servers: list[Server], facts: Facts, changes: dict[str, object], expected: str
) -> None:
    bundle = replace(Bundle("repo.x", "x", ("repo.t",), effects=("read",)), **changes)  # type: ignore[arg-type]  # table
    catalog = small_catalog(
        {"repo.x": bundle},
        routes=[Route("all", bundles=("repo.x",))],
        servers=servers,
        policies=[Policy("p", allow=("*",), min_trust="trusted")],
    )
    decision = decided(catalog, step(), facts)
    assert decision.bundle_ids == []
    assert codes(decision)["repo.x"] == expected


def test_a_capability_that_is_present_opens_the_bundle() -> None:
    bundle = Bundle(
        "gh", "x", ("gh.t",), effects=("read",), requires_env=("TOKEN",), requires_binary=("git",)
    )
    catalog = small_catalog({"gh": bundle}, routes=[Route("all", bundles=("gh",))])
    facts = Facts(capabilities=frozenset(("env:TOKEN", "binary:git")))
    assert decided(catalog, step(), facts).bundle_ids == ["gh"]


def test_an_unknown_bundle_in_a_route_is_named_and_an_alias_still_leads_to_it() -> None:
    renamed = Bundle("repo.read", "x", ("repo.t",), effects=("read",), aliases=("repo.readonly",))
    catalog = small_catalog(
        {"repo.read": renamed}, routes=[Route("all", bundles=("repo.readonly", "gone"))]
    )
    decision = decided(catalog, step())
    assert decision.bundle_ids == ["repo.read"]
    assert codes(decision) == {"gone": "unknown_bundle"}


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        (StepPolicy(deny=("workspace.*",)), ["repo.readonly"]),
        (StepPolicy(allow=("bundle:repo.*",)), ["repo.readonly"]),
        (StepPolicy(allow=()), []),
        (StepPolicy(trust="trusted"), ["repo.readonly", "workspace.exec"]),
        (StepPolicy(allow=("*",)), ["repo.readonly", "workspace.exec"]),
    ],
)
def test_the_steps_own_policy_can_only_narrow(policy: StepPolicy, shown: list[str]) -> None:
    assert decided(small_catalog(TWO, routes=ROUTE_ALL), step(policy=policy)).bundle_ids == shown
    refusing = small_catalog(TWO, routes=ROUTE_ALL, policies=[Policy("p", allow=("nothing",))])
    assert decided(refusing, step(policy=policy)).bundle_ids == []


def test_a_sub_agent_never_gets_more_than_its_parent_may_have() -> None:
    policies = [
        Policy("reviewer", role=("reviewer",), allow=("repo.*",), deny=("tool:repo.list_dir",)),
        Policy("implementer", role=("implementer",), allow=("*",)),
    ]
    catalog = small_catalog(TWO, routes=ROUTE_ALL, policies=policies)
    alone = decided(catalog, step())
    under_reviewer = decided(
        catalog, step(), Facts(grants=(Grant(Address(("feature", "reviewer", "review"))),))
    )
    assert (alone.bundle_ids, alone.exposure.tools) == (["repo.readonly", "workspace.exec"], 3)
    assert (under_reviewer.bundle_ids, under_reviewer.exposure.tools) == (["repo.readonly"], 1)
    assert codes(under_reviewer) == {
        "workspace.exec": "not_allowed",
        "repo.list_dir": "policy_denied",
    }
    narrow = Grant(
        Address(("feature", "implementer", "edit")), StepPolicy(deny=("workspace.exec",))
    )
    assert decided(catalog, step(), Facts(grants=(narrow,))).bundle_ids == ["repo.readonly"]
    ungranted = Grant(Address(("other", "nobody", "x")))
    assert decided(catalog, step(), Facts(grants=(narrow, ungranted))).bundle_ids == []


@pytest.mark.parametrize(
    ("limits", "shown", "said"),
    [
        ({"max_bundles": 1}, ["repo.readonly"], "the step takes at most 1 bundles"),
        (
            {"max_tools": 2},
            ["repo.readonly"],
            "with it the step would see 3 tools, it takes at most 2",
        ),
        (
            {"max_tools": 1},
            ["workspace.exec"],
            "with it the step would see 2 tools, it takes at most 1",
        ),
        (
            {"max_tokens": 25},
            ["repo.readonly"],
            "with it the step would pay 30 tokens, it takes at most 25",
        ),
        ({"max_tools": 0}, [], "with it the step would see 2 tools, it takes at most 0"),
    ],
)
def test_a_steps_budget_leaves_out_what_does_not_fit(
    limits: dict[str, int], shown: list[str], said: str
) -> None:
    decision = decided(small_catalog(TWO, routes=ROUTE_ALL), step(**limits))
    assert decision.bundle_ids == shown
    assert set(codes(decision).values()) == {"over_budget"}
    assert decision.left_out[0].detail == said


def test_an_always_bundle_comes_along_where_policy_permits_it() -> None:
    always = Bundle("notes", "x", ("notes.add",), effects=("write",), always=True)
    catalog = small_catalog({**TWO, "notes": always}, routes=ROUTE_ALL)
    decision = decided(catalog, step())
    assert decision.bundle_ids == ["repo.readonly", "workspace.exec", "notes"]
    assert decision.bundles[-1].reason == "always"
    assert decided(small_catalog({**TWO, "notes": always}), step()).bundle_ids == ["notes"]


# --- stickiness -----------------------------------------------------------------------------------


def test_a_mapped_bundle_stays_for_later_steps_until_policy_forbids_it() -> None:
    catalog = small_catalog(
        TWO,
        routes=[
            Route("edit", step=("edit",), bundles=("workspace.exec",)),
            Route("rest", bundles=("repo.readonly",)),
        ],
        policies=[
            Policy("p", allow=("*",)),
            Policy("q", role=("reviewer",), deny=("workspace.*",)),
        ],
    )
    first = decided(catalog, step())
    second = decided(catalog, step(step="look"), before=first.after)
    assert second.bundle_ids == ["repo.readonly", "workspace.exec"]
    assert second.bundles[1].reason == "sticky"
    third = decided(catalog, step(step="look", role="reviewer"), before=second.after)
    assert third.bundle_ids == ["repo.readonly"]
    assert codes(third) == {"workspace.exec": "policy_denied"}


def test_a_mapped_route_ignores_what_search_or_a_model_made_sticky_and_an_asking_route_does_not() -> (
    None
):
    before = Activation(
        (
            Entry("docs", "model", 3),
            Entry("notes", "search", 2),
            Entry("workspace.exec", "mapped", 1),
        )
    )
    bundles = {**TWO, "docs": ["docs.fetch"], "notes": ["notes.add"]}
    closed = small_catalog(bundles, routes=[Route("all", bundles=("repo.readonly",))])
    assert decided(closed, step(), before=before).bundle_ids == ["repo.readonly", "workspace.exec"]
    asking = small_catalog(bundles, routes=[Route("all", bundles=("repo.readonly",), ask=("*",))])
    assert decided(asking, step(), before=before).bundle_ids == [
        "repo.readonly",
        "docs",
        "notes",
        "workspace.exec",
    ]


def test_the_least_recently_used_go_first_and_are_named() -> None:
    bundles = {id_: [f"{id_}.1", f"{id_}.2"] for id_ in "abcd"}
    settings = Settings(activation=ActivationSettings(max_tools=4))
    catalog = small_catalog(
        bundles,
        routes=[Route(id_, step=(id_,), bundles=(id_,)) for id_ in "abcd"],
        settings=settings,
    )
    before = Activation()
    for at in ("a", "b"):
        before = decided(catalog, step(step=at), before=before).after
    third = decided(catalog, step(step="c"), before=before)
    assert third.bundle_ids == ["c", "b"]
    assert third.evicted == ("a",)
    assert codes(third) == {"a": "evicted"}
    assert third.after.ids == ("b", "c")


def test_what_one_step_itself_needs_may_pass_the_cap() -> None:
    bundles = {"big": [f"big.{n}" for n in range(30)], "old": ["old.1"]}
    catalog = small_catalog(bundles, routes=[Route("all", bundles=("big",))])
    decision = decided(catalog, step(), before=Activation((Entry("old", "mapped", 1),)))
    assert decision.bundle_ids == ["big"]
    assert decision.evicted == ("old",)
    assert decision.exposure.tools == 30


def test_stickiness_can_be_switched_off() -> None:
    settings = Settings(activation=ActivationSettings(sticky=False))
    catalog = small_catalog(
        TWO, routes=[Route("all", bundles=("repo.readonly",))], settings=settings
    )
    decision = decided(catalog, step(), before=Activation((Entry("workspace.exec", "mapped", 1),)))
    assert decision.bundle_ids == ["repo.readonly"]
    assert decision.after == Activation()


# --- questions ------------------------------------------------------------------------------------

THREE = {**TWO, "docs": ["docs.fetch"]}


def test_a_step_without_a_route_is_a_question_over_what_is_permitted_and_selectable() -> None:
    hidden = Bundle("hidden", "x", ("h.t",), effects=("read",), selectable=False)
    catalog = small_catalog(
        {**THREE, "hidden": hidden}, policies=[Policy("p", allow=("*",), deny=("workspace.*",))]
    )
    taken = decide(Plans(catalog), NOW, Activation(), step())
    assert isinstance(taken, Question)
    assert taken.candidates == ("docs", "repo.readonly")


def test_one_candidate_is_not_a_choice_and_gives_the_declared_default() -> None:
    settings = Settings(fallback=Fallback(default=("repo.readonly",)))
    catalog = small_catalog(THREE, policies=[Policy("p", allow=("repo.*",))], settings=settings)
    taken = decide(Plans(catalog), NOW, Activation(), step())
    assert isinstance(taken, Decision)
    assert (taken.bundle_ids, taken.source, taken.degraded) == (["repo.readonly"], "default", False)


def test_an_answer_is_heard_only_where_it_names_candidates() -> None:
    catalog = small_catalog(
        THREE,
        routes=[Route("ask", bundles=("repo.readonly",), ask=("docs", "workspace.*"))],
        policies=[Policy("p", allow=("*",), deny=("nothing",)), Policy("q", deny=("absent",))],
    )
    taken = decide(Plans(catalog), NOW, Activation(), step())
    assert isinstance(taken, Question)
    assert taken.candidates == ("docs", "workspace.exec")
    answer = Answer(
        ("dоcs", "docs", "docs", "repo.readonly", "nope"), "model", "model", "needs docs"
    )
    decision = settle(taken, answer)
    assert decision.bundle_ids == ["repo.readonly", "docs"]
    assert codes(decision) == {"dоcs": "unknown_bundle", "nope": "unknown_bundle"}
    assert decision.source == "model"


def test_an_answer_that_names_nothing_leaves_the_mapping_and_a_failure_is_marked_degraded() -> None:
    catalog = small_catalog(THREE, routes=[Route("ask", bundles=("repo.readonly",), ask=("*",))])
    taken = decide(Plans(catalog), NOW, Activation(), step())
    assert isinstance(taken, Question)
    empty = settle(taken, Answer((), "search", "search"))
    assert (empty.bundle_ids, empty.source, empty.degraded) == (["repo.readonly"], "mapping", False)
    failed = decide_without_answer(taken, "timeout")
    assert (failed.bundle_ids, failed.source, failed.degraded) == (
        ["repo.readonly"],
        "mapping",
        True,
    )
    assert "timeout" in failed.justification


def test_a_refused_default_is_none_and_says_so() -> None:
    settings = Settings(fallback=Fallback(order=("default",), default=("workspace.exec",)))
    catalog = small_catalog(THREE, policies=[Policy("p", allow=("repo.*",))], settings=settings)
    decision = decided(catalog, step())
    assert (decision.bundle_ids, decision.source) == ([], "none")
    assert codes(decision) == {"workspace.exec": "not_allowed"}


def test_a_steps_trust_and_an_empty_list_of_effects_and_every_ancestor_narrow() -> None:
    strangers = small_catalog(
        TWO, routes=ROUTE_ALL, servers=[Server("workspace", "local", "untrusted")]
    )
    trusting = step(policy=StepPolicy(trust="trusted"))
    assert codes(decided(strangers, trusting)) == {"workspace.exec": "trust_too_low"}
    nothing = small_catalog(TWO, routes=ROUTE_ALL, policies=[Policy("p", allow=("*",), effects=())])
    assert set(codes(decided(nothing, step())).values()) == {"effect_not_allowed"}
    policies = [Policy("p", allow=("*",)), Policy("top", role=("top",), deny=("workspace.*",))]
    chain = tuple(Grant(Address(("feature", role, "s"))) for role in ("a", "b", "c", "top"))
    deep = decided(
        small_catalog(TWO, routes=ROUTE_ALL, policies=policies), step(), Facts(grants=chain)
    )
    assert codes(deep) == {"workspace.exec": "policy_denied"}


def test_what_config_refuses_is_never_said_to_lack_a_capability() -> None:
    bundle = Bundle("gh", "x", ("gh.t",), requires_env=("TOKEN",))
    denying = small_catalog(
        {"gh": bundle}, routes=[Route("r", bundles=("gh",))], policies=[Policy("p", deny=("gh",))]
    )
    assert codes(decided(denying, step())) == {"gh": "policy_denied"}


def test_candidates_are_what_is_permitted_now_and_not_there_anyway() -> None:
    always = Bundle("notes", "x", ("notes.add",), always=True)
    routes = [
        Route("one", step=("edit",), bundles=("docs",), ask=("*",)),
        Route("two", bundles=("repo.readonly",), ask=("*",)),
    ]
    more = small_catalog({**THREE, "more": ["more.t"], "notes": always}, routes=routes)

    def candidates(at: str, facts: Facts = NOW) -> tuple[str, ...]:
        question = decide(Plans(more), facts, Activation(), step(step=at))
        assert isinstance(question, Question)
        return question.candidates

    assert candidates("edit") == ("more", "repo.readonly", "workspace.exec")
    assert candidates("look") == ("docs", "more", "workspace.exec")
    assert candidates("look", Facts(drifted=(Drift("more", "t"),))) == ("docs", "workspace.exec")


def test_a_tool_that_two_bundles_share_is_counted_once() -> None:
    shared = small_catalog(
        {"a": ["s.1", "s.2"], "b": ["s.2", "s.3", "s.4"]}, routes=[Route("r", bundles=("a", "b"))]
    )
    decision = decided(shared, step(max_tools=4, max_tokens=40))
    assert (decision.bundle_ids, decision.exposure.tools, decision.exposure.tokens) == (
        ["a", "b"],
        4,
        40,
    )


@pytest.mark.parametrize("mode", ["meta", "deferred"])
def test_direct_tools_are_counted_though_an_earlier_bundle_holds_them_behind_search(
    mode: Mode,
) -> None:
    tools = tuple(f"s.{n}" for n in range(10, 40))
    behind = Bundle("behind", "Behind search.", tools, effects=("read",), mode=mode)
    routes = [Route("r", bundles=("behind", "open"))]
    shared = small_catalog({"behind": behind, "open": tools}, routes=routes)
    whole = decided(shared, step())
    assert (whole.bundle_ids, whole.exposure.tools, whole.exposure.tokens) == (
        ["behind", "open"],
        30,
        300,
    )
    for budget in ({"max_tools": 29}, {"max_tokens": 299}):
        few = decided(shared, step(**budget))
        assert (few.bundle_ids, codes(few), few.exposure.tools) == (
            ["behind"],
            {"open": "over_budget"},
            0,
        )


def test_the_default_is_shown_only_where_the_order_names_it() -> None:
    settings = Settings(fallback=Fallback(order=("search", "model"), default=("docs",)))
    assert decided(small_catalog(THREE, settings=settings), step()).bundle_ids == []


def test_where_the_order_names_nobody_to_ask_nothing_is_asked() -> None:
    settings = Settings(fallback=Fallback(order=("default",), default=("docs",)))
    taken = decide(Plans(small_catalog(THREE, settings=settings)), NOW, Activation(), step())
    assert isinstance(taken, Decision)
    assert taken.bundle_ids == ["docs"]


# --- what is said of a decision -------------------------------------------------------------------

ASKING = small_catalog(
    THREE | {"more": ["more.t"]},
    routes=[
        Route("ask", step=("ask",), bundles=("repo.readonly",), ask=("docs", "workspace.*")),
        Route("only ask", step=("only ask",), ask=("*",)),
        Route("none", step=("none",)),
    ],
    settings=Settings(fallback=Fallback(default=("more",))),
)
RANKED = (
    Candidate("docs", 0.5),
    Candidate("more", 0.25),
    Candidate("repo.readonly", 0.125),
    Candidate("a", None),
)
FOUND = SearchUse("ambiguous", "search was not sure", "t", cut=0.25, ranked=RANKED)
USE = ModelUse("m")
DOCS = Answer(("docs",), "model", "model", "it needs docs")
OPEN = "no route covers this step"


@pytest.mark.parametrize(
    ("at", "answer", "failure", "search", "said"),
    [
        ("ask", DOCS, None, None, "route 'ask' covers this step; it needs docs"),
        ("ask", DOCS, None, FOUND, "route 'ask' covers this step; search was not sure; it needs docs"),
        ("ask", replace(DOCS, source="search", reason="search"), None, None,
         "route 'ask' covers this step; it needs docs"),
        ("ask", Answer((), "model", "model"), None, None, "route 'ask' covers this step; nothing was selected"),
        ("ask", None, "timeout", None, "route 'ask' covers this step; the model was not heard (timeout)"),
        ("only ask", None, None, None,
         "route 'only ask' covers this step and maps nothing; the declared default is shown"),
        ("only ask", replace(DOCS, source="shortlist", reason="shortlist"), None, None,
         "route 'only ask' covers this step; it needs docs; nothing is sure, so the best of what is permitted waits "
         "behind search"),
        ("none", None, None, None, "route 'none' covers this step"),
        ("other", DOCS, "timeout", FOUND,
         f"{OPEN}; search was not sure; nobody was heard (timeout); it needs docs"),
        ("other", None, None, FOUND, f"{OPEN}; search was not sure; the declared default is shown"),
    ],
)  # fmt: skip
def test_a_decision_says_who_was_heard_and_what_came_of_it(
    at: str, answer: Answer | None, failure: Any, search: SearchUse | None, said: str
) -> None:
    taken = decide(Plans(ASKING), NOW, Activation(), step(step=at))
    if isinstance(taken, Question):
        taken = (
            settle(taken, answer, failure, search)
            if answer
            else decide_without_answer(taken, failure, USE, search)
        )
    assert taken.justification == said


@pytest.mark.parametrize(
    ("bundles", "before", "said"),
    [
        ({}, (), f"{OPEN}; nothing is shown"),
        (
            {"notes": Bundle("notes", "x", ("notes.add",), always=True)},
            (),
            f"{OPEN}; only what is always shown",
        ),
        ({}, ("docs",), "route 'all' covers this step; docs stays from before"),
        ({}, ("docs", "more"), "route 'all' covers this step; docs, more stay from before"),
        ({}, ("inherited",), "route 'all' covers this step; inherited stays from before"),
    ],
)
def test_a_decision_says_what_stays_and_where_nothing_is_shown(
    bundles: dict[str, Bundle | list[str]], before: tuple[str, ...], said: str
) -> None:
    made = small_catalog(
        {**THREE, "more": ["more.t"], "inherited": ["more.u"], **bundles},
        routes=[Route("all", step=("all",), bundles=tuple(TWO))],
    )
    stays = Activation(tuple(Entry(id_, "mapped", 1, id_ == "inherited") for id_ in before))
    assert (
        decided(made, step(step="all" if before else "other"), before=stays).justification == said
    )


def test_a_pick_rests_on_its_own_score_where_search_picked_it_and_else_on_what_the_answer_says() -> (
    None
):
    question = decide(Plans(ASKING), NOW, Activation(), step())
    assert isinstance(question, Question)
    picked = replace(DOCS, ids=("docs", "workspace.exec"))
    for source, first in (
        ("search", "score 0.50"),
        ("shortlist", "score 0.50"),
        ("model", "it needs docs"),
    ):
        decision = settle(question, replace(picked, source=source, reason=source), None, FOUND)  # type: ignore[arg-type] # closed lists
        evidence = {chosen.id: chosen.evidence for chosen in decision.bundles}
        assert (evidence["docs"], evidence["workspace.exec"]) == (first, "it needs docs")


def test_what_search_ranks_beside_a_pick_is_offered_where_it_is_a_candidate_and_was_not_picked() -> (
    None
):
    question = decide(Plans(ASKING), NOW, Activation(), step())
    assert isinstance(question, Question)
    offered = replace(DOCS, offered=("docs", "workspace.exec", "nobody", "workspace.exec"))
    decision = settle(question, offered, None, FOUND)
    assert [(chosen.id, chosen.reason, chosen.evidence) for chosen in decision.bundles] == [
        ("docs", "model", "it needs docs"),
        ("workspace.exec", "shortlist", "search ranks it, and the model may be wrong"),
    ]
    assert "nobody" not in {row.id for row in decision.left_out}, (
        "what is no candidate is not heard of again"
    )
    full = decide(Plans(ASKING), NOW, Activation(), step(max_tools=0))
    assert isinstance(full, Question)
    left = settle(full, replace(DOCS, offered=("docs",)), None, FOUND)
    assert ("docs" in left.bundle_ids, codes(left)["docs"]) == (
        False,
        "over_budget",
    ), "a pick is not offered instead"


@pytest.mark.parametrize(
    ("search", "why_not"),
    [
        (FOUND, {"more": ("not_selected", "ranked and not taken"),
                 "repo.readonly": ("below_floor", "score 0.12, under 0.25 is not plausible"),
                 "a": ("below_floor", "score 0.00, under 0.25 is not plausible")}),
        (replace(FOUND, verdict="novel"),
         dict.fromkeys(("more", "repo.readonly", "a"), ("below_floor", "nothing fits the step well enough"))),
    ],
)  # fmt: skip
def test_what_was_ranked_and_not_taken_is_left_out_and_says_why(
    search: SearchUse, why_not: dict[str, tuple[str, str]]
) -> None:
    question = decide(Plans(ASKING), NOW, Activation(), step())
    assert isinstance(question, Question)
    decision = settle(question, DOCS, None, search)
    assert {row.id: (row.code, row.detail) for row in decision.left_out} == why_not
    scored = settle(question, replace(DOCS, scores=RANKED))
    assert {row.code for row in scored.left_out} == {"not_selected"}


def test_an_id_that_policy_permits_and_nobody_was_asked_about_is_left_out_as_not_selected() -> None:
    question = decide(Plans(ASKING), NOW, Activation(), step(step="ask"))
    assert isinstance(question, Question)
    (row,) = settle(question, Answer(("docs", "more"), "model", "model")).left_out
    assert (row.id, row.code, row.detail) == (
        "more",
        "not_selected",
        "not a candidate at this step",
    )
