"""A tool of your own in a Temporal workflow, with the rows in `config`; `temporal server start-dev` has to run."""

import asyncio
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bundle_router import Router, Step
    from bundle_router.ext.temporal import activities, call, route
    from bundle_router.tool import LocalServer


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


@workflow.defn
class Triage:
    @workflow.run
    async def run(self, number: int) -> str:
        decision = await route(Step(run_id="r-1", workflow="support", role="triager", step="look"))
        return (await call(decision, "tickets.get_ticket", {"number": number})).text


async def main(folder: Path, address: str = "localhost:7233") -> str:
    client = await Client.connect(address)
    local = {"tickets": LocalServer([get_ticket], "Read the tickets of the tracker.")}
    async with (
        Router.open(Path(__file__).parent / "config", runs=folder / "runs", local=local) as router,
        Worker(client, task_queue="triage", workflows=[Triage], activities=activities(router)),
    ):
        return await client.execute_workflow(Triage.run, 7, id="triage-7", task_queue="triage")


if __name__ == "__main__":
    print(asyncio.run(main(Path())))
