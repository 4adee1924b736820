"""A tool of your own, routed, called and recorded: `python tests/examples/own_tool.py`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from bundle_router import Router, Step
from bundle_router.tool import LocalServer

CONFIG = {
    "routes": '[[routes]]\nname = "triage"\nrole = "triager"\nbundles = ["tickets"]\n',
    "policy": '[[policies]]\nname = "triagers"\nrole = "triager"\nallow = ["bundle:tickets"]\neffects = ["read"]\n',
}
STEP = Step(run_id="r-1", workflow="support", role="triager", step="look")


async def get_ticket(number: int) -> str:
    """Read a ticket of the tracker."""
    return f"ticket {number}: the flag is misnamed"


def open_router(folder: Path) -> Router:
    (folder / "config").mkdir()
    for name, text in CONFIG.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    local = {"tickets": LocalServer([get_ticket], "Read the tickets of the tracker.")}
    return Router.open(folder / "config", runs=folder / "runs", local=local)


async def main() -> str:
    async with open_router(Path(tempfile.mkdtemp())) as router:
        await router.route(STEP)
        result = await router.call("r-1", "tickets.get_ticket", {"number": 7})
        return result.text


if __name__ == "__main__":
    print(asyncio.run(main()))
