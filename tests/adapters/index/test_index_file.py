"""The index's file: shared by lists and `runs index`, moved aside when it is broken, done without
when it is locked.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.index import RunIndex, index_runs, index_url
from bundle_router.cli import main
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


# --- runs are verified as they are indexed ---------------------------------------------------------

TAMPERED = RunQuery(facets=(("mark", "tampered"),))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(team(days=1).runs, tmp_path / "runs")


@pytest.fixture
def index(folder: Path) -> Iterator[RunIndex]:
    found = RunIndex(Archive(folder), "sqlite://", look_s=0)
    found.refresh(now=True)
    yield found
    found.close()


def test_a_run_as_it_was_written_is_verified_to_its_last_record(index: RunIndex) -> None:
    run = index.run("feature-001")
    assert (run.verified, run.tampered) == (run.records, "")
    stats = index.stats(RunQuery())
    assert (stats.verified, stats.tampered) == (stats.records, 0)
    assert index.runs(TAMPERED).total == 0


def test_a_record_that_was_changed_marks_its_run_until_it_is_put_right(
    index: RunIndex, folder: Path
) -> None:
    calls = folder / "feature-001" / "tool-calls.jsonl"
    written = calls.read_bytes()
    seq = int(re.findall(rb'"seq":(\d+)', written)[1])
    lines = written.splitlines(keepends=True)
    calls.write_bytes(
        b"".join([lines[0], lines[1].replace(b'"outcome":"ok"', b'"outcome":"no"'), *lines[2:]])
    )
    index.refresh(now=True)
    run = index.run("feature-001")
    assert (run.verified, run.tampered) == (
        seq,
        f"record {seq}: its hash does not match its bytes",
    )
    assert [run.run_id for run in index.runs(TAMPERED).runs] == ["feature-001"]
    assert {count.value: count.runs for count in index.runs(RunQuery()).facets["mark"]}[
        "tampered"
    ] == 1
    assert index.stats(RunQuery()).tampered == 1
    calls.write_bytes(written)
    index.refresh(now=True)
    assert index.run("feature-001").tampered == ""
    assert index.stats(RunQuery()).tampered == 0


def test_lists_and_totals_of_the_command_line_say_what_was_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = folder / "feature-001" / "tool-calls.jsonl"
    calls.write_bytes(calls.read_bytes().replace(b'"outcome":"ok"', b'"outcome":"no"', 1))
    for words in (["list"], ["list", "--mark", "tampered"], ["stats"]):
        assert main(["runs", *words, "--runs", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("NOT AS IT WAS WRITTEN: record 2: its hash does not match its bytes") == 2
    assert "WARNING: not as it was written: 1 run; `bundle-router runs list" in printed


def test_records_that_are_cut_off_a_closed_run_are_missed(index: RunIndex, folder: Path) -> None:
    calls = folder / "feature-001" / "tool-calls.jsonl"
    calls.write_bytes(b"".join(calls.read_bytes().splitlines(keepends=True)[:-1]))
    index.refresh(now=True)
    assert re.fullmatch(
        r"record \d+: the run was closed with \d+ records; \d+ are left",
        index.run("feature-001").tampered,
    )


def test_an_open_run_is_verified_whole_when_it_ends(tmp_path: Path) -> None:
    config = Path(__file__).parents[3] / "config"
    archive = Archive(tmp_path / "runs")
    index = RunIndex(archive, "sqlite://", look_s=0)
    with Router.open(config, runs=tmp_path / "runs", workspace=tmp_path) as router:
        for number in range(3):
            router.route_sync(
                Step(run_id="r", workflow="feature", role="planner", step=f"plan-{number}")
            )
            index.refresh(now=True)
            assert (index.run("r").state, index.run("r").decisions) == ("open", number + 1)
            assert index.run("r").verified == 1, "what it had when it was found"
        router.close_run_sync("r")
    index.refresh(now=True)
    assert (index.run("r").verified, index.run("r").tampered) == (3, "")
    index.close()
