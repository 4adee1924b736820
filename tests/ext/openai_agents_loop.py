"""The scenario as an agent of the OpenAI Agents SDK plays it: who plays it imports the SDK, not who
collects tests.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    Tool,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from agents.exceptions import ModelBehaviorError
from bundle_router.ext.openai_agents import RoutedAgent
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from tests.ext.scenario import (
    HELD,
    SUB_TURNS,
    TURNS,
    Asked,
    Notebook,
    Seen,
    opened,
    step,
    sub_step,
)

set_tracing_disabled(True)
Turns = tuple[tuple[Asked, ...], ...]


class Played(Model):
    """The SDK has no model for tests; this one asks for what the turns say, and notes what it
    saw.
    """

    def __init__(self, turns: Turns, seen: Seen, dies_at: int | None = None) -> None:
        self._turns, self._seen, self._dies_at, self._turn = turns, seen, dies_at, -1

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 - the SDK's own name
        model_settings: Any,
        tools: list[Tool],
        *_: Any,
        **__: Any,
    ) -> ModelResponse:
        self._turn += 1
        seen = self._seen
        seen.arrays.append([tool.name for tool in tools])
        seen.told = system_instructions or ""
        for item in input if isinstance(input, list) else ():
            if item.get("type") == "function_call_output" and item["call_id"] not in seen.results:
                parts = item["output"]
                seen.results[item["call_id"]] = (
                    parts if isinstance(parts, str) else parts[0]["text"]
                )
                seen.pictures += not isinstance(parts, str) and parts[1]["type"] == "input_image"
        if self._turn == self._dies_at:
            raise ConnectionError("the worker died")
        if self._turn >= len(self._turns):
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            message = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
            return ModelResponse(output=[message], usage=Usage(), response_id=None)
        asked = self._turns[self._turn]
        calls: list[Any] = [
            ResponseFunctionToolCall(
                arguments=json.dumps(one.arguments),
                call_id=one.id,
                name=one.name,
                type="function_call",
            )
            for one in asked
        ]
        return ModelResponse(output=calls, usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


async def loop(folder: Path, notebook: Notebook, dies_at: int | None = None) -> tuple[Seen, Seen]:
    seen, sub_seen = Seen(), Seen()
    async with opened(folder, notebook) as router:

        @function_tool
        async def delegate(task: str) -> str:
            """Have a reader do a task."""
            reader = RoutedAgent(
                name="reader", model=Played(SUB_TURNS, sub_seen), router=router, step=sub_step()
            )
            return str((await reader.run(task)).final_output)

        agent = RoutedAgent(
            name="writer",
            instructions="Write.",
            tools=[delegate],
            model=Played(TURNS, seen, dies_at),
            router=router,
            step=step(key="write-1"),
        )
        assert (await agent.run("write")).final_output == "done"
    return seen, sub_seen


async def play_unknown_name(folder: Path, seen: Seen) -> Any:
    """Ask for a name that is not in the array: of a plain agent, whose run ends, then of a routed
    one.
    """
    turns: Turns = ((Asked("u1", "no_such_tool"),),)
    with pytest.raises(ModelBehaviorError):
        await Runner.run(Agent(name="plain", model=Played(turns, Seen())), "go")
    async with opened(folder, Notebook()) as router:
        agent = RoutedAgent(name="routed", model=Played(turns, seen), router=router, step=step())
        return await agent.run("go", run_config=RunConfig(workflow_name="mine"), max_turns=3)


async def play_held(folder: Path, notebook: Notebook, call_id: str) -> str:
    """Ask for a held call under an id of the model's own, and return what the model is told."""
    seen = Seen()
    turns: Turns = ((Asked(call_id, "notes__add", {"text": "held"}),),)
    async with opened(folder, notebook, HELD) as router:
        held_step = step(key="write-1")
        agent = RoutedAgent(name="writer", model=Played(turns, seen), router=router, step=held_step)
        await agent.run("write")
    return seen.results[call_id]
