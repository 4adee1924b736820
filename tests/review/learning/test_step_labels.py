"""What counts as a label, what it rests on, and how much one run may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Policy, Route
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.review.learning.fitting import base_scores
from bundle_router.review.learning.labels import QUOTAS, RUN_STEPS, label_steps
from bundle_router.wiring.searching import make_search

HERE = ("support", "agent", "act")


def labelled(deployment: Any, current: Any = None, **corrections: Any) -> Any:
    return label_steps(
        deployment.past(corrections), deployment.catalogs, current or deployment.catalog
    )


def test_a_bundle_that_was_shown_and_used_was_needed_and_one_that_was_only_shown_was_not(
    kit: Any,
) -> None:
    turn = kit.Turn("find it", ("repo.readonly", "weather"), ("repo.grep",))
    (step,) = labelled(kit.Deployment(kit.workshop()).play({"r": [turn]})).steps
    assert step.needed == {"repo.readonly": "used"}
    assert step.label.text == "find it"
    assert step.label.marks == ("workflow:support", "role:agent", "step:act")
    assert step.permitted == frozenset(kit.workshop().bundles)


def test_a_tool_that_was_asked_for_and_only_not_shown_makes_a_gap(kit: Any) -> None:
    turn = kit.Turn("find it", ("weather",), ("repo.grep", "nobody.has_this"))
    (step,) = labelled(kit.Deployment(kit.workshop()).play({"r": [turn]})).steps
    assert step.needed == {"repo.readonly": "gap"}


def test_what_policy_refuses_is_no_gap(kit: Any) -> None:
    catalog = kit.workshop(policies=[Policy("no mail", allow=("*",), deny=("mail",))])
    turn = kit.Turn("write to them", ("weather",), ("mail.send",))
    assert labelled(kit.Deployment(catalog).play({"r": [turn]})).steps == ()


def test_a_gap_is_the_most_specific_bundles_that_hold_the_tool(kit: Any) -> None:
    wide = replace(
        kit.workshop().bundles["repo.readonly"],
        id="all",
        tools=("mail.send", "repo.grep", "repo.read"),
    )
    catalog = kit.workshop(bundles={"all": wide})
    turn = kit.Turn("find it", ("weather",), ("repo.grep",))
    (step,) = labelled(kit.Deployment(catalog).play({"r": [turn]})).steps
    assert step.needed == {"repo.readonly": "gap"}


def test_a_reviewer_adds_and_takes_away_and_the_last_word_counts(kit: Any) -> None:
    deployment = kit.Deployment(kit.workshop()).play(
        {
            "r": [
                kit.Turn("find it", ("repo.readonly", "weather"), ("repo.grep", "weather.forecast"))
            ]
        }
    )
    said = [
        StepLabel(decision_id="r.0", needed=("mail", "docs.web")),
        StepLabel(decision_id="r.0", not_needed=("mail", "weather")),
    ]
    (step,) = labelled(deployment, r=said).steps
    assert step.needed == {"docs.web": "corrected", "repo.readonly": "used"}


def test_what_is_shown_anyway_counts_less(kit: Any) -> None:
    catalog = kit.workshop(routes=[Route("act", step=("act",), bundles=("mail",))])
    runs = {"r": [kit.Turn(f"write {n}", (), ("mail.send",)) for n in range(3)]}
    found = labelled(kit.Deployment(catalog).play(runs))
    assert [step.needed for step in found.steps] == [{"mail": "routine"}]
    assert dict(found.by_kind)["routine"] == QUOTAS["routine"] == 1
    assert found.over_quota == 2


def test_a_run_says_the_same_thing_only_so_often_and_what_is_over_is_no_evidence_against(
    kit: Any,
) -> None:
    turns = [
        kit.Turn(f"thing {n}", (("mail", "weather") if n % 3 else ("weather",)),
                 (("mail.send", "weather.forecast") if n % 3 else ("weather.forecast",)))
        for n in range(9)
    ]  # fmt: skip
    found = labelled(kit.Deployment(kit.workshop()).play({"r": turns}))
    assert sum("weather" in step.counted for step in found.steps) == 1, (
        "called at every step: a habit"
    )
    assert sum("mail" in step.counted for step in found.steps) == 1
    over = [step for step in found.steps if step.neutral]
    assert all(not step.neutral & set(step.label.ids) for step in over)


def test_what_is_over_the_quota_is_no_rival_to_learn_against(kit: Any) -> None:
    pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")
    turns = [
        kit.Turn(
            f"weather and letters {n}",
            ("mail", "weather"),
            ("mail.send", "weather.forecast")[: 1 + n % 2],
        )
        for n in range(6)
    ]
    deployment = kit.Deployment(kit.workshop()).play({"r": turns})
    steps = [step for step in labelled(deployment).steps if step.neutral == {"mail"}]
    assert steps
    base = base_scores(steps, make_search(deployment.catalog))
    assert all("mail" not in scores and "weather" in scores for scores in base.values())


def test_a_long_run_counts_with_so_many_steps_spread_over_it(kit: Any) -> None:
    names = [f"b{n}" for n in range(12)]
    catalog = kit.workshop(bundles={name: (f"{name}.use",) for name in names})
    turns = [
        kit.Turn(f"thing {n}", (names[n % 12],), (f"{names[n % 12]}.use",)) for n in range(120)
    ]
    found = labelled(kit.Deployment(catalog).play({"r": turns}))
    assert len(found.steps) == RUN_STEPS
    assert max(step.past.seq for step in found.steps) > 200
    assert min(step.past.seq for step in found.steps) == 0


def test_a_reviewers_word_is_forgotten_when_any_of_the_bundles_tools_changed(kit: Any) -> None:
    deployment = kit.Deployment(kit.workshop()).play({"r": [kit.Turn("find it", ("weather",))]})
    said = [StepLabel(decision_id="r.0", needed=("repo.readonly",))]
    assert len(labelled(deployment, r=said).steps) == 1
    more = changed(
        deployment.catalog, "repo.readonly", tools=("repo.grep", "repo.read", "mail.send")
    )
    assert labelled(deployment, more, r=said).obsolete == 1


def changed(catalog: Any, id_: str, **changes: Any) -> Any:
    return replace(
        catalog, bundles={**catalog.bundles, id_: replace(catalog.bundles[id_], **changes)}
    )


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"examples": ("find the function",)}, True),
        ({"description": "Read  and search the source code"}, True),
        ({"tools": ("repo.grep",)}, True),
        ({"description": "Something else entirely"}, False),
        ({"tools": ("repo.read",)}, False),
        ({"selectable": False}, False),
        ({"enabled": False}, False),
    ],
)
def test_labels_are_forgotten_when_the_config_made_them_obsolete(
    kit: Any, changes: dict[str, Any], kept: bool
) -> None:
    deployment = kit.Deployment(kit.workshop()).play(
        {"r": [kit.Turn("find it", ("repo.readonly",), ("repo.grep",))]}
    )
    found = labelled(deployment, changed(deployment.catalog, "repo.readonly", **changes))
    assert bool(found.steps) is kept
    assert found.obsolete + found.unrankable == (not kept)


def test_labels_follow_a_bundle_that_was_renamed_and_keeps_its_old_id(kit: Any) -> None:
    deployment = kit.Deployment(kit.workshop()).play(
        {"r": [kit.Turn("find it", ("repo.readonly",), ("repo.grep",))]}
    )
    then = deployment.catalog
    renamed = replace(then.bundles["repo.readonly"], id="source.read", aliases=("repo.readonly",))
    others = {id_: bundle for id_, bundle in then.bundles.items() if id_ != "repo.readonly"}
    (step,) = labelled(deployment, replace(then, bundles={**others, "source.read": renamed})).steps
    assert set(step.needed) == {"source.read"}


def test_steps_of_a_config_that_is_not_known_any_more_teach_nothing(kit: Any) -> None:
    deployment = kit.Deployment(kit.workshop()).play(
        {"r": [kit.Turn("find it", ("repo.readonly",), ("repo.grep",))]}
    )
    found = label_steps(deployment.past(), {}, deployment.catalog)
    assert found.steps == ()
    assert found.obsolete == 1


def test_only_redacted_text_is_learned(kit: Any) -> None:
    from bundle_router import Step
    from bundle_router.review.learning.recorded_steps import past_steps
    from bundle_router.testing import fake_router

    with fake_router(kit.workshop(), selector=lambda _: ("mail",), secrets=("hunter2",)) as router:
        router.route_sync(
            Step(run_id="r", workflow="a", role="b", step="c", goal="send hunter2 to them")
        )
        router.call_sync("r", "mail.send", {})
        past = past_steps(router.fakes.records("r"))
    (step,) = label_steps(past, {router.catalog.revision: router.catalog}, router.catalog).steps
    assert "hunter2" not in step.label.text
    assert "[redacted:test]" in step.label.text
