"""What every store of runs keeps: the fake, the directory, the database.

Two stores stand for two processes.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.core.records.chain import FILES, check
from bundle_router.core.records.run_header import RunHeader
from bundle_router.ports import RunLog, RunStore
from bundle_router.testing import FakeClock, MemoryRuns, MemoryRunStore

HEADER = RunHeader({"catalog_revision": "sha256:" + "0" * 64})
Make = Callable[[], RunStore]


POSTGRESQL = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "")
NO_SERVER = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
DATABASE = pytest.param("postgresql", marks=pytest.mark.skipif(not POSTGRESQL, reason=NO_SERVER))


@pytest.fixture(params=["memory", "directory", DATABASE])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes stores as processes would have them, over one place."""
    made: list[RunStore] = []
    shared = MemoryRuns()
    database = f"contract_{os.getpid()}"
    if request.param == "postgresql":
        execute(f"drop schema if exists {database} cascade", f"create schema {database}")

    def make() -> RunStore:
        def artifacts(path: str) -> RunArtifacts:
            return RunArtifacts(path)

        if request.param == "memory":
            made.append(MemoryRunStore(shared))
        elif request.param == "postgresql":
            url = (
                f"{POSTGRESQL}{'&' if '?' in POSTGRESQL else '?'}options=-csearch_path%3D{database}"
            )
            described = PostgresRunStore(url, clock=FakeClock())
            made.append(described)
        else:
            made.append(DiskRunStore(tmp_path / "runs", clock=FakeClock(), artifacts=artifacts))
        return made[-1]

    yield make
    for store in made:
        store.close()
    if request.param == "postgresql":
        execute(f"drop schema {database} cascade")


def execute(*statements: str) -> None:
    import psycopg

    with psycopg.connect(
        POSTGRESQL.replace("postgresql+psycopg://", "postgresql://", 1), autocommit=True
    ) as connection:
        for statement in statements:
            connection.execute(statement)


def begun(store: RunStore, run_id: str = "r") -> RunLog:
    log = store.create(run_id, header=HEADER, catalog="{}")
    numbers(log)
    return log


def note(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "noted", "number": number, **fields}


def numbers(log: RunLog) -> list[int]:
    """The numbers of the news."""
    return [record["number"] for record in log.news()]


def test_a_run_that_is_not_there_is_none_and_reading_begins_none(make_store: Make) -> None:
    store = make_store()
    assert store.open("r") is None
    assert make_store().open("r") is None


def test_the_first_news_are_the_whole_run_and_then_what_came_since(make_store: Make) -> None:
    writer, reader = begun(make_store()), make_store()
    writer.append("routing", note(0))
    writer.append("calls", note(1))
    log = reader.open("r")
    assert log is not None
    assert (numbers(log), numbers(log), log.next_seq) == ([0, 1], [], 2)
    writer.append("routing", note(2))
    assert [(record["seq"], record["number"]) for record in log.news()] == [(2, 2)]
    assert log.record(1)["number"] == 1
    with pytest.raises(KeyError):
        log.record(3)


def test_any_record_of_a_long_run_is_read_again_whoever_wrote_it(make_store: Make) -> None:
    one, other = begun(make_store()), begun(make_store())
    for number in range(300):
        (one, other)[number % 2].append("calls" if number % 3 else "routing", note(number))
    for log in (one, other, make_store().open("r")):
        assert log is not None
        list(log.news())
        assert [log.record(seq)["number"] for seq in range(300)] == list(range(300))
        with pytest.raises(KeyError):
            log.record(300)


