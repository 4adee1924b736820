"""A step's own policy: what its names mean, and that a name nobody knows is refused before anything
is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Policy, Route
from bundle_router.core.decide import plans
from bundle_router.core.decide.plans import Plans
from bundle_router.core.decide.step_policy import MAX_PATTERN, check_step_policy
from bundle_router.core.values import Address, Facts, Grant, Step, StepPolicy
from bundle_router.errors import InvalidStep, RequestError
from bundle_router.testing import FakeRouter, fake_router, small_catalog
from pydantic import ValidationError

RENAMED = Bundle("workspace.exec", "x", ("ws.run",), effects=("exec",), aliases=("shell.run",))
NO_FACTS = Facts()
HUB = Bundle("hub", "x", (), patterns=("gh.*",), servers=("gh",), effects=("read",))


def catalog(policies: tuple[Policy, ...] = (Policy("all", allow=("*",)),)) -> Catalog:
    bundles: dict[str, list[str] | Bundle] = {
        "repo": ["repo.git_log", "repo.read_file"],
        "workspace.exec": RENAMED,
        "hub": HUB,
    }
    return small_catalog(
        bundles, routes=[Route("all", bundles=("repo", "workspace.exec"))], policies=policies
    )


def step(run_id: str = "r", **changes: object) -> Step:
    return Step.model_validate(
        {"run_id": run_id, "workflow": "w", "role": "r", "step": "s"} | changes
    )


@pytest.fixture
def router() -> FakeRouter:
    return fake_router(catalog())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Step(run_id="a b", workflow="w", role="r", step="s"), "Step(…): run_id: a text of 3 characters with ' ' at place 2 is not a run id"),
        (lambda: Step(run_id="r", workflow="w", role="r"), "step: is missing (add step = ...)"),  # type: ignore[call-arg]
        (lambda: Step(run_id="r", workflow="w", role="r", step="s", gaol="g"), "(did you mean 'goal'?)"),  # type: ignore[call-arg]
        (lambda: Step(run_id="r", workflow="", role=7, step="s"), "workflow: must not be empty; role: must be text"),
        (lambda: Step(run_id="r", workflow="w", role="r", step="s", max_tools=-1), "must be at least 0, not the n"),
        (lambda: Step(run_id="r", workflow="w", role="r", step="s", labels=["a"]), "labels: must be a mapping, not"),
        (lambda: Step(run_id="r", workflow="w", role="r", step="s", constraints="x"), "the text given (write [...])"),
        (lambda: StepPolicy(deny=["file:x"]), "StepPolicy(…): deny: 'file:x' is not a pattern: write 'bundle:repo.*'"),
        (lambda: StepPolicy(trust="yes"), "trust: must be one of 'untrusted' or 'trusted', not the text given"),
    ],
)  # fmt: skip
def test_what_no_step_can_be_made_of_is_said_in_a_sentence_of_ours(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(InvalidStep) as wrong:
        make()
    assert said in str(wrong.value)
    assert "pydantic" not in str(wrong.value)
    assert isinstance(wrong.value, ValueError)


def test_a_step_read_from_json_is_still_refused_by_pydantic() -> None:
    with pytest.raises(ValidationError):
        Step.from_json({"run_id": "a b"})


@pytest.mark.parametrize(
    ("policy", "shown", "tools"),
    [
        ({"deny": ["bundle:shell.run"]}, ["repo"], 2),
        ({"deny": ["shell.run"]}, ["repo"], 2),
        ({"deny": ["shell.*"]}, ["repo"], 2),
        ({"allow": ["bundle:shell.run"]}, ["workspace.exec"], 1),
        ({"deny": ["tool:repo.git_log"]}, ["repo", "workspace.exec"], 2),
        ({"deny": ["tool:gh.whatever_it_has"]}, ["repo", "workspace.exec"], 3),
        ({"deny": ["absent.*", "tool:absent.*"]}, ["repo", "workspace.exec"], 3),
        ({"allow": ["absent.*"]}, [], 0),
    ],
)
def test_names_mean_bundles_by_any_of_their_ids_and_tools_and_globs_may_match_nothing(
    router: FakeRouter, policy: dict[str, object], shown: list[str], tools: int
) -> None:
    decision = router.route_sync(step(policy=policy))
    assert decision.bundle_ids == shown
    assert decision.exposure.tools == tools


def test_a_glob_that_allows_has_to_cover_the_name_of_today(router: FakeRouter) -> None:
    assert router.route_sync(step(policy={"allow": ["shell.*"]})).bundle_ids == []


def test_a_denial_in_the_config_holds_for_what_was_renamed_since() -> None:
    for deny in ("shell.run", "bundle:shell.*"):
        narrowed = catalog((Policy("all", allow=("*",), deny=(deny,)),))
        assert fake_router(narrowed).route_sync(step()).bundle_ids == ["repo"]


@pytest.mark.parametrize("key", ["allow", "deny"])
@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("workspace.exce", "unknown bundle 'workspace.exce' (did you mean 'workspace.exec'?)"),
        ("bundle:shell.rum", "unknown bundle 'shell.rum' (did you mean 'shell.run'?)"),
        ("repo.git_log", "'repo.git_log' is a tool, not a bundle: write 'tool:repo.git_log'"),
        ("gh.whatever_it_has", "write 'tool:gh.whatever_it_has'"),
        ("tool:repo.git_lok", "unknown tool 'repo.git_lok' (did you mean 'repo.git_log'?)"),
        ("bundle:tool:repo.git_log", "is not a pattern"),
        ("*" * (MAX_PATTERN + 1), "a pattern of 201 characters"),
    ],
)
def test_what_nobody_knows_is_refused_before_anything_is_written(
    router: FakeRouter, key: str, pattern: str, said: str
) -> None:
    with pytest.raises(RequestError) as refused:
        router.route_sync(step(policy={key: [pattern]}))
    assert f"is not understood: {key}: " in refused.value.message
    assert said in refused.value.message
    with pytest.raises(RequestError):
        router.explain(step(policy={key: [pattern]}), "repo")
    assert not router.fakes.store.has("r")


def test_the_longest_pattern_is_taken_and_everything_wrong_is_told_of_within_a_bound(
    router: FakeRouter,
) -> None:
    assert check_step_policy(catalog(), StepPolicy(deny=("x" * (MAX_PATTERN - 1) + "*",))) == []
    many = StepPolicy(allow=("nope",), deny=tuple(f"absent{n}" for n in range(1000)))
    assert len(check_step_policy(catalog(), many)) == 1001
    with pytest.raises(RequestError) as refused:
        router.route_sync(step(policy=many))
    assert refused.value.message.endswith("; and 996 more")
    assert len(refused.value.message) < 500
    five = StepPolicy(deny=tuple(f"absent{n}" for n in range(5)))
    with pytest.raises(RequestError) as refused:
        router.route_sync(step(policy=five))
    assert refused.value.message.endswith("unknown bundle 'absent4'")


def test_the_nearest_name_is_looked_for_a_few_times_and_no_more() -> None:
    said = check_step_policy(
        catalog(), StepPolicy(deny=tuple(f"rep{letter}" for letter in "abcdef"))
    )
    assert ["did you mean 'repo'" in one for one in said] == [True] * 5 + [False]


def test_a_sub_agent_is_refused_while_its_parents_policy_is_not_understood() -> None:
    router = fake_router(catalog())
    router.route_sync(step("top", policy={"deny": ["bundle:workspace.exec"]}))
    assert router.route_sync(step("kid", parent_run_id="top")).bundle_ids == ["repo"]
    renamed = catalog()
    gone = replace(
        renamed, bundles={"repo": renamed.bundles["repo"], "shell": replace(RENAMED, id="shell")}
    )
    router._engines.newest._tree._catalog = (
        gone  # as when the run is taken up again under another config
    )
    with pytest.raises(RequestError, match="the step policy of an ancestor run is not understood"):
        router.route_sync(step("kid2", parent_run_id="top"))


def test_policies_that_never_repeat_dont_make_the_plans_grow() -> None:
    routed = Plans(catalog())
    big = tuple(f"{'x' * 190}{n}*" for n in range(999))
    kept = set()
    for n in range(60):
        plan = routed.of(step(policy={("allow", "deny")[n % 2]: [f"y{n}*", *big]}), ())
        kept.add(id(plan))
        known = routed._plans  # looked into on purpose: what is held is what this is about
        held = sum(
            len(pattern)
            for _, policy, _ in known
            if policy is not None
            for pattern in (*(policy.allow or ()), *policy.deny)
        )
        assert held <= 4_000_000
    assert len(kept) > 1
    deep = Grant(Address(("w", "r", "s")), StepPolicy(deny=big))
    for n in range(60):
        routed.of(step(step=f"s{n}"), (deep,) * 3)
        assert len(routed._plans) <= 20  # an ancestor's policy weighs as much


def test_addresses_verdicts_and_facts_that_never_repeat_dont_make_them_grow_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plans, "_MAX_WEIGHT", 40_000)
    few = Plans(catalog())
    many = Plans(small_catalog({f"b{n}": [f"s.t{n}"] for n in range(100)}))
    addresses = []
    for n in range(100):
        few.of(step(step=f"s{n}"), ())
        addresses.append(len(few._plans))
    assert (max(addresses), addresses[-1]) == (40, 20)
    verdicts = []
    for n in range(50):
        plan = many.of(step(policy={"deny": [f"b{n}*"]}), ())
        for id_ in many.catalog.bundles:
            plan.verdicts.of(id_, NO_FACTS)
        verdicts.append(sum(len(of._static) for of in many._verdicts.values()))
    assert 1_000 < max(verdicts) <= 1_400
    plan = few.of(step(), ())
    for n in range(40):
        plan.verdicts.candidates(Facts(unavailable=(("gh", str(n)),)), None, ())
        assert len(plan.verdicts._candidates) <= 16


def test_the_same_address_under_the_same_policy_is_worked_out_once() -> None:
    routed = Plans(catalog())
    again = [routed.of(step(policy={"deny": ["repo"]}), Facts().grants) for _ in range(2)]
    assert again[0] is again[1]
    other = routed.of(step(step="another", policy={"deny": ["repo"]}), ())
    assert other is not again[0]
    assert other.verdicts is again[0].verdicts
