"""What an adapter costs beside its framework alone:
`python tests/benchmarks/adapters.py [--turns N] [--rounds N]`.

One agent run has many model turns, each with one call of a small tool, the model being a test model
that costs little. The same run is made with the tool given to the framework itself, and through the
adapter (run directory on disk, the tool allowed by policy, two records a call). Figures are
milliseconds of CPU for one turn with its call, the least of the rounds, which alternate. `router`
is the router's own part, without a framework: one `call` with a key. The last figure is what the
framework's own way to be extended adds with nothing behind it: LangChain hands every middleware's
hooks to four threads a turn, for LangSmith, also where nobody traces; pydantic-ai asks an agent's
toolsets in tasks of their own, three times a turn, as soon as there is one beside its functions.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bundle_router import Router, Step
from bundle_router.tool import LocalServer

CONFIG = {
    "routes": '[[routes]]\nname = "all"\nbundles = ["notes"]\n',
    "policy": '[[policies]]\nname = "all"\nallow = ["bundle:notes"]\neffects = ["read"]\n',
}
Loop = Callable[[int], Awaitable[None]]
_runs = itertools.count()


async def look(number: int) -> str:
    """Look at a note."""
    return f"note {number}"


def open_router(folder: Path) -> Router:
    (folder / "config").mkdir(exist_ok=True)
    for name, text in CONFIG.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    local = {"notes": LocalServer([look], "Look at notes.")}
    # No budget of a step is in the way of a run of many calls.
    (folder / "config" / "router.toml").write_text(
        "[limits]\ncalls_per_step = 100000\n", encoding="utf-8"
    )
    return Router.open(
        folder / "config", runs=folder / "runs", local=local, workspace=folder / "config"
    )


def next_step() -> Step:
    return Step(run_id=f"r{next(_runs)}", workflow="w", role="r", step="s", key="k")


def pydantic_ai_loops(router: Router) -> tuple[Loop, ...]:
    from bundle_router.ext.pydantic_ai import RoutedToolset
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.usage import UsageLimits

    def model(name: str, turns: int) -> FunctionModel:
        def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            turn = len(messages) // 2
            if turn >= turns:
                return ModelResponse([TextPart("done")])
            return ModelResponse([ToolCallPart(name, {"number": turn}, tool_call_id=f"c{turn}")])

        return FunctionModel(respond)

    async def alone(turns: int) -> None:
        await Agent(model("look", turns), tools=[look]).run(
            "go", usage_limits=UsageLimits(request_limit=None)
        )

    async def routed(turns: int) -> None:
        toolset = RoutedToolset(router, step=next_step())
        agent: Any = Agent(model("notes__look", turns), toolsets=[toolset])
        await agent.run("go", usage_limits=UsageLimits(request_limit=None))

    async def with_toolset(turns: int) -> None:
        agent: Any = Agent(model("look", turns), toolsets=[FunctionToolset([look])])
        await agent.run("go", usage_limits=UsageLimits(request_limit=None))

    return alone, routed, with_toolset


def langchain_loops(router: Router) -> tuple[Loop, ...]:
    from bundle_router.ext.langchain import RoutedTools
    from langchain.agents import create_agent
    from langchain.agents.middleware import AgentMiddleware
    from langchain.tools import tool
    from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
    from langchain_core.messages import AIMessage

    class Model(FakeMessagesListChatModel):
        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

    class Hooks(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(request)

    def model(name: str, turns: int) -> Any:
        calls = [
            AIMessage("", tool_calls=[{"id": f"c{turn}", "name": name, "args": {"number": turn}}])
            for turn in range(turns)
        ]
        return Model(responses=[*calls, AIMessage("done")])

    async def alone(turns: int) -> None:
        agent: Any = create_agent(model("look", turns), tools=[tool(look)])
        await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 10_000})

    async def routed(turns: int) -> None:
        agent: Any = create_agent(
            model("notes__look", turns), middleware=[RoutedTools(router, next_step())]
        )
        await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 10_000})

    async def hooked(turns: int) -> None:
        agent: Any = create_agent(model("look", turns), tools=[tool(look)], middleware=[Hooks()])
        await agent.ainvoke({"messages": [("user", "go")]}, {"recursion_limit": 10_000})

    return alone, routed, hooked


def openai_agents_loops(router: Router) -> tuple[Loop, ...]:
    from agents import (
        Agent,
        Model,
        ModelResponse,
        Runner,
        Usage,
        function_tool,
        set_tracing_disabled,
    )
    from bundle_router.ext.openai_agents import RoutedAgent
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    set_tracing_disabled(True)

    class Played(Model):
        def __init__(self, name: str, turns: int) -> None:
            self.name, self.turns, self.turn = name, turns, -1

        async def get_response(self, *_: Any, **__: Any) -> ModelResponse:
            self.turn += 1
            said: Any
            if self.turn >= self.turns:
                text = ResponseOutputText(annotations=[], text="done", type="output_text")
                said = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                said = ResponseFunctionToolCall(
                    arguments=f'{{"number": {self.turn}}}',
                    call_id=f"c{self.turn}",
                    name=self.name,
                    type="function_call",
                )
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("the runs that are measured stream nothing")

    async def alone(turns: int) -> None:
        agent = Agent(name="a", model=Played("look", turns), tools=[function_tool(look)])
        await Runner.run(agent, "go", max_turns=turns + 2)

    async def routed(turns: int) -> None:
        agent = RoutedAgent(
            name="a", model=Played("notes__look", turns), router=router, step=next_step()
        )
        await agent.run("go", max_turns=turns + 2)

    return alone, routed


FRAMEWORKS = {
    "pydantic-ai": pydantic_ai_loops,
    "LangChain": langchain_loops,
    "OpenAI Agents": openai_agents_loops,
}


async def router_alone(router: Router, turns: int) -> None:
    decision = await router.route(next_step())
    for turn in range(turns):
        await router.call(
            decision.run_id,
            "notes__look",
            {"number": turn},
            decision=decision.decision_id,
            key=f"k{turn}",
        )


async def cpu_ms(loop: Awaitable[None], turns: int) -> float:
    started = time.process_time()
    await loop
    return (time.process_time() - started) * 1000 / turns


async def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--turns", type=int, default=40)
    options.add_argument("--rounds", type=int, default=7)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        async with open_router(Path(folder)) as router:
            await router_alone(router, asked.turns)
            own = min(
                [
                    await cpu_ms(router_alone(router, asked.turns), asked.turns)
                    for _ in range(asked.rounds)
                ]
            )
            print(f"{'router':16}{'':10}{own:10.2f}")
            print(
                f"{'':16}{'alone':>10}{'routed':>10}{'adds':>10}   ms of CPU, one turn with one"
                " call"
            )
            for name, make in FRAMEWORKS.items():
                loops = make(router)
                for loop in loops:
                    await loop(2)
                rows = [
                    [await cpu_ms(loop(asked.turns), asked.turns) for loop in loops]
                    for _ in range(asked.rounds)
                ]
                least, most, *hooks = (min(column) for column in zip(*rows, strict=True))
                more = f"   of itself {hooks[0] - least:.2f}" if hooks else ""
                print(f"{name:16}{least:10.2f}{most:10.2f}{most - least:10.2f}{more}")


if __name__ == "__main__":
    asyncio.run(main())
