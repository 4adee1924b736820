"""A tool of your own, routed, called and recorded: `python tests/examples/own_tool.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bundle_router import Router, Step
from bundle_router.tool import LocalTool, Text, ToolContext, ToolOutput
from pydantic import BaseModel

CONFIG = {
    "servers": '[servers.tickets]\ntransport = "local"\ntrust = "trusted"\n',
    "bundles": '[bundles."tickets.read"]\ndescription = "Read tickets."\ntools = ["tickets.get"]\neffects = ["read"]\n',
    "routes": '[[routes]]\nname = "triage"\nrole = "triager"\nbundles = ["tickets.read"]\n',
    "policy": '[[policies]]\nname = "triagers"\nrole = "triager"\nallow = ["bundle:tickets.*"]\neffects = ["read"]\n',
}


class Ticket(BaseModel):
    number: int


def get(arguments: Ticket, context: ToolContext) -> ToolOutput:
    return ToolOutput((Text(f"ticket {arguments.number}: the flag is misnamed"),))


def main() -> str:
    folder = Path(tempfile.mkdtemp())
    (folder / "config").mkdir()
    for name, text in CONFIG.items():
        (folder / "config" / f"{name}.toml").write_text(text, encoding="utf-8")
    tools = {"tickets": [LocalTool("get", "Read a ticket of the tracker.", Ticket, get)]}
    with Router.open(folder / "config", runs=folder / "runs", workspace=folder, local=tools) as router:
        router.route_sync(Step(run_id="r-1", workflow="support", role="triager", step="look"))
        return router.call_sync("r-1", "tickets.get", {"number": 7}).text


if __name__ == "__main__":
    print(main())
