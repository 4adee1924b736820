"""A receipt: one record of a run, with everything that a stranger needs to check it.

Rules:
1. The record is its line, byte for byte: its hash is checked from the line, as in the run.
2. A decision comes with the catalog that it was made under. The catalog is checked against the
   revision in the record, and the decision is replayed: the result has to equal the line.
3. `later` has the lines that follow, up to the end of the run at the time: they connect the record
   with the run's `head`. A reader who got that head in another way knows that the record was in
   that run.
4. `run` is the opening of the run, beside the record that states its digest. Schema 1 had all of
   `run.json`, always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal

from bundle_router.core.records.chain import BadLine, genesis, unseal
from bundle_router.core.records.field_types import FieldForm
from bundle_router.core.records.replayed import catalog_from, replay
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import CorruptRun

RECEIPT_SCHEMA: Final = "bundle-router.receipt/2"
_FORMER: Final = "bundle-router.receipt/1"


RECEIPT_FIELDS: Final = {
    "schema": FieldForm(Literal[RECEIPT_SCHEMA], "The form of the receipt, with its version."),
    "run_id": FieldForm(str, "The run's id."),
    "seq": FieldForm(int, "The record's number in the run."),
    "line": FieldForm(str, "The record's line, byte for byte."),
    "later": FieldForm([str], "The lines that followed it, up to the run's end at the time."),
    "head": FieldForm(str, "The hash of the last of these lines."),
    "run": FieldForm(
        (dict, None),
        "The opening of `run.json`, for the record that states its digest; null for others.",
    ),
    "catalog": FieldForm(
        (dict, None), "The config that a decision was made under; null for other records."
    ),
}
"""The written form of a receipt."""


def make_receipt(
    header: RunHeader, lines: Sequence[str], catalog: Mapping[str, Any] | None, head: str
) -> dict[str, Any]:
    """Return the receipt of the first of the lines; the others are those that follow it in the
    run.
    """
    record = unseal(lines[0].encode("ascii"))
    return {
        "schema": RECEIPT_SCHEMA,
        "run_id": header.run_id,
        "seq": record.seq,
        "line": lines[0],
        "later": list(lines[1:]),
        "head": head,
        "run": header.opening if "run_json" in record.record else None,
        "catalog": dict(catalog) if catalog is not None else None,
    }


def check_receipt(receipt: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with a receipt, one sentence each; empty when it proves its record."""
    try:
        return _check(receipt)
    except (RecursionError, ValueError):
        return ["it is no receipt: it is nested too deep, or holds a number that is none"]


def _check(receipt: Mapping[str, Any]) -> list[str]:
    try:
        lines = [receipt["line"], *receipt["later"]]
        records = [unseal(line.encode("ascii")) for line in lines]
        run_id = receipt["run_id"]
        record = records[0].record
    except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
        return ["it is no receipt: it has no line and no run"]
    except BadLine as error:
        return [f"a line is not as it was written: {error}"]
    wrong = []
    for previous, next_record in pairwise(records):
        if (next_record.prev, next_record.seq) != (previous.hash, previous.seq + 1):
            wrong.append(f"record {next_record.seq} does not follow record {previous.seq}")
    if records[-1].hash != receipt.get("head"):
        wrong.append("its last line is not the head that it names")
    if record.get("run_id") not in (None, run_id) or records[0].seq != receipt.get("seq"):
        wrong.append("the line is that of another record")
    if records[0].seq == 0 and records[0].prev != genesis(str(run_id)):
        wrong.append("the first record is that of another run")
    run = receipt.get("run")
    catalog = receipt.get("catalog")
    is_former = receipt.get("schema") == _FORMER
    if not is_former and receipt.get("schema") != RECEIPT_SCHEMA:
        wrong.append("its schema is not known")
    stated = record.get("run_json")
    if is_former and isinstance(run, Mapping):
        run = RunHeader(run).opening if stated is not None else None
    if (stated is not None or run is not None) and digest_of(run) != stated:
        wrong.append("what it says of the opening of the run is not what the record says")
    if record.get("type") == "route.decided":
        wrong += _check_decision(record, catalog)
    elif catalog is not None:
        wrong.append("it has a catalog, and its record is no decision")
    return wrong


def _check_decision(record: Mapping[str, Any], catalog: Any) -> list[str]:
    if not isinstance(catalog, Mapping) or digest_of(catalog) != record.get("catalog_revision"):
        return ["its catalog is not the one that the decision was taken under"]
    try:
        replayed = replay(record, catalog_from(catalog))
    except (KeyError, TypeError, ValueError, CorruptRun) as error:
        return [f"the decision can't be taken again: {type(error).__name__}"]
    if replayed.outcome != "identical":
        return [
            "taken again, the decision comes out otherwise in"
            f" {', '.join(replayed.differs) or 'its question'}"
        ]
    return []
