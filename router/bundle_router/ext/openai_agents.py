"""Tools of a routed step for the OpenAI Agents SDK.

    step = Step(run_id="r-1", workflow=…, role=…, step=…)
    agent = RoutedAgent(name="editor", router=router, step=step)
    result = await agent.run("…")

`agent.run` is `Runner.run` with a configuration that answers a name which is not in the array, and
records it as a gap, instead of ending the run. For `Runner.run_streamed` and others pass
`run_config=agent.run_config()` yourself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypedDict, Unpack

from bundle_router.core.values import Step
from bundle_router.errors import needs_extra
from bundle_router.ext.step_tools import StepTools, check_parts
from bundle_router.wiring import Router

with needs_extra("the adapter for the OpenAI Agents SDK", "openai-agents"):
    from agents import (
        Agent,
        FunctionTool,
        RunConfig,
        RunContextWrapper,
        RunErrorHandlers,
        RunHooks,
        Runner,
        RunResult,
        RunState,
        Session,
        Tool,
        ToolErrorFormatter,
        ToolOutputImage,
        ToolOutputText,
        TResponseInputItem,
    )
    from agents.run_config import ToolErrorFormatterArgs
    from agents.tool_context import ToolContext


class RunOptions(TypedDict, total=False):
    """Options of `Runner.run`, which says what each means."""

    context: object
    max_turns: int | None
    hooks: RunHooks[Any] | None
    error_handlers: RunErrorHandlers[Any] | None
    previous_response_id: str | None
    auto_previous_response_id: bool
    conversation_id: str | None
    session: Session | None


@dataclass
class RoutedAgent(Agent[Any]):
    """An agent with the tools of a step in addition to its own.

    The step is routed once, when they are first needed: an agent is one decision, so make one per
    task. A step with a key, made again, gives the recorded decision.
    """

    router: Router = field(kw_only=True)
    """The router that decides and calls."""
    step: Step = field(kw_only=True)
    """The step that is routed."""
    _tools: asyncio.Future[StepTools] | None = field(default=None, init=False, repr=False)
    _listed: tuple[Any, list[Tool]] = field(default=(None, []), init=False, repr=False)

    def __post_init__(self) -> None:
        check_parts(self.router, self.step)
        super().__post_init__()  # type: ignore[no-untyped-call]  # the SDK annotates it nowhere

    async def _routed_tools(self) -> StepTools:
        if self._tools is None:
            self._tools = asyncio.ensure_future(StepTools.route(self.router, self.step, "mcp"))
        return await self._tools

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        agent_tools = await super().get_all_tools(run_context)
        tools = await self._routed_tools()
        listed = await tools.toolset()
        if listed is not self._listed[0]:
            self._listed = (listed, [_function_tool(tools, row) for row in listed.tools])
        return [*agent_tools, *self._listed[1]]

    async def get_system_prompt(self, run_context: RunContextWrapper[Any]) -> str | None:
        instructions = await super().get_system_prompt(run_context)
        guidance = (await (await self._routed_tools()).toolset()).guidance
        return "\n\n".join(part for part in (instructions, guidance) if part) or None

    def run_config(self, config: RunConfig | None = None) -> RunConfig:
        """Return a run configuration, the given or a new one, that answers names which are not in
        the array.
        """
        behaviour: dict[str, Any] = {"tool_not_found_behavior": "return_error_to_model"}
        return replace(
            config or RunConfig(), **behaviour, tool_error_formatter=self._formatter(config)
        )

    def _formatter(self, config: RunConfig | None) -> ToolErrorFormatter:
        theirs = config.tool_error_formatter if config is not None else None

        async def say(error: ToolErrorFormatterArgs[Any]) -> str | None:
            if error.kind == "tool_not_found":
                return await (await self._routed_tools()).missed(error.tool_name)
            message = theirs(error) if theirs is not None else None
            if message is None or isinstance(message, str):
                return message
            return await message

        return say

    async def run(
        self,
        prompt: str | list[TResponseInputItem] | RunState[Any],
        *,
        run_config: RunConfig | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult:
        """Run the agent as `Runner.run` does, with its parameters; `prompt` is its input."""
        return await Runner.run(self, prompt, run_config=self.run_config(run_config), **options)


def _function_tool(tools: StepTools, row: Mapping[str, Any]) -> FunctionTool:
    return FunctionTool(
        name=row["name"],
        description=row["description"],
        params_json_schema=row["inputSchema"],
        on_invoke_tool=partial(_call, tools, row["name"]),
        # servers' schemas are rarely in the strict subset, and the router checks them
        strict_json_schema=False,
    )


async def _call(
    tools: StepTools, name: str, context: ToolContext[Any], arguments: str
) -> str | list[ToolOutputText | ToolOutputImage]:
    result = await tools.call(name, arguments or "{}", context.tool_call_id)
    pictures = [ToolOutputImage(image_url=url) for url in await tools.pictures(result)]
    if pictures:
        return [ToolOutputText(text=result.text), *pictures]
    return result.text
