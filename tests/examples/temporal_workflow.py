"""A tool of your own in a Temporal workflow, beside `temporal server start-dev`, with the rows in
`config`.

`python temporal_workflow.py` in this folder is a worker; this asks for a workflow:
`temporal workflow execute --type Triage --task-queue bundle-router --input 7`.
"""

from bundle_router import Step
from bundle_router.ext.temporal import call, route, run_worker
from bundle_router.tool import LocalServer
from temporalio import workflow


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


@workflow.defn
class Triage:
    @workflow.run
    async def run(self, number: int) -> str:
        decision = await route(Step(run_id="r-1", workflow="support", role="triager", step="look"))
        return (await call(decision, "tickets.get_ticket", {"number": number})).text


if __name__ == "__main__":
    tickets = LocalServer([get_ticket], "Read the tickets of the tracker.")
    run_worker([Triage], "config", runs="runs", local={"tickets": tickets})
