"""Definitions as providers take them, and deferral where the provider does it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.testing import Bundle, FakeRouter, Route, fake_router, small_catalog

META = (
    "search_tools",
    "list_tools",
    "get_tool_details",
    "call_tool",
    "read_artifact",
    "search_artifact",
)


def opened(*, meta: bool = False) -> FakeRouter:
    bundles = {
        "near": Bundle("near", "At hand.", ("s.a",), effects=("read",)),
        "git.hub": Bundle(
            "git.hub", "Issues.\n" + "x" * 400, ("s.b", "s.c"), effects=("read",), mode="deferred"
        ),
        "ship": Bundle("ship", "Ships.", ("s.d",), effects=("read",), mode="deferred"),
        "far": Bundle("far", "Never shown.", ("s.e",), effects=("read",), mode="meta"),
    }
    shown = ("near", "git.hub", "ship", *(["far"] if meta else []))
    router = fake_router(small_catalog(bundles, routes=[Route("all", bundles=shown)]))
    router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
    return router


def walk(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in walk(item))]
    return (
        [found for item in value for found in walk(item)] if isinstance(value, list | tuple) else []
    )


def test_anthropic_defers_by_itself_with_its_search_tool_first_and_not_deferred() -> None:
    with opened() as router:
        tools = router.tools_sync("r", format="anthropic", native=True).tools
    assert tools[0] == {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    assert [tool["name"] for tool in tools[1:]] == ["s__a", "s__b", "s__c", "s__d"]
    assert [tool.get("defer_loading", False) for tool in tools] == [False, False, True, True, True]
    assert not any("cache_control" in part for part in walk(tools))
    assert all(
        set(tool) == {"name", "description", "input_schema", "defer_loading"} for tool in tools[2:]
    )


def test_openai_defers_by_itself_one_namespace_for_each_bundle() -> None:
    with opened() as router:
        tools: Sequence[Any] = router.tools_sync("r", native=True).tools
    flat, hub, ship, search = tools
    assert flat["name"] == "s__a"
    assert "function" not in flat, "the Responses API takes functions flat"
    assert [(space["type"], space["name"]) for space in (hub, ship)] == [
        ("namespace", "git_hub"),
        ("namespace", "ship"),
    ]
    assert [tool["name"] for tool in hub["tools"]] == ["s__b", "s__c"]
    assert all(tool["defer_loading"] and tool["type"] == "function" for tool in hub["tools"])
    assert "defer_loading" not in hub
    assert len(hub["description"]) <= 300
    assert "\n" not in hub["description"]
    assert search == {"type": "tool_search"}
    assert all(
        re.fullmatch(r"[A-Za-z0-9_-]{1,64}", part["name"])
        for part in walk(tools)
        if "type" in part and "name" in part
    )


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_what_is_meta_stays_behind_our_meta_tools_when_the_provider_defers(form: str) -> None:
    with opened() as without, opened(meta=True) as router:
        assert without.tools_sync("r", format=form, native=True).guidance == ""
        toolset = router.tools_sync("r", format=form, native=True)
    text = json.dumps(toolset.tools)
    assert all(f'"{name}"' in text for name in META)
    assert "s__e" not in text
    assert "far 1" in toolset.guidance
    assert "git.hub" not in toolset.guidance


def test_mcp_has_no_deferral_so_search_finds_what_is_deferred() -> None:
    with opened() as router:
        native = router.tools_sync("r", format="mcp", native=True)
        assert native == router.tools_sync("r", format="mcp")
    assert [tool["name"] for tool in native.tools] == [*META, "s__a"]


def test_where_nothing_is_deferred_native_adds_nothing() -> None:
    catalog = small_catalog({"near": ["s.a"]}, routes=[Route("all", bundles=("near",))])
    with fake_router(catalog) as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        for form in ("openai", "anthropic"):
            assert router.tools_sync("r", format=form, native=True) == router.tools_sync(
                "r", format=form
            )
