"""One run id, several processes at once, each with its own config: every decision is its own config's, none lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run

STEP = ("--workflow", "feature", "--role", "implementer", "--step", "edit", "--run", "shared", "--runs", "../runs")


def project(folder: Path, allow: str) -> Path:
    """Return a folder whose policy lets everybody have one bundle."""
    config = folder / "config"
    config.mkdir(parents=True)
    (config / "policy.toml").write_text(f'[[policies]]\nname = "p"\nallow = ["bundle:{allow}"]\n')
    (config / "routes.toml").write_text('[[routes]]\nname = "all"\nbundles = ["repo.readonly", "docs.fetch"]\n')
    return folder


def test_processes_with_other_configs_share_a_run_and_widen_nothing(tmp_path: Path) -> None:
    allowed = ["repo.readonly", "docs.fetch"] * 2
    command = [sys.executable, "-m", "bundle_router", "route", *STEP, "--json"]
    begun = [
        subprocess.Popen(
            command,
            cwd=project(tmp_path / str(number), allow),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, allow in enumerate(allowed)
    ]
    done = [process.communicate(timeout=120) for process in begun]
    assert [error for _, error in done] == [""] * 4
    decided = [json.loads(said) for said, _ in done]
    assert [process.returncode for process in begun] == [0] * 4
    assert sorted(one["seq"] for one in decided) == [0, 1, 2, 3]
    for one, allow in zip(decided, allowed, strict=True):
        shown = [bundle["id"] for bundle in one["decision"]["bundles"]]
        assert shown == [allow], "what another process may have is not brought in by the run they share"
    assert decided[0]["catalog_revision"] != decided[1]["catalog_revision"]
    run(tmp_path / "0", "runs", "verify", "--runs", tmp_path / "runs")
    run(tmp_path / "0", "replay", "shared", "--runs", tmp_path / "runs")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("policy.toml", "", "is empty: it may be half written"),
        ("policy.toml", "# nothing\n", ""),
        ("servers.toml", '[servers.repo]\ntransport = "local"\n', "is a glob, and server 'repo' is untrusted"),
        ("servers.toml", '[servers.docs]\nurl = "https://evil.example.org/mcp"\ntrust = "trusted"\n', ""),
        ("bundles.toml", '[bundles."repo.readonly"]\nenabled = false\n', "description: is missing"),
    ],
)
def test_a_project_file_over_the_shipped_ones_never_widens_by_what_it_leaves_out(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    """An empty policy allows nothing, half an entry is refused, and a taken-over server has only what is pinned."""
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
