"""Tools of a routed step for a pydantic-ai agent.

    step = Step(run_id="r-1", workflow=…, role=…, step=…)
    agent = Agent("openai:gpt-5", toolsets=[RoutedToolset(router, step=step)])
    await agent.run("…", run_id="r-1-edit")

Each agent run is one decision. Its key is the step's, else the agent run's id, which durable
execution (Temporal, DBOS, Prefect) derives from the workflow: a run that is restarted after a crash
has the same decision, and makes no call twice. For those engines this is a dynamic toolset: listing
and each call are steps of theirs.

With `defer_approvals=True`, a call that waits for somebody's word (`[[approvals]]`) ends the agent
run with pydantic-ai's `DeferredToolRequests`, whose metadata is the question. Who answered it with
`router.grant` or `router.refuse` goes on, in any process, with `agent.run(message_history=…,
deferred_tool_results=DeferredToolResults(approvals={call_id: True}))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bundle_router.core.values import Step
from bundle_router.errors import needs_extra
from bundle_router.ext.step_tools import META_NAMES, StepTools, check_parts, step_key
from bundle_router.wiring import Router

with needs_extra("the adapter for pydantic-ai", "pydantic-ai"):
    from pydantic_ai import ApprovalRequired, ToolFailed, UserError
    from pydantic_ai.messages import BinaryContent, InstructionPart, ModelRequest, ToolReturnPart
    from pydantic_ai.tools import RunContext, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_ai.toolsets._dynamic import DynamicToolset
    from pydantic_core import SchemaValidator, core_schema

ANY_ARGUMENTS: Final = SchemaValidator(core_schema.any_schema())
"""The router checks arguments against the tool's own schema, and its answer says how to correct
them.
"""
StepOf = Callable[[RunContext[Any]], Step]


class RoutedToolset(DynamicToolset[Any]):
    """The tools of a step, routed once for each agent run.

    `step` is the step to route, or a function that returns it from the run's context. `own_search`:
    deferred tools are passed with `defer_loading`, and pydantic-ai's search finds them (by the
    provider if it can); otherwise the router's own `search_tools` does. `defer_approvals`: a held
    call ends the agent run, which needs `DeferredToolRequests` among its output types; otherwise
    the model is told that it waits. `id` identifies the toolset for durable execution.
    """

    def __init__(
        self,
        router: Router,
        *,
        step: Step | StepOf,
        own_search: bool = False,
        defer_approvals: bool = False,
        id: str = "bundle-router",
    ) -> None:
        check_parts(router, step)

        def begin(ctx: RunContext[Any]) -> AbstractToolset[Any]:
            routed_step = step if isinstance(step, Step) else step(ctx)
            return StepToolset(
                router,
                step_key(routed_step, "pydantic-ai", ctx.run_id),
                own_search=own_search,
                defer_approvals=defer_approvals,
                name=id,
            )

        super().__init__(begin, per_run_step=False, id=id)


class StepToolset(AbstractToolset[Any]):
    """The tools of one agent run. The step is routed when they are first needed."""

    def __init__(
        self, router: Router, step: Step, *, own_search: bool, defer_approvals: bool, name: str
    ) -> None:
        self._router = router
        self._step = step
        self._own_search = own_search
        self._defer_approvals = defer_approvals
        self._id = name
        self._tools: StepTools | None = None
        self._listed: tuple[Any, dict[str, ToolsetTool[Any]]] = (None, {})

    @property
    def id(self) -> str:
        return self._id

    async def _routed_tools(self) -> StepTools:
        if self._tools is None:
            self._tools = await StepTools.route(self._router, self._step, "mcp")
        return self._tools

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        tools = await self._routed_tools()
        for name in _unknown_names(ctx):
            await tools.missed(name)
        listed = await tools.toolset()
        if listed is not self._listed[0]:
            rows: Sequence[Mapping[str, Any]] = listed.tools
            definitions = [
                row for row in rows if not (self._own_search and row["name"] in META_NAMES)
            ]
            made = {row["name"]: self._tool(_definition(row)) for row in definitions}
            if self._own_search:
                later = [row.definition for row in listed.deferred if row.definition is not None]
                made |= {row["name"]: self._tool(_definition(row, later=True)) for row in later}
            self._listed = (listed, made)
        return self._listed[1]

    async def get_tool_for_tool_def(
        self, tool_def: ToolDefinition, ctx: RunContext[Any]
    ) -> ToolsetTool[Any]:
        return self._tool(tool_def)

    def _tool(self, definition: ToolDefinition) -> ToolsetTool[Any]:
        return ToolsetTool(
            toolset=self, tool_def=definition, max_retries=1, args_validator=ANY_ARGUMENTS
        )

    async def get_instructions(self, ctx: RunContext[Any]) -> InstructionPart | None:
        text = "" if self._own_search else (await (await self._routed_tools()).toolset()).guidance
        return InstructionPart(content=text, dynamic=False) if text else None

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str | list[str | BinaryContent]:
        """Call the tool.

        Raises ToolFailed with the text for the model if the result is not `ok`, and
        ApprovalRequired if the call waits and approvals are deferred.
        """
        tools = await self._routed_tools()
        result = await tools.call(name, tool_args, ctx.tool_call_id or "", ctx.run_step)
        if result.approval is not None and self._defer_approvals:
            raise ApprovalRequired(metadata=result.approval.to_json())
        if not result.ok:
            raise ToolFailed(result.text)
        pictures = [BinaryContent.from_data_uri(url) for url in await tools.pictures(result)]
        return [result.text, *pictures] if pictures else result.text


def _unknown_names(ctx: RunContext[Any]) -> list[str]:
    """Return the names that pydantic-ai refused in the last turn.

    A Temporal activity does not get the history, so there such names are not recorded as gaps.
    """
    try:
        messages = ctx.messages
    except UserError:
        return []
    if not messages or not isinstance(messages[-1], ModelRequest):
        return []
    names = []
    for part in messages[-1].parts:
        if not isinstance(part, ToolReturnPart) or part.retry is None:
            continue
        if part.retry.cause == "unknown_tool":
            names.append(part.tool_name)
    return names


def _definition(row: Mapping[str, Any], *, later: bool = False) -> ToolDefinition:
    return ToolDefinition(
        name=row["name"],
        description=row["description"],
        parameters_json_schema=row["inputSchema"],
        defer_loading=later,
    )
