"""The store of `own_store.py`, whose runs can also be read and copied (`ports.StoredRuns`): then the
verbs and the pages take it, or its URL, wherever they take a folder of runs.

A distribution makes the URL alone enough, as in `bundle-router runs list --store`, by an entry
point: `[project.entry-points."bundle_router_stores"]`, `sqlite-runs = "my_package:ReadableRuns"`.
"""

from __future__ import annotations

from bundle_router.core.records.chain import File, parse
from bundle_router.errors import RequestError
from bundle_router.ports import Clock, WholeRun

from tests.examples.own_store import SqliteArtifacts, SqliteRuns, Transaction


class ReadableRuns(SqliteRuns):
    """The runs of one file, to be written and read."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        super().__init__(url, clock=clock)
        self.rows("create table if not exists labels (run text, line text)")

    def run_ids(self) -> list[str]:
        return [run_id for (run_id,) in self.rows("select id from runs order by id")]

    def count_of(self, run_id: str) -> int:
        return int(self.rows("select count(*) from lines where run = ?", run_id)[0][0])

    def lines_of(self, run_id: str, file: File, start: int) -> list[bytes]:
        query = "select line from lines where run = ? and file = ? order by seq limit -1 offset ?"
        return [line for (line,) in self.rows(query, run_id, file, start)]

    def artifacts_of(self, run_id: str) -> dict[str, bytes]:
        return dict(self.rows("select sha256, data from artifacts where run = ?", run_id))

    def labels_of(self, run_id: str) -> list[str]:
        query = "select line from labels where run = ? order by rowid"
        return [line for (line,) in self.rows(query, run_id)]

    def add_label(self, run_id: str, label: str) -> None:
        self.rows("insert into labels values (?, ?)", run_id, label)

    def delete(self, run_id: str) -> bool:
        with self.lock, Transaction(self.db):
            if self.writers_of(run_id):
                return False
            for table in ("lines", "catalogs", "artifacts", "labels"):
                self.rows(f"delete from {table} where run = ?", run_id)
            self.rows("delete from runs where id = ?", run_id)
            return True

    def take_in(self, run: WholeRun) -> None:
        run_id = run.header.run_id
        with self.lock, Transaction(self.db):
            if self.header_of(run_id) is not None:
                raise RequestError(f"run {run_id!r} is already in {self.where}")
            self.insert_run(run.header, dict(run.catalogs))
            for seq, (file, line) in enumerate(run.lines):
                self.rows("insert into lines values (?, ?, ?, ?)", run_id, seq, file, line)
                self.rows("update runs set head = ? where id = ?", parse(line)["hash"], run_id)
            for data in run.artifacts:
                SqliteArtifacts(self, run_id).put(data)
            for label in run.labels:
                self.add_label(run_id, label)
