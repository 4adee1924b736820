"""`bundle-router diff`: what an edit widens, in words, in JSON and in the exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.command_line import Shell, on_a_terminal, run

POLICY = """\
[[policies]]
name = "readers"
role = "reviewer"
allow = ["bundle:repo.readonly"]

[[policies]]
name = "makers"
role = "implementer"
allow = ["bundle:repo.readonly", "bundle:workspace.exec"]
"""
WIDER = POLICY.replace(
    '"bundle:repo.readonly"]', '"bundle:repo.readonly", "bundle:workspace.exec"]', 1
)


@pytest.fixture
def two(tmp_path: Path) -> Shell:
    """`old` and `new`: reviewers may run programs in the new one."""
    for name, text in (("old", POLICY), ("new", WIDER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.toml").write_text(text, encoding="utf-8")
    return Shell(tmp_path)


def test_a_widening_is_said_with_file_and_line_and_fails(two: Shell) -> None:
    said = two("diff", "old", "new", code=1).stdout.splitlines()
    assert said == [
        "widening (1)",
        (
            "+ may call workspace.binaries, workspace.exec, workspace.write_file of workspace.exec"
            " (can stay from an earlier step of the run; shown direct)  WRITES EXECUTES"
        ),
        "    at any workflow · role reviewer · any step",
        "    because policy 'readers' changed (new/policy.toml:1)",
        (
            "1 widening, 0 narrowing, 0 neutral; 18 addresses (3 kinds of workflow, 6 of role, 1 of"
            " step)"
        ),
    ]


def test_the_reverse_is_narrowing_and_passes(two: Shell) -> None:
    said = two("diff", "new", "old").stdout
    assert "narrowing (1)\n- may no longer call workspace.binaries" in said
    assert "policy 'readers' changed (old/policy.toml:1)" in said


def test_no_difference_is_said(two: Shell) -> None:
    assert "no difference in powers; 18 addresses" in two("diff", "old", "old").stdout


def test_json_has_the_rows_and_whether_anything_widens(two: Shell) -> None:
    said = two.json("diff", "old", "new", code=1)
    assert said["widens"] is True
    assert said["addresses"] == 18
    (row,) = said["rows"]
    assert row["kind"] == "widening"
    assert row["addresses"] == [{"workflow": ["any"], "role": ["reviewer"], "step": ["any"]}]
    assert row["edits"] == [{"edit": "policy 'readers' changed", "place": "new/policy.toml:1"}]


def test_a_reason_allows_a_widening_and_is_kept_beside_the_config(two: Shell) -> None:
    said = two("diff", "old", "new", "--allow-widening", "reviewers run the tests since May").stdout
    assert "kept in new/changes.jsonl" in said
    (line,) = (two.folder / "new" / "changes.jsonl").read_text(encoding="utf-8").splitlines()
    assert '"files"' not in line, "no file was edited with it"
    kept = json.loads(line)
    assert (kept["type"], kept["reason"]) == (
        "widening.allowed",
        "reviewers run the tests since May",
    )
    assert kept["widening"][0].endswith("any × reviewer × any")
    # It says what happened and permits nothing.
    two("diff", "old", "new", code=1)
    two("check", "--config", "new")


def test_an_empty_reason_is_none(two: Shell) -> None:
    assert "needs a reason" in two("diff", "old", "new", "--allow-widening", " ", code=3).stderr
    assert not (two.folder / "new" / "changes.jsonl").exists()


def test_nothing_is_kept_where_nothing_widens(two: Shell) -> None:
    two("diff", "new", "old", "--allow-widening", "why not")
    assert not (two.folder / "old" / "changes.jsonl").exists()


def test_an_invalid_config_is_no_comparison(two: Shell) -> None:
    (two.folder / "new" / "policy.toml").write_text("policies = 1\n", encoding="utf-8")
    assert "new/policy.toml:1" in two("diff", "old", "new", code=2).stderr


@pytest.mark.parametrize("columns", [60, 120])
def test_it_is_read_on_a_terminal_of_any_width(two: Shell, columns: int) -> None:
    shown = on_a_terminal(two.folder, "diff", "new", "old", columns=columns)
    assert (
        max(len(line) for line in shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())
        < columns
    )
    assert "workspace.write_file" in shown


def commit_all(folder: Path) -> None:
    """Make a git repository of a folder, with one commit of all that is in it."""
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=folder, check=True)


def test_a_git_revision_is_compared_with_the_folder_of_today(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    policy = tmp_path / "config" / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")
    commit_all(tmp_path)
    policy.write_text(WIDER, encoding="utf-8")
    said = run(tmp_path, "diff", "HEAD", code=1).stdout
    assert "because policy 'readers' changed (config/policy.toml:1)" in said
    assert (
        "policy 'readers' changed (HEAD:config/policy.toml:1)"
        in run(tmp_path, "diff", "config", "HEAD:config").stdout
    )
    assert (
        "no such folder, and git has no such revision: "
        in run(tmp_path, "diff", "no-such-revision", code=3).stderr
    )
    assert "holds 'elsewhere'" in run(tmp_path, "diff", "HEAD:elsewhere", code=3).stderr


def test_a_problem_of_a_git_revision_is_named_by_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    policy = tmp_path / "config" / "policy.toml"
    policy.write_text("x = [", encoding="utf-8")
    commit_all(tmp_path)
    policy.write_text(POLICY, encoding="utf-8")
    said = run(tmp_path, "diff", "HEAD", code=2).stderr
    assert "  HEAD:config/policy.toml:1:1: the list of x does not end" in said
