"""The tool of `own_tool.py` in a Temporal workflow; `temporal server start-dev` has to run."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bundle_router.ext.temporal import activities, call, route
    from own_tool import STEP, open_router


@workflow.defn
class Triage:
    @workflow.run
    async def run(self, number: int) -> str:
        decision = await route(STEP)
        return (await call(decision, "tickets.get_ticket", {"number": number})).text


async def main(folder: Path, address: str = "localhost:7233") -> str:
    client = await Client.connect(address)
    async with (
        open_router(folder) as router,
        Worker(client, task_queue="triage", workflows=[Triage], activities=activities(router)),
    ):
        return await client.execute_workflow(Triage.run, 7, id="triage-7", task_queue="triage")


if __name__ == "__main__":
    print(asyncio.run(main(Path(tempfile.mkdtemp()))))
