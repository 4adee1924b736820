"""What every store of runs keeps: the fake, the directory, the database.

Two stores stand for two processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router.adapters.artifact_files import RunArtifacts
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.adapters.run_log import DiskRunStore
from bundle_router.core.records.chain import FILES, check
from bundle_router.ports import RunStore
from bundle_router.testing import FakeClock, MemoryRuns, MemoryRunStore
from bundle_router.testing.store_contract import MakeStore, RunStoreContract, begin, note

POSTGRESQL = os.environ.get("BUNDLE_ROUTER_TEST_POSTGRESQL", "")
NO_SERVER = "BUNDLE_ROUTER_TEST_POSTGRESQL does not name a server; .ci/run starts one"
DATABASE = pytest.param("postgresql", marks=pytest.mark.skipif(not POSTGRESQL, reason=NO_SERVER))


@pytest.fixture(params=["memory", "directory", DATABASE])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
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


class TestStores(RunStoreContract):
    """The memory, the directory and the database keep the contract."""


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
    log = begin(store)
    for number in range(1_000):
        log.append("routing", note(number, text="x" * 1_000))
    for seq in (0, 500, 999):
        read.clear()
        assert log.record(seq)["number"] == seq
        assert sum(read) < 200_000
    log.close()
    store.close()


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
    logs = [begin(MemoryRunStore(runs)) for _ in range(3)]
    for number in range(12):
        logs[number % 3].append("calls" if number % 2 else "routing", note(number))
    checked = check(runs.runs["r"].files(), "r", None)
    assert (checked.count, checked.broken) == (12, None)
    assert set(FILES.values()) == set(runs.runs["r"].files())
