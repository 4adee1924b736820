"""`bundle-router approvals`: what waits on a store is listed, shown and answered there."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_router import Router, Step

from tests.command_line import ROOT, json_of, run

ROW = """
[[approvals]]
name = "files outside docs"
calls = ["tool:repo.read_file"]
unless = [{ at = "/path", below = "docs" }]
message = "Look at the path."
"""
NAMED = ROW + 'approvers = ["role:lead"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a run in which a call waits."""
    (tmp_path / "config").mkdir()
    write_rows(tmp_path, ROW)
    (tmp_path / "README.md").write_text("# Hello", encoding="utf-8")
    with open_router(tmp_path) as router:
        router.route_sync(Step(run_id="r-42", workflow="feature", role="planner", step="plan"))
        assert router.call_sync("r-42", "repo.read_file", {"path": "README.md"}, key="k").approval
    return tmp_path


def write_rows(folder: Path, rows: str) -> None:
    shipped = (ROOT / "config" / "policy.toml").read_text(encoding="utf-8")
    (folder / "config" / "policy.toml").write_text(shipped + rows, encoding="utf-8")


def open_router(folder: Path) -> Router:
    return Router.open(folder / "config", runs=folder / "runs", workspace=folder)


def waiting(folder: Path) -> str:
    (question,) = json_of(folder, "approvals", "list")
    return str(question["id"])


def test_a_call_that_waits_is_listed_shown_granted_and_runs(folder: Path) -> None:
    listed = run(folder, "approvals", "list").stdout
    assert listed.startswith("1 call waiting\n")
    id_ = waiting(folder)
    shown = run(folder, "approvals", "show", id_).stdout
    assert '{"path":"README.md"}' in shown
    assert "look at    Look at the path." in shown
    refused = run(folder, "approvals", "grant", id_, code=3)
    assert "an answer on the store itself needs --here" in refused.stderr
    granted = json_of(folder, "approvals", "grant", id_, "--here")
    assert granted["state"] == "granted"
    assert granted["granted_by"][0].startswith("local:")
    with open_router(folder) as router:
        result = router.call_sync("r-42", "repo.read_file", {"path": "README.md"}, key="k")
    assert "# Hello" in result.text
    assert "approval" in run(folder, "runs", "show", "r-42").stdout


def test_a_call_is_refused_and_withdrawn_and_a_binding_is_compared(folder: Path) -> None:
    id_ = waiting(folder)
    other = run(folder, "approvals", "grant", id_, "--here", "--binding", "sha256:0", code=3)
    assert "another call than the one that was shown" in other.stderr
    run(folder, "approvals", "refuse", id_, "--here", "--reason", "no", "--advice", "read docs")
    assert "refused    no read docs" in run(folder, "approvals", "show", id_).stdout
    again = run(folder, "approvals", "withdraw", id_, "--here", code=3)
    assert "is refused" in again.stderr
    assert run(folder, "approvals", "list", "--state", "all").stdout.startswith("1 call\n")


def test_where_a_row_names_approvers_nobody_answers_on_the_store(folder: Path) -> None:
    write_rows(folder, NAMED)
    with open_router(folder) as router:
        router.route_sync(Step(run_id="r-42", workflow="feature", role="planner", step="plan"))
        asked = router.call_sync("r-42", "repo.read_file", {"path": "README.md"}, key="k2")
    assert asked.approval is not None
    refused = run(folder, "approvals", "grant", asked.approval.id, "--here", code=3)
    assert "may not answer" in refused.stderr
