"""What the router's own model may cost: `[model] max_cost_per_day` and `max_questions_per_run`.

A scripted server charges 1 USD a question by litellm's list, in tokens of gpt-4o-mini.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from bundle_router import Decision, Router, Step
from bundle_router.adapters.model_costs import SqlDayCosts
from bundle_router.cli import main
from bundle_router.engine.asking.day_budget import DayBudget
from bundle_router.testing import FakeClock, FakeDiagnostics
from bundle_router.testing.upstream import ScriptedServer, body, choice, completion, status

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)

DOLLAR: Final = {"prompt_tokens": 6_666_667, "completion_tokens": 0, "total_tokens": 6_666_667}
"""The usage of an answer that costs 1 USD: gpt-4o-mini takes 0.15 USD for a million tokens."""
ANSWER: Final = body(
    json.dumps({**json.loads(completion(choice("files.find"))), "usage": DOLLAR}).encode()
)
CONFIG: Final = {
    "routes.toml": "routes = []\n",
    "policy.toml": '[[policies]]\nname = "all"\nallow = ["files.find", "pages.read"]\n',
    "bundles.toml": """
[bundles."files.find"]
description = "Find files"
tools = ["repo.ripgrep"]
effects = ["read"]
[bundles."pages.read"]
description = "Look up"
tools = ["docs.fetch"]
effects = ["read", "network"]
""",
}


class Place:
    """A project that asks a scripted model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.config = folder / "config"

    def open(self, server: ScriptedServer, limits: str) -> Router:
        self.config.mkdir(exist_ok=True)
        for name, text in CONFIG.items():
            (self.config / name).write_text(text)
        (self.config / "router.toml").write_text(
            '[fallback]\norder = ["model", "default"]\n[model]\nnames = ["openai/gpt-4o-mini"]\n'
            f'base_url = "{server.base_url}"\ndeadline_s = 60\n{limits}\n'
        )
        router = Router.open(self.config, runs=self.runs, workspace=self.folder)
        router.warm_up_sync()
        return router

    def outcomes(self, router: Router, run: str, goals: range) -> list[str]:
        """Route a step for each goal, and return who decided, or the model's failure."""
        return [outcome(router.route_sync(step(run, goal))) for goal in goals]


def step(run: str, goal: int) -> Step:
    return Step(run_id=run, workflow="w", role="x", step="y", goal=f"find {goal}")


