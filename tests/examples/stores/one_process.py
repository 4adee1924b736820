"""One process: runs are folders. Run it from the repository's folder."""

from __future__ import annotations

import asyncio
import tempfile

from bundle_router import Router, Step


async def main() -> list[str]:
    folder = tempfile.mkdtemp()
    async with Router.open(None, runs=f"{folder}/runs", workspace=folder) as router:
        step = Step(run_id="nightly", workflow="feature", role="planner", step="plan", key="plan-1")
        first = await router.route(step)
        again = await router.route(step)  # a retry: the key makes it the same decision
        await router.close_run("nightly")
        return [first.decision_id, again.decision_id]


if __name__ == "__main__":
    print(*asyncio.run(main()), sep="\n")
