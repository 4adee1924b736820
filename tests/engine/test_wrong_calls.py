"""What an engine's code gets wrong is said in a sentence, also where nobody checks its types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import RequestError

STEP = Step(run_id="r-1", workflow="feature", role="planner", step="plan")


def get_ticket(number: int) -> str:
    """Read a ticket."""
    return str(number)


WRONG_OPENINGS: dict[str, dict[str, Any]] = {
    "store can't be 3, of type int": {"store": 3},
    "the name of a local server can't be 3, of type int": {"local": {3: [get_ticket]}},
    "local can't be .*, of type list": {"local": [get_ticket]},
}


@pytest.mark.parametrize(("sentence", "options"), WRONG_OPENINGS.items())
def test_a_router_says_what_is_wrong_with_how_it_is_opened(
    sentence: str, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=sentence):
        Router.open(None, runs=tmp_path / "runs", workspace=tmp_path, **options)


WRONG_CALLS: dict[str, Callable[[Any], object]] = {
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
