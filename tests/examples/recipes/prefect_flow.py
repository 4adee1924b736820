"""Routing and calls as Prefect 3 tasks: a task that is tried again has the same task run id, which
is the key.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bundle_router import Router
from own_tool import STEP, open_router
from prefect import flow, task
from prefect.runtime import task_run

attempts: list[int] = []


@task(retries=2)
async def route(router: Router) -> str:
    decision = await router.route(STEP.model_copy(update={"key": f"prefect-{task_run.id}"}))
    attempts.append(1)
    if len(attempts) == 1:
        raise ConnectionError("after it was recorded, so the task is tried again")
    return decision.decision_id


@task(retries=2)
async def call(router: Router, decision: str, number: int) -> str:
    key = f"prefect-{task_run.id}"
    result = await router.call(
        "r-1", "tickets.get_ticket", {"number": number}, decision=decision, key=key
    )
    return result.text


@flow
async def triage(folder: Path, number: int) -> object:
    async with open_router(folder) as router:
        return await call(router, await route(router), number)


if __name__ == "__main__":
    print(asyncio.run(triage(Path(sys.argv[1]), 7)))
