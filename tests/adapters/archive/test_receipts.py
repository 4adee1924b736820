"""A receipt: one record with all that somebody who has nothing else needs to check it."""

from __future__ import annotations

import copy
import io
import json
import math
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.archive import Archive
from bundle_router.cli import main
from bundle_router.core.records.chain import seal, unseal
from bundle_router.core.records.receipt import check_receipt
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import CorruptRun, RequestError

RECORDED = Path(__file__).parents[2] / "data" / "runs" / "0.1.0-first-layout"
ARCHIVE = Archive(RECORDED)
RUN = ARCHIVE.run_ids()[0]


@pytest.mark.parametrize("run_id", ARCHIVE.run_ids())
def test_every_recorded_decision_has_a_receipt_that_shows_it(run_id: str) -> None:
    for record in ARCHIVE.records(run_id):
        receipt = ARCHIVE.receipt(run_id, record["seq"])
        assert receipt["schema"] == "bundle-router.receipt/2"
        assert check_receipt(json.loads(json.dumps(receipt))) == []


def line_changed(receipt: dict[str, Any]) -> None:
    receipt["line"] = receipt["line"].replace("mapping", "default")


def later_dropped(receipt: dict[str, Any]) -> None:
    del receipt["later"][1]


def head_of_another(receipt: dict[str, Any]) -> None:
    receipt["head"] = "sha256:" + "0" * 64


def run_of_another(receipt: dict[str, Any]) -> None:
    receipt["run_id"] = "another"


def seq_of_another(receipt: dict[str, Any]) -> None:
    receipt["seq"] = 3


def catalog_changed(receipt: dict[str, Any]) -> None:
    receipt["catalog"]["routes"] = []


def opening_changed(receipt: dict[str, Any]) -> None:
    receipt["run"]["workspace"] = "/elsewhere"


def opening_dropped(receipt: dict[str, Any]) -> None:
    del receipt["run"]


def end_added(receipt: dict[str, Any]) -> None:
    receipt["run"]["closed"] = "2026-11-23T00:00:00Z"


def opening_not_an_object(receipt: dict[str, Any]) -> None:
    receipt["run"] = 5


def nested_deep(receipt: dict[str, Any]) -> None:
    for _ in range(10_000):
        receipt["catalog"] = {"a": receipt["catalog"]}


def no_number(receipt: dict[str, Any]) -> None:
    receipt["catalog"]["bundles"] = math.nan


def no_number_of_the_run(receipt: dict[str, Any]) -> None:
    receipt["run"]["workspace"] = math.inf


def later_gone(receipt: dict[str, Any]) -> None:
    del receipt["later"]


def schema_of_another(receipt: dict[str, Any]) -> None:
    receipt["schema"] = "bundle-router.receipt/3"


def catalog_dropped(receipt: dict[str, Any]) -> None:
    receipt["catalog"] = None


def nothing_left(receipt: dict[str, Any]) -> None:
    receipt.clear()


CHANGES = [
    (line_changed, "not as it was written"),
    (later_dropped, "does not follow"),
    (head_of_another, "not the head"),
    (run_of_another, "the first record is that of another run"),
    (seq_of_another, "another record"),
    (catalog_changed, "catalog"),
    (catalog_dropped, "catalog"),
    (opening_changed, "opening"),
    (opening_dropped, "opening"),
    (end_added, "opening"),
    (opening_not_an_object, "opening"),
    (nested_deep, "deep"),
    (no_number, "number that is none"),
    (no_number_of_the_run, "number that is none"),
    (later_gone, "no receipt"),
    (schema_of_another, "schema"),
    (nothing_left, "no receipt"),
]


