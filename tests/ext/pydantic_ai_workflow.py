"""A pydantic-ai agent inside a Temporal workflow, by pydantic-ai's own plug-in."""

from __future__ import annotations

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from bundle_router import Router
    from bundle_router.ext.pydantic_ai import RoutedToolset
    from pydantic_ai import Agent
    from pydantic_ai.durable_exec.temporal import TemporalDurability
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from tests.ext import scenario

AGENTS: dict[str, Agent[None, str]] = {}
"""Agents of this process, by name.

The worker runs workflows outside the sandbox, which would import this file anew.
"""


def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Add a note, then look for a letter, then say so."""
    turns = [*scenario.TURNS[:2], *scenario.TURNS[4:6]]
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn == len(turns):
        return ModelResponse([TextPart("done")])
    return ModelResponse(
        [ToolCallPart(one.name, one.arguments, tool_call_id=one.id) for one in turns[turn]]
    )


def make_agent(router: Router) -> Agent[None, str]:
    agent: Agent[Any, str] = Agent(
        FunctionModel(respond),
        name="writer",
        toolsets=[RoutedToolset(router, step=scenario.step())],
        capabilities=[TemporalDurability()],
    )
    AGENTS["writer"] = agent
    return agent


@workflow.defn
class Written:
    @workflow.run
    async def run(self) -> str:
        agent: Agent[None, str] = AGENTS["writer"]
        return (await agent.run("write")).output
