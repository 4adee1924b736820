"""`bundle-router allow`: shows what it widens, and writes it only when told to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line import Shell

POLICY = (
    '[[policies]]\nname = "all"\nrole = ["planner", "clerk"]  # ours\nallow = ["bundle:repo.*"]\n'
)
ROUTES = '[[routes]]\nname = "all"\nbundles = ["repo.readonly"]\n'
ALLOW = ("allow", "docs.fetch", "--role", "clerk")


@pytest.fixture
def project(tmp_path: Path) -> Shell:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "policy.toml").write_text(POLICY, encoding="utf-8")
    (tmp_path / "config" / "routes.toml").write_text(ROUTES, encoding="utf-8")
    return Shell(tmp_path)


def test_without_yes_the_widening_is_shown_and_nothing_is_written(
    project: Shell, tmp_path: Path
) -> None:
    said = project(*ALLOW, code=1).stdout
    assert "widening" in said
    assert "role clerk" in said
    assert "role planner" not in said
    assert (
        "nothing was written: --yes writes this to config/policy.toml and config/routes.toml"
        in said
    )
    assert (tmp_path / "config" / "policy.toml").read_text(encoding="utf-8") == POLICY


def test_with_yes_the_role_gets_the_bundle_and_the_change_can_be_undone(
    project: Shell, tmp_path: Path
) -> None:
    assert "written: config/policy.toml, config/routes.toml" in project(*ALLOW, "--yes").stdout
    text = (tmp_path / "config" / "policy.toml").read_text(encoding="utf-8")
    assert text.startswith(POLICY.replace('["planner", "clerk"]', '"planner"'))
    step = ("--workflow", "w", "--role", "clerk", "--step", "s")
    assert [
        bundle["id"] for bundle in project.json("route", "--run", "r", *step)["decision"]["bundles"]
    ] == [
        "repo.readonly",
        "docs.fetch",
    ]
    (line,) = (tmp_path / "config" / "changes.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["reason"] == "bundle-router allow docs.fetch --role clerk"
    assert "may have 'docs.fetch' already" in project(*ALLOW).stdout


def test_without_a_route_the_bundle_is_permitted_alone(project: Shell, tmp_path: Path) -> None:
    said = project(*ALLOW, "--no-route", "--yes").stdout
    assert "written: config/policy.toml" in said
    assert "routes.toml" not in said
    assert (tmp_path / "config" / "routes.toml").read_text(encoding="utf-8") == ROUTES
    (line,) = (tmp_path / "config" / "changes.jsonl").read_text(encoding="utf-8").splitlines()
    reason = "bundle-router allow docs.fetch --role clerk --no-route"
    assert json.loads(line)["reason"] == reason


def test_an_unknown_bundle_is_named_with_the_nearest_one(project: Shell) -> None:
    said = project("allow", "docs.fetsh", "--role", "clerk", "--yes", code=3).stderr
    assert "no bundle is called 'docs.fetsh'" in said
    assert "did you mean 'docs.fetch'?" in said


def test_without_a_config_folder_there_is_nothing_to_write_to(tmp_path: Path) -> None:
    said = Shell(tmp_path)(*ALLOW, code=3).stderr
    assert "bundle-router init" in said
