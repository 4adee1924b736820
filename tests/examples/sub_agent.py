"""A sub-agent: a run of its own that never gets more than its parent may have.

Run it from the repository's folder.
"""

from __future__ import annotations

import asyncio
import tempfile

from bundle_router import Router, Step


async def main() -> tuple[list[str], list[str]]:
    folder = tempfile.mkdtemp()
    async with Router.open(None, runs=f"{folder}/runs", workspace=folder) as router:
        parent = Step(run_id="parent", workflow="feature", role="planner", step="plan")
        child = Step(
            run_id="child",
            workflow="feature",
            role="implementer",
            step="edit",
            parent_run_id="parent",
        )
        planned, edited = await router.route(parent), await router.route(child)
        # An implementer may run programs; the sub-agent of a planner may not, since a planner may
        # not.
        return list(planned.bundle_ids), list(edited.bundle_ids)


if __name__ == "__main__":
    print(*asyncio.run(main()), sep="\n")
