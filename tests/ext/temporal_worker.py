"""Workflows that are agent loops, and a worker:
`python -m tests.ext.temporal_worker ADDRESS FOLDER [STORE]`.

The test kills the worker while a tool runs: as long as the file `dies` is there, the tool says so
in a file and waits.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from bundle_router import Router, Toolset
    from bundle_router.ext.temporal import (
        ActivityOptions,
        activities,
        call,
        close_run,
        missed,
        route,
        tools,
    )
    from bundle_router.tool import LocalServer

    from tests.ext import scenario

QUEUE = "agents"
SLOW: ActivityOptions = {
    "heartbeat_timeout": timedelta(minutes=10),
    "start_to_close_timeout": timedelta(hours=1),
}
"""For what no worker dies in: it is tried once, however slow the machine is."""
QUICK: ActivityOptions = {
    **SLOW,
    "heartbeat_timeout": timedelta(seconds=2),
    "retry_policy": RetryPolicy(),
}


def names_of(shown: Toolset) -> list[str]:
    rows: Sequence[Any] = shown.tools
    return [row["function"]["name"] for row in rows]


@workflow.defn
class WholeLoop:
    """The loop of `scenario`, in which the workflow is the model too.

    Returns what the model saw, as JSON.
    """

    @workflow.run
    async def run(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"arrays": [], "results": {}, "pictures": 0}
        decision = await route(scenario.step())
        shown = await tools(decision)
        for turn in scenario.TURNS[:-1]:
            seen["arrays"].append(names_of(shown))
            results = await asyncio.gather(
                *(call(decision, one.name, one.arguments) for one in turn)
            )
            for one, result in zip(turn, results, strict=True):
                seen["results"][one.id] = result.text
                seen["pictures"] += sum(
                    artifact.mime_type == "image/png" for artifact in result.artifacts
                )
            if any(result.joined for result in results):
                shown = await tools(decision)
        seen["arrays"].append(names_of(shown))
        child = await route(scenario.sub_step())
        sub = names_of(await tools(child))
        refused = await call(child, "notes__add", {"text": "by the sub-agent"})
        await missed(decision, "no_such_tool")
        await close_run("r")
        return {"seen": seen, "sub": {"arrays": [sub], "results": {"s1": refused.text}}}


@workflow.defn
class TwoCalls:
    """A quick call, then one in which the first worker dies. Returns the outcomes."""

    @workflow.run
    async def run(self, tool: str) -> list[str]:
        decision = await route(scenario.step(), **SLOW)
        first = await call(decision, "notes.add", {"text": "before"}, **SLOW)
        second = await call(decision, f"notes.{tool}", {}, **QUICK)
        third = await call(decision, "notes.add", {"text": "after"}, **SLOW)
        return [first.text, second.outcome, third.text]


@workflow.defn
class HeldCall:
    """A call that waits for somebody's word: a signal wakes the workflow. Returns the outcomes."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.question = ""

    @workflow.signal
    def answer(self, approval_id: str) -> None:
        self.answered.append(approval_id)

    @workflow.update
    async def asked(self) -> str:
        """Return the question's id, once there is one."""
        await workflow.wait_condition(lambda: bool(self.question))
        return self.question

    @workflow.run
    async def run(self) -> list[str]:
        decision = await route(scenario.step())
        arguments = {"text": "held"}
        results = [await call(decision, "notes.add", arguments)]
        while (approval := results[-1].approval) is not None:
            self.question = approval.id
            await workflow.wait_condition(lambda: approval.id in self.answered)
            results.append(await call(decision, "notes.add", arguments, approval=approval.id))
        return [result.outcome for result in results]


def servers(folder: Path) -> dict[str, Any]:
    """Tools whose effects are files, which outlive a worker."""

    def add(text: str) -> str:
        """Add a note."""
        with (folder / "notes").open("a", encoding="utf-8") as notes:
            notes.write(f"{text}\n")
        return text

    async def once() -> str:
        """Do what must not be done twice."""
        return await _effect("once")

    async def again() -> str:
        """Do what may be done again."""
        return await _effect("again")

    async def _effect(name: str) -> str:
        add(name)
        if (folder / "dies").exists():
            (folder / "entered").touch()
            await asyncio.sleep(600)
        return "done"

    return {"notes": LocalServer([add, once, again], "Write notes.", effects=["read", "write"])}


async def main(address: str, folder: Path, store: str | None) -> None:
    client = await Client.connect(address)
    where: dict[str, Any] = {"store": store} if store else {"runs": folder / "runs"}
    config = folder / "config"
    async with Router.open(config, local=servers(folder), workspace=config, **where) as router:
        await Worker(
            client,
            task_queue=QUEUE,
            workflows=[TwoCalls],
            activities=activities(router),
            max_cached_workflows=0,
        ).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
