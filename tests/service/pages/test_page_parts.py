"""What pages are worked out of, without a server: the waterfall of a run, the place of a page in a
long run, and what is shown of an artifact.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from bundle_router.core.records.read_model import RunPart, RunRow, Timeline
from bundle_router.service.pages.application import byte_range
from bundle_router.service.pages.artifact_preview import (
    HEX_ROWS,
    MAX_DEPTH,
    MAX_JSON_BYTES,
    MAX_LINES,
    MAX_NODES,
    ROW_BYTES,
    forms_of,
    hex_page,
    json_tree,
    preview,
    text_of,
    text_page,
)
from bundle_router.service.pages.charts import sources_over_days
from bundle_router.service.pages.page_place import CELLS, Jump, PagePlace, part_with
from bundle_router.service.pages.waterfall import MAX_ROWS, MIN_WIDTH, Bar, waterfall


def at(second: float) -> str:
    return f"2026-01-01T00:00:{second:09.6f}Z"


def step(seq: int, second: float, *below: dict[str, Any], **more: Any) -> dict[str, Any]:
    row = {"seq": seq, "time": at(second), "role": "r", "step": "s", "elapsed_us": 0}
    row |= {"branch": None, "doubt": None, **more}
    return {"row": row, "continued": False, "below": list(below)}


def call(seq: int, ended: float, ms: float, outcome: str | None = "ok") -> dict[str, Any]:
    row = {"seq": seq, "time": at(ended), "elapsed_ms": ms, "outcome": outcome}
    return {"kind": "call", "row": row | {"kind": "call", "server": "repo", "tool": "read"}}


def sub_run(run_id: str, began: float, ended: float, *items: dict[str, Any]) -> dict[str, Any]:
    run = RunRow(run_id, "closed", at(began), at(ended), took_ms=1000 * (ended - began))
    return {"kind": "run", "run": run, "items": list(items)}


def test_a_step_spans_to_the_end_of_its_last_call() -> None:
    fall = waterfall([step(0, 0, call(2, 4, 1000)), step(3, 6, call(5, 10, 2000, "denied"))])
    assert fall is not None
    assert (fall.began, fall.ended, fall.span_ms) == (at(0), at(10), 10_000)
    assert [(row.kind, row.anchor, row.depth, row.took_ms) for row in fall.rows] == [
        ("step", "r0", 0, 4000),
        ("call", "r2", 1, 1000),
        ("step", "r3", 0, 4000),
        ("call", "r5", 1, 2000),
    ]
    first, first_call, second, second_call = (row.bars for row in fall.rows)
    assert first == (Bar(0, 400, "span"), Bar(0, MIN_WIDTH, "step"))
    assert first_call == (Bar(300, 100, "ok"),)
    assert second == (Bar(600, 400, "span"), Bar(600, MIN_WIDTH, "step"))
    assert second_call == (Bar(800, 200, "denied"),)
    assert [row.marks for row in fall.rows] == [(), (), ("denied",), ("denied",)]


def test_sub_runs_stand_within_the_step_that_began_them() -> None:
    below = sub_run("sub", 2, 5, step(0, 3, call(2, 4, 500)))
    fall = waterfall([step(0, 0, below)])
    assert fall is not None
    assert [(row.label, row.anchor, row.depth) for row in fall.rows] == [
        ("r / s", "r0", 0),
        ("↳ sub", "run-sub", 1),
        ("r / s", "sub-r0", 2),
        ("repo.read", "sub-r2", 3),
    ]
    assert fall.rows[1].bars == (Bar(400, 600, "span"),)
    assert fall.rows[0].took_ms == 5000


def test_a_sub_run_contains_the_decision_that_began_before_its_first_record() -> None:
    below = sub_run("sub", 2, 2.005, step(0, 2, elapsed_us=8_000))
    fall = waterfall([step(0, 0, below)])
    assert fall is not None
    _, run, inner = fall.rows
    assert (run.began, run.took_ms, inner.took_ms) == (at(1.992), 13, 8)


def test_the_shares_of_a_day_have_an_axis() -> None:
    chart = sources_over_days([("2026-01-31\nmapping", 3)], ["mapping"])
    assert re.findall(r'class="scale"[^>]*>([^<]*)<', chart) == ["50%", "100%"]


def test_many_calls_are_parts_of_their_steps_row() -> None:
    calls = [call(seq, seq / 10, 50) for seq in range(1, MAX_ROWS + 1)]
    calls.append(call(MAX_ROWS + 1, 20, 50, "timeout"))
    fall = waterfall([step(0, 0, *calls)])
    assert fall is not None
    assert fall.whole_steps
    (row,) = fall.rows
    assert row.marks == ("failed",)
    assert [bar.tone for bar in row.bars] == ["span", "step", *["ok"] * MAX_ROWS, "failed"]
    assert row.bars[-1] == Bar(1000 - MIN_WIDTH, MIN_WIDTH, "failed")


def test_what_has_no_time_or_no_end_has_no_bar_that_claims_one() -> None:
    assert waterfall([]) is None
    timeless = call(1, 0, 5)
    timeless["row"]["time"] = "2026-99-99T99:99:99Z"
    begun = call(3, 2, 0, None)
    fall = waterfall([step(0, 1, timeless, begun)])
    assert fall is not None
    assert [row.bars for row in fall.rows[1:]] == [(), (Bar(1000 - MIN_WIDTH, MIN_WIDTH, "open"),)]


# --- the place of a page ---

PARTS = (
    RunPart(0, 299, 200, 60, denied=0, failed=1, doubt=0, first_failed=44),
    RunPart(301, 590, 200, 60, denied=2, failed=0, doubt=1, first_denied=310, first_doubt=400),
    RunPart(592, 700, 80, 20, denied=0, failed=0, doubt=1, first_doubt=650),
)


def shown(next_seq: int | None) -> Timeline:
    return Timeline((), {}, (), {}, (), next_seq)


def test_a_record_is_in_the_part_that_begins_before_it() -> None:
    starts = {seq: part_with(PARTS, seq).first_seq for seq in (0, 299, 300, 301, 591, 592, 9999)}
    assert starts == {0: 0, 299: 0, 300: 0, 301: 301, 591: 301, 592: 592, 9999: 592}


def test_a_page_names_the_one_before_it_and_the_last() -> None:
    first, second, odd = (PagePlace(PARTS, start, shown(None)) for start in (0, 301, 350))
    assert (first.page, first.pages, first.previous, first.last) == (1, 3, None, 592)
    assert (second.page, second.previous) == (2, 0)
    assert (odd.page, odd.previous) == (2, 301), "a page that begins inside of a part"


def test_the_first_places_of_the_run_are_jumped_to() -> None:
    assert PagePlace(PARTS, 301, shown(592)).jumps() == {
        "denied": Jump(310, 301, is_here=True),
        "failed": Jump(44, 0, is_here=False),
        "doubt": Jump(400, 301, is_here=True),
    }


def test_the_strip_says_what_each_part_holds() -> None:
    cells = PagePlace(PARTS, 301, shown(592)).strip()
    assert [(cell.first_seq, cell.tone, cell.is_here) for cell in cells] == [
        (0, "bad", False),
        (301, "bad", True),
        (592, "warn", False),
    ]
    assert cells[1].words == "records 301 to 590: 60 steps, 2 denied, 1 in doubt"
    assert PagePlace(PARTS[:1], 0, shown(None)).strip() == []
    many = [RunPart(at * 10, at * 10 + 9, 10, 5, 0, 0, 0) for at in range(CELLS * 2)]
    assert len(PagePlace(many, 0, shown(10)).strip()) == CELLS


# --- artifacts ---


FORMS = [
    ("image/png", True, ("picture", "hex")),
    ("image/svg+xml", False, ("text", "hex")),
    ("image/tiff", False, ("hex",)),
    ("audio/wav", True, ("audio", "hex")),
    ("video/webm", True, ("video", "hex")),
    ("video/x-msvideo", False, ("hex",)),
    ("application/json", False, ("json", "text", "hex")),
    ("text/html", False, ("text", "hex")),
    ("application/pdf", False, ("hex",)),
]


@pytest.mark.parametrize(("mime_type", "is_inline", "expected"), FORMS)
def test_bytes_are_shown_by_their_type(
    mime_type: str, is_inline: bool, expected: tuple[str, ...]
) -> None:
    assert forms_of(mime_type, 10, is_inline=is_inline) == expected
    assert forms_of("application/json", MAX_JSON_BYTES + 1, is_inline=False) == ("text", "hex")


def test_a_picture_is_fitted_or_drawn_at_a_multiple_of_its_size() -> None:
    forms = forms_of("image/png", 10, is_inline=True)
    widths = {
        zoom: preview(b"", forms, {"zoom": zoom}, pixels=160).width
        for zoom in ("", "fit", "100", "200", "x")
    }
    assert widths == {"": None, "fit": None, "100": 160, "200": 320, "x": None}
    assert preview(b"", forms, {"zoom": "200"}).width is None, "its size is not known"
    assert preview(b"\x89P", forms, {"as": "hex"}).form == "hex"
    assert preview(b"", forms, {"as": "text"}).form == "picture", "a form that it does not have"


def test_lines_are_numbered_and_those_with_the_words_are_found() -> None:
    page = text_page("Retry\nlimit\r\n\nthe RETRY limit\n", "retry", 0)
    assert [(line.number, line.text, line.is_match) for line in page.lines] == [
        (1, "Retry", True),
        (2, "limit", False),
        (3, "", False),
        (4, "the RETRY limit", True),
    ]
    assert (page.total, page.matches, page.match_count) == (4, (1, 4), 2)
    assert (page.previous, page.next) == (None, None)


def test_a_long_text_has_pages_and_opens_at_the_first_match() -> None:
    text = "\n".join(f"line {number}" for number in range(1, 2 * MAX_LINES + 6))
    first = text_page(text, "", 0)
    assert (first.lines[0].number, first.lines[-1].number) == (1, MAX_LINES)
    assert (first.previous, first.next) == (None, MAX_LINES + 1)
    last = text_page(text, f"line {2 * MAX_LINES + 2}", 0)
    assert [line.number for line in last.lines if line.is_match] == [2 * MAX_LINES + 2]
    assert (last.lines[0].number, last.previous, last.next) == (
        2 * MAX_LINES + 1,
        MAX_LINES + 1,
        None,
    )
    assert text_page(text, "", 999_999).lines[0].number == 2 * MAX_LINES + 1
    assert text_page("", "", 0).lines == ()
    assert text_page("x" * 5000, "", 0).lines[0].text.endswith("… (5,000 characters)")


def test_text_is_read_by_its_encoding_and_json_on_one_line_is_laid_out() -> None:
    assert text_of("naïve".encode()) == "naïve"
    assert text_of("naïve".encode("utf-16")) == "naïve"
    assert text_of(b'{"a":[1,2]}') == '{\n  "a": [\n    1,\n    2\n  ]\n}'
    assert text_of(b'{"a":\n1}') == '{"a":\n1}', "as it was written"
    assert text_of(b"{not json}") == "{not json}"


def test_json_is_folded_within_the_bounds_of_a_page() -> None:
    tree = json_tree(b'{"a": [1, "x", null], "b": {}}')
    assert tree is not None
    assert (tree.text, [part.name for part in tree.parts]) == ("2 fields", ["a", "b"])
    items, empty = tree.parts
    assert (items.text, empty.text) == ("3 items", "0 fields")
    assert [(part.name, part.text) for part in items.parts] == [
        ("0", "1"),
        ("1", '"x"'),
        ("2", "null"),
    ]
    wide = json_tree(b"[" + b",".join(b"1" for _ in range(MAX_NODES + 7)) + b"]")
    assert wide is not None
    assert (len(wide.parts), wide.omitted) == (MAX_NODES, 7)
    deep = json_tree(b"[" * 60 + b"]" * 60)
    levels = 0
    while deep is not None and deep.parts:
        (deep,) = deep.parts
        levels += 1
    assert levels == MAX_DEPTH
    assert json_tree(b"{") is None
    assert preview(b"{", ("json", "text", "hex"), {}).form == "text"


def test_other_bytes_are_shown_in_rows() -> None:
    page = hex_page(b"%PDF-1.7\n" + bytes(range(16)), 0)
    assert [(row.offset, row.ascii) for row in page.rows] == [
        ("00000000", "%PDF-1.7........"),
        ("00000010", "........."),
    ]
    assert page.rows[0].digits.startswith("25 50 44 46 2d")
    size = HEX_ROWS * ROW_BYTES
    second = hex_page(bytes(size * 2 + 1), size + 5)
    assert (second.rows[0].offset, second.previous, second.next) == ("00001000", 0, size * 2)
    assert hex_page(b"", 0).rows == ()


RANGES = [
    ("bytes=0-1", range(0, 2)),
    ("bytes=4-", range(4, 10)),
    ("bytes=-3", range(7, 10)),
    ("bytes=5-99", range(5, 10)),
    ("bytes=10-", None),
    ("bytes=3-1", None),
    ("bytes=-", None),
    ("bytes=0-1,4-5", None),
    ("", None),
]


@pytest.mark.parametrize(("header", "expected"), RANGES)
def test_a_player_gets_the_part_that_it_asks_for(header: str, expected: range | None) -> None:
    assert byte_range(header, 10) == expected
