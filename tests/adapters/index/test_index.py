"""The SQL index and the exports: the same rows as the records, in SQLite and PostgreSQL, rebuilt at
will.
"""

from __future__ import annotations

import csv
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Step
from bundle_router.adapters.export import export
from bundle_router.adapters.index import IndexBuild, dump, index_runs
from bundle_router.adapters.index.database import VERSION, version_of
from bundle_router.core.catalog import Route
from bundle_router.core.records.tables import COLUMNS, rows
from bundle_router.errors import RequestError, StorageError
from bundle_router.testing import fake_router, small_catalog

from tests.adapters.index.recorded_runs import RecordedRuns

Recorded = list[tuple[str, list[dict[str, Any]]]]


def rebuild(recorded: Any, url: str, *, named: bool = False) -> IndexBuild:
    """Fill an index from (run id, records) pairs."""
    runs = RecordedRuns(dict(recorded))
    return index_runs(runs, list(runs.records), url, named=named)


@pytest.fixture
def recorded() -> Recorded:
    catalog = small_catalog(
        {"a": ["s.a"], "b": ["s.b"]}, routes=[Route("r", bundles=("a", "gone"))]
    )
    with fake_router(catalog, results={"s.a": "a\x00b — naïve 🎉"}) as router:
        for run_id in ("one", "two"):
            router.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s", goal="x;'\"--"))
            router.call_sync(run_id, "s.a", {"n": 1})
            router.call_sync(run_id, "s.b", {})
        return [(run_id, router.fakes.records(run_id)) for run_id in ("one", "two")]


def urls() -> Iterator[Any]:
    yield pytest.param("sqlite", id="sqlite")
    reason = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
    marks = (
        ()
        if os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL")
        else (pytest.mark.skip(reason=reason),)
    )
    yield pytest.param("postgresql", id="postgresql", marks=marks)


@pytest.fixture(params=list(urls()))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of a test's own: a SQLite file, or a schema of the PostgreSQL server."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/i.sqlite"
        return
    server = os.environ["BUNDLE_ROUTER_TEST_POSTGRESQL"]
    name = f"index_{os.getpid()}"  # tests run side by side
    execute(server, f"drop schema if exists {name} cascade", f"create schema {name}")
    yield f"{server}{'&' if '?' in server else '?'}options=-csearch_path%3D{name}"
    execute(server, f"drop schema {name} cascade")


def execute(url: str, *statements: str) -> list[tuple[Any, ...]]:
    """The rows of the last statement, if it gives any."""
    from sqlmodel import create_engine, text

    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            results = [connection.execute(text(statement)) for statement in statements]
            return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []
    finally:
        engine.dispose()


def test_the_index_holds_every_row_and_can_be_rebuilt(url: str, recorded: Recorded) -> None:
    for _ in range(2):
        built = rebuild(recorded, url)
        assert (built.runs, built.decisions, built.calls) == (2, 2, 4)
    found = execute(
        url,
        "select run_id, seq, outcome, code, result from bundle_router_calls order by run_id, seq",
    )
    assert found[:2] == [
        ("one", 2, "ok", "", "a\\u0000b — naïve 🎉"),
        ("one", 3, "denied", "not_mapped", recorded[0][1][3]["result"]),
    ]
    assert execute(
        url, "select bundle from bundle_router_bundles where shown and run_id = 'two'"
    ) == [("a",)]
    left_out = execute(
        url, "select bundle, code from bundle_router_bundles where not shown and run_id = 'two'"
    )
    assert left_out == [("gone", "unknown_bundle")]


def test_the_calls_of_a_decision_are_found_without_reading_the_run(
    tmp_path: Path, recorded: Recorded
) -> None:
    """Else a run's totals take the square of its length: 235 s for 10,000 steps, now 7."""
    url = f"sqlite:///{tmp_path}/i.sqlite"
    rebuild(recorded, url)
    ((*_, plan),) = execute(
        url,
        "explain query plan select count(*) from bundle_router_calls"
        " where run_id = 'one' and decision_seq = 0",
    )
    assert "(run_id=? AND decision_seq=?)" in plan


def indexed(url: str) -> list[str]:
    return [
        row[0]
        for row in execute(url, "select run_id from bundle_router_decisions order by run_id, seq")
    ]


def test_an_index_in_a_shared_database_leaves_its_other_tables_alone(
    url: str, recorded: Recorded
) -> None:
    names = ("decisions", "bundles", "calls", "artifacts", "bundle_router_notes")
    for name in names:
        execute(url, f"create table {name} (word text)", f"insert into {name} values ('precious')")
    rebuild(recorded, url)
    rebuild(recorded[:1], url, named=True)
    rebuild([], url)
    assert [execute(url, f"select word from {name}") for name in names] == [[("precious",)]] * len(
        names
    )


