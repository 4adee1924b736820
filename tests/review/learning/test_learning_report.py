"""Memory, calibration and proposals from real records, and what they do to a held-back part of
them.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import MIN_LABELS, Catalog, Route
from bundle_router.core.config.written_forms import FILES, form_of
from bundle_router.core.search.fit import MIN_LABELS as MIN_REPLAYED
from bundle_router.core.search.learned_values import NOTHING, LearnedValues
from bundle_router.core.search.ranking import Ranking, Search
from bundle_router.core.search.sufficiency import features_of, judge, thresholds_version
from bundle_router.core.values.evidence import Evidence, Logistic
from bundle_router.review.learning.calibration import Row, fit_rows, fold_of
from bundle_router.review.learning.fitting import fit, split_by_age
from bundle_router.review.learning.labels import label_steps
from bundle_router.review.learning.report import Learning, learn
from bundle_router.review.learning.report_text import proposals_toml
from bundle_router.wiring.searching import make_search
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples

pytest.importorskip("bm25s", reason="the extra bundle-router[search] is not installed")


def taught(
    deployment: Any, now: LearnedValues = NOTHING, current: Any = None, **options: Any
) -> Learning:
    catalog = current or deployment.catalog
    return learn(
        deployment.past(), deployment.catalogs, catalog, make_search(catalog), now, **options
    )


taught_once = functools.cache(taught)
"""What several tests look at is learned once."""


# --- memory ---------------------------------------------------------------------------------------


def test_a_deployments_jargon_is_learned_and_the_newest_runs_show_it(deployment: Any) -> None:
    learning = taught_once(deployment)
    fitted = learning.memory
    assert fitted is not None
    assert fitted.memory is not None
    assert fitted.replay.after > fitted.replay.before + 0.5
    assert fitted.before.first < 0.5 < 0.9 < fitted.after.first
    assert fitted.before.steps == 20, "the newest quarter of twenty runs of four steps"
    assert learning.changes
    tools = learning.tools
    assert tools is not None
    assert tools.memory is not None
    assert tools.before.first < 0.5 < 0.9 < tools.after.first
    assert dict(learning.proposed.revisions) == {
        "memory": fitted.memory.revision,
        "tools": tools.memory.revision,
    }


def test_the_held_back_runs_are_the_newest_and_none_of_them_is_learned_from(
    deployment: Any,
) -> None:
    steps = label_steps(deployment.past(), deployment.catalogs, deployment.catalog).steps
    older, newest = split_by_age(steps)
    assert {s.past.run_id for s in older} & {s.past.run_id for s in newest} == set()
    assert max(s.past.run_id for s in older) < min(s.past.run_id for s in newest)


def test_a_memory_that_loses_on_the_newest_runs_is_not_proposed(kit: Any) -> None:
    """Until lately "snag" meant a bug; now it means the weather.

    The whole replay gains all the same.
    """
    runs = kit.jargon_runs(24)
    for at, run_id in enumerate(sorted(runs)):
        turns = runs[run_id]
        if at >= 18:
            turns[:] = [replace(turn, goal=f"what about bugs {turn.goal}") for turn in turns]
            turns[:] = [kit.Turn(t.goal, ("issues.tracker",), ("issues.list",)) for t in turns[1:]]
    deployment = kit.Deployment(kit.workshop()).play(runs)
    search = make_search(deployment.catalog)
    steps = label_steps(deployment.past(), deployment.catalogs, deployment.catalog).steps
    fitted = fit(steps, search)
    assert fitted.replay.memory is not None
    assert fitted.after.mean < fitted.before.mean
    assert fitted.memory is None
    assert "newest" in fitted.why
    assert taught(deployment, LearnedValues(fitted.replay.memory)).proposed.memory is None, (
        "and one in force is switched off"
    )


def test_too_few_labels_teach_nothing_and_leave_what_is_in_force(kit: Any, deployment: Any) -> None:
    now = taught_once(deployment).proposed
    few = kit.Deployment(kit.workshop()).play(kit.jargon_runs(2))
    learning = taught(few, now)
    assert learning.memory is not None
    assert learning.memory.memory is None
    assert f"{MIN_REPLAYED - 8} more labels" in learning.memory.why
    assert not learning.changes
    assert learning.proposed == now


def test_the_same_logs_teach_the_same_and_carry_one_version(deployment: Any) -> None:
    first, again = taught_once(deployment), taught(deployment)
    assert first.version == again.version
    assert first.to_json() == again.to_json()
    assert not taught(deployment, first.proposed).changes


words = st.sampled_from(("find", "bug", "rain", "letter", "page", "foo", "bar", "baz", "qux"))
chaos = st.lists(
    st.lists(
        st.tuples(
            st.lists(words, min_size=1, max_size=4).map(" ".join),
            st.sampled_from((("repo.readonly", "repo.grep"), ("issues.tracker", "issues.list"), ("mail", "mail.send"),
                             ("weather", "weather.forecast"), ("docs.web", "docs.fetch"))),
        ),
        min_size=1,
        max_size=6,
    ),
    min_size=8,
    max_size=20,
)  # fmt: skip


@examples(25, least=5)
@given(logs=chaos)
def test_logs_never_make_replay_accuracy_worse(kit: Any, logs: Any) -> None:
    runs = {
        f"r{at:03d}": [kit.Turn(goal, (bundle,), (tool,)) for goal, (bundle, tool) in turns]
        for at, turns in enumerate(logs)
    }
    learning = taught(kit.Deployment(kit.workshop()).play(runs))
    fitted = learning.memory
    assert fitted is not None
    if fitted.memory is not None:
        assert fitted.replay.after > fitted.replay.before
        assert fitted.after.mean >= fitted.before.mean - 1e-9
    assert (learning.proposed.memory is None) == (fitted.memory is None)


# --- forgetting -----------------------------------------------------------------------------------


def test_what_was_learned_about_a_bundle_goes_when_the_bundle_is_no_longer_what_it_was(
    deployment: Any,
) -> None:
    learned = taught_once(deployment).proposed
    assert learned.memory is not None
    catalog = deployment.catalog
    mail = replace(catalog.bundles["mail"], description="Read the post")
    changed = replace(catalog, bundles={**catalog.bundles, "mail": mail})
    fitted = learned.fitted_to(changed)
    assert learned.fitted_to(catalog) is learned
    assert fitted.memory is not None
    assert "mail" in {id_ for row in learned.memory.weights.values() for id_ in row}
    assert "mail" not in {id_ for row in fitted.memory.weights.values() for id_ in row}
    assert fitted.revisions != learned.revisions, "a decision says which of the two it rests on"


# --- calibration ----------------------------------------------------------------------------------


def test_a_calibration_takes_so_many_labels_and_says_how_many_are_missing(deployment: Any) -> None:
    learning = taught(deployment, calibrating=True)
    assert learning.calibration is not None
    assert (learning.calibration.labels, learning.calibration.missing) == (80, MIN_LABELS - 80)
    assert "220 more labels" in learning.calibration.why
    assert learning.proposed.calibration is None


@pytest.fixture(scope="module")
def many(kit: Any) -> tuple[Any, Learning]:
    deployment = kit.Deployment(kit.workshop()).play(kit.mixed_runs(90))
    return deployment, taught(deployment, calibrating=True)


def test_fitted_thresholds_settle_more_steps_and_are_wrong_no_more_often_than_they_allow(
    many: tuple[Any, Learning],
) -> None:
    deployment, learning = many
    fitted = learning.calibration
    assert fitted is not None
    assert fitted.calibration is not None, fitted.why
    assert fitted.after.share > fitted.before.share
    thresholds = deployment.catalog.settings.search
    by_effect = dict(fitted.by_effect)
    assert by_effect["read"].error <= 1 - thresholds.read_threshold
    assert by_effect["write"].error <= 1 - thresholds.write_threshold
    assert by_effect["read"].enough > 0


def test_a_learned_calibration_is_what_decisions_name_and_never_shows_what_executes(
    many: tuple[Any, Learning],
) -> None:
    deployment, learning = many
    learned = learning.proposed
    applied = learned.applied_to(deployment.catalog)
    assert learned.calibration is not None
    assert thresholds_version(applied.settings.search) == learned.calibration.version
    assert applied.revision != deployment.catalog.revision
    search: Search = make_search(applied)
    verdicts = set()
    for step in learning.labelled.steps:
        ranking = search.rank_bundles(step.past.request, step.permitted, learned.memory)
        judged = judge(applied, step.past.step, ranking)
        verdicts.add((ranking.scored[0].id, judged.use.verdict))
    assert ("repo.readonly", "enough") in verdicts
    assert ("workspace.exec", "enough") not in verdicts
    own = replace(applied.settings.search.calibration, version="of the config")  # type: ignore[type-var]
    settings_ = replace(applied.settings, search=replace(applied.settings.search, calibration=own))
    named = replace(applied, settings=settings_)
    assert learned.applied_to(named) is named, "one that the config names goes first"


def test_a_calibration_that_would_be_wrong_too_often_is_not_proposed(kit: Any) -> None:
    """One fold of the runs uses something else than the words say: what the others teach is wrong
    there.
    """
    runs = {}
    for at in range(150):
        run_id = f"run-{at:04d}"
        odd = fold_of(run_id) == 0 or at % 25 == 0
        picked = ("weather", "weather.forecast") if odd else ("repo.readonly", "repo.grep")
        texts = (
            f"search the source code of {kit.SUBJECTS[at % 10]}",
            f"read the source code, part {at}",
        )
        runs[run_id] = [kit.Turn(text, picked[:1], picked[1:]) for text in texts]
    learning = taught(kit.Deployment(kit.workshop()).play(runs), calibrating=True)
    fitted = learning.calibration
    assert fitted is not None
    assert fitted.enough
    assert fitted.after.error > 0.1
    assert fitted.calibration is None
    assert "are wrong, over 10.0%" in fitted.why
    assert learning.proposed.calibration is None


def test_own_labels_tell_right_from_wrong_by_factors_whose_products_are_alike(
    deployment: Any,
) -> None:
    """Strength times coverage is the same everywhere; nothing else is above 0."""
    labelled = label_steps(deployment.past(), deployment.catalogs, deployment.catalog)
    covered = Evidence(strength=1.0, coverage=0.8, entropy=1.0)
    half_covered = Evidence(strength=2.0, coverage=0.4, entropy=1.0)
    rows = [
        Row(labelled.steps[0], Ranking((), evidence), evidence is covered, 1.0)
        for evidence in (covered, half_covered)
        for _ in range(50)
    ]
    fitted = fit_rows(rows)
    probability = Logistic(fitted.bias, fitted.weights)
    assert probability(features_of(covered)) > 0.9
    assert probability(features_of(half_covered)) < 0.1


def test_right_steps_alone_calibrate_nothing(kit: Any) -> None:
    runs = {
        f"r{at:04d}": [kit.Turn(f"search the source code of {at}", ("repo.readonly",), ("repo.grep",)),
                       kit.Turn(f"what will the weather be in {at}", ("weather",), ("weather.forecast",))]
        for at in range(160)
    }  # fmt: skip
    fitted = taught(kit.Deployment(kit.workshop()).play(runs), calibrating=True).calibration
    assert fitted is not None
    assert (fitted.missing, fitted.calibration) == (0, None)
    assert "search was wrong 0 times" in fitted.why


# --- proposals ------------------------------------------------------------------------------------


def test_an_answer_that_came_out_the_same_often_enough_becomes_a_proposed_route(kit: Any) -> None:
    here, there = ("triage", "agent", "file"), ("triage", "agent", "answer")
    runs = {
        f"r{at}": [
            kit.Turn(f"bug {at}", ("issues.tracker",), ("issues.create",), here),
            kit.Turn(f"answer {at}", (("mail",) if at % 2 else ("docs.web",)), (), there),
        ]
        for at in range(6)
    }
    deployment = kit.Deployment(kit.workshop()).play(runs)
    (row,) = taught_once(deployment).proposals.routes
    assert (row.address, row.bundles) == (here, ("issues.tracker",))
    assert (row.same, row.answers, row.runs, row.used) == (6, 6, 6, 6)
    assert taught(deployment, after=7).proposals.routes == ()


def test_an_answer_that_nobody_used_is_not_promoted(kit: Any) -> None:
    here = ("triage", "agent", "file")
    runs = {
        f"r{at}": [
            kit.Turn(f"bug {at}", ("issues.tracker",), (), here),
            kit.Turn("rain", ("weather",), ("mail.send",)),
        ]
        for at in range(6)
    }
    assert {
        row.address[-1]
        for row in taught(kit.Deployment(kit.workshop()).play(runs)).proposals.routes
    } == {"file", "act"}
    for turns in runs.values():
        turns[1] = kit.Turn("rain", ("weather",), ("weather.forecast",))
    assert {
        row.address[-1]
        for row in taught(kit.Deployment(kit.workshop()).play(runs)).proposals.routes
    } == {"act"}


def test_one_busy_run_promotes_no_route(kit: Any) -> None:
    turns = [kit.Turn(f"bug {n}", ("issues.tracker",), ("issues.create",)) for n in range(40)]
    assert taught(kit.Deployment(kit.workshop()).play({"r": turns})).proposals.routes == ()


def test_no_route_is_proposed_for_what_the_config_now_answers_or_no_longer_permits(
    kit: Any,
) -> None:
    runs = {f"r{at}": [kit.Turn(f"bug {at}", ("issues.tracker",), ())] for at in range(6)}
    deployment = kit.Deployment(kit.workshop()).play(runs)
    assert len(taught_once(deployment).proposals.routes) == 1
    mapped = replace(deployment.catalog, routes=(Route("act", step=("act",), bundles=("mail",)),))
    assert taught(deployment, current=mapped).proposals.routes == ()
    denied = replace(deployment.catalog.policies[0], deny=("issues.*",))
    assert (
        taught(deployment, current=replace(deployment.catalog, policies=(denied,))).proposals.routes
        == ()
    )


def test_a_promoted_row_keeps_what_an_asking_route_maps(kit: Any) -> None:
    catalog = kit.workshop(routes=[Route("act", step=("act",), bundles=("docs.web",), ask=("*",))])
    runs = {f"r{at}": [kit.Turn(f"bug {at}", ("issues.tracker",), ())] for at in range(6)}
    (row,) = taught(kit.Deployment(catalog).play(runs)).proposals.routes
    assert row.bundles == ("docs.web", "issues.tracker")


def test_intents_that_search_alone_does_not_rank_become_examples(deployment: Any) -> None:
    proposed = {
        (row.bundle, row.text.rsplit(" ", 1)[0])
        for row in taught_once(deployment).proposals.examples
    }
    assert ("issues.tracker", "log a snag about") in proposed


def with_examples(of: Catalog) -> Catalog:
    """Return the catalog with bundles that lack no examples."""
    three = ("frob one", "frob two", "frob three")
    bundles = {id_: replace(bundle, examples=three) for id_, bundle in of.bundles.items()}
    return replace(of, bundles=bundles)


def test_of_bundles_with_examples_only_what_three_runs_needed_is_proposed(deployment: Any) -> None:
    learning = taught(deployment, current=with_examples(deployment.catalog))
    assert learning.proposals.examples
    assert all(row.runs >= 3 for row in learning.proposals.examples)


def test_of_a_bundle_that_lacks_examples_goals_of_one_run_are_proposed_with_the_step(
    kit: Any,
) -> None:
    runs = {
        "r1": [kit.Turn("search the source code for the login", ("repo.readonly",), ("repo.grep",))]
    }
    deployment = kit.Deployment(kit.workshop()).play(runs)
    proposals = taught(deployment).proposals
    goal = "search the source code for the login"
    (row,) = proposals.examples
    assert (row.bundle, row.text, row.runs, row.rank) == ("repo.readonly", goal, 1, 1)
    assert row.evidence == ("r1/0",)
    text = proposals_toml(proposals, deployment.catalog)
    assert f'# "{goal}": in 1 run (r1/0), ' in text
    assert taught(deployment, current=with_examples(deployment.catalog)).proposals.examples == ()


def test_what_a_model_had_to_be_asked_for_becomes_an_example_though_search_ranks_it(
    kit: Any,
) -> None:
    goal = "search the source code for the login"
    turns = [kit.Turn(goal, ("repo.readonly",), ("repo.grep",))]
    deployment = kit.Deployment(with_examples(kit.workshop())).play(
        {f"r{at}": turns for at in range(4)}
    )
    past = deployment.past()

    def examples_of(*, by_model: bool) -> Any:
        steps = [replace(step, by_model=by_model) for step in past]
        search = make_search(deployment.catalog)
        return learn(
            steps, deployment.catalogs, deployment.catalog, search, NOTHING
        ).proposals.examples

    assert examples_of(by_model=False) == ()
    (row,) = examples_of(by_model=True)
    assert (row.text, row.rank, row.answered_by_model) == (goal, 1, 4)
    assert row.evidence == ("r1/0", "r2/0", "r3/0")


def test_words_that_meant_several_bundles_are_an_example_of_none(kit: Any) -> None:
    tools = (("mail", "mail.send"), ("weather", "weather.forecast"))
    runs = {
        f"r{at}": [kit.Turn(f"frob the grand knob {at}", tools[at % 2][:1], tools[at % 2][1:])]
        for at in range(12)
    }
    assert taught(kit.Deployment(kit.workshop()).play(runs)).proposals.examples == ()


def test_redacted_or_endless_intents_are_no_examples(kit: Any) -> None:
    runs = {
        f"r{at}": [kit.Turn(text, ("mail",), ("mail.send",))]
        for at, text in enumerate(
            ["frob the [redacted:key] knob", "frob the grand knob " + "x" * 300] * 6
        )
    }
    assert taught(kit.Deployment(kit.workshop()).play(runs)).proposals.examples == ()


def test_tools_that_are_shown_and_never_called_are_proposed_to_be_trimmed(deployment: Any) -> None:
    trims = {row.bundle: row for row in taught_once(deployment).proposals.trims}
    assert trims["repo.readonly"].tools == ("repo.grep",)
    assert trims["repo.readonly"].tokens == 10
    assert "mail" not in trims, "all of it is used"


def test_what_a_reviewer_says_was_needed_is_not_proposed_to_be_trimmed(kit: Any) -> None:
    runs = {f"r{at}": [kit.Turn(f"frob the grand knob {at}", ("mail",))] for at in range(24)}
    deployment = kit.Deployment(kit.workshop()).play(runs)
    unsaid = deployment.past()
    assert "mail" in {row.bundle for row in taught_once(deployment).proposals.trims}
    said = [replace(step, needed=frozenset(("mail",))) for step in unsaid]
    learning = learn(
        said, deployment.catalogs, deployment.catalog, make_search(deployment.catalog), NOTHING
    )
    assert "mail" not in {row.bundle for row in learning.proposals.trims}


def test_the_proposals_are_toml_that_the_config_understands(kit: Any) -> None:
    odd = ('say "hi" \\ there', "agent", "ünder😀")
    runs = {
        f"r{at}": [
            kit.Turn('spin "the rig" \\hard\\ 😀', ("workspace.exec",), ("workspace.run",), odd),
            kit.Turn("search the source code", ("repo.readonly",), ("repo.grep",)),
        ]
        for at in range(24)
    }
    deployment = kit.Deployment(kit.workshop()).play(runs)
    proposals = taught_once(deployment).proposals
    document = tomllib.loads(proposals_toml(proposals, deployment.catalog))
    assert {row["workflow"] for row in document["routes"]} >= {odd[0]}
    form_of(FILES["routes.toml"]).model_validate({"routes": document["routes"]})
    assert document["bundles"]["workspace.exec"]["examples"] == ['spin "the rig" \\hard\\ 😀']
    assert document["bundles"]["repo.readonly"]["tools"] == ["repo.grep"]
