"""A pydantic-ai agent has the tools of a routed step: a whole loop, again after a crash, and with its own search."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed; the extra dev has it")

from bundle_router.ext.pydantic_ai import RoutedToolset
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.ext.scenario import SUB_TURNS, TURNS, Asked, Notebook, Seen, check, opened, records, step, sub_step


def played(turns: tuple[tuple[Asked, ...], ...], seen: Seen, dies_at: int | None = None) -> FunctionModel:
    """Return a model that asks for what the turns say, and notes what it saw."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        seen.arrays.append([tool.name for tool in info.function_tools if not tool.defer_loading])
        seen.told = info.instructions or ""
        for message in messages[-1:]:
            for part in message.parts if isinstance(message, ModelRequest) else ():
                if isinstance(part, ToolReturnPart):
                    seen.results[part.tool_call_id] = part.model_response_str()
                    content = part.content if isinstance(part.content, list) else [part.content]
                    seen.pictures += sum(isinstance(item, BinaryContent) for item in content)
        if turn == dies_at:
            raise ConnectionError("the worker died")
        if turn >= len(turns):
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart(one.name, one.arguments, tool_call_id=one.id) for one in turns[turn]])

    return FunctionModel(respond)


async def loop(folder: Path, notebook: Notebook, dies_at: int | None = None) -> tuple[Seen, Seen]:
    seen, sub_seen = Seen(), Seen()
    async with opened(folder, notebook) as router:
        agent: Agent[None, str] = Agent(played(TURNS, seen, dies_at), toolsets=[RoutedToolset(router, step=step())])

        @agent.tool_plain
        async def delegate(task: str) -> str:
            """Have a reader do a task."""
            reader = Agent(played(SUB_TURNS, sub_seen), toolsets=[RoutedToolset(router, step=sub_step())])
            return (await reader.run(task)).output

        await agent.run("write", run_id="agent-run-1")
    return seen, sub_seen


def test_a_whole_loop(tmp_path: Path) -> None:
    notebook = Notebook()
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path, refused="Unknown tool name")
    assert "archive" in seen.told


@pytest.mark.parametrize("turn", [1, 4, 7])
def test_a_loop_that_died_and_is_run_again_decides_and_does_nothing_twice(tmp_path: Path, turn: int) -> None:
    notebook = Notebook()
    with pytest.raises(ConnectionError):
        asyncio.run(loop(tmp_path, notebook, dies_at=turn))
    before = [record["decision_id"] for record in records(tmp_path) if record["type"] == "route.decided"]
    seen, sub = asyncio.run(loop(tmp_path, notebook))
    check(seen, sub, notebook, tmp_path, refused="Unknown tool name", again=True)
    assert before == [record["decision_id"] for record in records(tmp_path) if record["type"] == "route.decided"]


def test_its_own_search_finds_what_is_deferred(tmp_path: Path) -> None:
    turns = (
        (Asked("d1", "search_tools", {"queries": ["letter"]}),),
        (Asked("d2", "archive__find_letter", {"date": "1848"}),),
    )
    seen = Seen()

    async def main() -> str:
        async with opened(tmp_path, Notebook()) as router:
            toolset = RoutedToolset(router, step=step(), own_search=True)
            return (await Agent(played(turns, seen), toolsets=[toolset]).run("find")).output

    assert asyncio.run(main()) == "done"
    assert "archive__find_letter" not in seen.arrays[0]
    assert seen.results["d2"] == "the letter of 1848"
    assert not seen.told


def test_each_agent_run_is_a_decision_and_a_step_may_depend_on_its_context(tmp_path: Path) -> None:
    async def main() -> Any:
        async with opened(tmp_path, Notebook()) as router:
            toolset = RoutedToolset(router, step=lambda ctx: step(role=ctx.deps))
            agent: Agent[str, str] = Agent(played((), seen := Seen()), deps_type=str, toolsets=[toolset])
            await agent.run("one", deps="writer")
            await agent.run("two", deps="reader")
            return seen

    seen = asyncio.run(main())
    assert ["notes__add" in array for array in seen.arrays] == [True, False]
    assert [record["step"]["role"] for record in records(tmp_path)] == ["writer", "reader"]
