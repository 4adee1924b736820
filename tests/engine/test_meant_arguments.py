"""Arguments that do not fit reach their tool as they were meant, at every face, and are recorded as
they came.
"""

from __future__ import annotations

import ast
import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.testing import Route, fake_router, small_catalog
from bundle_router.tool import LocalServer
from pydantic import BaseModel

STEP = Step(run_id="r", workflow="w", role="r", step="s")


class Filter(BaseModel):
    level: int


def find(
    q: str,
    limit: int = 3,
    tags: list[str] | None = None,
    within: Filter | None = None,
    after: str = "",
) -> dict[str, Any]:
    """Find notes."""
    level = None if within is None else within.level
    return {"q": q, "limit": limit, "tags": tags, "level": level, "after": after}


WRITTEN = {
    "q": "x",
    "limit": "5",
    "tags": '["a", "b"]',
    "within": '{"level": "2"}',
    "after": None,
}
MEANT = {"q": "x", "limit": 5, "tags": ["a", "b"], "level": 2, "after": ""}


def opened(folder: Path, mode: Any = "direct") -> Router:
    (folder / "config").mkdir()
    files = {
        "routes": '[[routes]]\nname = "all"\nbundles = ["notes"]\n',
        "policy": '[[policies]]\nname = "all"\nallow = ["bundle:notes"]\neffects = ["read"]\n',
    }
    for name, text in files.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    local = {"notes": LocalServer([find], "Notes.", effects=["read"], mode=mode)}
    return Router.open(folder / "config", runs=folder / "runs", local=local, workspace=folder)


def recorded(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "runs" / "r" / "tool-calls.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["type"] == "call.started"]
    return [json.loads(row["arguments"]) for row in rows if row["tool"] == "find"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("notes.find", WRITTEN),
        ("notes__find", WRITTEN),
        ("notes.find", json.dumps(WRITTEN)),
        ("notes.find", json.dumps(json.dumps(WRITTEN))),
        ("call_tool", {"name": "notes__find", "arguments": WRITTEN}),
        ("call_tool", {"name": "notes__find", "arguments": json.dumps(WRITTEN)}),
    ],
)
def test_a_call_is_made_as_it_was_meant_and_recorded_as_it_came(
    name: str, arguments: Any, tmp_path: Path
) -> None:
    with opened(tmp_path, mode="meta" if name == "call_tool" else "direct") as router:
        router.route_sync(STEP)
        result = router.call_sync("r", name, arguments)
        assert (result.outcome, result.code) == ("ok", "")
        assert json.loads(result.text) == MEANT
    assert recorded(tmp_path) == [WRITTEN]


def test_a_program_calls_as_it_meant_where_its_types_were_not_known(tmp_path: Path) -> None:
    program = (
        "import json\n"
        f"written = json.loads({json.dumps(json.dumps(WRITTEN))})\n"
        "await notes__find(q=written['q'], limit=written['limit'], after=written['after'])"
    )

    async def work() -> str:
        async with opened(tmp_path, mode="code") as router:
            await router.route(STEP)
            result = await router.call("r", "execute", {"code": program})
            return result.text

    text = asyncio.run(work())
    assert ast.literal_eval(text) == {
        "q": "x",
        "limit": 5,
        "tags": None,
        "level": None,
        "after": "",
    }


def test_what_still_does_not_fit_is_refused_for_that_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as router:
        router.route_sync(STEP)
        result = router.call_sync("r", "notes.find", {"limit": "5", "tags": "a, b"})
        assert result.outcome == "invalid_arguments"
        assert "q" in result.text.partition("Its schema")[0]
        assert "tags" in result.text.partition("Its schema")[0]
        assert "limit" not in result.text.partition("Its schema")[0]


@pytest.mark.parametrize("nothing", [None, "", " ", "null", "{}", {}])
def test_null_and_blank_text_are_no_arguments(nothing: Any) -> None:
    route = Route("all", bundles=("b",))
    with fake_router(small_catalog({"b": ["s.now"]}, routes=[route])) as router:
        router.route_sync(STEP)
        assert router.call_sync("r", "s.now", nothing).outcome == "ok"
        assert router.fakes.sessions.calls == [("s.now", {})]


@pytest.mark.parametrize(
    ("written", "sent"), [({"n": 5.0, "x": 5.0}, "[5, 5.0]"), ('{"n": 1e1, "x": 2}', "[10, 2]")]
)
def test_a_whole_number_with_a_point_reaches_its_tool_as_an_integer(
    written: Any, sent: str
) -> None:
    route = Route("all", bundles=("b",))
    catalog = small_catalog({"b": ["s.list"]}, routes=[route])
    schema = '{"properties":{"n":{"type":"integer"},"x":{"type":"number"}},"type":"object"}'
    card = replace(catalog.cards["s.list"], schema=schema)
    with fake_router(replace(catalog, cards={"s.list": card})) as router:
        router.route_sync(STEP)
        assert router.call_sync("r", "s.list", written).outcome == "ok"
        ((_, arguments),) = router.fakes.sessions.calls
        assert json.dumps([arguments["n"], arguments["x"]]) == sent


@pytest.mark.parametrize("name", ["s.list", "call_tool"])
def test_keys_that_the_model_was_shown_reach_the_tool_as_its_own(name: str) -> None:
    route = Route("all", bundles=("b",))
    catalog = small_catalog({"b": ["s.list"]}, routes=[route])
    schema = '{"properties":{"$filter":{"type":"string"}},"required":["$filter"],"type":"object"}'
    card = replace(catalog.cards["s.list"], schema=schema)
    with fake_router(replace(catalog, cards={"s.list": card})) as router:
        router.route_sync(STEP)
        shown: Any = router.tools_sync("r", format="anthropic").tools[0]
        assert list(shown["input_schema"]["properties"]) == ["_filter"]
        arguments: dict[str, Any] = {"_filter": "a eq 1"}
        if name == "call_tool":
            arguments = {"name": "s.list", "arguments": arguments}
        assert router.call_sync("r", name, arguments).outcome == "ok"
        assert router.fakes.sessions.calls == [("s.list", {"$filter": "a eq 1"})]
