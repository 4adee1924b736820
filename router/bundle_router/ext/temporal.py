"""Routing and calls as Temporal activities.

    # in a workflow
    decision = await route(Step(run_id=run_id_of(workflow.info().workflow_id), …))
    result = await call(decision, "repo.read_file", {"path": "README.md"})
    while result.approval is not None:  # it waits for somebody's word: a signal wakes the workflow
        await workflow.wait_condition(lambda: result.approval.id in self.answered)
        result = await call(decision, …, approval=result.approval.id)

    # where tools run
    run_worker([Edit], "config", runs="runs")

    # in a worker of one's own
    Worker(client, task_queue="agents", workflows=[Edit], activities=activities(router),
           workflow_failure_exception_types=[RequestError])

Workflow and activity ids are the keys of steps and calls. So a retried activity, on whichever
worker, gives the recorded decision or result. A call whose worker died in it is `unknown`, or is
repeated if that does no harm. A workflow that was reset or continued as new decides anew. Workers
on several machines share a store (`postgresql://…`). What a workflow's own code raises (a step that
can't be made) Temporal retries for ever, unless the worker names its type. `run_id_of` is in
`bundle_router.ext.step_tools`. For a worker of one's own, a workflow's file imports this module
within `workflow.unsafe.imports_passed_through()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from pydantic import TypeAdapter

from bundle_router.core.exposure.placements import Toolset
from bundle_router.core.values import Decision, Step
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, expect, needs_extra
from bundle_router.ext.step_tools import short_key, step_key
from bundle_router.ports import Selector
from bundle_router.wiring import Router
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.wiring.toolservers import Development

with needs_extra("the adapter for Temporal", "temporal"):
    from temporalio import activity, workflow
    from temporalio.client import Client
    from temporalio.common import Priority, RetryPolicy
    from temporalio.envconfig import ClientConfig
    from temporalio.exceptions import ApplicationError
    from temporalio.worker import Worker
    from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

DECISIONS: Final = TypeAdapter(Decision)
"""Created at import, because a workflow's sandbox can't resolve the names in its type."""
Json = dict[str, Any]


class ActivityOptions(TypedDict, total=False):
    """Options of `workflow.execute_activity`, which says what each means; see `DEFAULTS`."""

    task_queue: str | None
    schedule_to_close_timeout: timedelta | None
    schedule_to_start_timeout: timedelta | None
    start_to_close_timeout: timedelta | None
    heartbeat_timeout: timedelta | None
    retry_policy: RetryPolicy | None
    cancellation_type: workflow.ActivityCancellationType
    activity_id: str | None
    summary: str | None
    priority: Priority


DEFAULTS: Final[ActivityOptions] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": timedelta(seconds=30),
}
"""Default options of `workflow.execute_activity`: a dead worker is noticed within 30 s."""


class RouterOptions(TypedDict, total=False):
    """Options of `Router.open`, which says what each means."""

    runs: str | Path
    store: str | None
    workspace: str | Path | None
    development: Development
    local: LocalServers | None
    selector: Selector | None


def run_worker(
    workflows: Sequence[type],
    config: str | Path,
    *,
    task_queue: str = "bundle-router",
    **options: Unpack[RouterOptions],
) -> None:
    """Run a worker of workflows until it is interrupted, with its own router (`options` are
    `Router.open`'s) and the server in Temporal's environment variables (`TEMPORAL_ADDRESS` and
    others), else the one on this machine.
    """
    runner = SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules("bundle_router")
    )

    async def run() -> None:
        found: Any = ClientConfig.load_client_connect_config()
        client = await Client.connect(**{"target_host": "localhost:7233", **found})
        async with Router.open(config, **options) as router:
            serving: Any = {
                "workflows": workflows,
                "activities": activities(router),
                "workflow_runner": runner,
                "workflow_failure_exception_types": [RequestError],
            }
            await Worker(client, task_queue=task_queue, **serving).run()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


def activities(router: Router) -> list[Callable[..., Any]]:
    """Return the activities that a worker carries out with a router.

    A refused request fails for good (`ApplicationError`, its type the error's name); any other
    failure is retried as the workflow says.
    """
    expect("router", router, Router, 'open one: async with Router.open("config") as router')
    return [
        _activity("route", lambda step: router.route(step_key(Step.from_json(step), *_place()))),
        _activity("tools", lambda asked: router.tools(**asked)),
        _activity("call", lambda asked: router.call(**{"key": short_key(*_place()), **asked})),
        _activity("missed", lambda asked: router.missed(**asked)),
        _activity("close_run", router.close_run),
    ]


def _place() -> tuple[str | None, ...]:
    info = activity.info()
    return (
        info.namespace,
        info.workflow_id,
        info.workflow_run_id or info.activity_run_id,
        info.activity_id,
    )


def _activity(name: str, begin: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """Return an activity with heartbeats, which reveal a dead worker and deliver a cancellation."""

    @activity.defn(name=f"bundle_router.{name}")
    async def carry_out(payload: Any) -> Any:
        beating = asyncio.ensure_future(_heartbeat(activity.info().heartbeat_timeout))
        try:
            made = await begin(payload)
        except RequestError as refused:
            raise ApplicationError(
                refused.message, type=type(refused).__name__, non_retryable=True
            ) from refused
        finally:
            beating.cancel()
        return made.to_json() if hasattr(made, "to_json") else None

    return carry_out


async def _heartbeat(within: timedelta | None) -> None:
    while within is not None:
        activity.heartbeat()
        await asyncio.sleep(within.total_seconds() / 3)


# --- in workflows ---------------------------------------------------------------------------------


async def route(step: Step, **options: Unpack[ActivityOptions]) -> Decision:
    """Route a step.

    `options` are those of `workflow.execute_activity` (default: `DEFAULTS`), as for all below.
    """
    expect("step", step, Step, "route(Step(run_id=…, workflow=…, role=…, step=…))")
    return DECISIONS.validate_python(await _execute("route", step.to_json(), options))


async def tools(
    decision: Decision, *, form: str = "openai", **options: Unpack[ActivityOptions]
) -> Toolset:
    """Return what a decision shows."""
    return Toolset.from_json(
        await _execute("tools", {**_named_decision(decision), "format": form}, options)
    )


async def call(
    decision: Decision,
    name: str,
    arguments: Mapping[str, Any] | str = "",
    *,
    approval: str = "",
    **options: Unpack[ActivityOptions],
) -> Result:
    """Call a tool under a decision, once however often the activity is retried.

    A call that waits for somebody's word has an `approval`; with its id, the same call goes on once
    that was answered. A signal may say so, and the record decides.
    """
    payload = {**_named_decision(decision), "name": name, "arguments": arguments}
    if approval:
        payload |= {"approval": approval, "key": ""}  # the held call has its key
    return Result.from_json(await _execute("call", payload, options))


async def missed(decision: Decision, name: str, **options: Unpack[ActivityOptions]) -> Result:
    """Record a name that the agent asked for and the workflow itself refused."""
    return Result.from_json(
        await _execute("missed", {**_named_decision(decision), "name": name}, options)
    )


async def close_run(run_id: str, **options: Unpack[ActivityOptions]) -> None:
    """End a run."""
    await _execute("close_run", run_id, options)


def _named_decision(decision: Decision) -> Json:
    expect("decision", decision, Decision, "give what route() returned")
    return {"run_id": decision.run_id, "decision": decision.decision_id}


async def _execute(name: str, payload: Any, options: ActivityOptions) -> Any:
    merged: ActivityOptions = {**DEFAULTS, **options}
    return await workflow.execute_activity(f"bundle_router.{name}", payload, **merged)
