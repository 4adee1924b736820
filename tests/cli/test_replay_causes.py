"""`replay --config`: what an edit would have changed, grouped by the edit that changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from bundle_router import Router, Step

from tests.command_line import ROOT, Shell, json_of, on_a_terminal

STEPS = (
    ("feature", "planner", "plan"), ("feature", "reviewer", "review"), ("feature", "implementer", "edit"),
)  # fmt: skip

DENYING = 'name = "reviewers read"\ndeny = ["bundle:docs.fetch"]'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs of three steps each, under the shipped config."""
    folder = tmp_path_factory.mktemp("recorded")
    shutil.copytree(ROOT / "config", folder / "config")
    with Router.open(folder / "config", runs=folder / "runs", workspace=folder) as router:
        for number in range(4):
            for workflow, role, step in STEPS:
                router.route_sync(
                    Step(run_id=f"r-{number}", workflow=workflow, role=role, step=step)
                )
    return folder


@pytest.fixture
def shell(recorded: Path, tmp_path: Path) -> Shell:
    """The runs, and a config of one's own to edit."""
    (tmp_path / "runs").symlink_to(recorded / "runs")
    shutil.copytree(recorded / "config", tmp_path / "config")
    return Shell(tmp_path)


def edit(shell: Shell, name: str, before: str, after: str) -> int:
    """Replace a text once, and return the line it stands in."""
    path = shell.folder / "config" / name
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after), encoding="utf-8")
    return text.count("\n", 0, text.index(before)) + 1


def test_a_change_is_put_down_to_the_edit_that_made_it(shell: Shell) -> None:
    line = edit(
        shell,
        "policy.toml",
        'name = "reviewers read"',
        'name = "reviewers read"\ndeny = ["bundle:docs.fetch"]',
    )
    edit(shell, "bundles.toml", '"repo.git_log", "repo.git_diff"]', '"repo.git_log"]')
    edit(shell, "router.toml", "recent_steps = 5", "recent_steps = 4")
    said = json_of(shell.folder, "replay", "--config", "config", code=1)
    by_edit = {group["edits"][0]["edit"]: group for group in said["groups"]}
    assert set(by_edit) == {"policy 'reviewers read' changed", "bundle 'repo.readonly' changed"}
    denied = by_edit["policy 'reviewers read' changed"]
    assert denied["edits"] == [
        {"edit": "policy 'reviewers read' changed", "place": f"config/policy.toml:{line - 1}"}
    ]
    assert (denied["decisions"], denied["together"], denied["known"]) == (4, False, True)
    assert denied["lost_bundle"] == [{"id": "docs.fetch", "decisions": 4}]
    assert [row["decisions"] for row in denied["lost_tool"]] == [4, 4]
    assert denied["examples"][0] == {"run_id": "r-0", "seq": 1, "workflow": "feature", "role": "reviewer",
                                     "step": "review"}  # fmt: skip
    assert by_edit["bundle 'repo.readonly' changed"]["lost_tool"] == [
        {"id": "repo.git_diff", "decisions": 12}
    ]
    assert "lost_bundle" not in by_edit["bundle 'repo.readonly' changed"]
    assert said["counts"] == {"changed": 12}


def test_what_only_two_edits_bring_about_is_put_down_to_both(shell: Shell) -> None:
    edit(shell, "policy.toml", '"bundle:docs.fetch"]\neffects = ["read", "network"]\n\n# Only',
         '"bundle:docs.fetch", "bundle:workspace.exec"]\n\n# Only')  # fmt: skip
    edit(
        shell,
        "routes.toml",
        'name = "feature-reviewer"',
        'name = "feature-reviewer"\n# also runs the tests',
    )
    path = shell.folder / "config" / "routes.toml"
    text = path.read_text(encoding="utf-8")
    head, name, tail = text.partition('name = "feature-reviewer"')
    path.write_text(
        head + name + tail.replace("bundles = [", 'bundles = ["workspace.exec", ', 1),
        encoding="utf-8",
    )
    (group,) = json_of(shell.folder, "replay", "--config", "config", code=1)["groups"]
    assert group["together"] is True
    assert [row["edit"] for row in group["edits"]] == [
        "route 'feature-reviewer' changed", "policy 'reviewers read' changed",
    ]  # fmt: skip
    assert group["gained_bundle"] == [{"id": "workspace.exec", "decisions": 4}]