def test_reading_an_old_record_of_a_directory_reads_a_part_of_its_file(tmp_path: Path) -> None:
    from bundle_router.adapters.run_log.directory import POSIX

    read: list[int] = []

    class Counted:
        """A storage that counts what is read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(POSIX, name)

        def pread(self, fd: int, length: int, offset: int) -> bytes:
            data = POSIX.pread(fd, length, offset)
            read.append(len(data))
            return data

    def artifacts(path: str) -> RunArtifacts:
        return RunArtifacts(path)

    store = DiskRunStore(
        tmp_path / "runs",
        clock=FakeClock(),
        artifacts=artifacts,
        storage=Counted(),  # type: ignore[arg-type]  # call by call
    )
    log = begun(store)
    for number in range(1_000):
        log.append("routing", note(number, text="x" * 1_000))
    for seq in (0, 500, 999):
        read.clear()
        assert log.record(seq)["number"] == seq
        assert sum(read) < 200_000
    log.close()
    store.close()


def test_an_append_gives_what_others_wrote_before_it(make_store: Make) -> None:
    one, other = begun(make_store()), begun(make_store())
    one.append("routing", note(0))
    one.append("calls", note(1))
    appended = other.append("calls", note(2))
    assert ([record["number"] for record in appended.news], appended.seq) == ([0, 1], 2)
    assert numbers(other) == []
    assert numbers(one) == [2]


def test_compare_and_append_writes_only_where_nothing_came(make_store: Make) -> None:
    one, other = begun(make_store()), begun(make_store())
    one.append("routing", note(0))
    refused = other.append("routing", note(9), only_at=other.next_seq)
    assert ([record["number"] for record in refused.news], refused.seq) == ([0], None)
    assert other.append("routing", note(1), only_at=other.next_seq).seq == 1
    assert numbers(one) == [1]


def test_many_that_create_and_append_at_once_make_one_run_and_lose_nothing(
    make_store: Make,
) -> None:
    stores = [make_store() for _ in range(4)]
    written: list[int] = []

    def work(worker: int) -> None:
        log = begun(stores[worker])
        for turn in range(10):
            number = worker * 100 + turn
            while (
                log.append(
                    "calls" if turn % 3 else "routing", note(number), only_at=log.next_seq
                ).seq
                is None
            ):
                pass
            written.append(number)
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
    assert sorted(record["number"] for record in records) == sorted(written)
    assert all(record["prev"] == before["hash"] for before, record in itertools.pairwise(records))


def test_who_closes_a_run_last_ends_it_and_the_others_are_named_before(make_store: Make) -> None:
    one, other = begun(make_store()), begun(make_store())
    one.append("routing", note(0))
    other.append("routing", note(1))
    assert len(one.close()) == 1
    assert one.close() == ()
    assert other.close() == ()


def test_who_only_reads_neither_ends_a_run_nor_counts_among_the_others(make_store: Make) -> None:
    writer, reader = begun(make_store()), make_store().open("r")
    assert reader is not None
    writer.append("routing", note(0))
    assert reader.close() == ()
    assert writer.close() == ()


def test_a_closed_run_is_gone_on_with_by_an_append(make_store: Make) -> None:
    first = begun(make_store())
    first.append("routing", note(0))
    first.close()
    again = begun(make_store())
    assert again.append("routing", note(1)).seq == 1
    assert again.close() == ()


def test_ids_begin_alike_for_all_who_have_a_run_open(make_store: Make) -> None:
    assert begun(make_store()).id_prefix == begun(make_store()).id_prefix


def test_a_store_knows_itself_to_be_alive_and_others_too(make_store: Make) -> None:
    one, other = make_store(), make_store()
    assert one.writer != other.writer
    assert one.is_alive(one.writer)
    assert one.is_alive(other.writer)


def test_artifacts_of_a_run_are_had_by_all_who_have_it_open(make_store: Make) -> None:
    one, other = begun(make_store()), begun(make_store())
    stored = one.artifacts().put(b"bytes")
    assert other.artifacts().get(stored) == b"bytes"


def test_a_catalog_is_kept_once(make_store: Make) -> None:
    log = begun(make_store())
    for _ in range(2):
        log.put_catalog("sha256:" + "1" * 64, '{"bundles":[]}')
    log.append("routing", note(0))


# --- directories alone ----------------------------------------------------------------------------

KILLED = """
import sys, time
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.testing import FakeClock
store = DiskRunStore(sys.argv[1], clock=FakeClock(), artifacts=None)
print(store.writer, flush=True)
time.sleep(60)
"""


def test_a_killed_process_is_known_to_be_gone_and_a_stopped_one_is_not(tmp_path: Path) -> None:
    store = DiskRunStore(tmp_path / "runs", clock=FakeClock(), artifacts=RunArtifacts)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        token = process.stdout.readline().strip()
        assert store.is_alive(token)
        os.kill(process.pid, signal.SIGSTOP)
        assert store.is_alive(token)
    finally:
        process.kill()
        process.communicate()
    assert not store.is_alive(token)
    assert not store.is_alive("0123456789abcdef")
    store.close()


def test_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    from bundle_router.adapters.run_log.directory import POSIX
    from bundle_router.adapters.run_log.store import FileSystem, refuse_without_locks
    from bundle_router.errors import StorageError

    class Unlocked:
        """A storage whose locks are taken and not kept, as some network file systems have them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(POSIX, name)

        def flock(self, fd: int, operation: int) -> None:
            return None

    refuse_without_locks(POSIX, tmp_path, FileSystem("nfs4", frozenset(("rw", "local_lock=none"))))
    unlocked: Any = Unlocked()
    refuse_without_locks(unlocked, tmp_path, FileSystem("ext4"))
    with pytest.raises(StorageError, match="does not honour file locks") as refused:
        refuse_without_locks(unlocked, tmp_path, FileSystem("nfs4"))
    assert refused.value.kind == "no_locks"
    with pytest.raises(StorageError, match=r"\(nfs, mounted with local_lock=all, nolock\)"):
        refuse_without_locks(
            POSIX, tmp_path, FileSystem("nfs", frozenset(("rw", "nolock", "local_lock=all")))
        )
    assert list(tmp_path.iterdir()) == []


def test_what_a_folder_lies_on_is_said_by_the_innermost_mount(tmp_path: Path) -> None:
    from bundle_router.adapters.run_log.store import FileSystem, file_system_of

    shared = tmp_path / "a share"
    (shared / "runs").mkdir(parents=True)
    escaped = str(shared).replace(" ", "\\040")
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        f"90 22 0:50 / {escaped} rw,relatime - nfs host:/runs rw,vers=3,nolock,local_lock=all\n"
    )
    assert file_system_of(shared / "runs", table) == FileSystem(
        "nfs", frozenset(("rw", "vers=3", "nolock", "local_lock=all"))
    )
    assert file_system_of(tmp_path, table) == FileSystem("ext4", frozenset(("rw",)))
    assert file_system_of(tmp_path, tmp_path / "none") is None


def test_the_chain_of_what_many_wrote_is_whole(tmp_path: Path) -> None:
    runs = MemoryRuns()
    logs = [begun(MemoryRunStore(runs)) for _ in range(3)]
    for number in range(12):
        logs[number % 3].append("calls" if number % 2 else "routing", note(number))
    checked = check(runs.runs["r"].files(), "r", None)
    assert (checked.count, checked.broken) == (12, None)
    assert set(FILES.values()) == set(runs.runs["r"].files())
