"""The archive of runs in PostgreSQL: lists, reads, verifies and deletes them, and imports runs of
other stores.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from bundle_router.adapters.archive.archive import RunArchive, RunSummary, is_run_id, summary_of
from bundle_router.adapters.archive.label_files import correction_from, label_line
from bundle_router.adapters.postgres.artifact_rows import (
    MAX_ROW_BYTES,
    PostgresArtifacts,
    free_artifacts,
)
from bundle_router.adapters.postgres.connections import Pool, to_storage_error, without_objects
from bundle_router.adapters.postgres.objects import ObjectStore
from bundle_router.adapters.postgres.schema import migrate
from bundle_router.adapters.postgres.sessions import WriterSession
from bundle_router.core.records.chain import FILES, File, genesis, parse
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.run_header import RunHeader
from bundle_router.core.records.step_labels import StepLabel
from bundle_router.core.values.canonical import decode, encode
from bundle_router.errors import CorruptRun, RequestError

BATCH: Final = 1000
LONG_S: Final = 3600.0
"""Seconds that importing a whole, perhaps large, run may take."""

_SUMMARY: Final = """
select coalesce(ended, header), next_seq,
    (select coalesce(sum(length(line) + 1), 0) from router_records r where r.run_id =
        router_runs.run_id)
    + (select coalesce(sum(size), 0) from router_run_artifacts natural join router_artifacts a
       where router_run_artifacts.run_id = router_runs.run_id)
