"""An agent of the OpenAI Agents SDK has the tools of a routed step: a whole loop, and again after a
crash.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ext.scenario import HELD, Notebook, Seen, check, opened, records

pytestmark = pytest.mark.skipif(
    find_spec("agents") is None,
    reason="the OpenAI Agents SDK is not installed; the extra dev has it",
)


def test_a_whole_loop(tmp_path: Path) -> None:
    from tests.ext.openai_agents_loop import loop

    notebook = Notebook()
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path)
    assert seen.told.startswith("Write.")
    assert "archive" in seen.told


@pytest.mark.parametrize("turn", [1, 4, 7])
def test_a_loop_that_died_and_is_run_again_decides_and_does_nothing_twice(
    tmp_path: Path, turn: int
) -> None:
    from tests.ext.openai_agents_loop import loop

    notebook = Notebook()
    with pytest.raises(ConnectionError):
        asyncio.run(loop(tmp_path, notebook, dies_at=turn))
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path, again=True)


def test_a_name_that_is_not_in_the_array_ends_the_run_of_a_plain_agent_and_not_of_a_routed_one(
    tmp_path: Path,
) -> None:
    from tests.ext.openai_agents_loop import play_unknown_name

    seen = Seen()
    assert asyncio.run(play_unknown_name(tmp_path, seen)).final_output == "done"
    assert "no_such_tool" in seen.results["u1"]
    assert records(tmp_path)[-1]["via"] == "missed"


def test_a_model_is_told_of_a_held_call_and_its_next_call_runs_it(tmp_path: Path) -> None:
    from tests.ext.openai_agents_loop import play_held

    notebook = Notebook()
    told = asyncio.run(play_held(tmp_path, notebook, "h1"))
    assert "waits for approval" in told
    with opened(tmp_path, notebook, HELD) as router:
        (question,) = router.approvals_sync("r")
        router.grant_sync(question.id, by="lead", binding=question.binding)
    assert asyncio.run(play_held(tmp_path, notebook, "h2")) == "note 1"
    assert notebook.notes == ["held"]


def test_an_agent_needs_a_router_and_a_step() -> None:
    from bundle_router.ext.openai_agents import RoutedAgent

    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments: 'router'"):
        RoutedAgent(name="nobody")  # type: ignore[call-arg]  # the case
