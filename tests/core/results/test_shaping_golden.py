"""Recorded results of real servers, shaped: one golden file per case."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from bundle_router.adapters.media import describe
from bundle_router.core.results.shaping import ShapedResult, shape
from bundle_router.core.results.shaping.shape import looks_like_error
from bundle_router.core.servers.transport.blocks import blocks_of

RECORDED = Path(__file__).parents[2] / "data" / "results"
CASES = sorted(path.stem for path in RECORDED.glob("*__*.json"))

DRESSED_AS_SUCCESS = {
    "context7__resolve-library-id__offline",
    "everything__get-annotated-message",
    "stripe-local__retrieve_balance__offline",
}
"""Results whose text is a failure although the server did not say so, by reading all of them."""


def written(shaped: ShapedResult) -> str:
    head = [
        f"rule: {shaped.rule}",
        f"flags: {', '.join(shaped.flags) or '-'}",
        f"bytes: {shaped.original_bytes} -> {shaped.kept_bytes}",
        *(
            f"artifact: {b.role} {b.facts.mime_type} {len(b.data)} bytes {b.sha256}"
            for b in shaped.blobs
        ),
    ]
    return "\n".join([*head, "", shaped.text, ""])


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_result_is_shaped_as_its_golden_file_says(case: str) -> None:
    recorded = json.loads((RECORDED / f"{case}.json").read_text("utf-8"))
    found = written(shape(blocks_of(recorded["result"], 1_000), recorded["max_chars"], describe))
    golden = RECORDED / f"{case}.golden.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(found, "utf-8")
    assert found == golden.read_text("utf-8")


def test_there_are_golden_cases() -> None:
    assert len(CASES) >= 30


def test_failures_are_flagged_whether_or_not_the_server_said_so_and_nothing_else_is() -> None:
    rows = json.loads((RECORDED / "first_words.json").read_text("utf-8"))
    failed = {row["result"] for row in rows if row["said_error"]} | DRESSED_AS_SUCCESS
    flagged = {row["result"] for row in rows if looks_like_error(row["first_text"])}
    assert flagged == failed
