"""A tool of your own, routed, called and recorded: `python tests/examples/own_tool.py`, with the
rows in `config`.
"""

import asyncio
from pathlib import Path

from bundle_router import Router, Step
from bundle_router.tool import LocalServer

STEP = Step(run_id="r-1", workflow="support", role="triager", step="look")


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


def open_router(folder: Path) -> Router:
    local = {"tickets": LocalServer([get_ticket], "Read the tickets of the tracker.")}
    return Router.open(Path(__file__).parent / "config", runs=folder / "runs", local=local)


async def main(folder: Path) -> str:
    async with open_router(folder) as router:
        await router.route(STEP)
        return (await router.call("r-1", "tickets.get_ticket", {"number": 7})).text


if __name__ == "__main__":
    print(asyncio.run(main(Path())))
