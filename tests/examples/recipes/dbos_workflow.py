"""Routing and calls as DBOS steps: a workflow that is recovered goes on under its decision, and
calls nothing twice.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from bundle_router import Router
from dbos import DBOS, DBOSConfig, SetWorkflowID
from own_tool import STEP, open_router

holds: dict[str, Router] = {}


@DBOS.step(retries_allowed=True)
async def route() -> str:
    key = f"dbos-{DBOS.workflow_id}-{DBOS.step_id}"
    return (await holds["router"].route(STEP.model_copy(update={"key": key}))).decision_id


@DBOS.step(retries_allowed=True)
async def call(decision: str, name: str, arguments: dict[str, Any]) -> str:
    key = f"dbos-{DBOS.workflow_id}-{DBOS.step_id}"
    return (await holds["router"].call("r-1", name, arguments, decision=decision, key=key)).text


@DBOS.workflow()
async def triage(number: int) -> str:
    return str(await call(await route(), "tickets.get_ticket", {"number": number}))


async def main(folder: Path) -> None:
    async with open_router(folder) as holds["router"]:
        DBOS.launch()
        for _ in range(2):  # the same workflow again: the recorded answer
            with SetWorkflowID("triage-7"):
                print(await triage(7))


if __name__ == "__main__":
    config: DBOSConfig = {
        "name": "triage",
        "system_database_url": f"sqlite:///{sys.argv[1]}/dbos.sqlite",
    }
    DBOS(config=config)
    asyncio.run(main(Path(sys.argv[1])))
    DBOS.destroy()