def test_runs_that_are_named_are_replaced_and_the_others_stay(url: str, recorded: Recorded) -> None:
    (one, its_records), two = recorded
    rebuild([two], url, named=True)
    rebuild([(one, its_records)], url, named=True)
    assert indexed(url) == ["one", "two"]
    rebuild([(one, [])], url, named=True)
    assert indexed(url) == ["two"]
    rebuild([(one, its_records)], url)
    assert indexed(url) == ["one"]


def test_a_table_of_our_name_that_is_not_ours_is_not_touched(url: str, recorded: Recorded) -> None:
    execute(
        url,
        "create table bundle_router_calls (word text)",
        "insert into bundle_router_calls values ('precious')",
    )
    for named in (False, True):
        with pytest.raises(RequestError, match=r"bundle_router_calls.*nothing was changed"):
            rebuild(recorded, url, named=named)
    execute(url, "create table bundle_router_index (version int)")
    with pytest.raises(RequestError, match="nothing was changed"):
        rebuild(recorded, url)
    assert execute(url, "select word from bundle_router_calls") == [("precious",)]


def test_the_version_follows_from_the_columns() -> None:
    """A column that was added without a new number left newer runs out of lists, with exit 0."""
    more = {**COLUMNS, "calls": {**COLUMNS["calls"], "mood": "text"}}
    fewer = {**COLUMNS, "calls": dict(list(COLUMNS["calls"].items())[:-1])}
    other = {**COLUMNS, "calls": {**COLUMNS["calls"], "tool": "integer"}}
    turned = {**COLUMNS, "calls": dict(reversed(list(COLUMNS["calls"].items())))}
    versions = [version_of(columns) for columns in (more, fewer, other)]
    assert len({VERSION, *versions}) == 4
    assert version_of(turned) == VERSION  # columns are found by their names


def test_an_index_of_another_version_is_made_anew_and_only_as_a_whole(
    url: str, recorded: Recorded
) -> None:
    rebuild(recorded, url)
    execute(
        url,
        "update bundle_router_index set value = '1'",
        "alter table bundle_router_calls add column old text",
    )
    with pytest.raises(RequestError, match="another version"):
        rebuild(recorded[:1], url, named=True)
    assert indexed(url) == ["one", "two"]
    rebuild(recorded, url)
    assert indexed(url) == ["one", "two"]
    assert execute(url, "select name, value from bundle_router_index") == [("version", VERSION)]
    with pytest.raises(Exception, match="old"):
        execute(url, "select old from bundle_router_calls")


def test_a_fill_that_fails_leaves_the_rows_as_they_were(url: str, recorded: Recorded) -> None:
    def breaking() -> Iterator[dict[str, Any]]:
        yield from recorded[0][1]
        raise KeyError

    runs = RecordedRuns({"one": recorded[0][1], "two": breaking()})
    with pytest.raises(KeyError):
        index_runs(runs, ["one", "two"], url)
    rebuild(recorded, url)
    with pytest.raises(KeyError):
        index_runs(RecordedRuns({"three": breaking()}), ["three"], url)
    assert indexed(url) == ["one", "two"]


ODD: list[dict[str, Any]] = [
    {
        "type": "route.decided", "seq": 0, "time": "\ud800", "goal": {"not": "text"}, "elapsed_us": 2**80,
        "degraded": "yes", "bundles": None, "model": 5, "step": {"workflow": "w\x00\udfff", "goal": "\x00"},
        "exposure": {"tokens": 7.5, "tools": True},
    },
    {
        "type": "call.finished", "seq": 1, "tool": "a\ud83d", "result": "\x00\udcff✓🎉", "elapsed_ms": float("inf"),
        "arguments": ["\ud800"], "artifacts": [5, {"uri": "\udfff", "bytes": -(2**63) - 1}],
    },
]  # fmt: skip
"""Records that no version writes, and that a hand, a bug or an old version may have left."""

SHOWN = "\ufffd\ufffd✓🎉"


def test_odd_records_are_indexed_with_what_can_not_be_stored_shown_as_replaced(url: str) -> None:
    built = rebuild([("odd", ODD)], url)
    assert (built.decisions, built.calls) == (1, 1)
    assert execute(url, "select tool, result, arguments, elapsed_ms from bundle_router_calls") == [
        ("a\ufffd", SHOWN, '["\\ud800"]', None)
    ]
    found = execute(
        url,
        "select workflow, goal, elapsed_us, degraded, tokens, tools from bundle_router_decisions",
    )
    assert found == [("w\ufffd\ufffd", '{"not": "text"}', None, None, None, None)]
    assert execute(url, "select uri, bytes from bundle_router_artifacts") == [("\ufffd", None)]


