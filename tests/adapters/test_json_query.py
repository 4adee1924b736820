"""A number in megabytes of JSON costs one small answer, and no query takes more than its share."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.json_query import query_json
from bundle_router.tool import LocalServer

CONFIG = {
    "routes": '[[routes]]\nname = "all"\nbundles = ["big"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:big"]\neffects = ["read"]\n',
}


def everything(plain: bool) -> str:
    """Give all rows."""
    return (
        "no json " * 5_000
        if plain
        else json.dumps([{"id": n, "size": n * 3} for n in range(60_000)])
    )


@pytest.fixture
def router(tmp_path: Path) -> Any:
    (tmp_path / "config").mkdir()
    for name, text in CONFIG.items():
        (tmp_path / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    local = {"big": LocalServer([everything], "Big.")}
    with Router.open(
        tmp_path / "config", runs=tmp_path / "runs", local=local, workspace=tmp_path
    ) as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        yield router


def ask(router: Router, query: str, *, plain: bool = False) -> Any:
    made = router.call_sync("r", "big.everything", {"plain": plain})
    assert made.artifacts, "it was too large to be shown"
    pattern = {"uri": made.artifacts[0].uri, "pattern": f"jmespath:{query}"}
    return router.call_sync("r", "search_artifact", pattern)


def test_a_number_in_megabytes_of_json_costs_one_small_answer(router: Router) -> None:
    result = ask(router, "[?id == `59999`].size | [0]")
    assert (result.text, result.outcome) == ("179997", "ok")
    assert ask(router, "length(@)").text == "60000"
    assert ask(router, "[0].nothing").text == "Nothing found (null)."


def test_an_answer_that_is_too_long_is_cut(router: Router) -> None:
    text = ask(router, "[*].size").text
    assert text.startswith("[0, 3, 6")
    assert "ask for less" in text
    assert len(text) < 13_000


@pytest.mark.parametrize("query", ["[?", "sum('x')", "[?id > `0`"])
def test_a_query_that_is_none_gets_a_sentence(router: Router, query: str) -> None:
    result = ask(router, query)
    assert (result.outcome, result.code) == ("invalid_arguments", "bad_query")
    assert "can't be answered" in result.text


def test_an_artifact_that_is_no_json_is_said_to_be_none(router: Router) -> None:
    assert "not JSON" in ask(router, "length(@)", plain=True).text


@pytest.mark.parametrize(
    "query",
    [
        "[@, @][]" + " | [@, @][]" * 40,
        "join('', [@[0], @[0]])" + " | [@, @] | join('', @)" * 18 + " | [@, @] | join('', @)" * 2,
        "to_string(" * 40 + "@" + ")" * 40,
        "[*][*][*][*]".replace("[*]", "[@, @][*]"),
        *(
            "[@, @]" + " | [@, @]" * 60 + end
            for end in ("", " | to_string(@)", " | contains(@, @)")
        ),
        "{a: "
        + "[@, @]"
        + " | {a: @, b: @}" * 60
        + ", b: "
        + "[@, @]"
        + " | {a: @, b: @}" * 60
        + "} | a == b",
        "[*].{a: @, b: @}" + " | [*].{a: @, b: @}" * 60,
        "(" * 400 + "@" + ")" * 400,
    ],
)
def test_a_query_that_doubles_is_stopped(query: str) -> None:
    """Without bounds the first would need more memory than there is."""
    with contextlib.suppress(ValueError):
        assert len(str(query_json(query, ["x" * 200]))) < 10_000_000
