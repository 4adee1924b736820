"""Budgets of requests that are recorded only at their end: what a request of the router's own tools
costs counts from before its work on, though no record says so yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bundle_router.engine.call_refusals import refuse
from bundle_router.engine.calls import over_budget, over_tree
from bundle_router.engine.engine_ports import CallPorts
from bundle_router.engine.results import AdmittedCall, Refusal, Result
from bundle_router.engine.surface import RunState


async def reserve(
    at: CallPorts, state: RunState, name: str, arguments: str, request: object
) -> Refusal | None:
    """Return the refusal of a request that is recorded only at its end, where it exceeds a budget;
    None where it fits. Then it counts until the caller takes it from the run's `passing`.
    """

    def reserved(_wait_s: float) -> Refusal | None:
        at.run.read_on()
        refusal = over_budget(at.run, state, name, arguments, None)
        if refusal is None:
            at.run.passing[id(request)] = at.run.fold.budget_key(state.decided.decision.decision_id)
        return refusal

    refusal = await at.run.under_lock(reserved, lambda _: at.run.passing.pop(id(request), None))
    if refusal is None and at.tree.is_bounded:
        refusal = await at.run.on_store(lambda _: over_tree(at, state))
    return refusal


async def within_budget(
    at: CallPorts, call: AdmittedCall, make: Callable[[], Awaitable[Result]]
) -> Result:
    """Make a call of the router's own tools, which is recorded at its end, or refuse it where it
    exceeds a budget.
    """
    try:
        refusal = await reserve(
            at, call.state, call.tool, call.request.arguments.text, call.request
        )
        if refusal is None:
            return await make()
        return await at.run.record(lambda wait_s: refuse(at.ports, at.run, call, refusal, wait_s))
    finally:
        at.run.passing.pop(id(call.request), None)
