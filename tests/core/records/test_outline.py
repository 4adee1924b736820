"""Which step a call and a sub-run stand under, for records as values and as rows of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.core.catalog import Route
from bundle_router.core.records.call_records import read_record
from bundle_router.core.records.outline import (
    Mark,
    OutlineEntry,
    OutlineStep,
    call_row_entry,
    first_marks,
    mark_of_call,
    outline,
    record_entries,
    step_row_entry,
)
from bundle_router.core.records.tables import RunRows, rows
from bundle_router.core.values.doubt import Certainty, doubt_of
from bundle_router.core.values.words import Doubt
from bundle_router.review.sentences import certainty_line
from bundle_router.testing import fake_router, small_catalog
from hypothesis import given
from hypothesis import strategies as st

Entry = OutlineEntry[str]


def step(seq: int, decision_id: str, mark: Mark | None = None) -> Entry:
    return OutlineEntry("step", decision_id, seq, f"t{seq:03}", decision_id, mark)


def call(seq: int, decision_id: str = "", mark: Mark | None = None) -> Entry:
    return OutlineEntry("call", f"call {seq}", seq, f"t{seq:03}", decision_id, mark)


def sub_run(name: str, began: str, decision_id: str = "") -> Entry:
    return OutlineEntry("sub-run", name, -1, began, decision_id)


def drawn(steps: Sequence[OutlineStep[Any]]) -> list[tuple[Any, list[Any]]]:
    return [(s.step.value if s.step else None, [e.value for e in s.below]) for s in steps]


CASES: list[tuple[str, list[Entry], list[tuple[str | None, list[str]]]]] = [
    ("nothing", [], []),
    (
        "branches side by side",
        [step(0, "a"), step(1, "b"), call(2, "b"), call(3, "a"), call(4, "b")],
        [("a", ["call 3"]), ("b", ["call 2", "call 4"])],
    ),
    (
        "a call of a step that is over",
        [step(0, "a"), call(1, "a"), step(2, "b"), call(3, "a")],
        [("a", ["call 1", "call 3"]), ("b", [])],
    ),
    (
        "calls that name no known decision",
        [call(0), step(1, "a"), call(2), step(3, "b"), call(4, "lost")],
        [(None, ["call 0"]), ("a", ["call 2"]), ("b", ["call 4"])],
    ),
    (
        "a sub-run below the branch that began it",
        [step(0, "a"), step(1, "b"), call(2, "a"), call(4, "a"), sub_run("s", "t003", "a")],
        [("a", ["call 2", "s", "call 4"]), ("b", [])],
    ),
    (
        "a sub-run that names no parent",
        [step(0, "a"), step(2, "b"), sub_run("early", "t001"), sub_run("late", "t009")],
        [("a", ["early"]), ("b", ["late"])],
    ),
    (
        "records in any order",
        [call(3, "a"), step(2, "b"), call(1, "a"), step(0, "a")],
        [("a", ["call 1", "call 3"]), ("b", [])],
    ),
]


@pytest.mark.parametrize(("entries", "expected"), [case[1:] for case in CASES], ids=lambda _: "")
def test_each_call_stands_under_its_decision(
    entries: list[Entry], expected: list[tuple[str | None, list[str]]]
) -> None:
    assert drawn(outline(entries)) == expected


def test_a_part_of_a_run_names_the_earlier_step_whose_calls_it_goes_on_with() -> None:
    steps = outline([step(7, "b"), call(8, "b"), call(9, "a")], earlier=[step(0, "a")])
    assert drawn(steps) == [("a", ["call 9"]), ("b", ["call 8"])]
    assert [each.continued for each in steps] == [True, False]


ENTRIES = st.lists(
    st.tuples(st.sampled_from(["step", "call", "sub-run"]), st.sampled_from(["", "a", "b", "c"]))
)


@given(ENTRIES)
def test_everything_stands_in_the_outline_once(kinds: list[tuple[Any, str]]) -> None:
    entries = [
        OutlineEntry(kind, str(at), -1 if kind == "sub-run" else at, f"t{at:03}", decision_id)
        for at, (kind, decision_id) in enumerate(kinds)
    ]
    found = [value for head, below in drawn(outline(entries)) for value in (head, *below)]
    assert sorted(value for value in found if value is not None) == sorted(
        entry.value for entry in entries
    )


def test_the_first_denial_failure_and_doubt_are_named() -> None:
    entries = [step(0, "a"), call(5, "a", "failed"), step(3, "b", "doubt"), call(2, "a", "failed")]
    assert first_marks(entries) == {"failed": 2, "doubt": 3}
    assert list(first_marks([step(1, "a", "doubt"), call(2, "a", "denied")])) == ["denied", "doubt"]
    outcomes = ("ok", None, "denied", "timeout", "tool_error")
    assert [mark_of_call(outcome) for outcome in outcomes] == [
        None,
        None,
        "denied",
        "failed",
        "failed",
    ]


def test_records_and_the_rows_of_tables_give_one_outline() -> None:
    catalog = small_catalog({"notes": ["s.read"]}, routes=[Route("all", bundles=("notes",))])
    with fake_router(catalog, results={"s.read": "text"}) as router:
        ids = [
            router.route_sync(
                Step(run_id="r", workflow="w", role="r", step="s", branch=branch)
            ).decision_id
            for branch in ("left", "right")
        ]
        for decision_id in (ids[1], ids[0], ids[1]):
            router.call_sync("r", "s.read", {}, decision=decision_id)
        router.call_sync("r", "s.gone", {}, decision=ids[0])
        records = router.fakes.records("r")

    values = [value for record in records if (value := read_record(record)) is not None]
    of_run = RunRows("r")
    made = [(table, row) for record in records for table, row in of_run.of(record)]
    of_rows = [
        *(step_row_entry(row) for table, row in made if table == "decisions"),
        *(call_row_entry(row) for table, row in made if table == "calls"),
    ]

    def numbers(steps: Sequence[OutlineStep[Any]]) -> list[tuple[int, list[int]]]:
        return [(s.step.seq if s.step else -1, [e.seq for e in s.below]) for s in steps]

    assert numbers(outline(record_entries(values))) == [(0, [5, 8]), (1, [3, 7])]
    assert numbers(outline(of_rows)) == [(0, [5, 8]), (1, [3, 7])]
    assert first_marks(record_entries(values)) == first_marks(of_rows) == {"denied": 8}


# --- doubt ---

DOUBTS: list[tuple[str, str | None, bool | None, Doubt | None]] = [
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


@pytest.mark.parametrize(("source", "verdict", "sure", "expected"), DOUBTS)
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


CERTAINTIES = [
    (Certainty(None, None, None, None, None), ""),
    (Certainty(True, None, None, None, None), "how sure: the model is sure"),
    (
        Certainty(False, "ambiguous", 0.314, 0.9, "model_unsure"),
        "how sure: the model is not sure; search gives its best bundle 31%, and decides alone from"
        " 90% on; in doubt: model_unsure",
    ),
    (
        Certainty(None, "novel", 0.5, None, "nothing_sure"),
        "how sure: search gives its best bundle 50%, and never decides alone; in doubt:"
        " nothing_sure",
    ),
    (
        Certainty(None, "enough", None, None, None),
        "how sure: search: enough, without a calibrated probability",
    ),
]


@pytest.mark.parametrize(("certainty", "line"), CERTAINTIES)
def test_how_sure_a_decision_was_is_said_in_one_line(certainty: Certainty, line: str) -> None:
    assert certainty_line(certainty) == line