def test_what_was_passed_on_to_a_client_is_a_request_with_its_artifacts(url: str) -> None:
    passed = {
        "type": "request.passed",
        "seq": 3,
        "method": "resources/read",
        "artifacts": [{"uri": "u", "bytes": 5}],
    }
    built = rebuild([("passed", [passed])], url)
    assert (built.decisions, built.calls) == (0, 1)
    assert execute(url, "select kind, tool from bundle_router_calls") == [
        ("request", "resources/read")
    ]
    assert execute(url, "select seq, uri, bytes from bundle_router_artifacts") == [(3, "u", 5)]


def tables_of(recorded: Any, folder: Path, form: Any) -> dict[Path, int]:
    """Export (run id, records) pairs; the files with their number of rows."""
    url = f"sqlite:///{folder}-export.sqlite"
    rebuild(recorded, url)
    return dict(export(dump(url), folder, form))


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_odd_records_are_exported_with_what_can_not_be_stored_shown_as_replaced(
    form: Any, tmp_path: Path
) -> None:
    tables_of([("odd", ODD)], tmp_path, form)
    if form == "parquet":
        from pyarrow import parquet

        (call,) = parquet.read_table(tmp_path / "calls.parquet").to_pylist()
    else:
        with (tmp_path / "calls.csv").open(encoding="utf-8", newline="") as file:
            (call,) = csv.DictReader(file)
    assert (call["tool"], call["result"], call["arguments"]) == ("a\ufffd", SHOWN, '["\\ud800"]')


FORMULAS = [
    "\uff1d1+1",
    "\uff0b1",
    "\uff0d1",
    "\uff20SUM",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\ufe66SUM(A1)",
    "\u22121",
    "x;=1+1",
    "x; y;\uff1d1",
    "x\t=1",
    "- a\r\n- b\r\n\r\n'c'",
    ";;'=",
    "'=1",
    "'",
    " =1",
    "\u00a0\u3000 \x01\u200b\ufeff@x",
    "a; -1",
    " \t \r=1",
    "x\n \x0b\x0c\x85\u2028+1",
    "  'x; 'y",
    "  plain",
    "plain",
    "a=1",
    "",
    "1",
]


def test_no_text_of_an_exported_csv_is_a_formula_and_every_text_can_be_had_back(
    tmp_path: Path,
) -> None:
    record = {
        "type": "call.finished",
        "run_id": "r",
        "seq": 3,
        "elapsed_ms": -1.5,
        "kept_bytes": -7,
        "cached": True,
    }
    records = [
        {**record, "seq": at, "result": text, "tool": text} for at, text in enumerate(FORMULAS)
    ]
    tables_of([("r", records)], tmp_path, "csv")
    with (tmp_path / "calls.csv").open(encoding="utf-8", newline="") as file:
        rows_ = list(csv.DictReader(file))
    texts = [row["result"] for row in rows_]
    cells = texts + [part for text in texts for part in re.split(r"[;\t\r\n]", text)]
    assert not any(
        unicodedata.normalize("NFKC", cell).startswith((*"=+-@\t\r\n\u2212",)) for cell in cells
    )
    shown = ["".join(c for c in cell if c.isprintable() and not c.isspace()) for cell in cells]
    assert not any(
        unicodedata.normalize("NFKC", cell).startswith((*"=+-@\u2212",)) for cell in shown
    )
    assert [re.sub(r"(?:^|(?<=[;\t\r\n]))'", "", text) for text in texts] == FORMULAS
    assert {(row["elapsed_ms"], row["kept_bytes"], row["cached"]) for row in rows_} == {
        ("-1.5", "-7", "true")
    }


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_exports_hold_every_row(form: Any, recorded: Recorded, tmp_path: Path) -> None:
    written = tables_of(recorded, tmp_path / "out", form)
    expected = [table for _, records in recorded for record in records for table, _ in rows(record)]
    counted = {path.stem: count for path, count in written.items()}
    assert counted.keys() == COLUMNS.keys()
    assert counted == {**{t: expected.count(t) for t in COLUMNS}, "runs": 2}
    if form == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(tmp_path / "out" / "calls.parquet")
        assert table.column_names == list(COLUMNS["calls"])
        assert table["elapsed_ms"].type == "double"
        assert str(table["time"].type) == "timestamp[us, tz=UTC]"


def test_an_unusable_url_is_said_without_its_password(tmp_path: Path) -> None:
    for url in ("mysql://u:secret@127.0.0.1/x", "nonsense"):
        with pytest.raises(RequestError) as refused:
            rebuild([], url)
        assert "secret" not in str(refused.value)
    with pytest.raises(StorageError) as failed:
        rebuild([], "postgresql+psycopg://u:secret@127.0.0.1:9/x?connect_timeout=2")
    assert "secret" not in str(failed.value)
