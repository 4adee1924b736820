"""What `runs show` tells a reviewer of calls that were refused, and of results that were used again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.tool import LocalTool, Text, ToolContext, ToolOutput
from pydantic import BaseModel, Field

from tests.command_line import on_a_terminal

CONFIG = {
    "servers": '[servers.tickets]\ntransport = "local"\ntrust = "trusted"\n'
    '[[servers.tickets.reuse]]\ntools = ["get_*"]\nttl_s = 600\n',
    "bundles": '[bundles.tickets]\ndescription = "Tickets."\ntools = ["tickets.*"]\neffects = ["read"]\n',
    "routes": '[[routes]]\nname = "all"\nbundles = ["tickets"]\n',
    "policy": '[[policies]]\nname = "nobody closes tickets that others opened, or deletes them"\n'
    'allow = ["bundle:tickets"]\ndeny = ["tool:tickets.close_ticket"]\n',
}


class Ticket(BaseModel):
    number: int = Field(ge=1)


def tell(arguments: Ticket, context: ToolContext) -> ToolOutput:
    return ToolOutput((Text(f"ticket {arguments.number}"),))


TOOLS = [
    LocalTool("get_ticket", "Read a ticket.", Ticket, tell),
    LocalTool("close_ticket", "Close a ticket.", Ticket, tell),
]


@pytest.fixture
def reviewed(shell: Any) -> Any:
    """A run with a result used again, a refused call and one with wrong arguments."""
    shell.write(**CONFIG)
    at = {"runs": shell.folder / "runs", "workspace": shell.folder, "local": {"tickets": TOOLS}}
    with Router.open(shell.folder / "config", **at) as router:
        router.route_sync(Step(run_id="r-1", workflow="w", role="r", step="s"))
        for name, number in (("get_ticket", 7), ("get_ticket", 7), ("close_ticket", 7), ("get_ticket", 0)):
            router.call_sync("r-1", f"tickets.{name}", {"number": number})
    return shell


def test_why_a_call_was_refused_is_said_whole_on_a_narrow_terminal(reviewed: Any) -> None:
    shown = on_a_terminal(reviewed.folder, "runs", "show", "r-1", columns=80, TERM="dumb")
    assert max(map(len, shown.splitlines())) <= 80
    said = " ".join(shown.split())
    assert "(policy_denied: policy 'nobody closes tickets that others opened, or deletes them' denies" in said
    assert "number: Input should be greater than or equal to 1" in said


def test_a_code_that_says_no_more_than_the_outcome_is_said_once(reviewed: Any) -> None:
    shown = reviewed("runs", "show", "r-1").stdout
    assert "→ invalid_arguments, " in shown
    assert "→ denied policy_denied, " in shown


def test_a_result_used_again_names_the_record_that_the_list_shows(reviewed: Any) -> None:
    lines = reviewed("runs", "show", "r-1").stdout.splitlines()
    first, again = (line for line in lines if "call tickets.get_ticket  → ok" in line)
    assert again.endswith(f", the result of {first.split()[0]} again")


def test_one_record_in_full_is_readable_and_is_json(reviewed: Any) -> None:
    shown = reviewed("runs", "show", "r-1", "--seq", "0").stdout
    assert json.loads(shown)["type"] == "route.decided"
    assert max(map(len, shown.splitlines())) < 200
    assert reviewed.json("runs", "show", "r-1", "--seq", "0")["records"] == [json.loads(shown)]


def test_replay_says_which_servers_no_run_has_seen(reviewed: Any) -> None:
    reviewed.write(servers='[servers.board]\nurl = "https://board.example.com/mcp"\n')
    for name in ("bundles", "routes", "policy"):
        (reviewed.folder / "config" / f"{name}.toml").unlink()
    said = reviewed("replay", "--config", "config", code=1).stdout
    assert "no run knew board: taken here as reviewed and available" in said
    assert "no run knew" not in reviewed("replay").stdout
