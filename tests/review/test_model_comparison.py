"""`eval --model`: labelled steps routed for real over HTTP, with models that fail in their ways,
and the figures.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.review.model_comparison import (
    Estimate,
    RoutedRow,
    average,
    figures_of,
    middle,
    share,
)
from bundle_router.testing.upstream import (
    Act,
    Exchange,
    ScriptedServer,
    body,
    choice,
    completion,
    hang,
    says,
    status,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.llm.broken_upstream import reset
from tests.command_line import json_of, run

needs_model = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None or importlib.util.find_spec("instructor") is None,
    reason="the extra bundle-router[model] is not installed",
)
PRICED, FREE = "openai/gpt-4o-mini", "openai/at-home"
SECRET = "sk-canary-4Jf8sK2mZq9wX7vB"
ROWS = [
    {"goal": "find what is said about money", "bundles": ["repo.readonly"], "group": "a"},
    {"goal": "the sky and its colour", "bundles": ["docs.fetch"], "group": "a"},
    {"goal": f"nothing of that kind {SECRET}", "bundles": [], "group": "b"},
    {
        "goal": "plan",
        "bundles": ["docs.fetch"],
        "workflow": "feature",
        "role": "planner",
        "step": "plan",
    },
]


def asked_for(goals: dict[str, Act], otherwise: Act) -> Act:
    """Plays by what the step's goal holds."""

    def act(exchange: Exchange) -> None:
        goal = json.loads(exchange.request.message("user"))["goal"]
        next((one for word, one in goals.items() if word in goal), otherwise)(exchange)

    return act


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    monkeypatch.setenv("CANARY_KEY", SECRET)

    def made(server: ScriptedServer, **model: Any) -> Path:
        lines = {"base_url": server.base_url, "deadline_s": 60.0, "key_env": "CANARY_KEY", **model}
        (tmp_path / "config").mkdir(exist_ok=True)
        text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())
        (tmp_path / "config" / "router.toml").write_text(f"[model]\n{text}")
        (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
        return tmp_path

    return made


@needs_model
def test_models_stand_beside_none_and_the_same_run_again_asks_nobody(
    place: Callable[..., Path],
) -> None:
    act = asked_for(
        {"money": says(choice("repo.readonly")), "sky": says(choice("repo.readonly"))},
        says(choice()),
    )
    with ScriptedServer([act]) as server:
        folder = place(server)
        words = ("eval", "set.jsonl", "--model", PRICED, "--model", FREE)
        (found,) = json_of(folder, *words)["sets"]
        none, priced, free = found["figures"]
        asked = len(server.requests)
        again = run(folder, *words).stdout
        assert len(server.requests) == asked == 6
        assert not any(SECRET.encode() in request.body for request in server.requests)
    assert (none["model"], priced["model"], free["model"]) == (None, PRICED, FREE)
    assert [none["rows"], none["asked"], priced["asked"], priced["cached"]] == [4, 0, 3, 0]
    # Right: money's, and nothing picked where nothing fits, and the mapped step's first bundle,
    # whatever that is.
    mapped = none["right"]["value"] * 4 - 1
    assert priced["right"]["value"] * 4 == 2 + mapped
    assert priced["wrong"]["value"] * 4 == 2 - mapped
    assert priced["abstained"]["value"] == 0.0
    assert 0.0 < priced["cost_usd"]["low"] <= priced["spent_usd"]
    assert free["spent_usd"] == 0.0
    assert (priced["tokens"]["value"], priced["failures"]) == (220.0, [])
    assert priced["right"]["low"] < priced["right"]["value"] < priced["right"]["high"]
    for word in ("none", PRICED, FREE, "4 of 4 steps", "95 % intervals"):
        assert word in again
    kept = (
        sqlite3.connect(folder / "runs" / "answers.sqlite")
        .execute("SELECT count(*) FROM answers_1")
        .fetchone()
    )
    assert kept == (6,)


@needs_model
@pytest.mark.parametrize(
    ("act", "failure"),
    [
        (status(503), "upstream_error"),
        (says("nonsense"), "invalid_output"),
        (says(choice("no.such.bundle")), "invalid_output"),
        (reset(), "upstream_error"),
        (hang(), "timeout"),
    ],
)
def test_a_model_that_fails_leaves_what_none_gives_and_is_tried_again(
    place: Callable[..., Path], act: Act, failure: str
) -> None:
    with ScriptedServer([act]) as server:
        folder = place(server, **({"deadline_s": 0.5} if failure == "timeout" else {}))
        (found,) = json_of(folder, "eval", "set.jsonl", "--model", FREE)["sets"]
        none, model = found["figures"]
        before = len(server.requests)
        json_of(folder, "eval", "set.jsonl", "--model", FREE)
        assert len(server.requests) > before
    kinds = {kind for kind, _ in model["failures"]}
    assert failure in kinds
    assert kinds <= {failure, "circuit_open"}
    assert model["needed_shown"] == none["needed_shown"]


@needs_model
def test_cost_is_bounded_and_a_price_that_nobody_knows_can_t_be(place: Callable[..., Path]) -> None:
    with ScriptedServer([says(choice("repo.readonly"))]) as server:
        folder = place(server)
        (none,) = json_of(folder, "eval", "set.jsonl", "--model", PRICED, "--max-cost", "0")["sets"]
        assert (len(server.requests), none["figures"][1]["rows"]) == (0, 0)
        (found,) = json_of(folder, "eval", "set.jsonl", "--model", PRICED, "--max-cost", "0.00005")[
            "sets"
        ]
        assert len(server.requests) == 1
        assert found["ended"].startswith(
            "ended after 1 of 4 steps: $0.000042 are spent of $0.000050"
        )
        assert [row["rows"] for row in found["figures"]] == [1, 1]
        refused = run(
            folder,
            "eval",
            "set.jsonl",
            "--model",
            PRICED,
            "--model",
            FREE,
            "--max-cost",
            "1",
            code=3,
        )
        assert f"the price of {FREE} is unknown" in refused.stderr
        assert len(server.requests) == 1, "and nobody is asked"
        assert (
            "needs a model to ask"
            in run(folder, "eval", "set.jsonl", "--max-cost", "1", code=3).stderr
        )
        other = {"goal": "x", "bundles": ["no.such.bundle"]}
        (folder / "other.jsonl").write_text(json.dumps(other))
        assert (
            "never right: no.such.bundle"
            in run(folder, "eval", "other.jsonl", "--model", FREE).stdout
        )
        (folder / "a.toml").write_text("")
        assert (
            "nothing else"
            in run(folder, "eval", "set.jsonl", "a.toml", "--model", FREE, code=3).stderr
        )


@needs_model
@pytest.mark.parametrize(("most", "asked"), [("1", 3), ("0.0000001", 1)])
def test_a_model_that_does_not_say_what_it_used_is_bounded_by_an_estimate(
    place: Callable[..., Path], most: str, asked: int
) -> None:
    answer = json.loads(completion(choice("repo.readonly")))
    del answer["usage"]
    with ScriptedServer([body(json.dumps(answer).encode())]) as server:
        run(place(server), "eval", "set.jsonl", "--model", PRICED, "--max-cost", most)
        assert len(server.requests) == asked


def test_wilson_s_interval_by_hand() -> None:
    rows = [RoutedRow("", "right", True)] * 8 + [RoutedRow("", "wrong", True)] * 2
    found = share(rows, lambda row: row.outcome == "right")
    assert (found.value, round(found.low or 0, 3), round(found.high or 0, 3)) == (0.8, 0.490, 0.943)
    assert share([], bool) == Estimate()
    assert middle([3.0, 1.0, 2.0]).value == 2.0
    assert average([], lambda _: 1.0) == Estimate()
    assert figures_of(None, []).right == Estimate()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=30))
def test_rows_of_a_group_are_one_witness(rows: list[tuple[str, bool]]) -> None:
    made = [RoutedRow(group, "right" if right else "wrong", right) for group, right in rows]
    found = share(made, lambda row: row.outcome == "right")
    assert found.low is not None
    assert found.high is not None
    assert 0.0 <= found.low <= (found.value or 0.0) <= found.high <= 1.0
    alone = share(
        [RoutedRow("", row.outcome, True) for row in made], lambda row: row.outcome == "right"
    )
    assert alone.low is not None
    assert found.low <= alone.low + 1e-12
