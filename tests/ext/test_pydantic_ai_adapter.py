"""A pydantic-ai agent has the tools of a routed step: a whole loop, again after a crash, and with
its own search.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ext.scenario import HELD, Notebook, Seen, check, opened, records

pytestmark = pytest.mark.skipif(
    find_spec("pydantic_ai") is None, reason="pydantic-ai is not installed; the extra dev has it"
)


def test_a_whole_loop(tmp_path: Path) -> None:
    from tests.ext.pydantic_ai_loop import loop

    notebook = Notebook()
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path, refused="Unknown tool name")
    assert "archive" in seen.told


@pytest.mark.parametrize("turn", [1, 4, 7])
def test_a_loop_that_died_and_is_run_again_decides_and_does_nothing_twice(
    tmp_path: Path, turn: int
) -> None:
    from tests.ext.pydantic_ai_loop import loop

    notebook = Notebook()
    with pytest.raises(ConnectionError):
        asyncio.run(loop(tmp_path, notebook, dies_at=turn))
    before = [
        record["decision_id"] for record in records(tmp_path) if record["type"] == "route.decided"
    ]
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path, refused="Unknown tool name", again=True)
    assert before == [
        record["decision_id"] for record in records(tmp_path) if record["type"] == "route.decided"
    ]


def test_its_own_search_finds_what_is_deferred(tmp_path: Path) -> None:
    from tests.ext.pydantic_ai_loop import search_itself

    seen = Seen()
    assert asyncio.run(search_itself(tmp_path, seen)) == "done"
    assert "archive__find_letter" not in seen.arrays[0]
    assert seen.results["d2"] == "the letter of 1848"
    assert not seen.told


def test_each_agent_run_is_a_decision_and_a_step_may_depend_on_its_context(tmp_path: Path) -> None:
    from tests.ext.pydantic_ai_loop import run_twice

    seen = asyncio.run(run_twice(tmp_path))
    assert ["notes__add" in array for array in seen.arrays] == [True, False]
    assert [record["step"]["role"] for record in records(tmp_path)] == ["writer", "reader"]


@pytest.mark.parametrize("dies_at", [None, 1, 2, 3])
def test_an_id_counts_within_its_turn_only(tmp_path: Path, dies_at: int | None) -> None:
    """llama.cpp gives every call the same id: equal calls of three turns are three calls, and none
    is made twice where the loop goes on after its death.
    """
    from tests.ext.pydantic_ai_loop import run_with_one_id

    notebook = Notebook()
    asyncio.run(run_with_one_id(tmp_path, notebook, dies_at=dies_at))
    assert notebook.notes == ["again", "again", "again"]


def test_a_held_call_ends_the_run_and_runs_once_elsewhere_when_it_was_granted(
    tmp_path: Path,
) -> None:
    """What counts is the router's record: the framework's own approval runs nothing."""
    from tests.ext.pydantic_ai_loop import go_on, run_until_held

    first_worker = Notebook()
    result = asyncio.run(run_until_held(tmp_path, first_worker))
    history = result.all_messages_json()
    question = result.output.metadata["h1"]
    assert (question["tool"], question["state"]) == ("notes.add", "waiting")

    second_worker = Notebook()
    asked_again = asyncio.run(go_on(tmp_path, second_worker, history, approved=True))
    assert asked_again.metadata["h1"]["id"] == question["id"], "nobody granted it at the router"

    with opened(tmp_path, second_worker, HELD) as router:
        router.grant_sync(question["id"], by="lead", binding=question["binding"])
    assert asyncio.run(go_on(tmp_path, second_worker, history, approved=True)) == "done"
    assert (first_worker.notes, second_worker.notes) == ([], ["held"])
    types = [record["type"] for record in records(tmp_path)]
    assert types.count("approval.asked") == types.count("call.started") == 1


def test_a_model_is_told_of_a_held_call_where_approvals_are_not_deferred(tmp_path: Path) -> None:
    from tests.ext.pydantic_ai_loop import run_until_held

    notebook = Notebook()
    result = asyncio.run(run_until_held(tmp_path, notebook, defers=False))
    assert result.output == "done"
    assert "waits for approval" in result.all_messages_json().decode()
    assert notebook.notes == []
