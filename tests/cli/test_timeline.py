"""What `runs show` tells a reviewer of calls that were refused, and of results that were used
again.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime, timedelta, timezone
from time import tzset
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.tool import LocalTool, Text, ToolContext, ToolOutput
from pydantic import BaseModel, Field

from tests.command_line import on_a_terminal

CONFIG = {
    "servers": (
        '[servers.tickets]\ntransport = "local"\ntrust = "trusted"\n'
        '[[servers.tickets.reuse]]\ntools = ["get_*"]\nttl_s = 600\n'
    ),
    "bundles": (
        '[bundles.tickets]\ndescription = "Tickets."\ntools = ["tickets.*"]\neffects = ["read"]\n'
    ),
    "routes": '[[routes]]\nname = "all"\nbundles = ["tickets"]\n',
    "policy": (
        '[[policies]]\nname = "nobody closes tickets that others opened, or deletes them"\n'
        'allow = ["bundle:tickets"]\ndeny = ["tool:tickets.close_ticket"]\n'
    ),
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
        for name, number in (
            ("get_ticket", 7),
            ("get_ticket", 7),
            ("close_ticket", 7),
            ("get_ticket", 0),
        ):
            router.call_sync("r-1", f"tickets.{name}", {"number": number})
    return shell


def test_why_a_call_was_refused_is_said_whole_on_a_narrow_terminal(reviewed: Any) -> None:
    shown = on_a_terminal(reviewed.folder, "runs", "show", "r-1", columns=80, TERM="dumb")
    assert max(map(len, shown.splitlines())) <= 80
    said = " ".join(shown.split())
    assert (
        "(policy_denied: policy 'nobody closes tickets that others opened, or deletes them' denies"
        in said
    )
    assert "number: Input should be greater than or equal to 1" in said


def test_a_code_that_says_no_more_than_the_outcome_is_said_once(reviewed: Any) -> None:
    shown = reviewed("runs", "show", "r-1").stdout
    assert "→ invalid_arguments, " in shown
    assert "→ denied policy_denied, " in shown


def test_a_result_used_again_names_the_record_that_the_list_shows(reviewed: Any) -> None:
    lines = reviewed("runs", "show", "r-1").stdout.splitlines()
    first, again = (line for line in lines if "call tickets.get_ticket  → ok" in line)
    assert again.endswith(f", the result of {first.split()[0]} again")


def test_each_record_has_its_time_and_each_run_its_parent_and_sub_runs(reviewed: Any) -> None:
    at = {
        "runs": reviewed.folder / "runs",
        "workspace": reviewed.folder,
        "local": {"tickets": TOOLS},
    }
    with Router.open(reviewed.folder / "config", **at) as router:
        router.route_sync(Step(run_id="r-1", workflow="w", role="r", step="t"))
        router.route_sync(
            Step(run_id="r-1-sub", workflow="w", role="r", step="s", parent_run_id="r-1")
        )
        router.call_sync("r-1", "tickets.get_ticket", {"number": 8})
    shown = reviewed("runs", "show", "r-1").stdout
    records = reviewed.json("runs", "show", "r-1")["records"]
    for record in records:
        if record["type"] != "call.started":
            assert f"{record['seq']}  {record['time'][11:23]}  " in shown
    lines = [line.strip() for line in shown.splitlines()]
    below = next(
        at for at, line in enumerate(lines) if line.startswith("↳ sub-run r-1-sub began at")
    )
    assert any("call tickets.get_ticket" in line for line in lines[below:]), (
        "it stands where it began"
    )
    shown = reviewed("runs", "show", "r-1-sub").stdout
    assert "sub-run of r-1: runs show r-1" in shown
    assert ", 1 record, opened " in shown.splitlines()[0]


def test_calls_of_a_branch_stand_under_its_decision(reviewed: Any) -> None:
    at = {
        "runs": reviewed.folder / "runs",
        "workspace": reviewed.folder,
        "local": {"tickets": TOOLS},
    }
    with Router.open(reviewed.folder / "config", **at) as router:
        ids = {}
        for branch in ("left", "right"):
            step = Step(run_id="r-2", workflow="w", role="r", step="look", branch=branch)
            ids[branch] = router.route_sync(step).decision_id
        for branch, number in (("right", 1), ("left", 2), ("right", 3)):
            router.call_sync("r-2", "tickets.get_ticket", {"number": number}, decision=ids[branch])
        router.call_sync("r-2", "tickets.close_ticket", {"number": 4}, decision=ids["left"])
        below = Step(
            run_id="r-2-sub",
            workflow="w",
            role="r",
            step="s",
            parent_run_id="r-2",
            parent_decision_id=ids["left"],
        )
        router.route_sync(below)
    shown = reviewed("runs", "show", "r-2").stdout
    lines = shown.splitlines()
    assert lines[2:4] == ["times of day are UTC", "first denial: record 8"]
    left, right = shown[shown.index("look (branch left)") :].split("look (branch right)")
    assert "call tickets.get_ticket (branch left, decision 0)  → ok" in left
    assert '{"number":2}' in left
    assert "call tickets.close_ticket (branch left, decision 0)  → denied" in left
    assert "↳ sub-run r-2-sub began at" in left
    assert right.count("(branch right, decision 1)  → ok") == 2
    assert '{"number":1}' in right
    assert "sub-run" not in right


def test_times_are_local_where_that_is_asked_for(
    reviewed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *_) = reviewed.json("runs", "show", "r-1")["records"]
    there = datetime.fromisoformat(first["time"]).astimezone(timezone(timedelta(hours=9)))
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "JST-9")
        tzset()
        shown = reviewed("runs", "show", "r-1", "--local-time").stdout
    tzset()
    assert "times of day are JST (UTC+0900)" in shown
    assert f"0  {there:%H:%M:%S}" in shown


def test_two_runs_are_compared_by_what_they_were_shown_and_called(reviewed: Any) -> None:
    at = {
        "runs": reviewed.folder / "runs",
        "workspace": reviewed.folder,
        "local": {"tickets": TOOLS},
    }
    policy = CONFIG["policy"].replace('deny = ["tool:tickets.close_ticket"]', "")
    reviewed.write(policy=policy)
    with Router.open(reviewed.folder / "config", **at) as router:
        router.route_sync(Step(run_id="r-2", workflow="w", role="r", step="s"))
        router.route_sync(Step(run_id="r-2", workflow="w", role="r", step="t"))
        for name, number in (("get_ticket", 7), ("close_ticket", 7)):
            router.call_sync("r-2", f"tickets.{name}", {"number": number})
    shown = reviewed("runs", "compare", "r-1", "r-2").stdout
    said = " ".join(shown.split())
    assert "policy 'nobody closes tickets that others opened, or deletes them' changed" in said
    assert "+ may call tickets.close_ticket" in said
    assert "2 of 2 steps differ" in said
    assert "tools + tickets.close_ticket" in said
    assert "+ 1 w / r / t" in said, "the step that only the second run has"
    facts = reviewed.json("runs", "compare", "r-1", "r-2")
    (pair, only_b) = facts["steps"]
    assert (pair["by"], only_b["a"], only_b["b"]["address"][2]) == ("goal", None, "t")
    assert [call["a"]["outcome"] for call in pair["calls"]].count("denied") == 1
    assert "0 of 1 step differ" in reviewed("runs", "compare", "r-1", "r-1").stdout
    assert "the same" in reviewed("runs", "compare", "r-1", "r-1", "--all").stdout
    assert "there is no run 'r-9'" in reviewed("runs", "compare", "r-1", "r-9", code=3).stderr


def test_a_recorded_decision_is_found_by_the_name_of_its_step(reviewed: Any) -> None:
    at = {
        "runs": reviewed.folder / "runs",
        "workspace": reviewed.folder,
        "local": {"tickets": TOOLS},
    }
    with Router.open(reviewed.folder / "config", **at) as router:
        router.route_sync(Step(run_id="r-1", workflow="w", role="r", step="t", max_bundles=0))
    last = reviewed.json("explain", "--run", "r-1", "--bundle", "tickets")
    named = reviewed.json("explain", "--run", "r-1", "--step", "s", "--bundle", "tickets")
    assert (last["shown"], named["shown"]) == (False, True)
    refused = reviewed(
        "explain", "--run", "r-1", "--step", "x", "--bundle", "tickets", code=3
    ).stderr
    assert "no decision at step 'x'" in refused
    assert "0 (s), " in refused


def test_one_record_in_full_is_readable_and_is_json(reviewed: Any) -> None:
    shown = reviewed("runs", "show", "r-1", "--seq", "0").stdout
    assert json.loads(shown)["type"] == "route.decided"
    assert max(map(len, shown.splitlines())) < 200
    assert reviewed.json("runs", "show", "r-1", "--seq", "0")["records"] == [json.loads(shown)]


def test_runs_are_listed_by_what_they_hold_counted_and_searched(reviewed: Any) -> None:
    at = {
        "runs": reviewed.folder / "runs",
        "workspace": reviewed.folder,
        "local": {"tickets": TOOLS},
    }
    with Router.open(reviewed.folder / "config", **at) as router:
        router.route_sync(
            Step(run_id="r-2", workflow="w2", role="r", step="s", goal="mend the roof")
        )
    denied = reviewed.json("runs", "list", "--denied")
    assert [run["run_id"] for run in denied["runs"]] == ["r-1"]
    assert [run["run_id"] for run in reviewed.json("runs", "list", "--sort=-started")["runs"]] == [
        "r-1",
        "r-2",
    ]
    assert "no run matches" in reviewed("runs", "list", "--workflow", "w2", "--media").stdout
    table = reviewed("runs", "list", "--tool", "tickets.close_ticket").stdout
    assert "1 denied, 1 failed" in table
    assert [hit["run_id"] for hit in reviewed.json("runs", "search", "roof")] == ["r-2"]
    stats = reviewed.json("runs", "stats", "--workflow", "w")
    assert (stats["runs"], stats["decisions"], stats["calls"]) == (1, 1, 4)
    assert "policy_denied" in reviewed("runs", "stats").stdout
    assert stats["searching"] == []
    began = datetime.fromisoformat(denied["runs"][0]["began"].replace("Z", "+00:00"))
    before = (began - timedelta(hours=1)).astimezone(timezone(timedelta(hours=9)))
    listed = {time: reviewed.json("runs", "list", "--denied", "--until", time)["total"]
              for time in (str(began.date()), before.isoformat())}  # fmt: skip
    assert list(listed.values()) == [
        1,
        0,
    ], "a date to its last moment; an hour before, by another zone's clock"
    for time in ("yesterday", "999999w", "9" * 400 + "d"):
        assert (
            "write e.g. 2026-11-20 or 7d"
            in reviewed("runs", "list", "--since", time, code=3).stderr
        )
    assert (
        "is not a size"
        in reviewed("runs", "prune", "--max-size", "9" * 400 + "GB", "--dry-run", code=3).stderr
    )
    reviewed("runs", "prune", "--max-size", "0B")
    index = sqlite3.connect(reviewed.folder / "runs" / "index.sqlite")
    assert index.execute("select count(*) from bundle_router_texts").fetchone() == (0,), (
        "what is gone is forgotten"
    )
    index.close()


def test_replay_says_which_servers_no_run_has_seen(reviewed: Any) -> None:
    reviewed.write(servers='[servers.board]\nurl = "https://board.example.com/mcp"\n')
    for name in ("bundles", "routes", "policy"):
        (reviewed.folder / "config" / f"{name}.toml").unlink()
    said = reviewed("replay", "--config", "config", code=1).stdout
    assert "no run recorded the state of board: taken as reviewed and available" in said
    assert "no run recorded" not in reviewed("replay").stdout
