"""The scenario as a LangChain agent plays it: who plays it imports LangChain, not who collects
tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bundle_router.ext.langchain import RoutedTools
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from langsmith import tracing_context

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

Turns = tuple[tuple[Asked, ...], ...]


class Played(FakeMessagesListChatModel):
    """LangChain's fake model, which here takes its turn from the history, so that it can be asked
    again.
    """

    turns: Any = ()
    seen: Any = None
    dies_at: int | None = None

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        self.seen.arrays.append(
            [row["function"]["name"] if isinstance(row, dict) else row.name for row in tools]
        )
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        seen: Seen = self.seen
        seen.told = next(
            (message.text for message in messages if isinstance(message, SystemMessage)), ""
        )
        for message in messages:
            if isinstance(message, ToolMessage) and message.tool_call_id not in seen.results:
                seen.results[message.tool_call_id] = message.text
                parts = message.content if isinstance(message.content, list) else []
                seen.pictures += sum(
                    isinstance(part, dict) and part["type"] == "image_url" for part in parts
                )
        if turn == self.dies_at:
            raise ConnectionError("the worker died")
        asked = self.turns[turn] if turn < len(self.turns) else ()
        calls = [
            {"id": one.id, "name": one.name, "args": one.arguments, "type": "tool_call"}
            for one in asked
        ]
        return ChatResult(
            generations=[
                ChatGeneration(message=AIMessage("" if asked else "done", tool_calls=calls))
            ]
        )


def played(turns: Turns, seen: Seen, dies_at: int | None = None) -> Played:
    return Played(responses=[], turns=turns, seen=seen, dies_at=dies_at)


THREAD: Any = {"configurable": {"thread_id": "t-1"}}
SAID: Any = {"messages": [{"role": "user", "content": "write"}]}


async def loop(
    folder: Path, notebook: Notebook, saver: Any = None, dies_at: int | None = None
) -> tuple[Seen, Seen]:
    seen, sub_seen = Seen(), Seen()
    async with opened(folder, notebook) as router:

        @tool
        async def delegate(task: str) -> str:
            """Have a reader do a task."""
            reader: Any = create_agent(
                played(SUB_TURNS, sub_seen), middleware=[RoutedTools(router, sub_step())]
            )
            return str((await reader.ainvoke({"messages": [("user", task)]}))["messages"][-1].text)

        agent: Any = create_agent(
            played(TURNS, seen, dies_at),
            tools=[delegate],
            system_prompt="Write.",
            middleware=[RoutedTools(router, step())],
            checkpointer=saver or InMemorySaver(),
        )
        there = await agent.aget_state(THREAD)
        await agent.ainvoke(None if there.next else SAID, THREAD)
    return seen, sub_seen


def run_without_a_loop(folder: Path, notebook: Notebook, seen: Seen) -> None:
    with opened(folder, notebook) as router:
        agent: Any = create_agent(
            played(TURNS[:-1], seen), middleware=[RoutedTools(router, step())]
        )
        agent.invoke(SAID)


async def run_with_one_id(folder: Path, notebook: Notebook, *, dies_at: int | None) -> None:
    """Have an agent add the same note in every turn, each time under the same call id, and go on
    from its checkpoint where it died.
    """
    saver = InMemorySaver()
    for dies in (dies_at, None) if dies_at is not None else (None,):
        async with opened(folder, notebook) as router:
            agent: Any = create_agent(
                played(SAME_ID_TURNS, Seen(), dies),
                middleware=[RoutedTools(router, step())],
                checkpointer=saver,
            )
            there = await agent.aget_state(THREAD)
            with suppress(ConnectionError):
                await agent.ainvoke(None if there.next else SAID, THREAD)


def run_held(
    folder: Path, notebook: Notebook, saver: Any, *, defers: bool = True, resumes: bool = False
) -> Any:
    """Have an agent ask for a held call, or go on with it; return the state that it ends with."""
    with opened(folder, notebook, HELD) as router:
        agent: Any = create_agent(
            played(HELD_TURNS, Seen()),
            middleware=[RoutedTools(router, step(), defer_approvals=defers)],
            checkpointer=saver,
        )
        return agent.invoke(Command(resume=True) if resumes else SAID, THREAD)


async def run_held_in_parallel(folder: Path, notebook: Notebook, saver: Any) -> Seen:
    """Have an agent ask for two held calls in one turn, of which "two" is granted and the other one
    refused, and go on with the framework's answers exchanged. Returns what the model saw.
    """
    seen = Seen()
    turns: Turns = (
        (Asked("p1", "notes__add", {"text": "one"}), Asked("p2", "notes__add", {"text": "two"})),
    )
    async with opened(folder, notebook, HELD) as router:
        agent: Any = create_agent(
            played(turns, seen),
            middleware=[RoutedTools(router, step(), defer_approvals=True)],
            checkpointer=saver,
        )
        interrupts = (await agent.ainvoke(SAID, THREAD))["__interrupt__"]
        for each in interrupts:
            question = await router.approval(each.value["id"])
            if "two" in question.arguments:
                await router.grant(question.id, by="lead", binding=question.binding)
            else:
                await router.refuse(question.id, by="lead", reason="not that one")
        one, two = interrupts
        answers = {one.id: two.value, two.id: one.value}
        await agent.ainvoke(Command(resume=answers), THREAD)
    return seen


def converse(folder: Path, *texts: str) -> None:
    """Have an agent answer one text after the other, each the goal of a step."""
    with opened(folder, Notebook()) as router:
        goal = lambda state, runtime: step(goal=state["messages"][-1].text)  # noqa: E731 - as a user would write it
        agent: Any = create_agent(
            played((), Seen()), middleware=[RoutedTools(router, goal)], checkpointer=InMemorySaver()
        )
        for said in texts:
            agent.invoke({"messages": [("user", said)]}, THREAD)


def make_agent(folder: Path, *, traced: bool) -> tuple[list[bool], set[str]]:
    """Return which of the two hooks are coroutine functions, and the names of the graph's nodes."""
    with opened(folder, Notebook()) as router, tracing_context(enabled=traced):
        routed = RoutedTools(router, step())
        agent: Any = create_agent(played((), Seen()), middleware=[routed])
    hooks = (routed.awrap_model_call, routed.awrap_tool_call)
    return [inspect.iscoroutinefunction(hook) for hook in hooks], set(agent.nodes)


class Fan(TypedDict):
    done: Annotated[list[str], lambda one, other: one + other]


async def run_side_by_side(folder: Path, notebook: Notebook, seen: dict[str, Seen]) -> None:
    """Have an agent for each name, whose role stands before the hyphen, add a note at once."""
    add: Turns = ((Asked("a1", "notes__add", {"text": "y"}),),)
    async with opened(folder, notebook) as router:

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


async def begin_twice(folder: Path, keys: tuple[str, ...]) -> None:
    """Begin a graph of agents twice, one for each key, with nothing that remembers the first
    time.
    """
    async with opened(folder, Notebook()) as router:

        async def work(state: Any) -> dict[str, Any]:
            agent: Any = create_agent(
                played((), Seen()), middleware=[RoutedTools(router, step(key=state["who"]))]
            )
            await agent.ainvoke(SAID)
            return {"done": []}

        graph = StateGraph(Fan)
        graph.add_node("work", work)
        graph.add_conditional_edges(START, lambda _: [Send("work", {"who": key}) for key in keys])
        for _ in range(2):
            await graph.compile().ainvoke({"done": []})