def outcome(decision: Decision) -> str:
    assert decision.model is not None
    return decision.model.failure or decision.source


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_no_model_is_asked_once_a_day_has_cost_what_it_may_also_after_a_restart(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([ANSWER]) as server:
        with place.open(server, "max_cost_per_day = 3.5") as router:
            assert place.outcomes(router, "r", range(3)) == ["model"] * 3
            assert place.outcomes(router, "r", range(3, 5)) == ["over_limit"] * 2
            # an answer that was given before costs nothing
            assert place.outcomes(router, "other", range(1)) == ["model"]
        assert len(server.requests) == 3
        with place.open(server, "max_cost_per_day = 5.5") as router:
            assert place.outcomes(router, "s", range(10, 13)) == ["model", "model", "over_limit"]
        assert len(server.requests) == 5  # a new process knows no price before its first answer
    assert capsys.readouterr().err.count('"event":"model.over_limit"') == 2


USAGES: Final[dict[str, object]] = {
    "absent": None,
    "nothing counted": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    "negative": {"prompt_tokens": -5, "completion_tokens": -5, "total_tokens": -10},
    "absurd": {"prompt_tokens": 1 << 60, "completion_tokens": 1, "total_tokens": 1 << 60},
}
"""What some servers say of a question's tokens; the question was not free for all that."""


@pytest.mark.parametrize("usage", USAGES)
def test_an_answer_without_a_usable_count_costs_what_its_length_comes_to(
    place: Place, usage: str
) -> None:
    """A question here has some 2,000 characters: an estimate of about 0.0001 USD."""
    document = json.loads(completion(choice("files.find")))
    document.pop("usage", None)
    if USAGES[usage] is not None:
        document["usage"] = USAGES[usage]
    with (
        ScriptedServer([body(json.dumps(document).encode())]) as server,
        place.open(server, "max_cost_per_day = 0.001") as router,
    ):
        outcomes = place.outcomes(router, "r", range(60))
    assert outcomes[0] == "model"
    assert outcomes[-1] == "over_limit"
    assert 3 <= outcomes.count("model") <= 40


def test_a_refused_question_is_recorded_and_shown_as_what_it_is(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        ScriptedServer([ANSWER]) as server,
        place.open(server, "max_questions_per_run = 1") as router,
    ):
        assert place.outcomes(router, "r", range(2)) == ["model", "over_limit"]
        refused = router.route_sync(step("r", 1))
    assert refused.model is not None
    assert (refused.model.attempts, refused.model.cost_usd, refused.source) == (0, 0.0, "none")
    capsys.readouterr()
    assert main(["runs", "show", "r", "--runs", str(place.runs)]) == 0
    assert "over_limit" in capsys.readouterr().out
    asked = ["--bundle", "files.find", "--run", "r", "--seq", str(refused.seq)]
    assert main(["explain", *asked, "--runs", str(place.runs)]) in (0, 1)
    assert "over_limit" in capsys.readouterr().out
    assert main(["runs", "stats", "--runs", str(place.runs)]) == 0
    assert "over_limit" in capsys.readouterr().out


def test_a_runs_questions_are_counted_from_its_records_whoever_asked_them(place: Place) -> None:
    with ScriptedServer([status(500)]) as broken, ScriptedServer([ANSWER]) as server:
        with place.open(broken, "max_questions_per_run = 2") as router:
            assert place.outcomes(router, "r", range(1)) == ["upstream_error"]
        with place.open(server, "max_questions_per_run = 2") as router:
            assert place.outcomes(router, "r", range(1, 3)) == ["model", "over_limit"]
            assert place.outcomes(router, "other", range(3, 4)) == ["model"]
        with place.open(server, "max_questions_per_run = 0") as router:
            assert place.outcomes(router, "third", range(9, 10)) == ["over_limit"]


def test_check_names_the_models_that_a_limit_of_costs_does_not_bound(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([ANSWER]) as server, place.open(server, "max_cost_per_day = 1"):
        pass
    main(["check", "--config", str(place.config)])
    assert "no-price" not in capsys.readouterr().out
    path = place.config / "router.toml"
    path.write_text(path.read_text().replace("openai/gpt-4o-mini", "openai/my-own"))
    main(["check", "--config", str(place.config)])
    said = capsys.readouterr().out
    assert "'openai/my-own' has no price in litellm's list" in said
    assert "max_questions_per_run" in said


# --- the sum of a day -----------------------------------------------------------------------------

Made = Callable[[float], DayBudget]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def budget(tmp_path: Path, clock: FakeClock) -> Made:
    """Makes budgets of processes that share a folder."""
    return lambda limit: DayBudget(
        limit, SqlDayCosts(tmp_path / "runs", FakeDiagnostics()), clock, FakeDiagnostics()
    )


def test_what_is_under_way_counts_as_the_dearest_question_so_far(budget: Made) -> None:
    made = budget(3.0)
    first = made.reserve()
    assert first is not None
    made.settle(first, 1.0, is_known=True)
    under_way = [made.reserve() for _ in range(5)]
    assert [one is not None for one in under_way] == [True, True, False, False, False]


def test_a_question_that_timed_out_counts_as_the_dearest_one(budget: Made) -> None:
    made = budget(2.0)
    for cost, is_known in ((1.0, True), (0.0, False)):
        reserved = made.reserve()
        assert reserved is not None
        made.settle(reserved, cost, is_known=is_known)
    assert made.reserve() is None


def test_processes_that_share_the_folder_of_runs_share_the_limit_and_a_new_day_begins_anew(
    budget: Made, clock: FakeClock
) -> None:
    one, other = budget(2.0), budget(2.0)
    for made in (one, other):
        reserved = made.reserve()
        assert reserved is not None
        made.settle(reserved, 1.0, is_known=True)
    assert (one.reserve(), other.reserve(), budget(2.0).reserve()) == (None, None, None)
    clock.advance(86_400)
    assert one.reserve() is not None


def test_a_file_that_can_not_be_used_leaves_the_limit_to_each_process(
    tmp_path: Path, clock: FakeClock
) -> None:
    (tmp_path / "model-costs.sqlite").write_text("this is no database, and long enough to say so")
    told = FakeDiagnostics()
    made = DayBudget(1.0, SqlDayCosts(tmp_path, told), clock, told)
    reserved = made.reserve()
    assert reserved is not None
    made.settle(reserved, 1.0, is_known=True)
    assert made.reserve() is None
    assert [name for _, name, _ in told.events].count("model.costs_unusable") == 1


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("opnai/gpt-4o-mini", "did you mean 'openai/gpt-4o-mini'?"),
        ("my-own", "'openai/my-own' for any OpenAI-compatible server"),
        ("gpt-4o-mini", ""),
        ("openai/my-own", ""),
    ],
)
def test_check_names_a_model_whose_provider_nobody_knows(
    name: str, advice: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer([ANSWER]) as server, place.open(server, "max_questions_per_run = 1"):
        pass
    path = place.config / "router.toml"
    path.write_text(path.read_text().replace("openai/gpt-4o-mini", name))
    main(["check", "--config", str(place.config)])
    said = capsys.readouterr().out
    assert ("no-provider" in said) == bool(advice)
    assert advice in said
