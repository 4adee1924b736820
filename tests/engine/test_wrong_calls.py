"""What an engine's code gets wrong is said in a sentence, also where nobody checks its types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import ConfigError, RequestError
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
    return {"local": {"t": LocalServer(**{"tools": [get_ticket], "description": "Read.", **values})}}


WRONG_OPENINGS: dict[str, dict[str, Any]] = {
    "store can't be 3, of type int": {"store": 3},
    "the name of a local server can't be 3, of type int": {"local": {3: [get_ticket]}},
    "local can't be .*, of type list": {"local": [get_ticket]},
    "local server 't': effects can't be 'read', of type str": declared(effects="read"),
    "local server 't': effects can't be None, of type NoneType": declared(effects=None),
    "local server 't': examples can't be 'one', of type str": declared(examples="one"),
    "local server 't': bundle can't be 3, of type int": declared(bundle=3),
    "local server 't': its tools are an empty list": {"local": {"t": []}},
    "local server 'u': local server 't' declares a bundle 't' as well": {
        "local": {"t": LocalServer([get_ticket], "Read."), "u": LocalServer([get_ticket], "Read.", bundle="t")}
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
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path, **options)


@pytest.mark.parametrize(("sentence", "values"), WRONG_DECLARATIONS.items())
def test_a_declared_server_says_which_of_its_values_is_wrong(
    sentence: str, values: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"local server 't' \(local=, --local\): bundles\.t\.{sentence}"):
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
    "decision can't be {'a': 1}, of type dict": lambda router: routed(router).tools_sync("r-1", decision={"a": 1}),
    "decision can't be Decision": lambda router: router.tools_sync("r-1", decision=router.route_sync(STEP)),
    "a target can't be 3, of type int": lambda router: router.explain(STEP, 3),
    "a message can't be 'h', of type str": lambda router: router.route_sync(STEP, messages="hi"),
    "a message can't be 3, of type int": lambda router: router.route_sync(STEP, messages=[3]),
    "native can't be 'yes', of type str": lambda router: router.tools_sync("r-1", native="yes"),
    "if_changed can't be 3, of type int": lambda router: router.tools_sync("r-1", if_changed=3),
    "a run id can't be 3, of type int": lambda router: router.close_run_sync(3),
    "messages can't be 3, of type int": lambda router: router.route_sync(STEP, messages=3),
}


@pytest.mark.parametrize(("sentence", "call"), WRONG_CALLS.items())
def test_a_router_says_what_is_wrong_with_a_call(sentence: str, call: Callable[[Any], object], tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    with (
        Router.open(None, runs=tmp_path / "runs", workspace=workspace) as router,
        pytest.raises(RequestError, match=sentence),
    ):
        call(router)
