"""What was accepted is in force at the next `Router.open`, and every decision names its version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step, load_catalog
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.learned_files import save_learned
from bundle_router.cli import main
from bundle_router.core.catalog import Calibration
from bundle_router.core.search.learned_values import (
    LearnedValues,
    calibration_version,
    known_of,
    known_tools_of,
)
from bundle_router.core.search.memory import Memory
from bundle_router.errors import ConfigError
from bundle_router.testing import FakeClock, FakeDiagnostics
from bundle_router.wiring.catalogs import load_remembering
from bundle_router.wiring.searching import open_selector, open_tool_search

CONFIG = Path(__file__).parents[2] / "config"
pytest.importorskip("bm25s", reason="search's library is not installed")


def test_accepted_memory_and_thresholds_are_used_and_named_in_the_decision(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    plain = load_catalog(config)
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    weights = (("agreement", 1.0), ("margin", 4.0))
    calibration = Calibration(
        calibration_version(bias=-2.0, weights=weights, labels=400), 400, -2.0, weights
    )
    save_learned(config, LearnedValues(memory, known_of(memory, plain), calibration))

    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        assert router.catalog.revision != plain.revision
        router.route_sync(Step(run_id="r", workflow="w", role="researcher", step="s", goal="gizmo"))
    (record,) = Archive(tmp_path / "runs").records("r")
    revisions = {row["name"]: row["revision"] for row in record["facts"]["revisions"]}
    assert revisions["memory"] == memory.revision
    assert revisions["thresholds"] == calibration.version


def test_search_ranks_bundles_with_the_memory_in_force_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    asked = ["search", "gizmo", "--config", str(config)]

    def found() -> dict[str, Any]:
        assert main([*asked, "--json"]) == 0
        printed: dict[str, Any] = json.loads(capsys.readouterr().out)
        return printed

    before = found()
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    save_learned(config, LearnedValues(memory, known_of(memory, load_catalog(config))))
    after = found()
    assert (before["ranked"], before["memory"]) == ([], None)
    assert ([row["id"] for row in after["ranked"]], after["memory"]) == (
        ["docs.fetch"],
        memory.revision,
    )
    assert main(asked) == 0
    assert f"with the memory in force, {memory.revision[:19]}" in capsys.readouterr().out
    assert main([*asked, "--tools", "--json"]) == 0
    tools = json.loads(capsys.readouterr().out)
    assert tools == {
        "kind": "tools",
        "ranked": [],
        "search": None,
        "memory": memory.revision,
        "tools": None,
    }


def test_search_tools_ranks_a_tool_by_its_bundle_with_the_memory_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    catalog = load_catalog(config)
    tools = catalog.bundles["docs.fetch"].tools + catalog.bundles["repo.readonly"].tools

    def found() -> tuple[str, str]:
        """First of what the command ranks, and of what an agent's search does, in a router over
        this config.
        """
        assert main(["search", "read the gizmo", "--tools", "--json", "--config", str(config)]) == 0
        (first, *_) = json.loads(capsys.readouterr().out)["ranked"]
        runs = tmp_path / "runs"
        selector = open_selector(
            catalog, runs, FakeClock(), FakeDiagnostics(), load_remembering(config)[1]
        )
        search = open_tool_search(selector, FakeDiagnostics())
        (asked, *_) = search.rank_tools(catalog, "read the gizmo", frozenset(tools), 5) or ("",)
        return first["id"], asked

    assert found() == ("repo.read_file", "repo.read_file")
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    save_learned(config, LearnedValues(memory, known_of(memory, catalog)))
    assert found() == ("docs.fetch", "docs.fetch")
    of_tools = Memory({"gizmo": {"repo.list_dir": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    save_learned(
        config, LearnedValues(tools=of_tools, known_tools=known_tools_of(of_tools, catalog))
    )
    assert found() == ("repo.list_dir", "repo.list_dir")
    other = tuple((name, "sha256:0") for name, _ in known_tools_of(of_tools, catalog))
    save_learned(config, LearnedValues(tools=of_tools, known_tools=other))
    assert found() == ("repo.read_file", "repo.read_file"), "a tool that is no longer what it was"


def test_a_learned_file_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    (path,) = save_learned(config, LearnedValues(memory, known_of(memory, load_catalog(config))))
    path.write_text(path.read_text("utf-8").replace("3.0", "9.0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"learned/memory\.json"):
        Router.open(config, runs=tmp_path / "runs", workspace=tmp_path)
