"""The scenario as a pydantic-ai agent plays it: who plays it imports pydantic-ai, not who collects
tests.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from bundle_router import Router
from bundle_router.ext.pydantic_ai import RoutedToolset
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from tests.ext.scenario import (
    HELD,
    HELD_TURNS,
    SAME_ID_TURNS,
    SUB_TURNS,
    TURNS,
    Asked,
    Notebook,
    Seen,
    opened,
    step,
    sub_step,
)


def played(
    turns: tuple[tuple[Asked, ...], ...], seen: Seen, dies_at: int | None = None
) -> FunctionModel:
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
        return ModelResponse(
            [ToolCallPart(one.name, one.arguments, tool_call_id=one.id) for one in turns[turn]]
        )

    return FunctionModel(respond)


async def loop(folder: Path, notebook: Notebook, dies_at: int | None = None) -> tuple[Seen, Seen]:
    seen, sub_seen = Seen(), Seen()
    async with opened(folder, notebook) as router:
        agent: Agent[None, str] = Agent(
            played(TURNS, seen, dies_at), toolsets=[RoutedToolset(router, step=step())]
        )

        @agent.tool_plain
        async def delegate(task: str) -> str:
            """Have a reader do a task."""
            reader = Agent(
                played(SUB_TURNS, sub_seen), toolsets=[RoutedToolset(router, step=sub_step())]
            )
            return (await reader.run(task)).output

        await agent.run("write", run_id="agent-run-1")
    return seen, sub_seen


async def run_with_one_id(folder: Path, notebook: Notebook, *, dies_at: int | None) -> None:
    """Have an agent add the same note in every turn, each time under the same call id, and run it
    again where it died.
    """
    for dies in (dies_at, None) if dies_at is not None else (None,):
        async with opened(folder, notebook) as router:
            agent: Agent[None, str] = Agent(
                played(SAME_ID_TURNS, Seen(), dies), toolsets=[RoutedToolset(router, step=step())]
            )
            with suppress(ConnectionError):
                await agent.run("write", run_id="agent-run-1")


async def run_until_held(folder: Path, notebook: Notebook, *, defers: bool = True) -> Any:
    """Have an agent ask for a held call; return the result of its run."""
    async with opened(folder, notebook, HELD) as router:
        return await _held_agent(router, defers).run("write")


async def go_on(folder: Path, notebook: Notebook, history: bytes, *, approved: bool) -> Any:
    """Go on from a history with what somebody said of its held call, and return what the agent
    says at the end, or asks.
    """
    said = DeferredToolResults(approvals={"h1": approved})
    messages = ModelMessagesTypeAdapter.validate_json(history)
    async with opened(folder, notebook, HELD) as router:
        agent = _held_agent(router, defers=True)
        result = await agent.run(message_history=messages, deferred_tool_results=said)
        return result.output


def _held_agent(router: Router, defers: bool) -> Agent[None, str | DeferredToolRequests]:
    return Agent(
        played(HELD_TURNS, Seen()),
        output_type=[str, DeferredToolRequests],
        toolsets=[RoutedToolset(router, step=step(), defer_approvals=defers)],
    )


async def search_itself(folder: Path, seen: Seen) -> str:
    """Let pydantic-ai's own search find what is deferred, and return what the agent says at the
    end.
    """
    turns = (
        (Asked("d1", "search_tools", {"queries": ["letter"]}),),
        (Asked("d2", "archive__find_letter", {"date": "1848"}),),
    )
    async with opened(folder, Notebook()) as router:
        toolset = RoutedToolset(router, step=step(), own_search=True)
        return (await Agent(played(turns, seen), toolsets=[toolset]).run("find")).output


async def run_twice(folder: Path) -> Seen:
    """Run an agent as a writer, then as a reader: the step depends on its context."""
    async with opened(folder, Notebook()) as router:
        toolset = RoutedToolset(router, step=lambda ctx: step(role=ctx.deps))
        agent: Agent[str, str] = Agent(
            played((), seen := Seen()), deps_type=str, toolsets=[toolset]
        )
        await agent.run("one", deps="writer")
        await agent.run("two", deps="reader")
        return seen
