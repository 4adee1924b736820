"""Tools of a routed step for LangChain's agents and graphs of them.

    step = Step(run_id="r-1", workflow=…, role=…, step=…)
    agent = create_agent(model, middleware=[RoutedTools(router, step)])

The step is routed when the agent begins, and the decision is part of the agent's state: an agent
that resumes from a checkpoint keeps it. If it begins again, its key is the step and the graph's own
name for that place: the task of the node that started it, or else its own. LangGraph makes these
from the checkpoint before it, which `durability="sync"` has on disk before the task begins. Agents
that a graph runs side by side are branches of the run. `invoke` and `ainvoke` both work. Routing is
a node of the graph, entered once per agent: to hooks around the model a new input looks like a
resumed one (both may end with a person's message), and a thread's state keeps its last decision.

With `defer_approvals=True`, a call that waits for somebody's word (`[[approvals]]`) interrupts the
graph with the question, which needs a checkpointer. Who answered it with `router.grant` or
`router.refuse` goes on, in any process, with `agent.invoke(Command(resume=True), config)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Annotated, Any, NotRequired, TypeVar

from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.values import Decision, Step
from bundle_router.engine.results import Result
from bundle_router.errors import needs_extra
from bundle_router.ext.step_tools import StepTools, check_parts, step_key
from bundle_router.wiring import Router

with needs_extra("the adapter for LangChain", "langchain"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import AIMessage, SystemMessage, ToolCall, ToolMessage
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.runtime import Runtime
    from langgraph.types import Command, interrupt
    from langsmith.utils import tracing_is_enabled


class RoutedState(AgentState[Any]):
    """An agent's state with its decision, as (run id, decision id)."""

    routed: NotRequired[Annotated[tuple[str, str], PrivateStateAttr]]


T = TypeVar("T")
StepOf = Callable[[Any, Runtime[Any]], Step]
Answer = ModelResponse[Any]
Answered = ToolMessage | Command[Any]
ModelHandler = Callable[[ModelRequest[Any]], T]
ToolHandler = Callable[[ToolCallRequest], T]


class RoutedTools(AgentMiddleware[RoutedState, Any, Any]):
    """Gives an agent the tools of a step, in addition to its own.

    `step` is the step to route, or a function that returns it from the agent's state and the
    graph's runtime. `defer_approvals`: a held call interrupts the graph; otherwise the model is
    told that it waits.
    """

    state_schema = RoutedState

    def __init__(
        self, router: Router, step: Step | StepOf, *, defer_approvals: bool = False
    ) -> None:
        super().__init__()
        check_parts(router, step)
        self._router = router
        self._step = step
        self._defer_approvals = defer_approvals
        # An agent's list is cached while it runs; a dropped one, or another process's, is requested
        # again.
        self._opened = lru_cache(500)(partial(StepTools, router))
        if not tracing_is_enabled():
            # For LangSmith, a hook that is a coroutine function is passed to two threads, even
            # without tracing. A function that returns a coroutine is not; with tracing, its span
            # would end at once.
            model = self.awrap_model_call
            tool = self.awrap_tool_call
            vars(self).update(
                awrap_model_call=lambda request, handler: model(request, handler),
                awrap_tool_call=lambda request, handler: tool(request, handler),
            )

    def before_agent(self, state: RoutedState, runtime: Runtime[Any]) -> dict[str, Any]:
        return _begun(self._router.route_sync(self._asked(state, runtime)))

    async def abefore_agent(self, state: RoutedState, runtime: Runtime[Any]) -> dict[str, Any]:
        return _begun(await self._router.route(self._asked(state, runtime)))

    def wrap_model_call(self, request: ModelRequest[Any], handler: ModelHandler[Answer]) -> Answer:
        return handler(_shown(request, self._tools(request.state).toolset_sync()))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: ModelHandler[Awaitable[Answer]]
    ) -> Answer:
        return await handler(_shown(request, await self._tools(request.state).toolset()))

    def wrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler[Answered]) -> Answered:
        if request.tool is not None:
            return handler(request)
        tools = self._tools(request.state)
        call = request.tool_call
        turn = _turn_of(call, request.state)
        result = tools.call_sync(call["name"], call["args"], call["id"] or "", turn)
        while result.approval is not None and self._defer_approvals:
            interrupt(result.approval.to_json())  # raises, until the graph goes on
            result = tools.call_sync(call["name"], call["args"], call["id"] or "", turn)
        return _message(call, result, tools.pictures_sync(result))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: ToolHandler[Awaitable[Answered]]
    ) -> Answered:
        if request.tool is not None:
            return await handler(request)
        tools = self._tools(request.state)
        call = request.tool_call
        turn = _turn_of(call, request.state)
        result = await tools.call(call["name"], call["args"], call["id"] or "", turn)
        while result.approval is not None and self._defer_approvals:
            interrupt(result.approval.to_json())  # raises, until the graph goes on
            result = await tools.call(call["name"], call["args"], call["id"] or "", turn)
        return _message(call, result, await tools.pictures(result))

    def _asked(self, state: RoutedState, runtime: Runtime[Any]) -> Step:
        step = self._step if isinstance(self._step, Step) else self._step(state, runtime)
        info = runtime.execution_info
        if info is None:
            return step
        # `worker:<task>|RoutedTools.before_agent:<task>`: the node that started this agent, if it
        # is part of a graph.
        starter = info.checkpoint_ns.rpartition("|")[0]
        branch = step.branch or (
            starter and (step.key or starter[-200:])
        )  # a key outlives its task's id
        # A task's id is made from the checkpoint before it. The agent's first one may be lost in a
        # crash that the graph's own survived. Its node, begun again, may ask for another step.
        if ":" in starter:
            place = (starter, step.model_dump_json())
        else:
            place = (info.checkpoint_ns, info.task_id)
        return step_key(step.model_copy(update={"branch": branch}), info.thread_id, *place)

    def _tools(self, state: Any) -> StepTools:
        """Return the tools of an agent's decision, even if another process began it."""
        run_id, decision_id = state["routed"]
        return self._opened(run_id, decision_id)


def _turn_of(call: ToolCall, state: Any) -> int:
    """Return how many messages before the call's own used its id."""
    messages = [message for message in state["messages"] if isinstance(message, AIMessage)]
    uses = [message for message in messages if call["id"] in (c["id"] for c in message.tool_calls)]
    return max(len(uses) - 1, 0)


def _begun(decision: Decision) -> dict[str, Any]:
    return {"routed": (decision.run_id, decision.decision_id)}


def _shown(request: ModelRequest[Any], toolset: Toolset) -> ModelRequest[Any]:
    """Return the request with the step's tools after the agent's own, and the guidance after its
    instructions.
    """
    tools = [*request.tools, *toolset.tools]
    if not toolset.guidance:
        return request.override(tools=tools)
    instructions = request.system_message.text if request.system_message is not None else ""
    text = "\n\n".join(part for part in (instructions, toolset.guidance) if part)
    return request.override(tools=tools, system_message=SystemMessage(text))


def _message(call: Any, result: Result, pictures: list[str]) -> ToolMessage:
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": result.text}]
    blocks += [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    return ToolMessage(
        content=blocks if pictures else result.text,
        name=call["name"],
        tool_call_id=call["id"] or "",
        status="success" if result.ok else "error",
    )
