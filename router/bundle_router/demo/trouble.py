"""The demo's faults: calls of a faulty server, beside calls of a healthy one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.core.values import Step
from bundle_router.demo import faulty
from bundle_router.demo.real_servers import Calls, DemoServer
from bundle_router.engine.results import Result

NAMES: Final = {"faulty": 60.0, "silent": 15.0}
"""The seconds that a call of each may take.

For `hang`, the demo waits for the end of the second.
"""


@dataclass(frozen=True, slots=True)
class FaultTrial:
    """One fault: the result of its call, of the server's next call, and of another server's call at
    the same time.
    """

    what: str
    result: Result
    after: Result
    beside: Result

    @property
    def well(self) -> bool:
        return self.after.ok and self.beside.ok


def servers() -> list[DemoServer]:
    """Return the faulty servers. Their bundle has all their tools; no ordinary calls are made."""
    args = ("-I", "-S", str(Path(faulty.__file__).resolve()))
    source = "the demo's own"
    calls: Calls = tuple((name, {}) for name in ("echo", *faulty.FAULTS))
    return [
        DemoServer(n, source, sys.executable, args, "trusted", calls, timeout_s=s)
        for n, s in NAMES.items()
    ]


async def run_faults(
    config: Path, runs: str, run_id: str, workspace: Path, well: DemoServer
) -> list[FaultTrial]:
    """Run each fault, the call after it, and at the same time a call of the healthy server
    `well`.
    """
    from bundle_router.wiring import Router

    async with Router.open(config, runs=runs, workspace=workspace, development=True) as router:
        await router.route(Step(run_id=run_id, workflow="demo", role="agent", step="trouble"))

        async def call(name: str, arguments: Mapping[str, Any]) -> Result:
            return await router.call(run_id, name, arguments)

        async def beside() -> Result:
            tool, arguments = well.calls[0]
            name = f"{well.name}.{tool}"
            if well.trust == "trusted":
                return await call(name, arguments)
            return await call("call_tool", {"name": name, "arguments": dict(arguments)})

        async def trial(name: str, fault: str) -> FaultTrial:
            result, other = await asyncio.gather(call(f"{name}.{fault}", {}), beside())
            return FaultTrial(faulty.FAULTS[fault], result, await call(f"{name}.echo", {}), other)

        hung = asyncio.create_task(trial("silent", "hang"))
        return [
            *[await trial("faulty", fault) for fault in faulty.FAULTS if fault != "hang"],
            await hung,
        ]
