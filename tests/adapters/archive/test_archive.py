"""Reading runs: what a person and a program see of them, without a byte of them changing."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.archive import prune
from bundle_router.cli import main
from bundle_router.core.records.chain import genesis, seal
from bundle_router.core.records.run_header import RunHeader, catalog_file
from bundle_router.core.values.canonical import digest, encode
from bundle_router.errors import CorruptRun, UnknownRun

from tests.adapters.run_log.conftest import CATALOG, REVISION
from tests.profiles import rounds


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def filled(runs: Any, run_id: str = "r-1", *, close: bool = True, records: int = 6) -> None:
    log = runs.open(run_id)
    for number in range(records):
        log.append("calls" if number in (1, 2, 4) else "routing", runs.record(number))
    (log.close if close else log.release)()


def rewrite(runs: Any, name: str, change: Any) -> None:
    path = runs.path / "r-1" / name
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def test_records_of_both_files_come_in_the_order_they_happened(runs: Any) -> None:
    filled(runs)
    assert [(r["seq"], r["number"]) for r in runs.archive.records("r-1")] == [
        (i, i) for i in range(6)
    ]


def test_unknown_fields_and_record_types_are_handed_on(runs: Any) -> None:
    log = runs.open()
    log.append(
        "routing",
        {"type": "from.the.future", "schema": "bundle-router.decision/9", "new": [{"x": None}]},
    )
    assert next(runs.archive.records("r-1"))["new"] == [{"x": None}]


def test_a_record_that_names_another_run_is_none_of_this_one(runs: Any) -> None:
    runs.open().append("routing", {"type": "from.the.future", "run_id": "r-2"})
    with pytest.raises(
        CorruptRun, match="record 0 of run 'r-1' names another run in its field 'run_id'"
    ):
        list(runs.archive.values("r-1"))


def test_a_line_that_is_no_record_is_reported_and_not_skipped(runs: Any) -> None:
    filled(runs)
    rewrite(runs, "routing.jsonl", lambda lines: [lines[0], b"rubbish\n", *lines[1:]])
    seen: list[int] = []
    with pytest.raises(CorruptRun, match=r"routing\.jsonl:2: it is not JSON"):
        seen.extend(record["number"] for record in runs.archive.records("r-1"))
    assert seen == [0]
    rewrite(runs, "routing.jsonl", lambda lines: [lines[0], lines[3], lines[2]])
    with pytest.raises(CorruptRun, match=r"routing\.jsonl:3: record 3 comes after 5"):
        list(runs.archive.records("r-1"))


def test_reading_changes_nothing_not_even_a_torn_end(runs: Any) -> None:
    filled(runs, close=False)
    with (runs.path / "r-1" / "tool-calls.jsonl").open("ab") as file:
        file.write(b'{"half":')
    before = snapshot(runs.path)
    report = runs.archive.verify("r-1")
    assert report.ok
    assert [(t.file, t.bytes) for t in report.torn] == [("tool-calls.jsonl", 8)]
    assert len(list(runs.archive.records("r-1"))) == 6
    runs.archive.runs()
    prune(runs.archive, now="2030-01-01T00:00:00Z", older_than_s=1, dry_run=True)
    assert snapshot(runs.path) == before


def test_runs_are_listed_newest_first_with_their_state(runs: Any) -> None:
    filled(runs, "closed")
    runs.clock.time = "2026-11-22T00:00:00Z"
    filled(runs, "ended", close=False)
    runs.clock.time = "2026-11-23T00:00:00Z"
    log = runs.open("open")
    (runs.path / "bad").mkdir()
    (runs.path / "link").symlink_to("closed")
    (runs.path / ".gitkeep").touch()
    assert [(run.run_id, run.state, run.records) for run in runs.archive.runs()] == [
        ("open", "open", 0),
        ("ended", "ended", 6),
        ("closed", "closed", 6),
        ("bad", "unreadable", None),
    ]
    assert runs.archive.summary("open").pid == os.getpid()
    assert runs.archive.summary("closed").bytes == sum(
        map(len, snapshot(runs.path / "closed").values())
    )
    log.close()


@pytest.mark.parametrize("run_id", ["none", "", "..", "link", "a/b"])
def test_a_run_that_is_not_there_is_unknown(runs: Any, run_id: str) -> None:
    filled(runs)
    (runs.path / "link").symlink_to("r-1")
    for ask in (runs.archive.summary, runs.archive.verify, runs.archive.catalog):
        with pytest.raises(UnknownRun):
            ask(run_id)


def test_there_are_no_runs_where_there_is_no_directory(runs: Any) -> None:
    assert runs.archive.runs() == []
    assert prune(runs.archive, now="2030-01-01T00:00:00Z", max_bytes=0).deleted == ()


# --- verify ---------------------------------------------------------------------------------------

DAMAGE: list[tuple[str, str, Any, tuple[str, int, str, int]]] = [
    (
        "a byte of a value",
        "routing.jsonl",
        lambda lines: [lines[0], lines[1].replace(b'"number":3', b'"number":4'), *lines[2:]],
        ("changed", 3, "routing.jsonl", 2),
    ),
    (
        "a byte of the hash",
        "tool-calls.jsonl",
        lambda lines: [
            lines[0],
            lines[1][:-4] + bytes([lines[1][-4] ^ 1]) + lines[1][-3:],
            lines[2],
        ],
        ("changed", 2, "tool-calls.jsonl", 2),
    ),
    (
        "a newline inside",
        "routing.jsonl",
        lambda lines: [lines[0], lines[1][:9] + b"\n" + lines[1][9:], *lines[2:]],
        ("changed", 3, "routing.jsonl", 2),
    ),
    (
        "a line deleted",
        "routing.jsonl",
        lambda lines: [lines[0], *lines[2:]],
        ("dropped", 3, "tool-calls.jsonl", 3),
    ),
    (
        "the first line deleted",
        "routing.jsonl",
        lambda lines: lines[1:],
        ("dropped", 0, "tool-calls.jsonl", 1),
    ),
    ("the last line deleted", "routing.jsonl", lambda lines: lines[:-1], ("cut_off", 5, "", 0)),
    ("a file emptied", "tool-calls.jsonl", lambda lines: [], ("dropped", 1, "routing.jsonl", 2)),
    (
        "lines swapped",
        "tool-calls.jsonl",
        lambda ls: [ls[1], ls[0], ls[2]],
        ("reordered", 1, "tool-calls.jsonl", 2),
    ),
    (
        "a line doubled",
        "routing.jsonl",
        lambda ls: [ls[0], ls[0], *ls[1:]],
        ("repeated", 0, "routing.jsonl", 2),
    ),
    (
        "a line added behind",
        "routing.jsonl",
        lambda ls: [*ls, seal({"type": "x"}, 6, digest("x"))[0]],
        ("added", 6, "routing.jsonl", 4),
    ),
    ("the end torn", "routing.jsonl", lambda ls: [*ls[:-1], ls[-1][:40]], ("cut_off", 5, "", 0)),
    (
        "bytes added",
        "tool-calls.jsonl",
        lambda ls: [*ls, b"{"],
        ("added", 6, "tool-calls.jsonl", 0),
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "found"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE]
)
def test_verify_names_the_first_bad_record_of_a_closed_run(
    runs: Any, name: str, change: Any, found: tuple[str, int, str, int]
) -> None:
    filled(runs)
    assert runs.archive.verify("r-1").ok
    rewrite(runs, name, change)
    report = runs.archive.verify("r-1")
    assert not report.ok
    broken = report.broken
    assert (broken.kind, broken.seq, broken.file, broken.line) == found
    assert broken.detail


def test_verify_finds_every_single_byte_that_is_changed(runs: Any) -> None:
    filled(runs, records=4)
    path = runs.path / "r-1" / "routing.jsonl"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        broken = runs.archive.verify("r-1").broken
        assert broken is not None, at
        # A last newline that is gone leaves a torn line behind a run that is then too short.
        assert broken.seq == (0 if whole[:at].count(b"\n") == 0 else 3), at


def test_verify_says_what_it_can_not_know_of_a_run_that_was_not_closed(runs: Any) -> None:
    filled(runs, close=False)
    rewrite(runs, "routing.jsonl", lambda lines: lines[:-1])
    report = runs.archive.verify("r-1")
    assert report.ok
    assert report.records == 5
    assert any("can't be known" in note for note in report.notes)


def test_verify_does_not_take_the_records_of_another_run(runs: Any) -> None:
    filled(runs, "r-0")
    header = runs.path / "r-0" / "run.json"
    header.write_text(header.read_text().replace('"run_id": "r-0"', '"run_id": "r-1"'))
    (runs.path / "r-0").rename(runs.path / "r-1")
    report = runs.archive.verify("r-1")
    assert (report.broken.kind, report.broken.seq) == ("changed", 0)
    assert any("run.json was changed" in problem for problem in report.problems)


def test_a_copy_of_a_run_beside_it_is_named_and_counts_nowhere(runs: Any) -> None:
    filled(runs, "r-1")
    shutil.copytree(runs.path / "r-1", runs.path / "r-1.bak")
    archive = runs.archive
    report = archive.verify("r-1.bak")
    assert not report.ok
    assert any("belongs to run 'r-1'" in problem for problem in report.problems)

    states = {run.run_id: (run.state, run.problem) for run in archive.runs()}
    assert states["r-1"][0] == "closed"
    state, problem = states["r-1.bak"]
    assert state == "unreadable"
    assert "belongs to run 'r-1'" in problem

    for read in (archive.header, archive.lines, archive.catalog):
        with pytest.raises(CorruptRun, match="belongs to run 'r-1'"):
            read("r-1.bak")
    with pytest.raises(CorruptRun, match="belongs to run 'r-1'"):
        list(archive.records("r-1.bak"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", "{"),
        ("run.json", '{"closed": "x"}'),
        ("catalog.json", '{"schema": "bundle-router.catalog/1", "bundles": [1]}'),
        ("catalog.json", "no"),
        ("catalog.json", None),
    ],
)
def test_verify_looks_at_the_header_and_the_catalogs_too(
    runs: Any, name: str, text: str | None
) -> None:
    filled(runs)
    path = runs.path / "r-1" / name
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    report = runs.archive.verify("r-1")
    assert not report.ok
    assert any(name in problem for problem in report.problems)


def test_verify_misses_a_catalog_that_a_decision_names_whatever_the_header_says(runs: Any) -> None:
    log = runs.open()
    later = encode({"schema": "bundle-router.catalog/1", "bundles": [{"id": "a"}]})
    log.put_catalog(digest(later), later)
    for revision in (REVISION, digest(later)):
        log.append("routing", {**runs.record(0), "catalog_revision": revision})
    log.close()
    assert runs.archive.verify("r-1").ok
    path = runs.path / "r-1"
    header = json.loads((path / "run.json").read_text())
    (path / header["catalogs"][1]["file"]).unlink()
    (path / "run.json").write_text(
        RunHeader({**header, "catalogs": header["catalogs"][:1]}).sealed().to_text()
    )
    report = runs.archive.verify("r-1")
    assert [problem.rpartition("/")[2] for problem in report.problems] == [
        f"{header['catalogs'][1]['file']} is missing"
    ]


def test_catalogs_that_are_gone_are_told_in_order(runs: Any) -> None:
    revisions = [digest(str(number)) for number in range(9)]
    log = runs.open()
    for revision in revisions:
        log.append("routing", {**runs.record(0), "catalog_revision": revision})
    log.close()
    said = [problem.rpartition("/")[2] for problem in runs.archive.verify("r-1").problems]
    assert said == [f"{catalog_file(revision)} is missing" for revision in sorted(revisions)]


def test_a_run_whose_header_was_lost_keeps_the_catalog_that_it_began_with(runs: Any) -> None:
    log = runs.open()
    log.append("routing", {**runs.record(0), "catalog_revision": REVISION})
    log.release()
    (runs.path / "r-1" / "run.json").write_text("")
    later = encode({"schema": "bundle-router.catalog/1", "bundles": [{"id": "a"}]})
    again = runs.open(catalog=later)
    again.put_catalog(digest(later), later)
    again.append("routing", {**runs.record(1), "catalog_revision": digest(later)})
    again.close()
    report = runs.archive.verify("r-1")
    assert (report.ok, report.problems) == (True, ())
    assert runs.archive.catalog("r-1", REVISION) == json.loads(CATALOG)
    (runs.path / "r-1" / catalog_file(digest(later))).unlink()
    with pytest.raises(CorruptRun, match="is missing"):
        runs.archive.catalog("r-1", digest(later))


def test_a_run_that_can_not_be_walked_hides_no_other(
    runs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for run_id in ("r-1", "r-2", "r-3"):
        filled(runs, run_id)
    (runs.path / "r-1" / "tool-calls.jsonl").unlink()
    os.mkfifo(runs.path / "r-1" / "tool-calls.jsonl")
    (runs.path / "r-2" / "artifacts").symlink_to(runs.path)
    last = runs.path / "r-3" / "routing.jsonl"
    last.write_bytes(b"".join(last.read_bytes().splitlines(keepends=True)[:-1]))
    assert main(["runs", "verify", "--runs", str(runs.path)]) == 5
    said = capsys.readouterr().out
    assert said.count("BROKEN, 0 good records (unreadable)") == 2
    for run_id, why in (("r-1", "not a regular file"), ("r-2", "a link"), ("r-3", "cut_off")):
        assert why in said.partition(f"{run_id}: BROKEN")[2].partition("BROKEN")[0]


def test_verify_mentions_what_was_healed_before(runs: Any) -> None:
    filled(runs, close=False)
    with (runs.path / "r-1" / "routing.jsonl").open("ab") as file:
        file.write(b"{")
    runs.open().close()
    report = runs.archive.verify("r-1")
    assert report.ok
    assert any("routing.jsonl.torn-1" in note for note in report.notes)
    assert runs.archive.summary("r-1").healed == 1


def test_a_run_that_is_being_written_reads_and_verifies_without_gaps(runs: Any) -> None:
    log = runs.open()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set() and number < 20_000:
            log.append("routing" if number % 2 else "calls", runs.record(number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(rounds(30)):
            report = runs.archive.verify("r-1")
            assert report.broken is None
            numbers = runs.numbers()
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= report.records
    finally:
        stop.set()
        writer.join()


def test_a_line_without_end_does_not_fill_the_memory(runs: Any, tmp_path: Path) -> None:
    filled(runs, close=False)
    path = runs.path / "r-1" / "routing.jsonl"
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 80 * 1024 * 1024)  # sparse zeros, no newline
    report = runs.archive.verify("r-1")
    assert (report.broken.kind, report.broken.seq) == ("changed", 6)


@pytest.mark.parametrize("lines", [0, 3])
def test_holes_that_cost_their_writer_nothing_cost_a_reader_nothing(runs: Any, lines: int) -> None:
    filled(runs, close=False)
    path = runs.path / "r-1" / "routing.jsonl"
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        for number in range(lines):
            os.pwrite(file.fileno(), b"\n", end + (number + 1) * (32 << 20))
        file.truncate(1 << 42)
    report = runs.archive.verify("r-1")
    assert (report.broken.kind, report.broken.seq) == ("changed", 6)
    assert runs.archive.summary("r-1").records == 6 + lines
    with pytest.raises(CorruptRun):
        list(runs.archive.records("r-1"))


# --- prune ----------------------------------------------------------------------------------------


@pytest.fixture
def three(runs: Any) -> Any:
    """Runs that ended on the 1st, 2nd and 3rd; the second was not closed."""
    for day in (1, 2, 3):
        runs.clock.time = f"2026-11-0{day}T00:00:00Z"
        filled(runs, f"r-{day}", close=day != 2)
    return runs


def test_prune_deletes_what_is_older_and_a_dry_run_deletes_nothing(three: Any) -> None:
    limit: dict[str, Any] = {"now": "2026-11-04T00:00:00Z", "older_than_s": 36 * 3600}
    planned = prune(three.archive, dry_run=True, **limit)
    assert planned.deleted == ("r-1", "r-2")
    assert three.archive.run_ids() == ["r-1", "r-2", "r-3"]
    assert prune(three.archive, **limit) == planned
    assert three.archive.run_ids() == ["r-3"]
    assert planned.freed_bytes > 0


def test_prune_by_size_takes_the_oldest_first(three: Any) -> None:
    each = three.archive.summary("r-3").bytes
    done = prune(three.archive, now="2026-11-04T00:00:00Z", max_bytes=each)
    assert done.deleted == ("r-1", "r-2")


def test_prune_never_deletes_an_open_run(three: Any) -> None:
    log = three.open("r-1")
    done = prune(three.archive, now="2030-01-01T00:00:00Z", older_than_s=0)
    assert done.deleted == ("r-2", "r-3")
    assert done.kept == (("r-1", "it is open"),)
    log.append("routing", three.record(9))
    log.close()
    assert three.archive.verify("r-1").ok


def test_prune_goes_by_recorded_times_and_keeps_what_has_none(three: Any) -> None:
    for path in three.path.rglob("*"):
        os.utime(path, (0, 0))
    for name in ("run.json", "routing.jsonl", "tool-calls.jsonl"):
        (three.path / "r-2" / name).unlink()
    done = prune(three.archive, now="2026-11-04T00:00:00Z", max_bytes=0)
    assert done.deleted == ("r-1", "r-3")
    assert done.kept == (("r-2", "its time can't be read"),)


def test_a_clock_set_back_prunes_nothing_by_age(three: Any) -> None:
    assert prune(three.archive, now="2020-01-01T00:00:00Z", older_than_s=0).deleted == ()


def test_prune_follows_no_links(three: Any, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    (three.path / "r-1" / "inside").symlink_to(precious)
    (three.path / "linked").symlink_to(precious)
    done = prune(three.archive, now="2030-01-01T00:00:00Z", older_than_s=0)
    assert done.deleted == ("r-1", "r-2", "r-3")
    assert (precious / "file").read_text() == "kept"
    assert (three.path / "linked").is_symlink()


def test_a_deletion_that_was_interrupted_is_no_run_and_is_ended_by_the_next(three: Any) -> None:
    (three.path / "r-1").rename(three.path / ".deleting-r-1")
    assert three.archive.run_ids() == ["r-2", "r-3"]
    assert three.open("r-1").next_seq == 0
    prune(three.archive, now="2026-11-04T00:00:00Z", older_than_s=10**9)
    assert not (three.path / ".deleting-r-1").exists()


def test_prune_wants_a_limit_and_a_time(runs: Any) -> None:
    with pytest.raises(ValueError):
        prune(runs.archive, now="2026-11-04T00:00:00Z")
    with pytest.raises(ValueError):
        prune(runs.archive, now="yesterday", older_than_s=1)


def test_opening_runs_while_others_prune_them_always_gives_a_run_that_is_there(runs: Any) -> None:
    stop = threading.Event()

    def keep_pruning() -> None:
        while not stop.is_set():
            prune(runs.archive, now="2030-01-01T00:00:00Z", older_than_s=0)

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    opened = 0
    try:
        for number in range(150):
            log = runs.open()
            opened += 1
            log.append("routing", runs.record(number))
            assert json.loads(runs.bytes("run.json"))["run_id"] == "r-1"
            assert runs.bytes("routing.jsonl").count(genesis("r-1").encode()) == 1
            log.close()
    finally:
        stop.set()
        pruner.join()
    assert opened > 0


def begun(runs: Any, run_id: str, **fields: Any) -> Any:
    """A run whose header has these fields, too."""
    header = RunHeader({"catalog_revision": REVISION, **fields})
    runs.opened.append(log := runs.store().create(run_id, header=header, catalog=CATALOG))
    return log


def test_the_runs_below_a_run_come_in_the_order_they_were_opened(runs: Any) -> None:
    for run_id, time in (
        ("r-1", "04"),
        ("r-2", "02"),
        ("r-0", "03"),
        ("other", "01"),
        ("r-3", "02"),
    ):
        runs.clock.time = f"2026-11-{time}T00:00:00Z"
        begun(
            runs,
            run_id,
            **({} if run_id == "r-1" else {"parent_run_id": "r-1" if run_id != "other" else "r-2"}),
        )
    (runs.path / "bad").mkdir()
    assert [run.run_id for run in runs.archive.sub_runs("r-1")] == ["r-2", "r-3", "r-0"]
    assert [run.run_id for run in runs.archive.sub_runs("r-3")] == []


def test_a_summary_says_what_the_header_says(runs: Any) -> None:
    begun(runs, "r-1", workspace="/w", parent_run_id="r-0").close()
    begun(runs, "r-2").release()
    first, second = runs.archive.summary("r-1"), runs.archive.summary("r-2")
    assert (first.workspace, first.parent_run_id, first.catalog_revision) == ("/w", "r-0", REVISION)
    assert (second.workspace, second.parent_run_id, second.durability) == ("", None, "process")
    assert (first.opened, first.closed, second.closed) == (runs.clock.time, runs.clock.time, None)


CATALOGS: list[tuple[Any, Any, str]] = [
    ([], None, "holds no catalog"),
    ([], "sha256:" + "1" * 64, "is missing"),
    ([{"revision": REVISION, "file": "routing.jsonl"}], None, "names no catalog file"),
    (
        [{"revision": REVISION, "file": "catalogs/../../r-2/catalog.json"}],
        REVISION,
        "names no catalog file",
    ),
    ([{"revision": REVISION, "file": "catalog\0.json"}], None, "names no catalog file"),
    ([{"revision": REVISION, "file": "catalog-\ud800.json"}], None, "names no catalog file"),
    ([], "sha256:\0", "names no catalog file"),
    ([{"revision": "sha256:" + "1" * 64, "file": "catalog.json"}], None, "it was changed"),
    ([{"revision": digest("[]"), "file": "catalog-list.json"}], None, "it was changed"),
]


@pytest.mark.parametrize(("catalogs", "revision", "says"), CATALOGS)
def test_a_catalog_is_one_that_the_header_names_and_as_it_was_written(
    runs: Any, catalogs: Any, revision: str | None, says: str
) -> None:
    filled(runs)
    assert (
        runs.archive.catalog("r-1") == runs.archive.catalog("r-1", REVISION) == json.loads(CATALOG)
    )
    header = runs.path / "r-1" / "run.json"
    header.write_text(json.dumps({**json.loads(header.read_text()), "catalogs": catalogs}))
    (runs.path / "r-1" / "catalog-list.json").write_text("[]")
    with pytest.raises(CorruptRun, match=says):
        runs.archive.catalog("r-1", revision)


def test_of_two_catalogs_each_is_given_by_its_revision_and_the_first_without_one(runs: Any) -> None:
    log = runs.open()
    later = encode({"schema": "bundle-router.catalog/1", "bundles": [{"id": "a"}]})
    log.put_catalog(digest(later), later)
    log.close()
    assert runs.archive.catalog("r-1") == json.loads(CATALOG)
    assert runs.archive.catalog("r-1", digest(later)) == json.loads(later)


def test_records_after_a_position_are_those_that_came_since(runs: Any) -> None:
    log = runs.open()
    log.append("routing", runs.record(0))
    log.append("calls", runs.record(1))
    positions: dict[str, int] = {}
    assert [record["number"] for record in runs.archive.records_after("r-1", positions)] == [0, 1]
    assert set(positions) == {"routing.jsonl", "tool-calls.jsonl"}
    log.append("routing", runs.record(2))
    assert [record["number"] for record in runs.archive.records_after("r-1", positions)] == [2]
    assert [*runs.archive.records_after("r-1", positions)] == []
    with (runs.path / "r-1" / "routing.jsonl").open("ab") as file:
        file.write(b"rubbish\n")
    with pytest.raises(CorruptRun, match=r"routing\.jsonl: it is not JSON"):
        [*runs.archive.records_after("r-1", positions)]


def test_one_record_is_found_by_its_number_past_lines_that_are_none(runs: Any) -> None:
    log = runs.open()
    log.append("calls", {"type": "x", "text": '"seq":1,'})
    log.append("routing", runs.record(1))
    log.append("routing", runs.record(2))
    log.release()
    rewrite(runs, "routing.jsonl", lambda lines: [b'rubbish "seq":2,\n', *lines])
    assert [(runs.archive.record("r-1", seq) or {}).get("seq") for seq in range(4)] == [
        0,
        1,
        2,
        None,
    ]


def test_a_decision_that_is_none_is_named_and_other_records_are_no_decisions(runs: Any) -> None:
    log = runs.open()
    log.append("calls", {"type": "from.the.future"})
    log.append("routing", runs.record(1))
    assert next(runs.archive.records("r-1"))["type"] == "from.the.future"
    for read in (runs.archive.decisions, runs.archive.values):
        with pytest.raises(
            CorruptRun, match=r"record 1 of run 'r-1' does not fit its type: KeyError"
        ):
            [*read("r-1")]


def test_artifacts_that_records_name_and_the_run_lacks_are_said_to_be_gone(runs: Any) -> None:
    log = runs.open()
    rows = [{"uri": "artifact:x", "sha256": "1" * 64}, {"uri": "artifact:y"}]
    log.append("calls", {"type": "x", "artifacts": rows})
    log.append("calls", {"type": "x", "files": [{"sha256": "2" * 64}], "artifacts": []})
    log.release()
    rewrite(runs, "tool-calls.jsonl", lambda lines: [b'rubbish "artifacts":[{\n', *lines])
    assert runs.archive.verify("r-1", artifacts=True).problems == (f"artifact {'1' * 64} is gone",)
    assert runs.archive.verify("r-1").problems == ()
    folder = runs.path / "r-1" / "artifacts" / "sha256" / "11"
    folder.mkdir(parents=True)
    (folder / ("1" * 64)).write_text("other bytes")
    (folder / ".new-1").write_text("x")
    (problem,) = runs.archive.verify("r-1", artifacts=True).problems
    assert "1" * 64 in problem
    assert "gone" not in problem


@pytest.mark.parametrize(
    ("named", "gone"),
    [
        ([{"sha256": {}}], ["{}"]),
        ([{"sha256": 5}, {"sha256": "x"}], ["5", "x"]),
        ([{"a": 1}, 5], []),
    ],
)
def test_artifacts_of_other_types_are_findings_of_their_run(
    runs: Any, named: Any, gone: list[str]
) -> None:
    log = runs.open()
    log.append("calls", {"type": "call.finished", "artifacts": named})
    runs.release()
    found = runs.archive.verify("r-1", artifacts=True)
    assert found.broken is None
    assert list(found.problems) == [f"artifact {name} is gone" for name in gone]


def test_artifacts_that_are_gone_are_told_in_order(runs: Any) -> None:
    log = runs.open()
    log.append(
        "calls", {"type": "x", "artifacts": [{"sha256": f"{number:064}"} for number in range(40)]}
    )
    log.close()
    gone = [f"artifact {number:064} is gone" for number in range(40)]
    assert list(runs.archive.verify("r-1", artifacts=True).problems) == gone


def test_verify_says_what_was_mended_and_what_is_torn(runs: Any) -> None:
    filled(runs, close=False)
    (runs.path / "r-1" / "run.json").unlink()
    with (runs.path / "r-1" / "routing.jsonl").open("ab") as file:
        file.write(b"torn")
    torn = "routing.jsonl ends in 4 bytes that are no complete record"
    assert torn in runs.archive.verify("r-1").notes
    runs.clock.time = "2026-11-22T00:00:00Z"
    log = runs.store().open("r-1")
    [*log.news()]
    log.append("routing", runs.record(6))
    log.release()
    notes = runs.archive.verify("r-1").notes
    assert torn not in notes
    assert "run.json was lost and written again at 2026-11-22T00:00:00.000000Z" in notes
    assert any(note.startswith("a torn end of routing.jsonl was healed, see ") for note in notes)


def test_verify_compares_the_header_with_what_the_first_record_says_of_it(runs: Any) -> None:
    log = begun(runs, "r-1", workspace="/w")
    log.append("calls", {"type": "x"})
    log.append("routing", runs.record(1))
    log.close()
    header = runs.path / "r-1" / "run.json"
    assert runs.archive.verify("r-1").problems == ()
    changed = RunHeader({**json.loads(header.read_text()), "workspace": "/elsewhere"})
    header.write_text(changed.sealed().to_text())
    (problem,) = runs.archive.verify("r-1").problems
    assert problem.endswith("does not say of the opening of the run what the first record says")


def test_a_number_that_stands_twice_in_a_file_is_reported(runs: Any) -> None:
    filled(runs)
    rewrite(runs, "routing.jsonl", lambda lines: [lines[0], lines[0], *lines[1:]])
    with pytest.raises(CorruptRun, match=r"routing\.jsonl:2: record 0 comes after 0"):
        [*runs.archive.records("r-1")]


def test_verify_finds_a_call_with_two_ends(runs: Any) -> None:
    """Each is a record in its place: the chain alone says nothing of it."""
    log = runs.open()
    for call_id in ("r.1", "r.2", "r.1"):
        log.append("calls", {"type": "call.started", "call_id": call_id})
        log.append("calls", {"type": "call.finished", "call_id": call_id})
    log.append("calls", {"type": "note", "said": '"type":"call.finished","call_id":"r.2"'})
    log.close()
    report = runs.archive.verify("r-1")
    assert report.broken is None
    assert report.problems == ("call 'r.1' has 2 ends",)
