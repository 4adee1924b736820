"""A run store of one's own: runs in an SQLite file, for the processes of one machine.

    Router.open("config", store=SqliteRuns("sqlite-runs:///var/lib/runs.sqlite", clock=clock))

`own_store_reading.py` adds what the reading verbs and the pages need.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

from bundle_router.core.records.chain import (
    Appended,
    File,
    Head,
    Writer,
    encode_record,
    genesis,
    parse,
    seal_text,
    with_opening,
)
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.values import RUN_ID
from bundle_router.core.values.canonical import time_text
from bundle_router.errors import RequestError
from bundle_router.ports import Clock

SCHEMA = """
create table if not exists runs (id text primary key, header text, head text);
create table if not exists lines (run text, seq integer, file text, line blob, primary key (run, seq));
create table if not exists catalogs (run text, revision text, body text, primary key (run, revision));
create table if not exists artifacts (run text, sha256 text, data blob, primary key (run, sha256));
create table if not exists writers (run text, token text, primary key (run, token));
"""


class SqliteRuns:
    """The runs of one file (`ports.RunStore`)."""

    blocks = True  # it may wait for another process's transaction

    def __init__(self, url: str, *, clock: Clock) -> None:
        self.where = url
        self.clock = clock
        self.writer = secrets.token_hex(8)
        self.lock = threading.RLock()
        self.db = sqlite3.connect(url.partition("://")[2], check_same_thread=False, timeout=30)
        self.db.isolation_level = None
        self.db.executescript(f"pragma journal_mode = wal; {SCHEMA}")

    def rows(self, query: str, *values: object) -> list[Any]:
        with self.lock:
            return self.db.execute(query, values).fetchall()

    def is_alive(self, writer: str) -> bool:
        return True  # nothing here tells that a process is gone for certain

    def open(self, run_id: str) -> SqliteLog | None:
        header = self.header_of(run_id)
        return SqliteLog(self, run_id, header) if header is not None else None

    def create(self, run_id: str, *, header: RunHeader, catalog: str) -> SqliteLog:
        if not RUN_ID.fullmatch(run_id):
            raise RequestError(f"{run_id!r} is no run id")
        now, nonce = time_text(self.clock.time_ns()), secrets.token_hex(16)
        begun = header.begin(run_id, opened=now, nonce=nonce, durability="process")
        with self.lock, Transaction(self.db):
            if self.header_of(run_id) is None:
                self.insert_run(begun, {header.catalog_revision: catalog})
        log = self.open(run_id)
        assert log is not None
        return log

    def insert_run(self, header: RunHeader, catalogs: dict[str, str]) -> None:
        run_id = header.run_id
        text = header.to_text()
        self.rows("insert into runs values (?, ?, ?)", run_id, text, genesis(run_id))
        for revision, body in catalogs.items():
            self.rows("insert into catalogs values (?, ?, ?)", run_id, revision, body)

    def check(self) -> None:
        self.rows("select 1")

    def close(self) -> None:
        self.db.close()

    def header_of(self, run_id: str) -> RunHeader | None:
        found = self.rows("select header from runs where id = ?", run_id)
        return RunHeader(json.loads(found[0][0])).sealed() if found else None

    def catalog_of(self, run_id: str, revision: str) -> str | None:
        query = "select body from catalogs where run = ? and revision = ?"
        return next((body for (body,) in self.rows(query, run_id, revision)), None)

    def writers_of(self, run_id: str) -> list[Writer]:
        tokens = self.rows("select token from writers where run = ?", run_id)
        return [Writer(0, token) for (token,) in tokens]


class Transaction:
    """A write that no other process comes between."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("begin immediate")

    def __exit__(self, kind: object, *_: object) -> None:
        self.db.execute("commit" if kind is None else "rollback")