@pytest.mark.parametrize(
    ("change", "says"), CHANGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_receipt_that_was_changed_shows_nothing(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    receipt = copy.deepcopy(ARCHIVE.receipt(RUN, 0))
    change(receipt)
    assert any(says in problem for problem in check_receipt(receipt))


@pytest.mark.parametrize(
    "added", [{"run": {"workspace": "/elsewhere"}}, {"run": {}}, {"catalog": {"bundles": []}}]
)
def test_a_receipt_says_nothing_that_its_record_does_not_show(added: dict[str, Any]) -> None:
    later = next(
        record["seq"] for record in ARCHIVE.records(RUN) if record["type"] == "call.started"
    )
    receipt = ARCHIVE.receipt(RUN, later)
    assert (receipt["run"], receipt["catalog"]) == (None, None)
    assert len(check_receipt(receipt | added)) == 1


def test_a_receipt_of_the_former_schema_is_checked_as_it_was() -> None:
    fields = dict(ARCHIVE.header(RUN).fields)
    for seq in range(3):
        receipt = ARCHIVE.receipt(RUN, seq) | {"schema": "bundle-router.receipt/1", "run": fields}
        assert check_receipt(receipt) == []
        if seq == 0:
            assert any("opening" in problem for problem in check_receipt(receipt | {"run": None}))


def test_a_receipt_of_a_later_record_names_the_run_it_is_of() -> None:
    receipt = ARCHIVE.receipt(RUN, 1)
    receipt["run_id"] = "another"
    assert "the line is that of another record" in check_receipt(receipt)


def test_a_decision_that_was_rewritten_with_its_hash_comes_out_otherwise() -> None:
    receipt = ARCHIVE.receipt(RUN, 0)
    record = unseal(receipt["line"].encode()).record
    opened = {name: value for name, value in record.items() if name not in ("seq", "prev", "hash")}
    otherwise, forged = (
        "taken again, the decision comes out otherwise in justification",
        "its catalog is not the one that",
    )
    catalogs: list[tuple[Any, str]] = [
        (receipt["catalog"], otherwise), ({"bundles": 5}, "the decision can't be taken again:"), ([], forged),
    ]  # fmt: skip
    for catalog, says in catalogs:
        named = {"justification": "because", "catalog_revision": digest_of(catalog)}
        line, receipt["head"] = seal({**opened, **named}, 0, record["prev"])
        receipt |= {"line": line.decode(), "later": [], "catalog": catalog}
        (problem,) = check_receipt(receipt)
        assert problem.startswith(says)


@pytest.mark.parametrize("seq", [-1, 999])
def test_there_is_no_receipt_of_a_record_that_the_run_does_not_have(seq: int) -> None:
    with pytest.raises(RequestError, match=f"has no record {seq}"):
        ARCHIVE.receipt(RUN, seq)


def test_a_run_that_is_not_as_it_was_written_gives_no_receipt(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / RUN, tmp_path / RUN)
    file = tmp_path / RUN / "routing.jsonl"
    first, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([first.replace(b"mapping", b"default"), *rest]))
    with pytest.raises(CorruptRun, match="not as it was written"):
        Archive(tmp_path).receipt(RUN, 0)


def test_a_receipt_is_given_and_checked_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "receipt", RUN, "0", "--runs", str(RECORDED)]) == 0
    file = tmp_path / "receipt.json"
    file.write_text(capsys.readouterr().out)
    assert main(["runs", "receipt", "--check", str(file)]) == 0
    assert f"record 0 of run {RUN} is as it was written" in capsys.readouterr().out
    file.write_text(file.read_text().replace("mapping", "default").replace("search", "model"))
    assert main(["runs", "receipt", "--check", str(file)]) == 5
    file.write_text("{")
    assert main(["runs", "receipt", "--check", str(file)]) == 3
    assert main(["runs", "receipt", RUN, "999", "--runs", str(RECORDED)]) == 3
    assert main(["runs", "receipt"]) == 3


def test_runs_are_shown_on_an_output_that_knows_only_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["runs", "show", RUN, "--runs", str(RECORDED)]) == 0
    assert b"\\u2190" in output.buffer.getvalue()
