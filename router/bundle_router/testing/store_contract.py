"""What is asked of every run store, as tests.

    from bundle_router.testing.store_contract import RunStoreContract

    class TestMyStore(RunStoreContract):
        @pytest.fixture
        def make_store(self, tmp_path):
            return lambda: MyStore(f"mine://{tmp_path}/runs")

`make_store` is a fixture of the tests that use this: each call opens one more store over the same
runs, as another process would. Nothing here needs pytest itself. A store that has the methods of
`ports.StoredRuns` is tested for these as well.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from bundle_router.core.records.chain import FILES, File, parse
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import Step
from bundle_router.core.values.canonical import digest
from bundle_router.errors import RequestError
from bundle_router.ports import RunLog, RunStore, StoredRuns, WholeRun
from bundle_router.testing import fake_router, small_catalog
from bundle_router.wiring.stores import open_archive

CATALOG: Final = '{"bundles":[],"schema":"bundle-router.catalog/1"}'
OTHER_CATALOG: Final = '{"bundles":[],"note":"another","schema":"bundle-router.catalog/1"}'
HEADER: Final = RunHeader({"catalog_revision": digest(CATALOG)})
SECRET: Final = "correct-horse-battery-staple"
MakeStore = Callable[[], RunStore]


def begin(store: RunStore, run_id: str = "r") -> RunLog:
    """Begin a run, or open it, and read its records."""
    log = store.create(run_id, header=HEADER, catalog=CATALOG)
    numbers(log)
    return log


def note(number: int, **fields: Any) -> dict[str, Any]:
    """Return a record."""
    return {"type": "noted", "number": number, **fields}


def numbers(log: RunLog) -> list[int]:
    """Return the numbers of the records that are news."""
    return [record["number"] for record in log.news()]


class RunStoreContract:
    """Tests of a run store. Subclass it with a fixture `make_store`."""

    def test_a_run_that_is_not_there_is_none_and_reading_begins_none(
        self, make_store: MakeStore
    ) -> None:
        store = make_store()
        assert store.open("r") is None
        assert make_store().open("r") is None

    def test_a_store_can_be_checked(self, make_store: MakeStore) -> None:
        make_store().check()

    def test_an_id_that_is_none_is_refused(self, make_store: MakeStore) -> None:
        try:
            make_store().create("../r", header=HEADER, catalog=CATALOG)
        except RequestError:
            return
        raise AssertionError("a run was begun under an id that is no run id")

    def test_the_first_news_are_the_whole_run_and_then_what_came_since(
        self, make_store: MakeStore
    ) -> None:
        writer, reader = begin(make_store()), make_store()
        writer.append("routing", note(0))
        writer.append("calls", note(1))
        log = reader.open("r")
        assert log is not None
        assert (numbers(log), numbers(log), log.next_seq) == ([0, 1], [], 2)
        writer.append("routing", note(2))
        assert [(record["seq"], record["number"]) for record in log.news()] == [(2, 2)]
        assert log.record(1)["number"] == 1
        assert not _has_record(log, 3)

    def test_any_record_of_a_long_run_is_read_again_whoever_wrote_it(
        self, make_store: MakeStore
    ) -> None:
        first, second = begin(make_store()), begin(make_store())
        for number in range(300):
            (first, second)[number % 2].append("calls" if number % 3 else "routing", note(number))
        for log in (first, second, make_store().open("r")):
            assert log is not None
            list(log.news())
            assert [log.record(seq)["number"] for seq in range(300)] == list(range(300))
            assert not _has_record(log, 300)

    def test_an_append_gives_what_others_wrote_before_it(self, make_store: MakeStore) -> None:
        first, second = begin(make_store()), begin(make_store())
        first.append("routing", note(0))
        first.append("calls", note(1))
        appended = second.append("calls", note(2))
        assert ([record["number"] for record in appended.news], appended.seq) == ([0, 1], 2)
        assert numbers(second) == []
        assert numbers(first) == [2]

    def test_compare_and_append_writes_only_where_nothing_came(self, make_store: MakeStore) -> None:
        first, second = begin(make_store()), begin(make_store())
        first.append("routing", note(0))
        appended = second.append("routing", note(9), only_at=second.next_seq)
        assert ([record["number"] for record in appended.news], appended.seq) == ([0], None)
        assert second.append("routing", note(1), only_at=second.next_seq).seq == 1
        assert numbers(first) == [1]

    def test_many_that_create_and_append_at_once_make_one_run_and_lose_nothing(
        self, make_store: MakeStore
    ) -> None:
        stores = [make_store() for _ in range(4)]
        numbers: list[int] = []

        def work(worker: int) -> None:
            log = begin(stores[worker])
            for turn in range(10):
                number = worker * 100 + turn
                file: File = "calls" if turn % 3 else "routing"
                while log.append(file, note(number), only_at=log.next_seq).seq is None:
                    pass
                numbers.append(number)
            log.close()

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        log = make_store().open("r")
        assert log is not None
        records = [*log.news()]
        assert [record["seq"] for record in records] == list(range(40))
        assert sorted(record["number"] for record in records) == sorted(numbers)
        assert all(
            record["prev"] == before["hash"] for before, record in itertools.pairwise(records)
        )

    def test_who_closes_a_run_last_ends_it_and_the_others_are_named_before(
        self, make_store: MakeStore
    ) -> None:
        first, second = begin(make_store()), begin(make_store())
        first.append("routing", note(0))
        second.append("routing", note(1))
        assert len(first.close()) == 1
        assert first.close() == ()
        assert second.close() == ()

    def test_who_only_reads_neither_ends_a_run_nor_counts_among_the_others(
        self, make_store: MakeStore
    ) -> None:
        writer, reader = begin(make_store()), make_store().open("r")
        assert reader is not None
        writer.append("routing", note(0))
        assert reader.close() == ()
        assert writer.close() == ()

    def test_a_closed_run_is_gone_on_with_by_an_append(self, make_store: MakeStore) -> None:
        first = begin(make_store())
        first.append("routing", note(0))
        first.close()
        again = begin(make_store())
        assert again.append("routing", note(1)).seq == 1
        assert again.close() == ()

    def test_ids_begin_alike_for_all_who_have_a_run_open(self, make_store: MakeStore) -> None:
        assert begin(make_store()).id_prefix == begin(make_store()).id_prefix

    def test_a_store_knows_itself_to_be_alive_and_others_too(self, make_store: MakeStore) -> None:
        first, second = make_store(), make_store()
        assert first.writer != second.writer
        assert first.is_alive(first.writer)
        assert first.is_alive(second.writer)

    def test_artifacts_of_a_run_are_had_by_all_who_have_it_open(
        self, make_store: MakeStore
    ) -> None:
        first, second = begin(make_store()), begin(make_store())
        stored = first.artifacts().put(b"bytes")
        assert second.artifacts().get(stored) == b"bytes"

    def test_a_catalog_is_kept_once(self, make_store: MakeStore) -> None:
        log = begin(make_store())
        for _ in range(2):
            log.put_catalog(digest(OTHER_CATALOG), OTHER_CATALOG)
        log.append("routing", note(0))
        log.close()
        if (archive := _archive(make_store())) is not None:
            revisions = [one.revision for one in archive.header("r").catalogs]
            assert revisions == [digest(CATALOG), digest(OTHER_CATALOG)]

    # --- under a router ---------------------------------------------------------------------------

    def test_a_store_is_handed_no_secret(self, make_store: MakeStore) -> None:
        """A secret is planted in a goal, in arguments, in a result and in a key of it."""
        catalog = small_catalog({"notes": ["notes.read"]})
        step = Step(run_id="r", workflow="w", role="r", step="s", goal=f"use {SECRET}")
        results = {"notes.read": {"text": f"it is {SECRET}", SECRET: "found"}}
        with fake_router(
            catalog, runs=make_store(), secrets=[SECRET], results=results, selector=_all_of
        ) as router:
            router.route_sync(step)
            result = router.call_sync("r", "notes.read", {"about": SECRET})
        assert result.ok
        log = make_store().open("r")
        assert log is not None
        records = str([*log.news()])
        assert SECRET not in records
        assert records.count("[redacted:test]") >= 4

    def test_a_keyed_call_is_made_once_by_two_processes(self, make_store: MakeStore) -> None:
        catalog = small_catalog({"notes": ["notes.read"]})
        step = Step(run_id="r", workflow="w", role="r", step="s", key="first")
        texts = []
        for number in range(2):
            results = {"notes.read": f"read {number}"}
            with fake_router(
                catalog, runs=make_store(), results=results, selector=_all_of
            ) as router:
                router.route_sync(step)
                texts.append(router.call_sync("r", "notes.read", {}, key="k").text)
        assert texts == ["read 0", "read 0"]

    # --- reading whole runs -----------------------------------------------------------------------

    def test_whole_runs_are_listed_read_and_found_to_be_as_they_were_written(
        self, make_store: MakeStore
    ) -> None:
        if (archive := _archive(make_store())) is None:
            return
        run = _write_run(make_store())
        assert archive.run_ids() == ["r"]
        assert [record["number"] for record in archive.records("r")] == [0, 1, 2]
        assert archive.catalog("r", digest(OTHER_CATALOG))["note"] == "another"
        summary = archive.summary("r")
        assert (summary.state, summary.records) == ("open", 3)
        stamp = archive.stamps()["r"]
        run.close()
        assert archive.summary("r").state == "closed"
        assert archive.stamps()["r"] != stamp
        report = archive.verify("r", artifacts=True)
        assert (report.records, report.broken, report.problems) == (3, None, ())

    def test_a_run_is_the_same_after_it_was_taken_out_and_in_again(
        self, make_store: MakeStore
    ) -> None:
        if not hasattr(make_store(), "take_in"):
            return
        _write_run(make_store()).close()
        store = cast("StoredRuns", make_store())
        store.add_label("r", '{"seq":0}')
        run = _whole_run(store, "r")
        try:
            store.take_in(run)
        except RequestError:
            pass
        else:
            raise AssertionError("a run was taken in over one of the same id")
        assert store.delete("r")
        assert (list(store.run_ids()), store.header_of("r")) == ([], None)
        store.take_in(run)
        assert _whole_run(cast("StoredRuns", make_store()), "r") == run
        again = begin(make_store())
        assert again.append("routing", note(3)).seq == 3
        again.close()

    def test_a_run_that_is_worked_on_is_not_deleted(self, make_store: MakeStore) -> None:
        if (archive := _archive(make_store())) is None:
            return
        run = _write_run(make_store())
        assert not archive.delete("r")
        run.close()
        assert archive.delete("r")
        assert archive.run_ids() == []


def _has_record(log: RunLog, seq: int) -> bool:
    try:
        log.record(seq)
    except KeyError:
        return False
    return True


def _all_of(question: Any) -> Iterable[str]:
    """Answer a question by all its candidates."""
    return [candidate.id for candidate in question.candidates]


def _archive(store: RunStore) -> Any:
    """Return the archive of a store; None where its runs can't be read."""
    try:
        return open_archive(store)
    except RequestError:
        return None


def _write_run(store: RunStore) -> RunLog:
    """Write a run of three records, two catalogs and an artifact, and keep it open."""
    log = begin(store)
    stored = log.artifacts().put(b"bytes")
    log.append("routing", note(0))
    log.put_catalog(digest(OTHER_CATALOG), OTHER_CATALOG)
    log.append("calls", note(1, artifacts=[{"sha256": stored}]))
    log.append("routing", note(2, catalog_revision=digest(OTHER_CATALOG)))
    return log


def _whole_run(store: StoredRuns, run_id: str) -> WholeRun:
    """Return a run with all that is stored for it."""
    header = store.header_of(run_id)
    assert header is not None
    catalogs: Mapping[str, str] = {
        one.revision: store.catalog_of(run_id, one.revision) or "" for one in header.catalogs
    }
    lines = [(file, line) for file in FILES for line in store.lines_of(run_id, file, 0)]
    lines.sort(key=lambda pair: parse(pair[1])["seq"])
    artifacts = [*store.artifacts_of(run_id).values()]
    return WholeRun(header, catalogs, lines, artifacts, [*store.labels_of(run_id)])
