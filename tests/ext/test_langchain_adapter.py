"""A LangChain agent has the tools of a routed step: a whole loop, from a checkpoint, without a
loop, side by side.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ext.scenario import HELD, TURNS, Notebook, Seen, check, opened, records

pytestmark = pytest.mark.skipif(
    find_spec("langchain") is None, reason="LangChain is not installed; the extra dev has it"
)


def test_a_whole_loop(tmp_path: Path) -> None:
    from tests.ext.langchain_loop import loop

    notebook = Notebook()
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path)
    assert seen.told.startswith("Write.")
    assert "archive" in seen.told


@pytest.mark.parametrize("turn", [0, 1, 4, 7])
def test_a_loop_that_died_goes_on_from_its_checkpoint_under_one_decision(
    tmp_path: Path, turn: int
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    from tests.ext.langchain_loop import loop

    notebook, saver = Notebook(), InMemorySaver()
    with pytest.raises(ConnectionError):
        asyncio.run(loop(tmp_path, notebook, saver, dies_at=turn))
    seen, sub = asyncio.run(loop(tmp_path, notebook, saver))
    assert [record["type"] for record in records(tmp_path)].count("route.decided") == 1
    assert sorted(notebook.notes) == ["first", "x"]
    assert seen.results["c8"] == "the letter of 1848-03-01"
    assert len(seen.arrays) == len(TURNS) + 1 - turn, "what was done was not asked for again"
    assert sub.arrays or turn == 7


def test_an_agent_without_an_event_loop(tmp_path: Path) -> None:
    from tests.ext.langchain_loop import run_without_a_loop

    notebook, seen = Notebook(), Seen()
    run_without_a_loop(tmp_path, notebook, seen)
    assert sorted(notebook.notes) == ["first", "x"]
    assert seen.pictures == 1
    assert seen.results["c8"] == "the letter of 1848-03-01"


def test_each_turn_of_a_conversation_is_a_decision(tmp_path: Path) -> None:
    from tests.ext.langchain_loop import converse

    converse(tmp_path, "one", "two")
    assert [record["step"]["goal"] for record in records(tmp_path)] == ["one", "two"]


@pytest.mark.parametrize("traced", [False, True])
def test_a_turn_is_handed_to_threads_only_where_somebody_traces_it(
    tmp_path: Path, traced: bool
) -> None:
    """LangSmith's wrapper gives what is a coroutine function to a thread, twice a call.

    The graph has one node of ours, which is entered once an agent: a node a turn costs as much as
    the turn.
    """
    from tests.ext.langchain_loop import make_agent

    are_coroutines, nodes = make_agent(tmp_path, traced=traced)
    assert are_coroutines == [traced, traced]
    assert nodes == {"__start__", "model", "tools", "RoutedTools.before_agent"}


def test_agents_side_by_side_are_branches_of_the_run(tmp_path: Path) -> None:
    """Two writers and a reader at once: each is judged under its own decision."""
    from tests.ext.langchain_loop import run_side_by_side

    notebook, seen = Notebook(), {name: Seen() for name in ("writer-1", "writer-2", "reader-1")}
    asyncio.run(run_side_by_side(tmp_path, notebook, seen))
    decided = [record for record in records(tmp_path) if record["type"] == "route.decided"]
    assert len({record["branch"] for record in decided}) == 3
    assert len(notebook.notes) == 2
    assert "not available at this step" in seen["reader-1"].results["a1"]


def test_an_agent_of_a_graph_that_begins_again_keeps_the_decision_of_its_key(
    tmp_path: Path,
) -> None:
    """Without a checkpoint its task has another id, and a branch named by that would be another
    step.
    """
    from tests.ext.langchain_loop import begin_twice

    asyncio.run(begin_twice(tmp_path, ("left", "right")))
    decided = [record for record in records(tmp_path) if record["type"] == "route.decided"]
    assert sorted(record["branch"] for record in decided) == ["left", "right"]


@pytest.mark.parametrize("dies_at", [None, 1, 2, 3])
def test_an_id_counts_within_its_turn_only(tmp_path: Path, dies_at: int | None) -> None:
    """llama.cpp gives every call the same id: equal calls of three turns are three calls, and none
    is made twice where the loop goes on after its death.
    """
    from tests.ext.langchain_loop import run_with_one_id

    notebook = Notebook()
    asyncio.run(run_with_one_id(tmp_path, notebook, dies_at=dies_at))
    assert notebook.notes == ["again", "again", "again"]


def test_a_held_call_interrupts_the_graph_and_runs_once_when_it_was_granted(tmp_path: Path) -> None:
    """What counts is the router's record: to resume the graph runs nothing."""
    from langgraph.checkpoint.memory import InMemorySaver

    from tests.ext.langchain_loop import run_held

    notebook, saver = Notebook(), InMemorySaver()
    (asked,) = run_held(tmp_path, notebook, saver)["__interrupt__"]
    assert (asked.value["tool"], asked.value["state"]) == ("notes.add", "waiting")
    (asked_again,) = run_held(tmp_path, notebook, saver, resumes=True)["__interrupt__"]
    assert asked_again.value["id"] == asked.value["id"], "nobody granted it at the router"

    with opened(tmp_path, notebook, HELD) as router:
        router.grant_sync(asked.value["id"], by="lead", binding=asked.value["binding"])
    state = run_held(tmp_path, notebook, saver, resumes=True)
    assert state["messages"][-1].text == "done"
    assert notebook.notes == ["held"]


def test_two_held_calls_of_a_turn_each_get_their_own_answer(tmp_path: Path) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    from tests.ext.langchain_loop import run_held_in_parallel

    notebook = Notebook()
    seen = asyncio.run(run_held_in_parallel(tmp_path, notebook, InMemorySaver()))
    assert notebook.notes == ["two"]
    assert "not that one" in seen.results["p1"]
    assert seen.results["p2"] == "note 1"


def test_a_model_is_told_of_a_held_call_where_approvals_are_not_deferred(tmp_path: Path) -> None:
    from tests.ext.langchain_loop import run_held

    notebook = Notebook()
    messages = run_held(tmp_path, notebook, None, defers=False)["messages"]
    assert "waits for approval" in messages[-2].text
    assert notebook.notes == []