class SqliteArtifacts:
    """The artifacts of one run."""

    def __init__(self, store: SqliteRuns, run_id: str) -> None:
        self.store, self.run_id = store, run_id

    def put(self, data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        self.store.rows(
            "insert or ignore into artifacts values (?, ?, ?)", self.run_id, sha256, data
        )
        return sha256

    def get(self, sha256: str) -> bytes:
        query = "select data from artifacts where run = ? and sha256 = ?"
        found = self.store.rows(query, self.run_id, sha256)
        if not found:
            raise KeyError(sha256)
        return bytes(found[0][0])


class SqliteLog:
    """One run as one process reads and appends it (`ports.RunLog`)."""

    healed = ()

    def __init__(self, store: SqliteRuns, run_id: str, header: RunHeader) -> None:
        self.store, self.run_id, self.header = store, run_id, header
        self.path = f"{store.where}#{run_id}"
        self.id_prefix = f"{run_id}.{header.nonce[:8]}"
        self.next_seq = 0
        self.token = f"{store.writer}.{secrets.token_hex(4)}"

    def news(self) -> Iterator[dict[str, Any]]:
        query = "select line from lines where run = ? and seq >= ? order by seq"
        for (line,) in self.store.rows(query, self.run_id, self.next_seq):
            self.next_seq += 1
            yield parse(line)

    def append(
        self, file: File, record: dict[str, Any], *, only_at: int | None = None, wait_s: float = 5.0
    ) -> Appended:
        text = encode_record(record)
        with self.store.lock, Transaction(self.store.db):
            news = tuple(self.news())
            if only_at is not None and (news or only_at != self.next_seq):
                return Appended(news, None)
            (head,) = self.store.rows("select head from runs where id = ?", self.run_id)[0]
            if self.next_seq == 0:
                text = with_opening(text, self.header.opening_digest)
            line, hash_ = seal_text(text, self.next_seq, head)
            row = self.run_id, self.next_seq, file, line
            self.store.rows("insert into lines values (?, ?, ?, ?)", *row)
            self.store.rows("update runs set head = ? where id = ?", hash_, self.run_id)
            self.store.rows("insert or ignore into writers values (?, ?)", self.run_id, self.token)
            self._put_header(self._header_now().reopen())
        self.next_seq += 1
        return Appended(news, self.next_seq - 1, hash_)

    def _header_now(self) -> RunHeader:
        header = self.store.header_of(self.run_id)
        assert header is not None
        return header

    def _put_header(self, header: RunHeader) -> None:
        text = header.sealed().to_text()
        self.store.rows("update runs set header = ? where id = ?", text, self.run_id)

    def record(self, seq: int) -> dict[str, Any]:
        query = "select line from lines where run = ? and seq = ?"
        found = self.store.rows(query, self.run_id, seq)
        if not found or seq >= self.next_seq:
            raise KeyError(seq)
        return parse(found[0][0])

    def put_catalog(self, revision: str, text: str, *, wait_s: float = 5.0) -> None:
        with self.store.lock, Transaction(self.store.db):
            if self.store.catalog_of(self.run_id, revision) is None:
                self.store.rows(
                    "insert into catalogs values (?, ?, ?)", self.run_id, revision, text
                )
                self._put_header(self._header_now().with_catalogs([revision]))

    def sync(self) -> None:
        """Do nothing: what is committed survives the process."""

    def artifacts(self) -> SqliteArtifacts:
        return SqliteArtifacts(self.store, self.run_id)

    def close(self) -> tuple[Writer, ...]:
        with self.store.lock, Transaction(self.store.db):
            own = self.run_id, self.token
            wrote = self.store.rows(
                "delete from writers where run = ? and token = ? returning 1", *own
            )
            others = tuple(self.store.writers_of(self.run_id)) if wrote else ()
            if wrote and not others:
                query = "select head, (select count(*) from lines where run = id) from runs where id = ?"
                ((head, count),) = self.store.rows(query, self.run_id)
                now = time_text(self.store.clock.time_ns())
                self._put_header(self._header_now().end(now, Head(count, head)))
            return others
