"""What selects a route is declared in one file: a part that is added there counts everywhere."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.core.catalog import Policy, Route
from bundle_router.core.catalog.step_address import PARTS, AddressedRow

from tests.command_line import json_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "router" / "bundle_router"
DECLARED_IN = Path("core", "catalog", "step_address.py")
ADDED = {
    '    AddressPart("step"),\n': '    AddressPart("squad", label="squad"),\n',
    "    step: tuple[str, ...] = _part()\n": "    squad: tuple[str, ...] = _part()\n",
}
"""The lines of the declaring file after which the test's part has one of its own."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package that differs in the declaring file alone; the folder it is in."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "router" / "bundle_router")
    for content in ("config", "bundles"):
        shutil.copytree(ROOT / content, folder / content)
    file = folder / "router" / "bundle_router" / DECLARED_IN
    text = file.read_text(encoding="utf-8")
    for line, more in ADDED.items():
        assert text.count(line) == 1
        text = text.replace(line, line + more)
    declared = re.compile(r"(    ADDED: ClassVar\[tuple\[str, \.\.\.\]\] = \()")
    text, count = declared.subn(r'\1"squad", ', text)
    assert count == 1
    file.write_text(text, encoding="utf-8")
    return folder


def program(copy: Path, *words: str | Path) -> Any:
    """Return what a program prints that imports the copy, as JSON."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(copy / "router"), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=copy, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def found(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """What each place made of the part."""
    project = tmp_path_factory.mktemp("project")
    found: Mapping[str, Any] = program(copy, "-m", "tests.a_fourth_part", project)
    return found


def test_routes_plans_and_kept_decisions_tell_steps_of_two_squads_apart(
    found: Mapping[str, Any],
) -> None:
    """Six steps of one process, each in a run of its own, which differ by their squad alone."""
    red = ["red-row", ["repo.readonly"]]
    blue = ["blue-row", ["docs.fetch"]]
    assert found["routed"]["turns"] == [red, blue, blue, [None, []], red, blue]


def test_a_sub_agent_has_no_more_than_its_parents_squad_may_have(found: Mapping[str, Any]) -> None:
    assert found["routed"]["child"] == ["red-row", []]


def test_recorded_decisions_replay(found: Mapping[str, Any]) -> None:
    """The sub-agent's is among them: the squad of its parent was recorded."""
    assert found["replay"]["counts"] == {"identical": 7}


def test_replay_under_an_edit_finds_the_row_of_the_squad(found: Mapping[str, Any]) -> None:
    (group,) = found["replay other"]["groups"]
    assert [one["edit"] for one in group["edits"]] == ["route 'blue-row' changed"]
    assert [one["squad"] for one in group["examples"]] == ["blue", "navy-1", "blue"]
    assert found["replay other"]["counts"] == {"identical": 4, "changed": 3}


def test_check_knows_that_rows_of_two_squads_do_not_meet(found: Mapping[str, Any]) -> None:
    assert found["check"]["problems"] == []
    (problem,) = found["check hidden"]["problems"]
    assert (problem["rule"], problem["path"]) == ("unreachable-route", "routes[2]")


def test_diff_says_which_squad_may_have_more(found: Mapping[str, Any]) -> None:
    (row,) = found["diff"]["rows"]
    assert (row["kind"], row["subject"]) == ("widening", "workspace.exec")
    (address,) = row["addresses"]
    assert address == {
        "workflow": ["any"],
        "role": ["any"],
        "step": ["any"],
        "squad": ["blue", "navy-*"],
    }


def test_diff_looks_at_steps_without_a_squad(found: Mapping[str, Any]) -> None:
    """An edit takes a bundle from the steps that have a squad, whatever it is (`?*`)."""
    (row,) = found["diff nameless"]["rows"]
    assert row["kind"] == "narrowing"
    assert [one["squad"] for one in row["addresses"]] == [["any other"]]


def test_the_matrix_has_a_cell_entry_for_each_squad(found: Mapping[str, Any]) -> None:
    assert found["matrix"] == [
        ["r", "docs.fetch", ["w / s / blue", "w / s / navy-1"]],
        ["r", "repo.readonly", ["w / s / red"]],
    ]


def test_explain_judges_a_step_by_its_squad(found: Mapping[str, Any]) -> None:
    assert "docs.fetch at w / r / s / blue: shown" in found["explain"]
    assert "docs.fetch at w / r / s / red: not shown" in found["explain red"]
    assert "policy 'reds' does not allow it" in found["explain red"]


def test_a_config_and_runs_without_the_part_stay_as_they_are(copy: Path, tmp_path: Path) -> None:
    """A catalog keeps its revision, and a decision that was recorded before the part was added is
    the same.
    """
    config = tmp_path / "config"
    config.mkdir()
    row = 'name = "all"\nworkflow = "w*"\n'
    (config / "routes.toml").write_text(
        f'[[routes]]\n{row}bundles = ["repo.readonly"]\n', encoding="utf-8"
    )
    (config / "policy.toml").write_text(
        f'[[policies]]\n{row}allow = ["bundle:repo.*"]\n', encoding="utf-8"
    )
    with Router.open(config, runs=tmp_path / "runs") as router:
        step = Step(run_id="top", workflow="w1", role="r", step="s", labels={"squad": "red"})
        assert router.route_sync(step).bundle_ids == ["repo.readonly"]
        child = Step(run_id="kid", workflow="w1", role="r", step="s", parent_run_id="top")
        assert router.route_sync(child).bundle_ids == ["repo.readonly"]
    command = ("-m", "bundle_router")
    checked = program(copy, *command, "check", "--config", config, "--json")
    plain = json_of(tmp_path, "check", "--config", "config")
    assert checked["catalog_revision"] == plain["catalog_revision"]
    replayed = program(copy, *command, "replay", "--runs", tmp_path / "runs", "--json")
    assert replayed["counts"] == {"identical": 2}


def test_nothing_else_of_the_package_spells_the_parts_of_an_address() -> None:
    names = {part.name for part in PARTS if not part.label}
    spelled = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Tuple | ast.List):
                attributes = {one.attr for one in node.elts if isinstance(one, ast.Attribute)}
                if names <= attributes:
                    spelled.add(file.relative_to(PACKAGE).as_posix())
    assert spelled == {
        "engine/route.py",  # the texts of a step that are redacted
        "review/evaluation.py",  # whether a labelled row names all that a step has to have
    }


def test_every_part_is_a_key_of_routes_and_policies() -> None:
    for row in (Route, Policy):
        assert issubclass(row, AddressedRow)
        assert {part.name for part in PARTS} <= {field.name for field in dataclasses.fields(row)}