def test_people_read_counts_of_bundles_and_of_tools_apart_with_examples(shell: Shell) -> None:
    edit(shell, "policy.toml", 'name = "reviewers read"', DENYING)
    said = shell("replay", "--config", "config", "--examples", "2", code=1).stdout.splitlines()
    assert said[0] == "12 decisions: 8 identical, 4 changed"
    assert said[1].startswith("because policy 'reviewers read' changed (config/policy.toml:")
    assert said[1].endswith("): 4 decisions")
    assert said[2:5] == [
        "  lose the bundle docs.fetch (4)",
        "  lose the tool docs.fetch (4), docs.search (4)",
        "  such as r-0/1 (feature / reviewer / review), r-1/1 (feature / reviewer / review), and 2 more",
    ]
    assert "  -bundle:docs.fetch -docs.fetch -docs.search  " in said[7]


def test_a_row_names_the_first_of_many_names(shell: Shell) -> None:
    ids = [f"many.b{number}" for number in range(40)]
    rows = "".join(
        f'[bundles."{id_}"]\ndescription = "b"\ntools = ["repo.read_file"]\neffects = ["read"]\n'
        for id_ in ids
    )
    bundles = shell.folder / "config" / "bundles.toml"
    bundles.write_text(f"{bundles.read_text(encoding='utf-8')}\n{rows}", encoding="utf-8")
    edit(shell, "policy.toml", '"reviewer"\nallow = [', '"reviewer"\nallow = ["bundle:many.*", ')
    named = '"feature-reviewer"\nworkflow = "feature"\nrole = "reviewer"\nbundles = ['
    edit(shell, "routes.toml", named, f"{named}{', '.join(map(repr, ids))}, ")
    lines = shell("replay", "--config", "config", code=1).stdout.splitlines()
    (row,) = (line for line in lines if line.startswith("r-0 "))
    assert "+bundle:many.b7 … 32 more  " in row
    assert max(map(len, lines)) < 500


def test_what_is_only_a_part_says_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundle_router.cli.replay.MAX_ROWS", 3)
    monkeypatch.setattr("bundle_router.review.replaying.MAX_KEPT", 5)
    edit(shell, "bundles.toml", '"repo.git_log", "repo.git_diff"]', '"repo.git_log"]')
    assert (
        "the first 3 of 12; --json lists 5" in shell("replay", "--config", "config", code=1).stdout
    )
    said = shell.json("replay", "--config", "config", code=1)
    assert (len(said["differing"]), said["differing_count"], said["shows_part"]) == (5, 12, True)


def test_the_same_config_has_no_groups(shell: Shell) -> None:
    said = shell.json("replay", "--config", "config")
    assert (said["groups"], said["counts"], said["shows_part"]) == ([], {"identical": 12}, False)


def test_a_broken_run_contributes_nothing_to_the_groups(shell: Shell, recorded: Path) -> None:
    (shell.folder / "runs").unlink()
    shutil.copytree(recorded / "runs", shell.folder / "runs")
    path = shell.folder / "runs" / "r-2" / "routing.jsonl"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"step":"edit"', '"step":7', 1), encoding="utf-8"
    )
    edit(shell, "bundles.toml", '"repo.git_log", "repo.git_diff"]', '"repo.git_log"]')
    (group,) = shell.json("replay", "--config", "config", code=5)["groups"]
    assert group["decisions"] == 9


def test_progress_is_shown_on_a_terminal(shell: Shell) -> None:
    assert "Replaying" in on_a_terminal(shell.folder, "replay", "--config", "config", columns=100)
    assert "verifying runs" in on_a_terminal(shell.folder, "runs", "verify", columns=100)
