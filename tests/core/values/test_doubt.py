"""When a decision may be wrong although nothing failed, and where the tables say so."""

from __future__ import annotations

import pytest
from bundle_router.core.records.tables import rows
from bundle_router.core.values.doubt import doubt_of
from bundle_router.core.values.words import Doubt

CASES: list[tuple[str, str | None, bool | None, Doubt | None]] = [
    ("mapping", None, None, None),
    ("search", "enough", None, None),
    ("model", "ambiguous", True, None),
    ("model", "ambiguous", False, "model_unsure"),
    ("shortlist", "novel", None, "nothing_sure"),
    ("shortlist", "novel", False, "model_unsure"),
    ("default", "ambiguous", None, "nothing_sure"),
    ("none", "novel", None, "nothing_sure"),
    ("none", None, None, None),
]


@pytest.mark.parametrize(("source", "verdict", "sure", "expected"), CASES)
def test_a_decision_is_in_doubt_where_its_model_says_so_or_nobody_was_sure(
    source: str, verdict: str | None, sure: bool | None, expected: Doubt | None
) -> None:
    assert doubt_of(source, verdict, sure) == expected


def test_the_row_of_a_decision_says_how_sure_model_and_search_were() -> None:
    record = {
        "type": "route.decided",
        "run_id": "r",
        "seq": 0,
        "source": "model",
        "search": {"verdict": "ambiguous", "probability": 0.42, "threshold": 0.9},
        "model": {"name": "m", "sure": False},
    }
    ((table, row),) = rows(record)
    assert table == "decisions"
    names = ("model_sure", "verdict", "probability", "threshold", "doubt")
    assert [row[name] for name in names] == [False, "ambiguous", 0.42, 0.9, "model_unsure"]