from router_runs where run_id = %s
"""


class PostgresArchive(RunArchive):
    """The runs of one database. Deletes and imports runs; changes nothing else."""

    def __init__(self, url: str, *, wait_s: float = 30.0) -> None:
        plain, objects = without_objects(url)
        self._pool = Pool(plain, wait_s=wait_s)
        self.where = self._pool.where
        try:
            with self._pool.lend() as connection:
                migrate(connection)
        except psycopg.Error as error:
            raise to_storage_error("prepare the tables", self.where, error) from None
        self._objects = ObjectStore(objects) if objects else None
        self._session = WriterSession(self._pool)
        weakref.finalize(self, self._pool.close)

    def run_ids(self) -> list[str]:
        return [
            run_id
            for (run_id,) in self._pool.fetch("select run_id from router_runs order by run_id")
        ]

    def path_text(self, run_id: str) -> str:
        self._row("select 1 from router_runs where run_id = %s", run_id)
        return f"{self.where}#{run_id}"

    def _row(self, query: str, run_id: str) -> tuple[Any, ...]:
        rows = self._pool.fetch(query, (run_id,)) if is_run_id(run_id) else []
        if not rows:
            raise self.unknown(run_id)
        return rows[0]

    def header(self, run_id: str) -> RunHeader:
        (text,) = self._row(
            "select coalesce(ended, header) from router_runs where run_id = %s", run_id
        )
        return self._header_of(run_id, text)

    def _header_of(self, run_id: str, text: str) -> RunHeader:
        try:
            fields = decode(text)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise CorruptRun(
                f"{self.where}#{run_id}/run.json is not a JSON object", advice="restore it"
            )
        return RunHeader(fields)

    def summary(self, run_id: str) -> RunSummary:
        text, count, size = self._row(_SUMMARY, run_id)
        workers = self._session.writers_of(run_id)
        common: dict[str, Any] = {
            "run_id": run_id,
            "path": f"{self.where}#{run_id}",
            "bytes": int(size) + len(text),
        }
        common |= {"pid": next((worker.pid for worker in workers), 0), "records": count}
        try:
            header = self._header_of(run_id, text)
        except CorruptRun as error:
            return RunSummary(
                state="open" if workers else "unreadable", problem=error.message, **common
            )
        return summary_of(header, is_open=bool(workers), **common)

    def catalog_json(self, run_id: str, file: str, revision: str) -> Any:
        query = (
            "select catalog from router_run_catalogs natural join router_catalogs where run_id = %s"
            " and revision = %s"
        )
        rows = self._pool.fetch(query, (run_id, revision))
        if not rows:
            raise CorruptRun(f"{self.where}#{run_id}/{file} is missing", advice="restore it")
        try:
            return decode(rows[0][0])
        except (ValueError, RecursionError):
            raise CorruptRun(
                f"{self.where}#{run_id}/{file} is not JSON", advice="restore it"
            ) from None

    def _numbered_lines(
        self, run_id: str, file: File, after_seq: int, end: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the lines of a file after sequence number `at`, each with the number after its
        own.
        """
        query = (
            "select seq, line from router_records where run_id = %s and file = %s and seq > %s and"
            " seq < %s order by seq limit %s"
        )
        while rows := self._pool.fetch(query, (run_id, file, after_seq, end, BATCH)):
            yield from ((line.encode("utf-8") + b"\n", seq + 1) for seq, line in rows)
            after_seq = rows[-1][0]

    def stamps(self) -> dict[str, RunStamp]:
        query = (
            "select run_id, next_seq, md5(coalesce(ended, header)), "
            "(select count(*) from router_labels l where l.run_id = router_runs.run_id) "
            "from router_runs order by run_id"
        )
        rows = self._pool.fetch(query)
        return {
            run_id: RunStamp(count, "", f"{header} {labels}")
            for run_id, count, header, labels in rows
        }

    def lines_after(
        self, run_id: str, positions: Mapping[str, int]
    ) -> dict[str, Iterator[tuple[bytes, int]]]:
        (count,) = self._row("select next_seq from router_runs where run_id = %s", run_id)
        return {
            name: self._numbered_lines(run_id, file, positions.get(name, 0) - 1, count)
            for file, name in FILES.items()
        }

    def artifacts(self, run_id: str) -> PostgresArtifacts:
        self.path_text(run_id)
        return PostgresArtifacts(self._pool, run_id, self._objects)

    def labels(self, run_id: str) -> list[StepLabel]:
        place = self.path_text(run_id)
        rows = self._pool.fetch(
            "select line from router_labels where run_id = %s order by position", (run_id,)
        )
        return [
            correction_from(f"{place}:label {number}", line)
            for number, (line,) in enumerate(rows, 1)
        ]

    def add_label(self, run_id: str, correction: StepLabel) -> str:
        place = self.path_text(run_id)
        try:
            with self._pool.lend() as connection:
                connection.execute(
                    "insert into router_labels (run_id, line) values (%s, %s)",
                    (run_id, label_line(correction)),
                )
        except psycopg.Error as error:
            raise to_storage_error("label a run", self.where, error) from None
        return place

    def delete(self, run_id: str) -> bool:
        lock = self._session.lock_of(run_id)
        digests = self._pool.fetch(
            "select sha256 from router_run_artifacts where run_id = %s", (run_id,)
        )
        try:
            with self._pool.lend() as connection, connection.transaction():
                if connection.execute(
                    "select pg_try_advisory_xact_lock(%s)", (lock,)
                ).fetchone() != (True,):
                    return False  # a writer holds it
                if (
                    self.heads is not None
                ):  # before: a run that was deleted and is not marked counts as taken away
                    self.heads.prune(run_id)
                connection.execute("delete from router_runs where run_id = %s", (run_id,))
        except psycopg.Error as error:
            raise to_storage_error("delete a run", self.where, error) from None
        free_artifacts(self._pool, self._objects, [sha256 for (sha256,) in digests])
        return True

    def finish_deletions(self) -> None:
        """Delete artifacts and catalogs that no run names, which interrupted deletions left
        behind.
        """
        orphans = self._pool.fetch(
            "select sha256 from router_artifacts a where not exists "
            "(select from router_run_artifacts r where r.sha256 = a.sha256)"
        )
        free_artifacts(self._pool, self._objects, [sha256 for (sha256,) in orphans])

    # --- taking in --------------------------------------------------------------------------------

    def take_in(self, source: RunArchive, run_id: str) -> None:
        """Copy a whole run from another archive, in one transaction."""
        header = source.header(run_id)
        try:
            with self._pool.lend(time.monotonic() + LONG_S) as connection, connection.transaction():
                connection.execute(f"set local statement_timeout = {int(LONG_S * 1000)}")
                self._take_in(connection, source, run_id, header)
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name != "router_runs_pkey":
                raise to_storage_error("take a run in", self.where, error) from None
            raise RequestError(
                f"run {run_id!r} is already in {self.where}",
                advice="prune it first, or take in others",
            ) from None
        except psycopg.Error as error:
            raise to_storage_error("take a run in", self.where, error) from None

    def _take_in(
        self,
        connection: psycopg.Connection[Any],
        source: RunArchive,
        run_id: str,
        header: RunHeader,
    ) -> None:
        text = header.to_text()
        connection.execute(
            "insert into router_runs (run_id, head, opened, header, ended) values (%s, %s, %s,"
            " %s, %s)",
            (run_id, genesis(run_id), header.opened, text, text if header.closed else None),
        )
        for position, revision in enumerate(entry.revision for entry in header.catalogs):
            catalog = encode(source.catalog(run_id, revision))
            connection.execute(
                "insert into router_catalogs values (%s, %s) on conflict do nothing",
                (revision, catalog),
            )
            connection.execute(
                "insert into router_run_catalogs values (%s, %s, %s)", (run_id, revision, position)
            )
        count = 0
        copy = (
            "copy router_records (run_id, seq, file, kind, key, branch, attempt, line) from stdin"
        )
        with connection.cursor().copy(copy) as rows:
            for file, name in FILES.items():
                for line in source.lines(run_id)[name]:
                    record = parse(line)
                    kind = str(record.get("type", ""))
                    key = record.get("key")
                    branch = record.get("branch")
                    attempt = record.get("attempt") or 1
                    text = line[:-1].decode("ascii")
                    rows.write_row(
                        (
                            run_id,
                            record["seq"],
                            file,
                            kind,
                            key or None,
                            branch or None,
                            attempt,
                            text,
                        )
                    )
                    count += 1
        connection.execute(
            "update router_runs set next_seq = %s, head = coalesce((select substring(line from"
            ' \'"hash":"(sha256:[0-9a-f]{64})"\\}$\') from router_records where run_id = %s and seq'
            " = %s), head) where run_id = %s",
            (count, run_id, count - 1, run_id),
        )
        for correction in source.labels(run_id):
            connection.execute(
                "insert into router_labels (run_id, line) values (%s, %s)",
                (run_id, label_line(correction)),
            )
        self._take_artifacts(connection, source, run_id)

    def _take_artifacts(
        self, connection: psycopg.Connection[Any], source: RunArchive, run_id: str
    ) -> None:
        artifacts = source.artifacts(run_id)
        for artifact in artifacts.iter():
            data: bytes | None = artifacts.get(artifact.sha256)
            if self._objects is not None and data is not None and len(data) > MAX_ROW_BYTES:
                self._objects.put(artifact.sha256, data)
                data = None
            connection.execute(
                "insert into router_artifacts values (%s, %s, %s) on conflict do nothing",
                (artifact.sha256, artifact.bytes, data),
            )
            connection.execute(
                "insert into router_run_artifacts values (%s, %s)", (run_id, artifact.sha256)
            )
