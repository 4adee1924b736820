"""What was accepted is in force at the next `Router.open`, and every decision names its version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from router import ConfigError, Router, Step, load_catalog
from router.adapters.archive import Archive
from router.adapters.learned import save_learned
from router.cli import main
from router.core.catalog import Calibration
from router.core.learning.calibration import calibration_version
from router.core.learning.learned import Learned, known_of
from router.core.search.memory import Memory

CONFIG = Path(__file__).parent.parent.parent / "config"
pytest.importorskip("bm25s", reason="search's library is not installed")


def test_accepted_memory_and_thresholds_are_used_and_named_in_the_decision(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    plain = load_catalog(config)
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    weights = (("agreement", 1.0), ("margin", 4.0))
    calibration = Calibration(calibration_version(bias=-2.0, weights=weights, labels=400), 400, -2.0, weights)
    save_learned(config, Learned(memory, known_of(memory, plain), calibration))

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
    save_learned(config, Learned(memory, known_of(memory, load_catalog(config))))
    after = found()
    assert (before["ranked"], before["memory"]) == ([], None)
    assert ([row["id"] for row in after["ranked"]], after["memory"]) == (["docs.fetch"], memory.revision)
    assert main(asked) == 0
    assert f"with the memory in force, {memory.revision[:19]}" in capsys.readouterr().out
    assert main([*asked, "--tools", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "tools", "ranked": [], "search": None, "memory": None}


def test_a_learned_file_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config"
    shutil.copytree(CONFIG, config)
    memory = Memory({"gizmo": {"docs.fetch": 3.0}}, {"gizmo": 1.0}, 1.0, 40)
    (path,) = save_learned(config, Learned(memory, known_of(memory, load_catalog(config))))
    path.write_text(path.read_text("utf-8").replace("3.0", "9.0"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"learned/memory\.json"):
        Router.open(config, runs=tmp_path / "runs", workspace=tmp_path)
