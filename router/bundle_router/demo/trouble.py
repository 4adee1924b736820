"""What the demo does to itself: calls of a server in every kind of trouble, beside calls of one that is well."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bundle_router.core.models import Step
from bundle_router.demo import faulty
from bundle_router.demo.real_servers import Calls, DemoServer
from bundle_router.engine.results import Result

HANG_S: Final = 2.0
"""How long a call of the server in trouble may take."""
NAME: Final = "faulty"


@dataclass(frozen=True, slots=True)
class FaultTrial:
    """One fault: what its call gave, what the same server's next call gave, and what another server's call gave that
    was made at the same time (None without another)."""

    fault: str
    what: str
    result: Result
    after: Result
    beside: Result | None

    @property
    def well(self) -> bool:
        return self.after.ok and (self.beside is None or self.beside.ok)


def server() -> DemoServer:
    """Return the server in trouble. Its every tool is in its bundle; no calls of the usual kind are made."""
    script = str(Path(faulty.__file__).resolve())
    calls: Calls = tuple((name, {}) for name in ("echo", *faulty.FAULTS))
    return DemoServer(NAME, "the demo's own", sys.executable, ("-I", "-S", script), "trusted", calls, timeout_s=HANG_S)


async def run_faults(
    config: Path, runs: str, run_id: str, workspace: Path, well: DemoServer | None
) -> list[FaultTrial]:
    """Run each fault, the call after it, and a call of the server that is `well` at the same time."""
    from bundle_router.wiring import Router

    async with Router.open(config, runs=runs, workspace=workspace, development=True) as router:
        await router.route(Step(run_id=run_id, workflow="demo", role="agent", step="trouble"))

        async def call(name: str, arguments: Mapping[str, Any]) -> Result:
            return await router.call(run_id, name, arguments)

        async def beside() -> Result | None:
            if well is None:
                return None
            tool, arguments = well.calls[0]
            name = f"{well.name}.{tool}"
            if well.trust == "trusted":
                return await call(name, arguments)
            return await call("call_tool", {"name": name, "arguments": dict(arguments)})

        rows = []
        for fault, what in faulty.FAULTS.items():
            result, other = await asyncio.gather(call(f"{NAME}.{fault}", {}), beside())
            rows.append(FaultTrial(fault, what, result, await call(f"{NAME}.echo", {}), other))
    return rows
