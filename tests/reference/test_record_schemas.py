"""Records have JSON Schemas, which are those of the records that are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.cli import main
from bundle_router.core.records.call_records import SubRunOpened
from bundle_router.core.records.heads import StoredHead
from bundle_router.core.records.receipt import make_receipt
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.records.written_records import RECORDS

from tests import schema_check
from tests.reference.record_schemas import SCHEMAS, schema_texts
from tests.schema_check import misfits_of

RECORDED = Path(__file__).parents[1] / "data" / "runs" / "0.1.0-first-layout"


def test_the_stored_schemas_are_those_of_the_records() -> None:
    stored = {path.name: path.read_text("utf-8") for path in SCHEMAS.iterdir()}
    assert stored == schema_texts(), "run .ci/generate"


def lines_of(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(RECORDED.glob(f"*/{name}"))
        for line in path.read_text("utf-8").splitlines()
    ]


def test_every_record_that_an_earlier_version_wrote_fits_its_schema() -> None:
    records = [*lines_of("routing.jsonl"), *lines_of("tool-calls.jsonl")]
    assert {record["type"] for record in records} == {
        "route.decided",
        "call.started",
        "call.finished",
    }
    headers = [json.loads(path.read_text("utf-8")) for path in RECORDED.glob("*/run.json")]
    assert len(headers) == 3
    misfits = [misfits_of(record["type"], record) for record in records]
    misfits += [misfits_of("run", header) for header in headers]
    assert [found for found in misfits if found] == []


def test_what_is_written_beside_the_log_fits_its_schema() -> None:
    label = StepLabel(decision_id="r.ab.0", needed=("repo.readonly",), by="ann", time="now")
    assert misfits_of("label", label.model_dump(mode="json", by_alias=True)) == []
    head = StoredHead("r", 1, 2, "sha256:0").sign(b"key")
    assert misfits_of("head", json.loads(head.to_line())) == []
    line = (RECORDED / "golden" / "routing.jsonl").read_text("utf-8").splitlines()[0]
    assert misfits_of("receipt", make_receipt(RunHeader({}), [line], {}, "sha256:0")) == []


@pytest.mark.parametrize(
    ("changed", "misfit"),
    [
        ({"added": 1}, "Additional properties are not allowed ('added' was unexpected)"),
        ({"sub_run_id": 5}, '5 is not of type "string"'),
        ({"type": "sub_run.closed"}, '"sub_run.closed" is not one of'),
    ],
)
def test_a_record_with_a_field_that_its_schema_does_not_have_is_found(
    changed: dict[str, Any], misfit: str
) -> None:
    record = SubRunOpened(run_id="r", sub_run_id="s", time="now").to_json()
    record |= {"seq": 3, "prev": "sha256:0", "hash": "sha256:1"}
    assert misfits_of("sub_run.opened", record) == []
    (found,) = misfits_of("sub_run.opened", record | changed)
    assert misfit in found


def test_each_record_that_a_test_writes_is_checked() -> None:
    wrong: Any = 5
    SubRunOpened(run_id=wrong, sub_run_id="s", time="now").to_json()
    RunHeader({"bundle_router": "0.1.0", "run_id": "r", "schema": "other"}).sealed()
    misfits = schema_check.MISFITS.copy()
    schema_check.MISFITS.clear()
    assert misfits[0] == 'sub_run.opened: run_id: 5 is not of type "string"'
    assert any(text.startswith("run: schema:") for text in misfits[1:])


def test_the_command_prints_a_schema_or_names_the_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    types = [record.type for record in RECORDS]
    assert main(["runs", "schema", "route.decided"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["left_out"]["description"] == (
        "Bundles and tools that are not shown, each with the first test it failed."
    )
    assert main(["runs", "schema"]) == 0
    listed = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in listed] == types
    assert main(["runs", "schema", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == types
    assert main(["runs", "schema", "call.strated"]) == 3
    said = capsys.readouterr().err
    assert "did you mean 'call.started'?" in said
    assert ", ".join(types) in said


def test_the_step_that_is_recorded_has_every_field_of_a_step() -> None:
    schema = next(record for record in RECORDS if record.type == "route.decided").form()
    beside = {"run_id", "principal", "key", "branch", "parent_decision_id", "fixed_list"}
    assert {*schema["step"].form, *beside} == {*Step.model_fields}
    assert beside <= schema.keys()
