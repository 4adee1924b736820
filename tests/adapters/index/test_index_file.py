"""The index's file: shared by lists and `runs index`, moved aside when it is broken, done without
when it is locked.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.index import RunIndex, index_runs, index_url
from bundle_router.core.records.read_model import RunQuery
from bundle_router.errors import StorageError

from tests.service.pages.sample_runs import team, write


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(team(days=1).runs, tmp_path_factory.mktemp("team") / "runs")


@pytest.fixture
def runs(recorded: Path) -> Iterator[Path]:
    yield recorded
    for file in recorded.glob("*index.sqlite*"):
        file.unlink()


def open_index(runs: Path) -> RunIndex:
    archive = Archive(runs)
    return RunIndex(archive, index_url(archive), look_s=0)


def listed(runs: Path) -> tuple[int, str]:
    """Return how many runs are listed, and what is said about the index's file."""
    with closing(open_index(runs)) as index:
        index.refresh(now=True)
        return index.runs(RunQuery()).total, index.notice


def test_a_second_look_reads_no_run_and_writes_nothing(runs: Path) -> None:
    count = len(Archive(runs).run_ids())
    assert listed(runs) == (count, "")
    database = runs / "index.sqlite"
    before = database.stat().st_mtime_ns
    with closing(open_index(runs)) as index:
        refreshed = index.refresh(now=True)
    assert refreshed is not None
    assert (refreshed.changed, refreshed.gone) == ((), ())
    assert database.stat().st_mtime_ns == before


def test_runs_that_did_not_change_are_listed_without_loading_sqlalchemy(runs: Path) -> None:
    """It takes 0.8 s of CPU to load."""
    listed(runs)
    program = (
        "import sys; from bundle_router.cli import main;"
        f" status = main(['runs', 'list', '--runs', {str(runs)!r}]);"
        " print([name for name in ('sqlalchemy', 'sqlmodel') if name in sys.modules]);"
        " sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "broken",
    [b"no database\n" * 400, b"SQLite format 3\0" + b"\xff" * 4080],
    ids=["text", "header"],
)
def test_a_file_that_is_no_database_is_moved_aside_and_made_anew(runs: Path, broken: bytes) -> None:
    count = len(Archive(runs).run_ids())
    (runs / "index.sqlite").write_bytes(broken)
    total, notice = listed(runs)
    assert total == count
    assert f"it was moved to {runs}/index.sqlite.broken, and is made anew" in notice
    assert (runs / "index.sqlite.broken").read_bytes() == broken
    assert listed(runs) == (count, "")


def test_a_page_that_is_broken_is_found_by_who_reads_it_and_is_gone_the_next_time(
    runs: Path,
) -> None:
    count = len(Archive(runs).run_ids())
    listed(runs)
    with closing(sqlite3.connect(runs / "index.sqlite")) as connection:
        (root,) = connection.execute(
            "select rootpage from sqlite_master where name = 'bundle_router_decisions'"
        ).fetchone()
        (size,) = connection.execute("pragma page_size").fetchone()
        connection.execute("pragma wal_checkpoint(truncate)")
    with (runs / "index.sqlite").open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * size)
    with closing(open_index(runs)) as index:
        index.refresh(now=True)
        with pytest.raises(StorageError, match="malformed"):
            index.rows_of("decisions", "feature-001")
        assert "moved to" in index.notice
        index.refresh(now=True)
        assert index.runs(RunQuery()).total == count
        assert index.rows_of("decisions", "feature-001") != []


def test_an_index_that_another_program_locks_is_done_without(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("read_connections", "database"):
        monkeypatch.setattr(f"bundle_router.adapters.index.{module}.BUSY_S", 0)
    count = len(Archive(runs).run_ids())
    with closing(sqlite3.connect(runs / "index.sqlite", isolation_level=None)) as other:
        other.execute("pragma locking_mode = exclusive")
        other.execute("create table mine (word text)")
        total, notice = listed(runs)
        assert total == count
        assert notice.endswith("database is locked; an index of this process alone is used")
    assert listed(runs) == (count, ""), "and is shared again once nobody locks it"


def test_the_file_that_lists_and_runs_index_fill_is_one(runs: Path) -> None:
    (runs / ".index.sqlite").write_bytes(b"the index of an earlier version")
    count = len(Archive(runs).run_ids())
    built = index_runs(Archive(runs), Archive(runs).run_ids(), f"sqlite:///{runs}/index.sqlite")
    assert built.runs == count
    with closing(open_index(runs)) as index:
        refreshed = index.refresh(now=True)
        assert refreshed is not None
        assert refreshed.changed == ()
        assert index.contents(refreshed) == built
