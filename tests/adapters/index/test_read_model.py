"""The read model: facets, search, totals and freshness over recorded runs, in SQLite."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.adapters.archive import Archive
from bundle_router.adapters.index import RunIndex, index_url
from bundle_router.core.catalog import Bundle, Route
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.model_view import model_view
from bundle_router.core.records.read_model import RunQuery, Sort, counted_tokens
from bundle_router.core.records.replayed import catalog_from
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values import MODES, Mode
from bundle_router.errors import UnknownRun
from bundle_router.testing import fake_router, small_catalog
from bundle_router.tool import Media, ToolOutput

from tests.adapters.index.recorded_runs import RecordedRuns
from tests.service.pages.sample_runs import team, write

ROOT = Path(__file__).parents[3]


def recorded() -> RecordedRuns:
    catalog = small_catalog(
        {"notes": ["s.read", "s.write"], "other": ["s.other"], "extra": ["s.extra"]},
        routes=[
            Route("both", step=("both",), bundles=("notes", "extra")),
            Route("one", bundles=("notes",)),
        ],
    )
    with fake_router(catalog, results={"s.read": "text", "s.write": "done"}) as router:
        for at, (run_id, workflow) in enumerate(
            (("r-1", "feature"), ("r-2", "feature"), ("r-3", "bugfix"))
        ):
            router.fakes.clock.advance(3600)
            step = Step(run_id=run_id, workflow=workflow, role="planner", step="both" if at == 0 else "plan",
                        goal="count the café receipts", principal="ann" if at else "ben")  # fmt: skip
            router.route_sync(step)
            router.call_sync(run_id, "s.read", {"path": f"src/number{at}.py"})
            if at == 2:
                router.call_sync(run_id, "s.other", {})
        return RecordedRuns(
            {run_id: router.fakes.records(run_id) for run_id in ("r-1", "r-2", "r-3")}
        )


@pytest.fixture
def runs() -> RecordedRuns:
    return recorded()


@pytest.fixture
def index(runs: RecordedRuns) -> Iterator[RunIndex]:
    found = RunIndex(runs, "sqlite://", look_s=0)
    found.refresh(now=True)
    yield found
    found.close()


CASES: list[tuple[RunQuery, list[str]]] = [
    (RunQuery(), ["r-3", "r-2", "r-1"]),
    (RunQuery(facets=(("workflow", "feature"),)), ["r-2", "r-1"]),
    (RunQuery(facets=(("workflow", "feature"), ("workflow", "bugfix"))), ["r-3", "r-2", "r-1"]),
    (RunQuery(facets=(("workflow", "feature"), ("principal", "ann"))), ["r-2"]),
    (RunQuery(facets=(("mark", "denied"),)), ["r-3"]),
    (RunQuery(facets=(("mark", "denied"), ("mark", "media"))), []),
    (RunQuery(facets=(("bundle", "extra"),)), ["r-1"]),
    (RunQuery(facets=(("tool", "s.other"),)), ["r-3"]),
    (RunQuery(facets=(("missing", "s.other"),)), ["r-3"]),
    (RunQuery(facets=(("code", "not_mapped"),)), ["r-3"]),
    (RunQuery(facets=(("source", "mapping"), ("role", "planner"))), ["r-3", "r-2", "r-1"]),
    (RunQuery(facets=(("workflow", "x' or '1'='1"),)), []),
    (RunQuery(since="2026-01-01T02:30:00Z"), ["r-3"]),
    (RunQuery(until="2026-01-01T01:30:00Z"), ["r-1"]),
    (RunQuery(text="number1"), ["r-2"]),
    (RunQuery(text="CAFE receip"), ["r-3", "r-2", "r-1"]),
    (RunQuery(text="src/number2.py"), ["r-3"]),
    (RunQuery(text='") or 1=1 -- number1'), []),
    (RunQuery(text="r-2"), ["r-2"]),
    (RunQuery(text="%"), []),
    (RunQuery(sort="calls"), ["r-3", "r-2", "r-1"]),
    (RunQuery(sort="tokens", ascending=True), ["r-2", "r-3", "r-1"]),
    (RunQuery(sort="run", ascending=True, offset=1, limit=1), ["r-2"]),
]


@pytest.mark.parametrize(("query", "found"), CASES, ids=range(len(CASES)))
def test_runs_are_narrowed_searched_and_ordered(
    index: RunIndex, query: RunQuery, found: list[str]
) -> None:
    assert [run.run_id for run in index.runs(query).runs] == found


def test_every_order_is_an_order(index: RunIndex) -> None:
    sorts: tuple[Sort, ...] = (
        "started",
        "took",
        "steps",
        "calls",
        "tokens",
        "saved",
        "cost",
        "denied",
        "failed",
        "run",
    )
    for sort in sorts:
        down, up = (index.runs(RunQuery(sort=sort, ascending=way)).runs for way in (False, True))
        assert [run.run_id for run in down] == [run.run_id for run in reversed(up)]


def test_a_run_says_what_its_records_come_to(index: RunIndex) -> None:
    run = index.run("r-3")
    assert (run.decisions, run.calls, run.denied, run.failed, run.degraded) == (1, 2, 1, 0, 0)
    assert (run.workflow, run.principal, run.began) == (
        "bugfix",
        "ann",
        "2026-01-01T03:00:00.000000Z",
    )
    assert 0 < run.tokens < run.all_tokens
    assert run.saved == run.all_tokens - run.tokens
    with pytest.raises(UnknownRun):
        index.run("r-9")


def test_facets_count_the_runs_that_are_left(index: RunIndex) -> None:
    facets = index.runs(RunQuery(facets=(("workflow", "feature"),))).facets
    assert {row.value: row.runs for row in facets["principal"]} == {"ann": 1, "ben": 1}
    assert {row.value: row.runs for row in facets["bundle"]} == {"notes": 2, "extra": 1}
    assert "missing" not in facets


def test_a_list_reads_no_more_rows_than_it_shows(index: RunIndex) -> None:
    before = index.rows_read
    index.runs(RunQuery(limit=1), facets=False)
    assert index.rows_read - before == 2, "the run, and how many there are"


def test_decisions_are_joined_to_what_was_used(index: RunIndex) -> None:
    (decision,) = index.rows_of("decisions", "r-1")
    assert (decision["shown"], decision["used"], decision["calls"]) == (2, 1, 1)
    assert [(row["bundle"], row["calls"]) for row in index.rows_of("bundles", "r-1")] == [
        ("notes", 1),
        ("extra", 0),
    ]
    assert index.never_used("r-1") == [("extra", 1)]
    assert index.rows_of("calls", "r-1")[0]["decision_seq"] == decision["seq"]


def test_a_name_that_was_asked_for_and_that_nothing_has_is_missing(tmp_path: Path) -> None:
    catalog = small_catalog(
        {"notes": ["s.read"], "other": ["s.other"]}, routes=[Route("one", bundles=("notes",))]
    )
    with fake_router(catalog) as router:
        router.route_sync(Step(run_id="r-1", workflow="w", role="planner", step="plan"))
        router.missed_sync("r-1", "delete_file")
        router.call_sync("r-1", "s.raed", {})
        router.call_sync("r-1", "s.other", {})
        index = RunIndex(RecordedRuns({"r-1": router.fakes.records("r-1")}), "sqlite://", look_s=0)
    index.refresh(now=True)
    try:
        refused = {name: times for name, _, times in index.refused("r-1")}
        assert refused == {"delete_file": 1, "s.raed": 1, "s.other": 1}
        assert index.runs(RunQuery(facets=(("missing", "delete_file"),))).runs
    finally:
        index.close()


def test_a_run_counts_the_media_that_its_tools_returned() -> None:
    catalog = small_catalog({"notes": ["s.draw"]}, routes=[Route("one", bundles=("notes",))])
    media = ToolOutput(
        (
            Media(b"GIF89a", "image/gif"),
            Media(b"RIFF", "audio/wav"),
            Media(b"%PDF-1.7", "application/pdf"),
        )
    )
    with fake_router(catalog, results={"s.draw": media}) as router:
        router.route_sync(Step(run_id="r-1", workflow="w", role="planner", step="plan"))
        router.call_sync("r-1", "s.draw", {})
        recorded = RecordedRuns({"r-1": router.fakes.records("r-1")})
    with closing(RunIndex(recorded, "sqlite://", look_s=0)) as index:
        index.refresh(now=True)
        assert index.run("r-1").media == 3


def test_a_handle_is_searched_for_as_it_is_read(index: RunIndex) -> None:
    digest = "57cda64e" * 8
    assert index.search(f"artifact:sha256:{digest}") == index.search(digest) == []
    assert index.search("artifact:sha256:number2") == index.search("number2") != []


def test_search_gives_places_with_an_excerpt(index: RunIndex) -> None:
    hits = index.search("number2")
    assert [(hit.run_id, hit.field) for hit in hits] == [("r-3", "arguments")]
    assert "number2.py" in hits[0].excerpt
    assert index.search("(((") == []


def test_overviews_count_the_chosen_runs_alone(index: RunIndex) -> None:
    every, one = index.stats(RunQuery()), index.stats(RunQuery(facets=(("workflow", "bugfix"),)))
    assert (every.runs, one.runs) == (3, 1)
    assert [(row.name, row.count) for row in every.tables["calls by tool"]] == [
        ("s.read", 3),
        ("s.other", 1),
    ]
    assert [(row.name, row.count, row.detail) for row in one.tables["denials by tool"]] == [
        ("s.other", 1, "not_mapped")
    ]
    assert every.by_day[0][:2] == ("2026-01-01", 3)


def test_an_overview_of_many_records_counts_the_newest_runs_and_totals_all(index: RunIndex) -> None:
    bounded = index.stats(RunQuery(since="2026-01-01"), most_records=3)
    assert (bounded.runs, bounded.counted_runs, bounded.calls) == (3, 1, 4)
    assert [(row.name, row.count) for row in bounded.tables["calls by tool"]] == [
        ("s.other", 1),
        ("s.read", 1),
    ]
    assert [hour.time for hour in bounded.over_time] == ["2026-01-01T03"]
    assert [row.name for row in bounded.tables["slowest calls"]] == ["r-3/2", "r-3/3"]
    assert index.stats(RunQuery(), most_records=3).counted_runs == 3, "which costs no reading"
    assert index.stats(RunQuery(since="2026-01-01"), most_records=100).counted_runs == 3


def test_facets_of_many_runs_count_the_newest_of_them(
    index: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.index.run_index.FACET_RUNS", 2)
    page = index.runs(RunQuery(since="2026-01-01"))
    assert page.total == 3
    counts = [(count.value, count.runs) for count in page.facets["workflow"]]
    assert counts == [("bugfix", 1), ("feature", 1)]
    assert [count.runs for count in index.runs(RunQuery()).facets["workflow"]] == [2, 1]


def test_what_a_result_says_is_found_with_the_record_that_says_it() -> None:
    catalog = small_catalog(
        {"notes": ["s.read", "s.write"]}, routes=[Route("r", bundles=("notes",))]
    )
    with fake_router(
        catalog, results={"s.read": "the retry limit is 3", "s.write": "done"}
    ) as router:
        step = Step(run_id="r-1", workflow="w", role="planner", step="plan", goal="look")
        router.route_sync(step)
        router.call_sync("r-1", "s.read", {})
        router.call_sync("r-1", "s.write", {})
        records = router.fakes.records("r-1")
    records[4]["result"] = "begin " + "x " * 10_000 + "behind"
    found = RecordedRuns({"r-1": records})
    index = RunIndex(found, "sqlite://", look_s=0)
    index.refresh(now=True)
    (hit,) = index.search("retry limit")
    assert (hit.run_id, hit.seq, hit.field, hit.about) == ("r-1", 2, "result", "s.read")
    assert hit.excerpt == "the retry limit is 3"
    (goal,) = index.search("look", run_id="r-1")
    assert (goal.field, goal.about) == ("goal", "w / planner / plan")
    assert index.search("look", run_id="r-2") == []
    assert [hit.seq for hit in index.search("begin")] == [4]
    assert index.search("behind") == [], "it stands beyond what is searched"
    assert index.results_cut() == (2, 1)
    index.close()


def test_of_too_many_matches_to_rank_those_indexed_last_are_shown(
    index: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {hit.run_id for hit in index.search("receipts", limit=3)} == {"r-1", "r-2", "r-3"}
    monkeypatch.setattr("bundle_router.adapters.index.run_index.RANKED", 2)
    assert [hit.run_id for hit in index.search("receipts", limit=2)] == ["r-3", "r-2"]
    assert [hit.run_id for hit in index.search("receipts", run_id="r-1")] == ["r-1"]


def assert_kept_as_computed(index: RunIndex) -> None:
    """The sums that are kept are those of all records, as they are computed over chosen runs."""
    kept = index.stats(RunQuery())
    computed = index.stats(RunQuery(since="2000-01-01"))
    assert kept.over_time == computed.over_time
    assert kept.by_day == computed.by_day
    for name, rows in computed.tables.items():
        assert [replace(row, amount=round(row.amount, 6)) for row in kept.tables[name]] == [
            replace(row, amount=round(row.amount, 6)) for row in rows
        ], name
    assert replace(kept, tables={}, over_time=()) == replace(computed, tables={}, over_time=())
    assert index.runs(RunQuery()).facets == index.runs(RunQuery(since="2000-01-01")).facets


def test_what_is_kept_follows_runs_that_grow_are_replaced_and_go(
    index: RunIndex, runs: RecordedRuns
) -> None:
    assert_kept_as_computed(index)
    assert [(hour.time, hour.decisions, hour.calls, hour.denied) for hour in
            index.stats(RunQuery()).over_time] == [
        ("2026-01-01T01", 1, 1, 0), ("2026-01-01T02", 1, 1, 0), ("2026-01-01T03", 1, 2, 1)
    ]  # fmt: skip

    whole = runs.records["r-3"]
    runs.records["r-3"] = whole[:2]
    index.refresh(now=True)
    assert index.stats(RunQuery()).tables["denials by tool"] == ()
    assert_kept_as_computed(index)

    runs.records["r-3"] = whole
    del runs.records["r-1"]
    index.refresh(now=True)
    assert (index.stats(RunQuery()).runs, index.stats(RunQuery()).calls) == (2, 3)
    assert [(row.name, row.count) for row in index.stats(RunQuery()).tables["calls by tool"]] == [
        ("s.read", 2),
        ("s.other", 1),
    ]
    assert_kept_as_computed(index)

    runs.records.clear()
    index.refresh(now=True)
    assert index.stats(RunQuery()).over_time == ()
    assert set(index.stats(RunQuery()).tables.values()) == {()}


def test_days_are_told_apart_by_the_day_and_one_day_by_its_hours(tmp_path: Path) -> None:
    write(team(days=3).runs, tmp_path)
    index = RunIndex(Archive(tmp_path), "sqlite://", look_s=0)
    index.refresh(now=True)
    over_time = index.stats(RunQuery()).over_time
    assert [period.time for period in over_time] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert sum(period.degraded for period in over_time) == 1
    assert sum(period.doubted for period in over_time) == 0
    first = over_time[0]
    hours = index.stats(RunQuery(until="2026-01-01T24")).over_time
    assert len(hours) > 1
    assert sum(hour.decisions for hour in hours) == first.decisions
    assert_kept_as_computed(index)
    index.close()


def test_a_refresh_reads_what_is_new_and_nothing_else(index: RunIndex, runs: RecordedRuns) -> None:
    runs.records["r-3"], rest = runs.records["r-3"][:2], runs.records["r-3"][2:]
    runs.records["r-2"] = runs.records["r-2"][:2]
    fresh = RunIndex(runs, "sqlite://", look_s=0)
    fresh.refresh(now=True)
    assert fresh.rows_of("calls", "r-3")[0]["outcome"] is None, "it began, and has no end"
    runs.records["r-3"] += rest
    runs.read = 0
    refreshed = fresh.refresh(now=True)
    assert refreshed is not None
    assert refreshed.changed == ("r-3",)
    assert runs.read == len(rest) + 1, "the new records; the first of them twice"
    assert fresh.run("r-3") == index.run("r-3")
    assert fresh.rows_of("calls", "r-3") == index.rows_of("calls", "r-3")
    runs.read = 0
    assert fresh.refresh(now=True) is not None
    assert runs.read == 0
    fresh.close()


def test_a_run_that_was_replaced_is_read_whole_and_one_that_is_gone_is_forgotten(
    index: RunIndex, runs: RecordedRuns
) -> None:
    other = recorded().records["r-2"]
    longer = [{**record, "run_id": "r-1", "prev": "sha256:other", "hash": f"sha256:{at}"} for at, record in
              enumerate([*other, *[{**record, "seq": record["seq"] + 9} for record in other]])]  # fmt: skip
    runs.records["r-1"] = longer
    del runs.records["r-2"]
    refreshed = index.refresh(now=True)
    assert refreshed is not None
    assert (refreshed.changed, refreshed.gone) == (("r-1",), ("r-2",))
    assert index.run("r-1").decisions == 2
    assert index.search("number0") == []
    assert [run.run_id for run in index.runs(RunQuery()).runs] == ["r-3", "r-1"]


def test_a_label_is_there_at_the_next_look(index: RunIndex, runs: RecordedRuns) -> None:
    (decision,) = index.rows_of("decisions", "r-1")
    runs.said["r-1"] = [
        StepLabel(
            decision_id=decision["decision_id"], needed=("other",), not_needed=("extra",), by="x"
        )
    ]
    index.refresh(now=True)
    labels = [
        (row["seq"], row["bundle"], row["needed"], row["by"])
        for row in index.rows_of("labels", "r-1")
    ]
    assert labels == [(0, "other", True, "x"), (0, "extra", False, "x")]
    assert [run.run_id for run in index.runs(RunQuery(facets=(("mark", "labelled"),))).runs] == [
        "r-1"
    ]


# --- over a real folder ---------------------------------------------------------------------------


def small_run(folder: Path, run_id: str = "r-1") -> list[Any]:
    """A run of two steps on disk; what the model was shown at each."""
    (folder / "work").mkdir(exist_ok=True)
    (folder / "work" / "a.txt").write_text("text\n", encoding="utf-8")
    with Router.open(ROOT / "config", runs=folder / "runs", workspace=folder / "work") as router:
        shown = []
        for role, step in (("planner", "plan"), ("implementer", "implement")):
            router.route_sync(
                Step(run_id=run_id, workflow="feature", role=role, step=step, goal="look")
            )
            shown.append(router.tools_sync(run_id))
            router.call_sync(run_id, "repo.read_file", {"path": "a.txt"})
        router.close_run_sync(run_id)
    return shown


def test_what_the_model_saw_is_what_the_router_gave(tmp_path: Path) -> None:
    shown = small_run(tmp_path)
    archive = Archive(tmp_path / "runs")
    for record, given in zip(archive.decisions("r-1"), shown, strict=True):
        view = model_view(
            catalog_from(archive.catalog("r-1", record.decision.catalog_revision)), record
        )
        assert view.tools == given.tools
        assert (view.guidance, view.tokens, view.estimated) == (given.guidance, given.tokens, False)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_model_saw_is_known_whatever_the_mode(tmp_path: Path, mode: Mode) -> None:
    bundle = Bundle("notes", "Notes.", ("s.read", "s.write"), effects=("read",), mode=mode)
    catalog = small_catalog({"notes": bundle}, routes=[Route("all", bundles=("notes",))])
    with fake_router(catalog) as router:
        router.route_sync(Step(run_id="r", workflow="w", role="r", step="s"))
        given = router.tools_sync("r")
        record = DecisionRecord.from_json(router.fakes.records("r")[0])
    view = model_view(catalog, record)
    assert (view.tools, view.guidance, view.tokens) == (given.tools, given.guidance, given.tokens)
    assert [(row.name, place) for place, row in view.placement.rows()] == [
        ("s.read", mode),
        ("s.write", mode),
    ]


def test_a_folder_is_indexed_beside_its_runs_and_tokens_are_known_by_tool(tmp_path: Path) -> None:
    shown = small_run(tmp_path)
    archive = Archive(tmp_path / "runs")
    url = index_url(archive)
    assert url.endswith("runs/index.sqlite")
    index = RunIndex(archive, url)
    index.refresh(now=True)
    tokens = {row.name: row.count for row in index.stats(RunQuery()).tables["tokens by tool"]}
    active = [tool for toolset in shown for tool in toolset.active]
    assert tokens == {
        name: sum(t.tokens for t in active if t.name == name) for name in {t.name for t in active}
    }
    assert archive.run_ids() == ["r-1"]
    assert (tmp_path / "runs" / "index.sqlite").stat().st_mode & 0o777 == 0o600
    index.close()


def test_a_broken_run_is_a_row_that_says_why_and_its_records_count_for_nothing(
    tmp_path: Path,
) -> None:
    small_run(tmp_path)
    shutil.copytree(tmp_path / "runs" / "r-1", tmp_path / "runs" / "r-2")
    header = tmp_path / "runs" / "r-2" / "run.json"
    header.write_text(header.read_text().replace('"r-1"', '"r-2"'))
    log = tmp_path / "runs" / "r-2" / "tool-calls.jsonl"
    log.write_bytes(log.read_bytes() + b"garbage\n")
    index = RunIndex(Archive(tmp_path / "runs"), "sqlite://", look_s=0)
    index.refresh(now=True)
    assert (index.run("r-2").state, index.run("r-2").decisions) == ("unreadable", 0)
    assert "it is not JSON" in index.run("r-2").problem
    assert index.run("r-1").decisions == 2
    log.write_bytes((tmp_path / "runs" / "r-1" / "tool-calls.jsonl").read_bytes())
    index.refresh(now=True)
    assert index.run("r-2").decisions == 2, "mended, and read again"
    index.close()


def test_a_long_look_is_taken_beside_and_what_is_there_is_read_meanwhile(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bundle_router.adapters.index.run_index.LONG_S", -1.0
    )  # every look is a long one
    looking, go_on = threading.Event(), threading.Event()
    held, stamps = runs.records.pop("r-3"), runs.stamps

    def slow() -> Any:
        looking.set()
        assert go_on.wait(300)
        return stamps()

    index = RunIndex(runs, "sqlite://", look_s=0)
    index.refresh(now=True)
    assert index.runs(RunQuery()).total == 2
    runs.records["r-3"] = held
    monkeypatch.setattr(runs, "stamps", slow)
    while not looking.wait(0.01):
        assert index.refresh() is None
    assert index.refresh() is None, "one look at a time"
    assert index.runs(RunQuery()).total == 2
    go_on.set()
    index.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "index-look"]


def test_the_first_look_at_many_runs_is_not_waited_for_and_says_how_far_it_is(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.index.run_index.FIRST_S", 0.0)
    monkeypatch.setattr("bundle_router.adapters.index.filling.RUNS_AT_ONCE", 1)
    told, go_on = threading.Event(), threading.Event()

    def report(done: int, of: int) -> None:
        told.set()
        assert go_on.wait(300)

    index = RunIndex(runs, "sqlite://", report, look_s=0)
    index.refresh()
    assert index.runs(RunQuery()).total <= 1, "its tables are there"
    assert told.wait(300)
    index.refresh()
    assert index.stale == "1 of 3 runs have been read so far"
    assert index.runs(RunQuery()).total == 1
    go_on.set()
    index.refresh(now=True)
    assert (index.stale, index.runs(RunQuery()).total) == ("", 3)
    index.close()


def test_an_index_that_nobody_may_keep_is_the_same_for_every_thread(runs: RecordedRuns) -> None:
    """A service that is begun before there is a folder of runs, or beside one that is read-only."""
    index = RunIndex(runs, "sqlite://", look_s=0)
    index.refresh(now=True)
    with ThreadPoolExecutor(4) as threads:
        assert {page.total for page in threads.map(index.runs, [RunQuery()] * 16)} == {3}
    index.close()


def test_tokens_of_results_are_counted_by_tool_step_and_run_as_those_of_definitions_are(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer here makes a token of each letter: "text" is four."""
    monkeypatch.setattr("bundle_router.adapters.index.filling.token_counter", lambda: len)
    index = RunIndex(runs, "sqlite://", look_s=0)
    index.refresh(now=True)
    refusal = len(index.rows_of("calls", "r-3", tool="other")[0]["result"])
    stats = index.stats(RunQuery())
    assert (stats.result_tokens, stats.results_uncounted) == (12 + refusal, 0)
    tables = {
        name: [
            (row.name, row.count, row.amount) for row in stats.tables[f"tokens of results {name}"]
        ]
        for name in ("by tool", "by step", "by run")
    }
    assert tables == {
        "by tool": [("s.other", refusal, 1), ("s.read", 12, 3)],
        "by step": [
            ("bugfix / planner / plan", 4 + refusal, 2),
            ("feature / planner / both", 4, 1),
            ("feature / planner / plan", 4, 1),
        ],
        "by run": [("r-3", 4 + refusal, 2), ("r-1", 4, 1), ("r-2", 4, 1)],
    }
    assert index.run("r-1").result_tokens == 4
    assert index.rows_of("decisions", "r-3")[0]["result_tokens"] == 4 + refusal
    assert [hour.result_tokens for hour in stats.over_time] == [4, 4, 4 + refusal]
    index.close()


def test_results_that_nothing_could_count_are_not_zero_tokens(
    runs: RecordedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.adapters.index.filling.token_counter", lambda: None)
    index = RunIndex(runs, "sqlite://", look_s=0)
    index.refresh(now=True)
    assert index.run("r-3").results_uncounted == 2
    assert index.rows_of("calls", "r-3")[0]["result_tokens"] is None
    stats = index.stats(RunQuery())
    assert (stats.result_tokens, stats.results_uncounted) == (0, 4)
    assert stats.tables["tokens of results by tool"] == ()
    assert counted_tokens(stats.result_tokens, stats.results_uncounted) == "not counted"
    index.close()
