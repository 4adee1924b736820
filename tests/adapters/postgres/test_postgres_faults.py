"""Killed workers, a killed database, cut connections, a fail-over: nothing acknowledged is lost,
nothing stands twice.

Quick by default; `BUNDLE_ROUTER_LONG=1` runs 10,000 cuts and many kills. Starts servers of its own.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bundle_router.adapters.postgres import PostgresRunStore
from bundle_router.core.records.chain import check, parse
from bundle_router.errors import RunBusy, StorageError
from bundle_router.testing import FakeClock

from tests.adapters.postgres.conftest import CATALOG, HEADER
from tests.adapters.postgres.servers import BINARIES, CuttingProxy, Server

LONG = os.environ.get("BUNDLE_ROUTER_LONG") == "1"
SEED = int(os.environ.get("BUNDLE_ROUTER_SEED", "1"))
WORKER = Path(__file__).with_name("worker.py")

pytestmark = pytest.mark.skipif(not BINARIES, reason="there are no binaries of a PostgreSQL server")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    made.begin()
    yield made
    made.end()


def begin(url: str, run_id: str) -> None:
    store = PostgresRunStore(url, clock=FakeClock())
    store.create(run_id, header=HEADER, catalog=CATALOG).close()
    store.close()


class Workers:
    """Processes that append to one run, and what the store acknowledged to them."""

    def __init__(self, url: str, run_id: str) -> None:
        self.url, self.run_id = url, run_id
        self.running: list[subprocess.Popen[str]] = []
        self.said: list[str] = []

    def start(self, first: int, count: int) -> subprocess.Popen[str]:
        words = [sys.executable, str(WORKER), self.url, self.run_id, str(first), str(count)]
        self.running.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        return self.running[-1]

    def wait(self) -> None:
        for process in self.running:
            out, _ = process.communicate(timeout=300)
            self.said += out.splitlines()
        self.running = []

    @property
    def acknowledged(self) -> dict[int, tuple[int, str]]:
        """Number to (seq, hash) of every whole acknowledgement."""
        rows = [line.split() for line in self.said if line[:1].isdigit() and len(line.split()) == 3]
        return {int(number): (int(seq), hash_) for seq, hash_, number in rows}


def written(url: str, run_id: str) -> list[dict[str, Any]]:
    """The records of a run, whose chain has to be whole."""
    with psycopg.connect(url) as connection:
        query = "select line from router_records where run_id = %s order by seq"
        lines = [
            line.encode() + b"\n" for (line,) in connection.execute(query, (run_id,)).fetchall()
        ]
    found = check({"routing": lines}, run_id, None)
    assert found.broken is None
    return [parse(line) for line in lines]


def assert_nothing_lost(
    records: list[dict[str, Any]], acknowledged: dict[int, tuple[int, str]]
) -> None:
    there = {record["seq"]: record for record in records}
    for number, (seq, hash_) in acknowledged.items():
        assert there[seq]["hash"] == hash_
        assert there[seq]["number"] == number
    numbers = [record["number"] for record in records]
    assert len(numbers) == len(set(numbers)), "a record stands twice"


def test_workers_that_are_killed_lose_nothing_that_was_acknowledged(server: Server) -> None:
    begin(server.url, "killed")
    workers, chance = Workers(server.url, "killed"), random.Random(SEED)
    for round_ in range(40 if LONG else 2):
        processes = [workers.start(1000 * (3 * round_ + worker), 1000) for worker in range(3)]
        assert processes[0].stdout is not None
        workers.said.append(processes[0].stdout.readline())
        time.sleep(chance.uniform(0.0, 0.3))
        for process in processes:
            process.send_signal(signal.SIGKILL)
        workers.wait()
    assert workers.acknowledged
    assert_nothing_lost(written(server.url, "killed"), workers.acknowledged)


def test_a_killed_database_loses_nothing_and_is_a_typed_error_meanwhile(server: Server) -> None:
    begin(server.url, "crashed")
    workers, count = Workers(server.url, "crashed"), 5_000 if LONG else 150
    for worker in range(2):
        workers.start(worker * count, count)
    for _ in range(10 if LONG else 1):
        time.sleep(0.8)
        server.kill()
        time.sleep(0.5)
        server.start()
    workers.wait()
    records = written(server.url, "crashed")
    assert_nothing_lost(records, workers.acknowledged)
    assert {record["number"] for record in records} == set(range(2 * count)), (
        "they went on by themselves"
    )
    assert not [line for line in workers.said if line.startswith("history")]


def test_connections_that_are_cut_anywhere_lose_nothing_and_double_nothing(server: Server) -> None:
    begin(server.url, "cut")
    proxy = CuttingProxy(server.folder, SEED)
    url = server.url.replace(str(server.folder), str(proxy.folder))
    store = PostgresRunStore(url, clock=FakeClock(), wait_s=30.0)
    acknowledged: dict[int, tuple[int, str]] = {}
    try:
        log = store.open("cut")
        assert log is not None
        for number in range(10_000 if LONG else 150):
            proxy.cut_soon()
            try:
                done = log.append("routing", {"type": "step.taken", "number": number}, wait_s=30.0)
            except (StorageError, RunBusy):
                continue
            assert done.seq is not None
            acknowledged[number] = (done.seq, done.hash)
        proxy.spare()
        records = written(server.url, "cut")
        assert_nothing_lost(records, acknowledged)
        assert len(acknowledged) > 0.9 * (10_000 if LONG else 150), (
            "a cut is gone around, not passed on"
        )
    finally:
        store.close()
        proxy.close()


def test_a_promoted_replica_goes_on_with_all_that_was_acknowledged() -> None:
    primary, replica = Server(), Server()
    try:
        primary.begin()
        begin(primary.url, "moved")
        replica.follow(primary)
        with psycopg.connect(primary.url, autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = '*'")
            connection.execute("select pg_reload_conf()")
            until(
                lambda: connection.execute(
                    "select 1 from pg_stat_replication where sync_state = 'sync'"
                ).fetchone()
            )
        both = f"{primary.url},{replica.folder}&target_session_attrs=read-write"
        workers, count = Workers(both, "moved"), 5_000 if LONG else 150
        for worker in range(2):
            workers.start(worker * count, count)
        time.sleep(1.0)
        primary.kill()
        replica.promote()
        workers.wait()
        records = written(replica.url, "moved")
        assert_nothing_lost(records, workers.acknowledged)
        assert {record["number"] for record in records} == set(range(2 * count))
        assert not [line for line in workers.said if line.startswith("history")]
    finally:
        replica.end()
        primary.end()


def standby_names(server: Server) -> str:
    """Return what holds for a connection that is made now: who has accepted it has told all others
    before.
    """
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute("show synchronous_standby_names").fetchone()
        assert row is not None
        return str(row[0])


def test_a_commit_that_no_replica_confirmed_is_not_acknowledged(server: Server) -> None:
    begin(server.url, "alone")
    store = PostgresRunStore(server.url, clock=FakeClock())
    log = store.open("alone")
    assert log is not None
    assert log.append("routing", {"type": "step.taken", "number": 0}).seq == 0
    with psycopg.connect(server.url, autocommit=True) as connection:
        try:
            connection.execute("alter system set synchronous_standby_names = 'nobody'")
            connection.execute("select pg_reload_conf()")
            until(lambda: standby_names(server) == "nobody")
            refused: list[StorageError] = []

            def is_refused() -> (
                bool
            ):  # commits wait once the server's checkpointer says so, which takes its time
                try:
                    log.append("routing", {"type": "step.taken", "number": 1}, wait_s=1.0)
                except StorageError as error:
                    refused.append(error)
                return bool(refused)

            until(is_refused)
            assert refused[0].kind == "unreachable"
        finally:
            connection.execute("set synchronous_commit = local")
            connection.execute("alter system reset synchronous_standby_names")
            connection.execute("select pg_reload_conf()")
            until(lambda: standby_names(server) == "")
    done = log.append("routing", {"type": "step.taken", "number": 2})
    assert [record["number"] for record in done.news] == [1], "it was written, and comes as news"
    store.close()


def until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
