"""The store in PostgreSQL beyond the contract of every store: its tables, artifacts, sessions and
deadlines.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bundle_router.adapters.postgres import PostgresRunStore, sessions
from bundle_router.adapters.postgres.schema import VERSION, migrate
from bundle_router.core.records.chain import check
from bundle_router.errors import CorruptRun, KeyConflict, RequestError, StorageError
from bundle_router.testing import FakeClock

from tests.adapters.postgres.conftest import CATALOG, HEADER, break_session, sessions_of

Make = Callable[..., PostgresRunStore]


def note(number: int, **fields: Any) -> dict[str, Any]:
    return {"type": "note", "number": number, **fields}


def created(store: PostgresRunStore, run_id: str = "r") -> Any:
    return store.create(run_id, header=HEADER, catalog=CATALOG)


def lines_of(url: str, run_id: str = "r") -> dict[str, list[bytes]]:
    with psycopg.connect(url) as connection:
        rows = connection.execute(
            "select file, line from router_records where run_id = %s order by seq", (run_id,)
        ).fetchall()
    return {
        file: [line.encode() + b"\n" for name, line in rows if name == file]
        for file in ("routing", "calls")
    }


def test_what_is_appended_is_the_chain_of_a_run_directory(make_store: Make, url: str) -> None:
    log = created(make_store())
    for number in range(4):
        done = log.append("calls" if number % 2 else "routing", note(number))
        assert (done.seq, done.news) == (number, ())
    found = check(lines_of(url), "r", None)
    assert (found.count, found.broken) == (4, None)
    assert log.head == found.hash


def test_who_appends_behind_others_is_given_what_they_wrote(make_store: Make) -> None:
    one = created(make_store())
    other = make_store().open("r")
    assert other is not None
    one.append("routing", note(0))
    done = other.append("calls", note(1))
    assert [record["number"] for record in done.news] == [0]
    assert [record["number"] for record in one.news()] == [1]
    assert one.append("routing", note(2), only_at=1).seq is None
    assert one.append("routing", note(2), only_at=2).seq == 2
    moved = other.append("routing", note(3), only_at=2)
    assert (moved.seq, [record["number"] for record in moved.news]) == (None, [2])
    assert one.record(1)["number"] == 1
    with pytest.raises(KeyError):
        one.record(3)


def test_many_workers_append_to_one_run_and_nothing_is_lost(make_store: Make, url: str) -> None:
    created(make_store()).close()
    workers, each = 6, 25

    def work(worker: int) -> None:
        log = make_store().open("r")
        assert log is not None
        list(log.news())
        for number in range(each):
            log.append("calls", note(number, worker=worker), wait_s=30.0)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = check(lines_of(url), "r", None)
    assert (found.count, found.broken) == (workers * each, None)


def test_a_key_stands_once_for_each_type_and_attempt(make_store: Make) -> None:
    log = created(make_store())
    log.append("calls", {"type": "call.started", "key": "k"})
    log.append("calls", {"type": "call.finished", "key": "k", "outcome": "denied"})
    log.append("calls", {"type": "call.finished", "key": "k"})  # a refused call binds no key
    log.append("calls", {"type": "call.started", "key": "k", "attempt": 2})
    with pytest.raises(KeyConflict, match=r"call\.started of key 'k'"):
        log.append("calls", {"type": "call.started", "key": "k"})
    assert log.append("calls", {"type": "call.started", "key": "j"}).seq == 4


def test_keys_with_nul_are_keys_like_others(make_store: Make) -> None:
    log = created(make_store())
    keys = ("k", "k\0", '"k\\u0000"', "k\0\0")
    seqs = [
        log.append("calls", {"type": "call.started", "key": key, "branch": "a\0b"}).seq
        for key in keys
    ]
    assert seqs == sorted(set(seqs))
    for key in keys:
        with pytest.raises(KeyConflict):
            log.append("calls", {"type": "call.started", "key": key})


def test_tables_are_made_once_by_many_and_a_later_version_is_refused(
    make_store: Make, url: str
) -> None:
    stores = [make_store() for _ in range(4)]
    threads = [threading.Thread(target=store.prepare) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with psycopg.connect(url, autocommit=True) as connection:
        assert migrate(connection) == VERSION
        connection.execute("update router_schema set version = version + 1")
    with pytest.raises(RequestError, match="version 2"):
        make_store().open("r")


def test_a_table_that_somebody_else_made_is_not_touched(make_store: Make, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table router_runs (word text)")
    with pytest.raises(StorageError, match="another program"):
        make_store().prepare()
    with psycopg.connect(url) as connection:
        assert connection.execute("select to_regclass('router_schema')").fetchone() == (None,)


def test_close_writes_the_end_when_nobody_else_works_on_the_run(make_store: Make, url: str) -> None:
    first, second = make_store(), make_store()
    one, two = created(first), second.open("r")
    assert two is not None
    one.append("routing", note(0))
    two.append("routing", note(1))
    others = one.close()
    assert [other.name for other in others] == ["another router of this process"]
    assert two.close() == ()
    with psycopg.connect(url) as connection:
        (ended,) = connection.execute("select ended from router_runs").fetchone() or ("",)
    header = json.loads(ended)
    assert (header["count"], header["head"]) == (2, two.head)
    again = make_store().open("r")
    assert again is not None
    again.append("routing", note(2))
    with psycopg.connect(url) as connection:
        assert connection.execute("select ended from router_runs").fetchone() == (None,)


def test_a_process_is_gone_when_nobody_has_held_its_lock_for_a_while(make_store: Make) -> None:
    one, other = make_store(), make_store(dead_after_s=0.2)
    token = one.writer
    assert token == one.writer
    assert other.is_alive(token)
    one.close()
    deadline = time.monotonic() + 300
    started = time.monotonic()
    while other.is_alive(token) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert 0.2 <= time.monotonic() - started < 300
    assert not other.is_alive(token)


def test_looks_that_lie_far_apart_do_not_make_a_process_dead(make_store: Make) -> None:
    """Between them the database may have been away, for the process that is looked for as well."""
    other = make_store(dead_after_s=0.05)
    for _ in range(3):
        assert other.is_alive("0" * 16)
        time.sleep(0.1)


def test_a_process_takes_its_lock_again_when_its_connection_broke(
    make_store: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "BEAT_S", 0.05)
    one, other = make_store(), make_store(dead_after_s=300)
    log = created(one)
    log.begin()
    token = one.writer
    held = ended = break_session(other, token)
    deadline = time.monotonic() + 300
    while held in ([], ended) and time.monotonic() < deadline:
        held = sessions_of(other, token)
        time.sleep(0.02)
    assert len(held) == 1, "and nobody asked it for anything"
    assert one.writer == token
    others_log = created(other)
    assert len(others_log.close()) == 1, "it is seen to work on its run as before"


@pytest.mark.usefixtures("many_descriptors")
def test_a_session_is_kept_in_a_host_with_more_descriptors_than_select_knows(
    make_store: Make,
) -> None:
    store = make_store()
    assert store.writer == store.writer


@pytest.mark.parametrize("size", [5, 1024 * 1024, 1024 * 1024 + 1])
@pytest.mark.parametrize("with_objects", [False, True])
def test_artifacts_are_kept_once_for_all_runs(
    make_store: Make, tmp_path: Path, size: int, with_objects: bool
) -> None:
    objects = f"file://{tmp_path}/objects" if with_objects else ""
    store = make_store(objects=objects)
    data = b"x" * size
    kept = [created(store, run_id).artifacts() for run_id in ("one", "two")]
    stored = [artifacts.put(data) for artifacts in kept]
    assert stored[0] == stored[1]
    assert stored[0] == hashlib.sha256(data).hexdigest()
    assert [artifacts.get(stored[0]) for artifacts in kept] == [data, data]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == (1 if with_objects and size > 1024 * 1024 else 0)
    with pytest.raises(KeyError):
        created(store, "three").artifacts().get(stored[0])
    with pytest.raises(RequestError):
        kept[0].get("../x")


def test_a_database_that_is_not_there_is_a_typed_error_in_bounded_time(tmp_path: Path) -> None:
    from bundle_router.testing import FakeClock

    store = PostgresRunStore(
        f"postgresql://tests:secret@/postgres?host={tmp_path}", clock=FakeClock(), wait_s=0.5
    )
    with pytest.raises(StorageError) as raised:
        store.open("r")  # it tries again until its time is over, and not for ever
    assert raised.value.kind == "unreachable"
    assert "secret" not in raised.value.message


@pytest.mark.parametrize(
    ("statements", "append", "said"),
    [(3.0, 60.0, "due to statement timeout"), (60.0, 0.5, "wait timeout expired")],
)
def test_a_run_that_others_keep_locked_is_an_error_in_bounded_time(
    make_store: Make, url: str, statements: float, append: float, said: str
) -> None:
    """The server ends a statement that lasts too long, and who appends gives up when its own time
    is over; the error says which of the two it was. What was given up may still be carried out:
    then it comes as news.
    """
    store = make_store(wait_s=statements)
    log = created(store)
    log.append("routing", note(0))
    assert store.pool.fetch("show statement_timeout") == [("3s" if statements < 60 else "1min",)]
    with psycopg.connect(url) as holder:
        holder.execute("select 1 from router_runs for update")
        with pytest.raises(StorageError, match=said) as raised:
            log.append("routing", note(1), wait_s=append)
    assert raised.value.kind == "unreachable"
    done = log.append("routing", note(2))
    assert [record["number"] for record in done.news] == ([1] if done.seq == 2 else [])
    assert done.seq == 1 or append < statements


def test_a_database_with_another_history_is_refused(make_store: Make, url: str) -> None:
    log = created(make_store())
    log.append("routing", note(0))
    log.append("routing", note(1))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from router_records where seq = 1")
        connection.execute(
            "update router_runs set next_seq = 1, head = (select 'sha256:' || repeat('0', 64))"
        )
    with pytest.raises(CorruptRun, match="another history"):
        log.append("routing", note(2))
    with pytest.raises(CorruptRun, match="another history"):
        list(log.news())


def test_who_waits_hears_of_the_end_of_a_call(make_store: Make) -> None:
    log, waiter = created(make_store()), make_store().open("r")
    assert waiter is not None
    timer = threading.Timer(
        0.05, lambda: log.append("calls", {"type": "call.finished", "key": "k"})
    )
    timer.start()
    deadline = time.monotonic() + 300
    while not (came := list(waiter.news())) and time.monotonic() < deadline:
        waiter.wait(1.0)
    timer.join()
    assert [record["key"] for record in came] == ["k"]


def test_options_of_the_url_reach_the_server_as_they_were_written(url: str) -> None:
    both = f"{url}%20-capplication_name%3Dx"
    store = PostgresRunStore(f"{both}&objects=memory:///", clock=FakeClock())
    store.create("r", header=HEADER, catalog=CATALOG).close()
    store.close()
    with psycopg.connect(url) as connection:
        assert connection.execute("select run_id from router_runs").fetchall() == [("r",)]
