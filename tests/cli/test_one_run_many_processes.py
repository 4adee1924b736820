"""One run id, several processes at once, each with its own config: every decision is its own
config's, none lost.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import RequestError, RouterError

from tests.command_line import run

STEP = (
    "--workflow",
    "feature",
    "--role",
    "implementer",
    "--step",
    "edit",
    "--run",
    "shared",
    "--runs",
    "../runs",
)


def project(folder: Path, allow: str) -> Path:
    """Return a folder whose policy lets everybody have one bundle."""
    config = folder / "config"
    config.mkdir(parents=True)
    (config / "policy.toml").write_text(f'[[policies]]\nname = "p"\nallow = ["{allow}"]\n')
    (config / "routes.toml").write_text(
        '[[routes]]\nname = "all"\nbundles = ["repo.readonly", "docs.fetch"]\n'
    )
    return folder


def test_processes_with_other_configs_share_a_run_and_widen_nothing(tmp_path: Path) -> None:
    allowed = ["repo.readonly", "docs.fetch"] * 2
    command = [sys.executable, "-m", "bundle_router", "route", *STEP, "--json"]
    begun = [
        subprocess.Popen(
            command,
            cwd=project(tmp_path / str(number), f"bundle:{allow}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, allow in enumerate(allowed)
    ]
    done = [process.communicate(timeout=300) for process in begun]
    assert [error for _, error in done] == [""] * 4
    decided = [json.loads(said) for said, _ in done]
    assert [process.returncode for process in begun] == [0] * 4
    assert sorted(one["seq"] for one in decided) == [0, 1, 2, 3]
    for one, allow in zip(decided, allowed, strict=True):
        shown = [bundle["id"] for bundle in one["decision"]["bundles"]]
        assert shown == [allow], (
            "what another process may have is not brought in by the run they share"
        )
    assert decided[0]["catalog_revision"] != decided[1]["catalog_revision"]
    run(tmp_path / "0", "runs", "verify", "--runs", tmp_path / "runs")
    run(tmp_path / "0", "replay", "shared", "--runs", tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("policy.toml", "", "is empty: it may be half written"),
        ("policy.toml", "# nothing\n", ""),
        (
            "servers.toml",
            '[servers.repo]\ntransport = "local"\n',
            "is a glob, and server 'repo' is untrusted",
        ),
        (
            "servers.toml",
            '[servers.docs]\nurl = "https://evil.example.org/mcp"\ntrust = "trusted"\n',
            "",
        ),
        ("bundles.toml", '[bundles."repo.readonly"]\nenabled = false\n', "description: is missing"),
    ],
)
def test_a_project_file_over_the_shipped_ones_never_widens_by_what_it_leaves_out(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """An empty policy allows nothing, half an entry is refused, and a taken-over server has only
    what is pinned.
    """
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / name).write_text(text)
    if name == "servers.toml" and "repo" in text:
        (tmp_path / "config" / "bundles.toml").write_text(
            '[bundles."repo.readonly"]\ndescription = "x"\ntools = ["repo.*"]\neffects = ["read"]\n'
        )
    code = 2 if said else 0
    checked = run(tmp_path, "check", code=code).stdout
    assert said in checked
    if not said:
        decided = run(tmp_path, "route", *STEP[:6], "--json").stdout
        shown = json.loads(decided)["decision"]
        tools = run(tmp_path, "tools", "--run", json.loads(decided)["run_id"], "--json").stdout
        assert "docs.fetch" not in tools or name != "servers.toml"
        assert shown["bundles"] == [] or name != "policy.toml"


def opened(folder: Path, workspace: Path, allow: str) -> Router:
    """A router of a project of its own, over runs and a workspace that others share."""
    root = project(folder, allow)
    (root / "config" / "routes.toml").write_text(
        '[[routes]]\nname = "all"\nbundles = ["repo.readonly", "workspace.exec"]\n'
    )
    return Router.open(root / "config", runs=folder.parent / "runs", workspace=workspace)


def step(run_id: str = "r", **more: Any) -> Step:
    return Step(run_id=run_id, workflow="feature", role="implementer", step="edit", **more)


WRITE = ("workspace.write_file", {"path": "made.txt", "content": "x"})


def test_a_wider_config_brings_nothing_into_a_run_and_takes_nothing_out_of_it(
    tmp_path: Path,
) -> None:
    (shared := tmp_path / "shared").mkdir()
    with (
        opened(tmp_path / "a", shared, "bundle:repo.readonly") as narrow,
        opened(tmp_path / "b", shared, "*") as wide,
    ):
        first = narrow.route_sync(step(key="k"))
        narrow.route_sync(step("child", parent_run_id="r"))
        for run_id in ("r", "child"):
            assert wide.call_sync(run_id, *WRITE).outcome == "denied"
        assert wide.route_sync(step(key="k")) == first, "recorded is recorded"
        assert "workspace.exec" in wide.route_sync(step()).bundle_ids
        for run_id in ("r", "child"):
            assert narrow.call_sync(run_id, *WRITE).outcome == "denied"
        with pytest.raises(RequestError, match="routed again"):
            narrow.tools_sync("r")
        assert narrow.route_sync(step("child")).bundle_ids == ["repo.readonly"]
        assert not (shared / "made.txt").exists()


def test_a_run_that_was_pruned_and_made_anew_has_nothing_of_the_first(tmp_path: Path) -> None:
    (shared := tmp_path / "shared").mkdir()
    (shared / "long.txt").write_text("of the first\n" * 20_000)
    with (
        opened(tmp_path / "a", shared, "*") as first,
        opened(tmp_path / "b", shared, "*") as second,
    ):
        old = first.route_sync(step(key="k", principal="ann"))
        read = first.call_sync("r", "repo.read_file", {"path": "long.txt", "end": 19_000}, key="c")
        assert read.artifacts, read.text[:300]
        assert first.artifact("r", read.artifacts[0].uri)
        first.close_run_sync("r")
        pruned = run(
            tmp_path / "a",
            "runs",
            "prune",
            "--max-size",
            "0B",
            "--runs",
            tmp_path / "runs",
            "--json",
        )
        assert json.loads(pruned.stdout)["deleted"]
        new = second.route_sync(step(key="k", principal="bob"))
        assert new.decision_id != old.decision_id
        (shared / "long.txt").write_text("of the second\n")
        for router in (first, second):
            assert (
                "of the second"
                in router.call_sync("r", "repo.read_file", {"path": "long.txt"}, key="c").text
            )
            with pytest.raises(RouterError):
                router.call_sync(
                    "r", "repo.read_file", {"path": "long.txt"}, decision=old.decision_id
                )
            with pytest.raises(RouterError):
                router.artifact("r", read.artifacts[0].uri)
