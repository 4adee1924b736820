"""Runs that earlier versions recorded still verify and replay, and catalogs keep their revisions,
byte for byte.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from bundle_router import load_catalog
from bundle_router.cli import main
from bundle_router.core.records.call_records import read_record
from bundle_router.core.records.chain import FILES, encode_record, seal_text, unseal, with_opening
from bundle_router.core.records.replayed import catalog_from

RECORDED = Path(__file__).parents[2] / "data" / "runs"
RUNS = sorted(RECORDED.glob("0.1.0-first-layout/*/run.json"))
EARLY = RECORDED / "0.1.0-early"
SHIPPED = "sha256:61e34b3d6e3868d0988a780797742703a079c6d0228589791a8cabc4959b1e38"
"""The revision of the shipped config. It changes when that config does, and with nothing else."""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for recorded in RUNS:
        shutil.copytree(recorded.parent, folder / recorded.parent.name)
    return folder


def test_every_recorded_run_verifies(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "verify", "--runs", str(runs)]) == 0
    assert f"{len(RUNS)} of {len(RUNS)} runs are as they were written" in capsys.readouterr().out


def test_every_recorded_decision_is_taken_again_as_it_was(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--runs", str(runs), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["counts"] == {"identical": 8}


def test_runs_of_before_the_first_kept_layout_verify_and_show_what_they_showed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = shutil.copytree(EARLY, tmp_path / "runs")
    assert main(["runs", "verify", "--runs", str(runs)]) == 0
    capsys.readouterr()
    assert main(["replay", "--runs", str(runs)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("7 decisions: 5 same bundles, 2 identical\n")
    assert "5 of runs by an early version differ in details alone: activation, left_out" in said
    assert main(["replay", "--runs", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differing"] == []
    assert [(row["run_id"], row["seq"], row["differs"]) for row in found["early"]] == [
        ("early", 0, ["activation"]), ("early", 3, ["activation"]), ("early", 5, ["left_out"]),
        ("early", 7, ["activation"]), ("early-sub", 0, ["left_out"]),
    ]  # fmt: skip


def test_other_bundles_fail_a_replay_of_an_early_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = shutil.copytree(EARLY, tmp_path / "runs")
    path = runs / "early-sub" / "routing.jsonl"
    path.write_text(
        path.read_text("utf-8").replace(
            '"id":"workspace.exec","rank":2', '"id":"docs.fetch","rank":2'
        )
    )
    assert main(["replay", "--runs", str(runs), "early-sub", "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["differing"]
    assert (row["outcome"], row["gained"], row["lost"]) == (
        "changed",
        ["workspace.exec"],
        ["docs.fetch"],
    )


@pytest.mark.parametrize("recorded", RUNS, ids=lambda path: path.parent.name)
def test_a_recorded_catalog_keeps_its_revision(recorded: Path) -> None:
    header = json.loads(recorded.read_text("utf-8"))
    catalog = catalog_from(json.loads((recorded.parent / "catalog.json").read_text("utf-8")))
    assert catalog.revision == header["catalog_revision"]


def test_the_shipped_config_keeps_its_revision() -> None:
    assert load_catalog(None).revision == SHIPPED


@pytest.mark.parametrize("recorded", RUNS, ids=lambda path: path.parent.name)
def test_every_recorded_line_is_written_again_byte_for_byte(recorded: Path) -> None:
    for name in FILES.values():
        for line in (recorded.parent / name).read_bytes().splitlines(keepends=True):
            assert rewritten(line) == line


def rewritten(line: bytes) -> bytes:
    """The line as this version would write its record."""
    sealed = unseal(line)
    value = read_record(sealed.record)
    assert value is not None
    text = encode_record(value.to_json())
    opening = sealed.record.get("run_json")
    return seal_text(
        text if opening is None else with_opening(text, opening), sealed.seq, sealed.prev
    )[0]
