"""The SQL index and the exports: the same rows as the records, in SQLite and PostgreSQL, rebuilt at will."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router import RequestError, Step, StorageError
from router.adapters.export import export
from router.adapters.index import rebuild
from router.core.catalog import Route
from router.core.tabular import COLUMNS, rows
from router.testing import fake_router, small_catalog


@pytest.fixture
def recorded() -> list[tuple[str, list[dict[str, Any]]]]:
    catalog = small_catalog({"a": ["s.a"], "b": ["s.b"]}, routes=[Route("r", bundles=("a", "gone"))])
    with fake_router(catalog, results={"s.a": "a\x00b — naïve 🎉"}) as router:
        for run_id in ("one", "two"):
            router.route_sync(Step(run_id=run_id, workflow="w", role="r", step="s", goal="x;'\"--"))
            router.call_sync(run_id, "s.a", {"n": 1})
            router.call_sync(run_id, "s.b", {})
        return [(run_id, router.fakes.records(run_id)) for run_id in ("one", "two")]


def urls() -> Iterator[Any]:
    yield pytest.param("sqlite", id="sqlite")
    reason = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
    marks = () if os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL") else (pytest.mark.skip(reason=reason),)
    yield pytest.param("postgresql", id="postgresql", marks=marks)


@pytest.mark.parametrize("kind", list(urls()))
def test_the_index_holds_every_row_and_can_be_rebuilt(
    kind: str, recorded: list[tuple[str, list[dict[str, Any]]]], tmp_path: Path
) -> None:
    from sqlmodel import create_engine, text

    url = f"sqlite:///{tmp_path}/i.sqlite" if kind == "sqlite" else os.environ["BUNDLE_ROUTER_TEST_POSTGRESQL"]
    for _ in range(2):
        built = rebuild(recorded, url)
        assert (built.runs, built.decisions, built.calls) == (2, 2, 4)
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("select run_id, seq, outcome, code, result from calls order by run_id, seq"))
        assert [tuple(row) for row in found][:2] == [
            ("one", 2, "ok", "", "a\\u0000b — naïve 🎉"),
            ("one", 3, "denied", "not_mapped", recorded[0][1][3]["result"]),
        ]
        shown = connection.execute(text("select bundle from bundles where shown and run_id = 'two'")).scalars().all()
        assert shown == ["a"]
        left_out = connection.execute(text("select bundle, code from bundles where not shown and run_id = 'two'"))
        assert [tuple(row) for row in left_out] == [("gone", "unknown_bundle")]
    engine.dispose()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_exports_hold_every_row(form: Any, recorded: list[tuple[str, list[dict[str, Any]]]], tmp_path: Path) -> None:
    written = dict(export((records for _, records in recorded), tmp_path / "out", form))
    expected = [table for _, records in recorded for record in records for table, _ in rows(record)]
    assert {path.stem: count for path, count in written.items()} == {t: expected.count(t) for t in COLUMNS}
    if form == "parquet":
        from pyarrow import parquet

        table = parquet.read_table(tmp_path / "out" / "calls.parquet")
        assert table.column_names == list(COLUMNS["calls"])
        assert table["elapsed_ms"].type == "double"


def test_an_unusable_url_is_said_without_its_password(tmp_path: Path) -> None:
    for url in ("mysql://u:secret@127.0.0.1/x", "nonsense"):
        with pytest.raises(RequestError) as refused:
            rebuild([], url)
        assert "secret" not in str(refused.value)
    with pytest.raises(StorageError) as failed:
        rebuild([], "postgresql+psycopg://u:secret@127.0.0.1:9/x?connect_timeout=2")
    assert "secret" not in str(failed.value)
