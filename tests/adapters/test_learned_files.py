"""What was accepted, and what reviewers said, on disk: whole, versioned, and refused when it is not
what it says.
"""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router
from bundle_router.adapters.archive.label_files import FILE, append_label, read_labels
from bundle_router.adapters.learned_files import load_learned, save_learned
from bundle_router.core.catalog import Calibration
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.search.learned_values import NOTHING, LearnedValues, calibration_version
from bundle_router.core.search.memory import Memory
from bundle_router.errors import ConfigError, CorruptRun, StorageError

WEIGHTS = (("coverage", 1.5), ("margin", 4.0))
CALIBRATION = Calibration(calibration_version(-2.0, WEIGHTS, 412), 412, -2.0, WEIGHTS)
MEMORY = Memory({"snag": {"issues": 0.5}}, {"snag": 1.25, "the": 0.1}, 0.6, 40)
LEARNED = LearnedValues(MEMORY, (("issues", "sha256:1"),), CALIBRATION)


def test_what_was_accepted_is_read_back_with_its_versions(tmp_path: Path) -> None:
    written = save_learned(tmp_path, LEARNED)
    assert [path.relative_to(tmp_path).as_posix() for path in written] == [
        "learned/memory.json",
        "learned/calibration.json",
    ]
    assert load_learned(tmp_path) == LEARNED
    assert dict(load_learned(tmp_path).revisions) == {
        "memory": MEMORY.revision,
        "thresholds": CALIBRATION.version,
    }
    assert json.loads(written[0].read_text())["version"] == MEMORY.revision
    assert sorted(path.name for path in (tmp_path / "learned").iterdir()) == [
        "calibration.json",
        "memory.json",
    ]


def test_where_nothing_was_accepted_nothing_is_in_force(tmp_path: Path) -> None:
    assert (
        load_learned(None)
        == load_learned(tmp_path)
        == load_learned(tmp_path / "nowhere")
        == NOTHING
    )


def test_a_learned_file_that_is_gone_changes_nothing_while_a_router_runs(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "router.toml").write_text("# as shipped\n")
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        save_learned(config, LearnedValues(calibration=CALIBRATION))
        assert router.reload()
        (config / "learned").rename(tmp_path / "elsewhere")
        with pytest.raises(ConfigError, match=r"learned/calibration\.json: is gone"):
            router.reload()
        assert router.catalog.settings.search.calibration == CALIBRATION
        (tmp_path / "elsewhere").rename(config / "learned")
        save_learned(config, NOTHING)
        assert router.reload(), "what a person took out of force is no accident"
        assert router.catalog.settings.search.calibration is None


def test_what_is_no_longer_in_force_has_no_value(tmp_path: Path) -> None:
    save_learned(tmp_path, LEARNED)
    save_learned(tmp_path, LearnedValues(calibration=CALIBRATION))
    assert load_learned(tmp_path) == LearnedValues(calibration=CALIBRATION)
    save_learned(tmp_path, NOTHING)
    assert load_learned(tmp_path) == NOTHING


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("memory.json", lambda p: edited(p, version="sha256:0"), "changed after it was learned"),
        (
            "memory.json",
            lambda p: edited(p, memory={**MEMORY.to_json(), "trust": 9.0}),
            "changed after it was learned",
        ),
        ("memory.json", lambda p: edited(p, schema="something/9"), "its schema is 'something/9'"),
        ("memory.json", lambda p: edited(p, memory=[]), "not a learned memory"),
        ("memory.json", lambda p: p.write_bytes(p.read_bytes()[:100]), "can't be used"),
        ("memory.json", lambda p: p.write_text("[" * 100_000), "can't be used"),
        ("memory.json", lambda p: p.write_text("[]"), "it is not a JSON object"),
        ("calibration.json", lambda p: edited(p, bias=0.0), "changed after it was learned"),
        ("calibration.json", lambda p: edited(p, weights=None), "not a learned calibration"),
        ("calibration.json", lambda p: (p.unlink(), p.mkdir()), "is a directory"),
        ("calibration.json", fifo, "not a regular file"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_a_config_error(
    tmp_path: Path, name: str, spoil: Any, said: str
) -> None:
    save_learned(tmp_path, LEARNED)
    spoil(tmp_path / "learned" / name)
    with pytest.raises(ConfigError, match=said) as caught:
        load_learned(tmp_path)
    assert str(tmp_path / "learned" / name) in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "weights", "said"),
    [(12, WEIGHTS, "fewer than the 300"), (412, (("magic", 1.0),), "does not know")],
)
def test_a_calibration_that_can_not_be_in_force_is_refused(
    tmp_path: Path, labels: int, weights: tuple[tuple[str, float], ...], said: str
) -> None:
    version = calibration_version(-2.0, weights, labels)
    save_learned(tmp_path, LearnedValues(calibration=Calibration(version, labels, -2.0, weights)))
    with pytest.raises(ConfigError, match=said):
        load_learned(tmp_path)


def test_a_folder_that_can_not_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "learned").write_text("in the way")
    with pytest.raises(StorageError, match="can't be"):
        save_learned(tmp_path, LEARNED)


# --- labels.jsonl ---------------------------------------------------------------------------------


def test_labels_are_appended_privately_and_read_in_their_order(tmp_path: Path) -> None:
    said = [
        StepLabel(decision_id=f"r.{n}", needed=("mail",), by="me", time="2026-01-01T00:00:00Z")
        for n in range(3)
    ]
    for correction in said:
        append_label(tmp_path, correction)
    assert read_labels(tmp_path) == said
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    first = json.loads((tmp_path / FILE).read_text().splitlines()[0])
    assert first["schema"] == "bundle-router.label/1"
    assert set(first) == {"schema", "decision_id", "needed", "not_needed", "by", "time"}


def test_a_torn_end_never_counted_and_does_not_swallow_the_next_label(tmp_path: Path) -> None:
    append_label(tmp_path, StepLabel(decision_id="r.0", needed=("mail",)))
    with (tmp_path / FILE).open("a") as file:
        file.write('{"schema": "bundle-rou')
    assert [label.decision_id for label in read_labels(tmp_path)] == ["r.0"]
    append_label(tmp_path, StepLabel(decision_id="r.1", needed=("mail",)))
    assert [label.decision_id for label in read_labels(tmp_path)] == ["r.0", "r.1"]


def test_many_reviewers_label_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: append_label(
                    tmp_path, StepLabel(decision_id=f"r.{n}", needed=("x" * 90,))
                ),
                range(64),
            )
        )
    assert sorted(label.decision_id for label in read_labels(tmp_path)) == sorted(
        f"r.{n}" for n in range(64)
    )


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "{}",
        '{"decision_id": "r.0", "more": 1}',
        '{"schema": "x/1", "decision_id": "r"}',
    ],
)
def test_a_line_that_is_no_label_is_reported_with_its_number(tmp_path: Path, line: str) -> None:
    append_label(tmp_path, StepLabel(decision_id="r.0", needed=("mail",)))
    with (tmp_path / FILE).open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CorruptRun, match=r"labels\.jsonl:2: is not a label"):
        read_labels(tmp_path)


def test_a_link_in_place_of_the_labels_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    (tmp_path / FILE).symlink_to(elsewhere)
    with pytest.raises(StorageError):
        append_label(tmp_path, StepLabel(decision_id="r.0", needed=("mail",)))
    with pytest.raises(CorruptRun):
        read_labels(tmp_path)
    assert elsewhere.read_text() == ""
