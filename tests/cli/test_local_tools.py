"""`--local`: an engine's own tools are known to the verbs that read its config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router
from bundle_router.tool import LocalServer

from tests.command_line import run

MODULE = """
from pydantic import BaseModel
from bundle_router.tool import LocalTool, ToolContext, ToolOutput
from bundle_router.core.values import Text

class Ask(BaseModel):
    number: int

def ticket(arguments: Ask, context: ToolContext) -> ToolOutput:
    return ToolOutput((Text(f"ticket {arguments.number}: the flag is misnamed"),))

TOOLS = [LocalTool("get_ticket", "Read a ticket of the tracker.", Ask, ticket)]
MORE = [*TOOLS, LocalTool("get.ticket again", "x", Ask, ticket)]
EMPTY = []
WRONG = [ticket]
"""
CONFIG = {
    "servers": '[servers.tickets]\ntransport = "local"\ntrust = "trusted"\n',
    "bundles": (
        '[bundles."tickets.read"]\ndescription = "Read the tracker: what was asked for, and by'
        ' whom."\ntools = ["tickets.*"]\neffects = ["read"]\n'
    ),
    "routes": '[[routes]]\nname = "triage"\nrole = "triager"\nbundles = ["tickets.read"]\n',
    "policy": (
        '[[policies]]\nname = "triagers read"\nrole = "triager"\nallow = ["bundle:tickets.read"]\n'
    ),
}
STEP = ("--workflow", "bugfix", "--role", "triager", "--step", "triage")
LOCAL = ("--local", "tickets=engine_tools:TOOLS")
CASE = """
[[cases]]
name = "a triager reads tickets"
workflow = "bugfix"
role = "triager"
step = "triage"
bundles = ["tickets.read"]
"""


@pytest.fixture
def engine(shell: Any) -> Any:
    shell.write(**CONFIG)
    (shell.folder / "engine_tools.py").write_text(MODULE, encoding="utf-8")
    (shell.folder / "broken_tools.py").write_text("1 / 0\n", encoding="utf-8")
    (shell.folder / "needy_tools.py").write_text("import not_installed_here\n", encoding="utf-8")
    (shell.folder / "case.toml").write_text(CASE, encoding="utf-8")
    return shell


def test_an_engines_own_tools_are_checked_routed_listed_called_explained_searched_and_evaluated(
    engine: Any,
) -> None:
    assert engine("check", "--strict", *LOCAL).stdout.startswith("valid: 5 bundles, 1 route,")
    routed = engine.json("route", *STEP, "--run", "r-1", *LOCAL)
    assert [row["id"] for row in routed["decision"]["bundles"]] == ["tickets.read"]
    assert "tickets.get_ticket" in engine("tools", "--run", "r-1", *LOCAL).stdout
    called = engine("call", "--run", "r-1", "tickets.get_ticket", '{"number": 7}', *LOCAL)
    assert "ticket 7: the flag is misnamed" in called.stdout
    assert engine.json("explain", "--tool", "tickets.get_ticket", *STEP, *LOCAL)["shown"]
    found = engine.json("search", "what does the tracker say of this ticket", "--tools", *LOCAL)[
        "ranked"
    ]
    assert found[0]["id"] == "tickets.get_ticket"
    assert engine("eval", "case.toml", *LOCAL).stdout == "1 passed, 0 failed\n"
    assert engine.json("replay", "--config", "config", *LOCAL)["counts"] == {"identical": 1}


def test_without_it_the_config_says_what_is_missing_and_how_to_give_it(engine: Any) -> None:
    said = engine("check", code=2).stdout
    assert "config/servers.toml:1: servers.tickets: no local tools are called 'tickets'" in said
    assert "--local tickets=module:TOOLS" in said


def test_a_recorded_decision_is_explained_and_replayed_without_it(engine: Any) -> None:
    engine("route", *STEP, "--run", "r-1", *LOCAL)
    assert engine.json("explain", "--run", "r-1", "--tool", "tickets.get_ticket")["shown"]
    assert engine.json("replay")["counts"] == {"identical": 1}
    assert "--local goes with --config" in engine("replay", *LOCAL, code=3).stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tickets", "does not say which tools"),
        ("tickets=engine_tools", "write --local NAME=module:TOOLS"),
        ("Tickets=engine_tools:TOOLS", "'Tickets' is not a server name"),
        ("tickets=nowhere:TOOLS", "there is no module 'nowhere'"),
        ("tickets=nowhere.at.all:TOOLS", "there is no module 'nowhere'"),
        (
            "tickets=engine_tools:TOLLS",
            "module 'engine_tools' has no 'TOLLS'\n  it has MORE, TOOLS",
        ),
        ("tickets=engine_tools:EMPTY", "its tools are an empty list"),
        ("tickets=engine_tools:WRONG", "the tool 'ticket' has no description"),
        ("tickets=engine_tools:Ask", "its tools are ModelMetaclass, not a list"),
        ("tickets=engine_tools:MORE", "'get.ticket again' is not a tool name"),
        ("tickets=broken_tools:TOOLS", "can't be imported: ZeroDivisionError: division by zero"),
        (
            "tickets=needy_tools:TOOLS",
            "can't be imported: ModuleNotFoundError: No module named 'not_installed_here'",
        ),
    ],
)
def test_what_cannot_be_local_tools_is_refused_in_one_line_with_advice(
    engine: Any, given: str, said: str
) -> None:
    done = engine("check", "--local", given, code=3)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 2, "the message and the advice"


def test_a_server_declared_with_its_bundle_is_known_to_the_verbs_as_it_is_to_the_engine(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(
        "from bundle_router.tool import LocalServer\n\ndef get_ticket(number: int) -> str:\n"
        '    """Read a ticket of the tracker."""\n    return f"ticket {number}"\n\n'
        'TICKETS = LocalServer([get_ticket], "Read the tickets of the tracker.")\n'
    )
    run(tmp_path, "init")
    rows = {"routes": 'bundles = ["desk"]', "policies": 'allow = ["bundle:desk"]'}
    for table, row in rows.items():
        path = tmp_path / "config" / ("policy.toml" if table == "policies" else "routes.toml")
        path.write_text(f'{path.read_text()}\n[[{table}]]\nname = "t"\nrole = "triager"\n{row}\n')
    unknown = run(tmp_path, "check", code=2).stdout
    assert unknown.endswith("bundles of your own Python tools need --local NAME=module:TOOLS\n")
    step = ("--workflow", "w", "--role", "triager", "--step", "s")
    for verb in (
        ("route", *step),
        ("explain", "--tool", "desk.get_ticket", *step),
        ("search", "x"),
    ):
        assert "--local NAME=module:TOOLS" in run(tmp_path, *verb, code=2).stderr, verb
    local = ("--local", "desk=own:TICKETS")
    run(tmp_path, "check", *local)
    run(
        tmp_path,
        "route",
        *local,
        "--workflow",
        "w",
        "--role",
        "triager",
        "--step",
        "s",
        "--run",
        "r",
    )
    assert (
        run(tmp_path, "call", *local, "--run", "r", "desk.get_ticket", '{"number": 7}').stdout
        == "ticket 7\n"
    )
    assert run(tmp_path, "runs", "verify").stdout.endswith("1 of 1 runs are as they were written\n")
    assert "desk" in run(tmp_path, "explain", *local, "--tool", "desk.get_ticket", "--workflow", "w", "--role",
                         "triager", "--step", "s").stdout  # fmt: skip


def test_a_name_given_twice_and_a_name_that_no_server_has_are_said(engine: Any) -> None:
    assert "is given twice" in engine("check", *LOCAL, *LOCAL, code=3).stderr
    done = engine("check", "--strict", *LOCAL, "--local", "spare=engine_tools:TOOLS", code=1)
    assert "warning: --local spare: servers.toml has no local server 'spare'" in done.stdout


def test_a_file_lying_in_the_folder_does_not_take_the_place_of_a_library(engine: Any) -> None:
    (engine.folder / "pydantic.py").write_text("raise SystemExit('taken over')\n", encoding="utf-8")
    (engine.folder / "json.py").write_text("raise SystemExit('taken over')\n", encoding="utf-8")
    engine("check", *LOCAL)


def test_opening_a_router_says_which_tools_no_server_of_the_config_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(title: str) -> str:
        """Add an entry."""
        return title

    config = tmp_path / "config"
    config.mkdir()
    (config / "servers.toml").write_text(
        '[servers.calendar]\ntransport = "local"\ntrust = "trusted"\n'
    )
    with Router.open(config, runs=tmp_path / "runs", local={"calendar": [add], "calender": [add]}):
        said = capsys.readouterr().err
    assert "servers.toml has no local server 'calender', so these tools are not used" in said
    assert "did you mean 'calendar'?" in said
    assert "no bundle holds a tool of local server 'calendar'" in said
    assert said.count("local.unused") == 2


def test_opening_a_router_says_which_rows_show_a_bundle_that_no_policy_permits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def add(title: str) -> str:
        """Add an entry."""
        return title

    declared = {"calendar": LocalServer([add], "Entries.")}
    (tmp_path / "policy.toml").write_text("# none yet\n", encoding="utf-8")
    with Router.open(tmp_path, runs=tmp_path / "runs", local=declared):
        (said,) = map(json.loads, capsys.readouterr().err.splitlines())
    assert (said["event"], said["problem"]) == (
        "local.not_permitted",
        "no policy lets any step see bundle 'calendar'",
    )
    assert "allow = ['bundle:calendar'] in policy.toml" in said["advice"]
    assert "bundles = ['calendar']" in said["advice"]
    assert "`bundle-router allow calendar --role ROLE`" in said["advice"]
    row = '[[policies]]\nname = "all"\nallow = ["bundle:calendar"]\n'
    (tmp_path / "policy.toml").write_text(row, encoding="utf-8")
    with Router.open(tmp_path, runs=tmp_path / "runs", local=declared):
        assert capsys.readouterr().err == ""
