"""What an engine's code gets wrong is said in a sentence, also where nobody checks its types."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from bundle_router import Router, Step, StepPolicy, load_catalog
from bundle_router.errors import MAX_MESSAGE, ConfigError, RequestError
from bundle_router.ext import step_tools
from bundle_router.service import serve_mcp
from bundle_router.testing import fake_router
from bundle_router.tool import LocalServer

STEP = Step(run_id="r-1", workflow="feature", role="planner", step="plan")


def get_ticket(number: int) -> str:
    """Read a ticket."""
    return str(number)


def numbers(upto: int) -> Iterator[int]:
    """Count."""
    yield from range(upto)


def declared(**values: Any) -> dict[str, Any]:
    return {
        "local": {"t": LocalServer(**{"tools": [get_ticket], "description": "Read.", **values})}
    }


WRONG_OPENINGS: dict[str, dict[str, Any]] = {
    "store can't be 3, of type int": {"store": 3},
    "the name of a local server can't be 3, of type int": {"local": {3: [get_ticket]}},
    "local can't be .*, of type list": {"local": [get_ticket]},
    "local server 't': effects can't be 'read', of type str": declared(effects="read"),
    "local server 't': effects can't be None, of type NoneType": declared(effects=None),
    "local server 't': examples can't be 'one', of type str": declared(examples="one"),
    "local server 't': bundle can't be 3, of type int": declared(bundle=3),
    "local server 't': its tools are an empty list": {"local": {"t": []}},
    "config can't be 'a.x00b': embedded null byte": {"config": "a\0b"},
    "config can't be 'aa.* .5,000 characters. .*aa': File name too long": {"config": "a" * 5_000},
    "runs can't be 'a.x00b': embedded null byte": {"runs": "a\0b"},
    "workspace can't be '.ud800': 'utf-8' codec can't encode": {"workspace": "\ud800"},
    "workspace can't be 'aa.* .5,000 characters. .*aa': File name too long": {
        "workspace": "a" * 5_000
    },
    "the store's URL can't be read: Invalid IPv6 URL": {"store": "postgresql://["},
    "local server 'u': local server 't' declares a bundle 't' as well": {
        "local": {
            "t": LocalServer([get_ticket], "Read."),
            "u": LocalServer([get_ticket], "Read.", bundle="t"),
        }
    },
    "the tool 'numbers' is a generator": {"local": {"t": [numbers]}},
    r"functools\.partial\(.*\) has no name": {"local": {"t": [partial(get_ticket, 3)]}},
}
WRONG_DECLARATIONS: dict[str, dict[str, Any]] = {
    r"effects\[0\]: must be one of .* not 'raed' \(did you mean 'read'\?\)": {"effects": ["raed"]},
    r"effects\[0\]: must be one of .* not the number 3": {"effects": [3]},
    "mode: must be one of .* not 'defered'": {"mode": "defered"},
    "mode: must be one of .* not the number 3": {"mode": 3},
    "description: must not be empty": {"description": ""},
    r"examples\[0\]: must be text in quotes, not the number 3": {"examples": [3]},
}


@pytest.mark.parametrize(("sentence", "options"), WRONG_OPENINGS.items())
def test_a_router_says_what_is_wrong_with_how_it_is_opened(
    sentence: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=sentence):
        Router.open(**{"config": None, "runs": tmp_path / "runs", "workspace": tmp_path, **options})


@pytest.mark.parametrize(("sentence", "values"), WRONG_DECLARATIONS.items())
def test_a_declared_server_says_which_of_its_values_is_wrong(
    sentence: str, values: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=rf"local server 't' \(local=, --local\): bundles\.t\.{sentence}"
    ):
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path, **declared(**values))


def test_what_is_made_without_its_catalog_or_engines_says_how_it_is_made() -> None:
    with pytest.raises(RequestError, match="engines can't be 'config'"):
        Router("config")  # type: ignore[arg-type]  # the case
    with pytest.raises(RequestError, match="catalog can't be 'config'"):
        fake_router("config")  # type: ignore[arg-type]  # as above


def routed(router: Any) -> Any:
    router.route_sync(STEP)
    return router


WRONG_CALLS: dict[str, Callable[[Any], object]] = {
    "a step can't be {}, of type dict": lambda router: router.explain({}, "repo.readonly"),
    "decision can't be 3, of type int": lambda router: routed(router).tools_sync("r-1", decision=3),
    "decision can't be {'a': 1}, of type dict": lambda router: routed(router).tools_sync(
        "r-1", decision={"a": 1}
    ),
    "decision can't be Decision": lambda router: router.tools_sync(
        "r-1", decision=router.route_sync(STEP)
    ),
    "a target can't be 3, of type int": lambda router: router.explain(STEP, 3),
    "a message can't be 'h', of type str": lambda router: router.route_sync(STEP, messages="hi"),
    "a message can't be 3, of type int": lambda router: router.route_sync(STEP, messages=[3]),
    "native can't be 'yes', of type str": lambda router: router.tools_sync("r-1", native="yes"),
    "if_changed can't be 3, of type int": lambda router: router.tools_sync("r-1", if_changed=3),
    "a run id can't be 3, of type int": lambda router: router.close_run_sync(3),
    "messages can't be 3, of type int": lambda router: router.route_sync(STEP, messages=3),
}


@pytest.mark.parametrize(("sentence", "call"), WRONG_CALLS.items())
def test_a_router_says_what_is_wrong_with_a_call(
    sentence: str, call: Callable[[Any], object], tmp_path: Path
) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    with (
        Router.open(None, runs=tmp_path / "runs", workspace=workspace) as router,
        pytest.raises(RequestError, match=sentence),
    ):
        call(router)


LONG = "x" * 2_000_000
LONG_VALUES: dict[str, Callable[[Any], object]] = {
    "Step, run": lambda _router: Step(run_id=LONG, workflow="w", role="r", step="s"),
    "Step, parent": lambda _router: Step(
        run_id="r", workflow="w", role="r", step="s", parent_run_id=LONG
    ),
    "Step, label": lambda _router: cast(Any, Step)(
        run_id="r", workflow="w", role="r", step="s", labels={LONG: 3}
    ),
    "Step, unknown": lambda _router: cast(Any, Step)(**{LONG: "r"}),
    "policy": lambda _router: StepPolicy(allow=[f"{LONG}:"]),
    "policy, many": lambda _router: StepPolicy(deny=[f"no:{'x' * 100}"] * 1_000),
    "tools, run": lambda router: router.tools_sync(LONG),
    "tools, format": lambda router: router.tools_sync("r-1", format=LONG),
    "tools, decision": lambda router: router.tools_sync("r-1", decision=LONG),
    "call, run": lambda router: router.call_sync(LONG, "repo.read_file"),
    "call, decision": lambda router: router.call_sync("r-1", "repo.read_file", decision=LONG),
    "call, key": lambda router: router.call_sync("r-1", "repo.read_file", key=LONG),
    "missed": lambda router: router.missed_sync(LONG, "x"),
    "artifact": lambda router: router.artifact("r-1", LONG),
    "media": lambda router: router.media_sync(LONG, "artifact:x"),
    "close_run": lambda router: router.close_run_sync(LONG),
    "open, development": lambda _router: cast(Any, Router).open(None, development=LONG),
    "open, local": lambda _router: Router.open(None, local={LONG: []}),
}


@pytest.mark.parametrize("call", LONG_VALUES.values(), ids=LONG_VALUES)
def test_an_error_repeats_no_text_of_any_length(call: Callable[[Any], object]) -> None:
    with fake_router(load_catalog(None)) as router:
        router.route_sync(STEP)
        with pytest.raises(RequestError) as refused:
            call(router)
    assert len(str(refused.value)) <= MAX_MESSAGE
    assert len(refused.value.advice) <= MAX_MESSAGE


@pytest.mark.parametrize(
    "name", [LONG, f"repo.{LONG}", f"mcp__repo__{LONG}", "search_tools", "list_tools"]
)
def test_a_refused_call_repeats_no_text_of_any_length(name: str) -> None:
    with fake_router(load_catalog(None)) as router:
        router.route_sync(STEP)
        result = router.call_sync("r-1", name, {"query": LONG[:500_000]})
        assert result.outcome in ("denied", "invalid_arguments")
        assert len(result.text) < 1_000
        assert len(str(router.fakes.records("r-1")[-1]["tool"])) < 1_000


# --- arguments that a function does not take, or lacks --------------------------------------------


def test_a_tool_without_parameters_needs_no_arguments() -> None:
    async def on_a_loop() -> str:
        async with fake_router(load_catalog(None), results={"repo.list_dir": "there"}) as router:
            await router.route(STEP)
            return (await router.call("r-1", "repo.list_dir")).text

    with fake_router(load_catalog(None), results={"repo.list_dir": "here"}) as router:
        router.route_sync(STEP)
        assert router.call_sync("r-1", "repo.list_dir").text == "here"
    assert asyncio.run(on_a_loop()) == "there"


def wrong_parts(router: Any) -> list[Callable[[], object]]:
    """Return what each adapter is made with by mistake: no router, no step."""
    langchain = pytest.importorskip(
        "bundle_router.ext.langchain", reason="LangChain is not installed"
    )
    pydantic_ai = pytest.importorskip(
        "bundle_router.ext.pydantic_ai", reason="pydantic-ai is not installed"
    )
    agents = pytest.importorskip(
        "bundle_router.ext.openai_agents", reason="the Agents SDK is not installed"
    )
    makers: tuple[Callable[..., object], ...] = (
        langchain.RoutedTools,
        lambda router, step: pydantic_ai.RoutedToolset(router, step=step),
        lambda router, step: agents.RoutedAgent(name="a", router=router, step=step),
        lambda router, step: asyncio.run(step_tools.StepTools.route(router, step)),
    )
    given: tuple[tuple[Any, Any], ...] = (("config", STEP), (router, {}))
    return [partial(made, *parts) for parts in given for made in makers]


def test_an_adapter_says_what_it_is_made_of() -> None:
    with fake_router(load_catalog(None)) as router:
        for number, make in enumerate(wrong_parts(router)):
            with pytest.raises(
                RequestError, match="router can't be 'config'" if number < 4 else "step can't be {}"
            ):
                make()


def test_temporals_functions_say_what_they_are_given() -> None:
    temporal = pytest.importorskip(
        "bundle_router.ext.temporal", reason="Temporal's SDK is not installed"
    )
    for wrong in (
        temporal.route({}),
        temporal.tools("d"),
        temporal.call(3, "x"),
        temporal.missed(None, "x"),
    ):
        with pytest.raises(RequestError, match="can't be"):
            asyncio.run(wrong)
    with pytest.raises(RequestError, match="router can't be 3"):
        temporal.activities(3)


@pytest.mark.parametrize("how", [{"port": "x"}, {"key": 3}])
def test_a_service_says_what_is_wrong_with_its_address_and_key(how: dict[str, Any]) -> None:
    async def served() -> None:
        async with fake_router(load_catalog(None)) as router, serve_mcp(router, **how):
            pass

    with pytest.raises(RequestError, match=r"ports go from 0|holds no token"):
        asyncio.run(served())


@pytest.mark.parametrize(
    ("replaced", "is_refused"),
    [({"threading", "select", "queue"}, True), ({"queue"}, True), ({"socket", "ssl"}, False)],
)
def test_gevent_is_refused_where_it_replaced_what_a_loop_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: set[str], is_refused: bool
) -> None:
    """The real one was tried: `patch_all()` fails so, and without these three a router works."""
    gevent = ModuleType("gevent.monkey")
    vars(gevent)["is_module_patched"] = lambda name: name in replaced
    monkeypatch.setitem(sys.modules, "gevent.monkey", gevent)
    if not is_refused:
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path).close_sync()
        return
    with pytest.raises(RequestError, match="gevent has replaced") as refused:
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path)
    assert "patch_all(thread=False, select=False, queue=False)" in str(refused.value.advice)
