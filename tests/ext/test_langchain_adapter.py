"""A LangChain agent has the tools of a routed step: a whole loop, from a checkpoint, without a loop, side by side."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langchain", reason="LangChain is not installed; the extra dev has it")

from bundle_router.ext.langchain import RoutedTools
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from langsmith import tracing_context

from tests.ext.scenario import SUB_TURNS, TURNS, Asked, Notebook, Seen, check, opened, records, step, sub_step

Turns = tuple[tuple[Asked, ...], ...]


class Played(FakeMessagesListChatModel):
    """LangChain's fake model, which here takes its turn from the history, so that it can be asked again."""

    turns: Any = ()
    seen: Any = None
    dies_at: int | None = None

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        self.seen.arrays.append([row["function"]["name"] if isinstance(row, dict) else row.name for row in tools])
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        seen: Seen = self.seen
        seen.told = next((message.text for message in messages if isinstance(message, SystemMessage)), "")
        for message in messages:
            if isinstance(message, ToolMessage) and message.tool_call_id not in seen.results:
                seen.results[message.tool_call_id] = message.text
                parts = message.content if isinstance(message.content, list) else []
                seen.pictures += sum(isinstance(part, dict) and part["type"] == "image_url" for part in parts)
        if turn == self.dies_at:
            raise ConnectionError("the worker died")
        asked = self.turns[turn] if turn < len(self.turns) else ()
        calls = [{"id": one.id, "name": one.name, "args": one.arguments, "type": "tool_call"} for one in asked]
        return ChatResult(generations=[ChatGeneration(message=AIMessage("" if asked else "done", tool_calls=calls))])


def played(turns: Turns, seen: Seen, dies_at: int | None = None) -> Played:
    return Played(responses=[], turns=turns, seen=seen, dies_at=dies_at)


THREAD: Any = {"configurable": {"thread_id": "t-1"}}
SAID: Any = {"messages": [{"role": "user", "content": "write"}]}


async def loop(folder: Path, notebook: Notebook, saver: InMemorySaver, dies_at: int | None = None) -> tuple[Seen, Seen]:
    seen, sub_seen = Seen(), Seen()
    async with opened(folder, notebook) as router:

        @tool
        async def delegate(task: str) -> str:
            """Have a reader do a task."""
            reader: Any = create_agent(played(SUB_TURNS, sub_seen), middleware=[RoutedTools(router, sub_step())])
            return str((await reader.ainvoke({"messages": [("user", task)]}))["messages"][-1].text)

        agent: Any = create_agent(
            played(TURNS, seen, dies_at),
            tools=[delegate],
            system_prompt="Write.",
            middleware=[RoutedTools(router, step())],
            checkpointer=saver,
        )
        there = await agent.aget_state(THREAD)
        await agent.ainvoke(None if there.next else SAID, THREAD)
    return seen, sub_seen


def test_a_whole_loop(tmp_path: Path) -> None:
    notebook = Notebook()
    seen, sub = asyncio.run(loop(tmp_path, notebook, InMemorySaver()))
    check(seen, sub, notebook, tmp_path)
    assert seen.told.startswith("Write.")
    assert "archive" in seen.told


@pytest.mark.parametrize("turn", [0, 1, 4, 7])
def test_a_loop_that_died_goes_on_from_its_checkpoint_under_one_decision(tmp_path: Path, turn: int) -> None:
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
    notebook, seen = Notebook(), Seen()
    with opened(tmp_path, notebook) as router:
        agent: Any = create_agent(played(TURNS[:-1], seen), middleware=[RoutedTools(router, step())])
        agent.invoke(SAID)
    assert sorted(notebook.notes) == ["first", "x"]
    assert seen.pictures == 1
    assert seen.results["c8"] == "the letter of 1848-03-01"


def test_each_turn_of_a_conversation_is_a_decision(tmp_path: Path) -> None:
    with opened(tmp_path, Notebook()) as router:
        goal = lambda state, runtime: step(goal=state["messages"][-1].text)  # noqa: E731 - as a user would write it
        agent: Any = create_agent(
            played((), Seen()), middleware=[RoutedTools(router, goal)], checkpointer=InMemorySaver()
        )
        for said in ("one", "two"):
            agent.invoke({"messages": [("user", said)]}, THREAD)
    assert [record["step"]["goal"] for record in records(tmp_path)] == ["one", "two"]


@pytest.mark.parametrize("traced", [False, True])
def test_a_turn_is_handed_to_threads_only_where_somebody_traces_it(tmp_path: Path, traced: bool) -> None:
    """LangSmith's wrapper gives what is a coroutine function to a thread, twice a call. The graph has one node of ours,
    which is entered once an agent: a node a turn costs as much as the turn."""
    with opened(tmp_path, Notebook()) as router, tracing_context(enabled=traced):
        routed = RoutedTools(router, step())
        agent: Any = create_agent(played((), Seen()), middleware=[routed])
    assert [inspect.iscoroutinefunction(hook) for hook in (routed.awrap_model_call, routed.awrap_tool_call)] == [
        traced,
        traced,
    ]
    assert set(agent.nodes) == {"__start__", "model", "tools", "RoutedTools.before_agent"}


class Fan(TypedDict):
    done: Annotated[list[str], lambda one, other: one + other]


def test_agents_side_by_side_are_branches_of_the_run(tmp_path: Path) -> None:
    """Two writers and a reader at once: each is judged under its own decision."""
    notebook = Notebook()
    add: Turns = ((Asked("a1", "notes__add", {"text": "y"}),),)
    seen = {name: Seen() for name in ("writer-1", "writer-2", "reader-1")}

    async def main() -> None:
        async with opened(tmp_path, notebook) as router:

            async def work(state: Any) -> dict[str, Any]:
                who = state["who"]
                routed = RoutedTools(router, step(role=who.partition("-")[0]))
                agent: Any = create_agent(played(add, seen[who]), middleware=[routed])
                await agent.ainvoke({"messages": [("user", "go")]})
                return {"done": [who]}

            graph = StateGraph(Fan)
            graph.add_node("work", work)
            graph.add_conditional_edges(START, lambda _: [Send("work", {"who": who}) for who in seen])
            graph.add_edge("work", END)
            await graph.compile(checkpointer=InMemorySaver()).ainvoke({"done": []}, THREAD)

    asyncio.run(main())
    decided = [record for record in records(tmp_path) if record["type"] == "route.decided"]
    assert len({record["branch"] for record in decided}) == 3
    assert len(notebook.notes) == 2
    assert "not available at this step" in seen["reader-1"].results["a1"]
