"""G-15: 10,000 short sessions with a tool server, eight at a time, over HTTP, and every hundredth
with a process too.

    python tests/faults/short_sessions.py [--quick]

Each is a run of its own: routed, one call, closed, so that a connection is opened and ended for it;
the server keeps a session for each. Holds when every call comes to its answer, and neither memory,
descriptors, threads nor processes have grown since a fifth of the way, when caches are full.
`--quick` has 100, and 300 where all is asked for (`.ci/run`). Prints a summary as JSON and exits
with 1 when something is broken.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import threading
from pathlib import Path
from typing import Final

from bundle_router import Router, Step
from bundle_router.adapters.processes.family import descendants
from oversized import elsewhere, write_config
from rig import Verdict, quick

COUNT: Final = 10_000
QUICK: Final = 300 if os.environ.get("BUNDLE_ROUTER_TESTS") == "all" else 100
AT_ONCE: Final = 8
STDIO_EVERY: Final = 100
MAY_GROW_MIB: Final = 12.0


def standing() -> dict[str, float]:
    """What this process holds now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {
        "MiB": round(pages * resource.getpagesize() / 2**20, 1),
        "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": threading.active_count(),
        "processes": len(descendants(os.getpid())),
    }


async def session(router: Router, verdict: Verdict, number: int) -> None:
    run_id = f"r-{number}"
    await router.route(Step(run_id=run_id, workflow="w", role="r", step="s"))
    for name in ("t.echo", "s.echo") if number % STDIO_EVERY == 0 else ("t.echo",):
        result = await router.call(run_id, name, {"text": run_id})
        verdict.check(result.text == run_id, f"{run_id}: {name}: {result}")
    await router.close_run(run_id)


async def run(
    config: Path, folder: Path, verdict: Verdict, count: int
) -> dict[str, dict[str, float]]:
    opened = Router.open(config, runs=folder / "runs", workspace=folder, development="unpinned")
    async with opened as router:

        async def several(numbers: range) -> None:
            left = iter(numbers)

            async def one_by_one() -> None:
                for number in left:
                    await session(router, verdict, number)

            await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))

        await several(range(count // 5))
        warm = standing()
        await several(range(count // 5, count))
        return {"after_a_fifth": warm, "in_the_end": standing()}


def main() -> None:
    short, verdict = quick(), Verdict()
    if not Path("/proc/self/statm").exists():
        verdict.end(skipped="what a process holds is not known here: there is no /proc")
    count = QUICK if short else COUNT
    with tempfile.TemporaryDirectory() as name, elsewhere(stateful=True) as url:
        rows = asyncio.run(run(write_config(Path(name), url, url), Path(name), verdict, count))
    warm, end = rows.values()
    verdict.check(end["MiB"] - warm["MiB"] <= MAY_GROW_MIB, f"memory has grown: {rows}")
    # Of connections that the next sessions use again, and of workers that wait, there are not
    # always as many.
    for what, more in {"descriptors": 2 * AT_ONCE, "threads": 2 * AT_ONCE, "processes": 0}.items():
        verdict.check(end[what] <= warm[what] + more, f"{what} have grown: {rows}")
    verdict.end(sessions=count, **rows)


if __name__ == "__main__":
    main()
