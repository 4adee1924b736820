"""Fills the index with all runs, with named runs, or with what has changed since the last time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.index.counting import count_runs
from bundle_router.adapters.index.database import (
    BATCH,
    META,
    TEXTS,
    has_current_tables,
    insert_rows,
    open_engine,
    prepare,
    tables,
    translate_errors,
    writing,
)
from bundle_router.adapters.index.exposures import Exposures, IndexedRuns
from bundle_router.core.records.call_records import read_record
from bundle_router.core.records.read_model import RunStamp
from bundle_router.core.records.tables import COLUMNS, Row, RunRows, Table, run_row
from bundle_router.errors import CorruptRun, StorageError, UnknownRun

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

RUNS_AT_ONCE: Final = 200
"""Runs per transaction of a refresh."""
MAX_TEXT: Final = 20_000
"""Maximum characters of a goal, or of arguments, that are searchable."""
_SEARCHED: Final = {"goal": "goal", "constraints": "goal", "arguments": "arguments"}


@dataclass(frozen=True, slots=True)
class IndexBuild:
    """Result of filling an index.

    `url` has no password; `problems` names unreadable runs, `deleted` lost ones.
    """

    url: str
    runs: int
    decisions: int
    calls: int
    problems: tuple[tuple[str, str], ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """Result of a refresh: the runs read, and the runs gone."""

    changed: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    """How far a run was read: its stamp at that time, the position in each file, and the hash of
    the last record.
    """

    length: int = 0
    records: str = ""
    rest: str = ""
    positions: Mapping[str, int] = field(default_factory=dict)
    head: str = ""


def index_runs(
    archive: IndexedRuns, run_ids: Iterable[str], url: str, *, named: bool = False
) -> IndexBuild:
    """Fill the index with whole runs of an archive.

    `named`: keep the rows of other runs; else drop them.

    A broken run becomes a row with the reason. Raises RequestError for an unusable URL, for foreign
    tables with our names, and for `named` runs in an index of another version; StorageError if the
    database can't be reached or written.
    """
    engine = open_engine(url)
    deleted: tuple[str, ...] = ()
    try:
        with translate_errors("written"), writing(engine) as connection:
            prepare(connection, named=named)
            filling = _Filling(connection, archive)
            stamps = archive.stamps()
            for run_id in run_ids:
                if named:
                    forget_run(connection, run_id)
                try:
                    filling.take_new(run_id, None, stamps.get(run_id, RunStamp(0, "", "")))
                except UnknownRun:
                    if named:
                        raise
                    filling.drop(run_id)
                    deleted = (*deleted, run_id)
            filling.end()
    finally:
        engine.dispose()
    shown_url = engine.url.render_as_string(hide_password=True)
    counts = filling.counts
    problems = filling.problems
    return IndexBuild(
        shown_url,
        filling.runs,
        counts["decisions"],
        counts["calls"],
        (*problems, *filling.exposures.problems),
        deleted,
    )


def refresh(
    archive: IndexedRuns, engine: Engine, report: Callable[[int, int], None]
) -> RefreshResult:
    """Bring the index up to date with a `RunArchive`: read new records, delete the rows of deleted
    runs.

    `report` is called with the number of changed runs read so far, and of all. Raises RequestError,
    StorageError.
    """
    with translate_errors("brought up to date"):
        with writing(engine) as connection:
            if not has_current_tables(connection):
                prepare(connection, named=False)
            known_stamps = _sources(connection)
            stamps = archive.stamps()
            deleted = tuple(sorted(known_stamps.keys() - stamps.keys()))
            for run_id in deleted:
                forget_run(connection, run_id)
            unsettled = _unsettled_runs(connection)
        changed = [
            id_
            for id_, stamp in stamps.items()
            if id_ in unsettled or _is_other(known_stamps.get(id_), stamp)
        ]
        report(0, len(changed))
        for start in range(0, len(changed), RUNS_AT_ONCE):
            part = changed[start : start + RUNS_AT_ONCE]
            with writing(engine) as connection:
                filling = _Filling(connection, archive)
                for run_id in part:
                    try:
                        filling.take_new(run_id, known_stamps.get(run_id), stamps[run_id])
                    except UnknownRun:  # pruned meanwhile
                        filling.drop(run_id)
                filling.end()
            report(start + len(part), len(changed))
    return RefreshResult(
        tuple(id_ for id_ in changed if _is_other(known_stamps.get(id_), stamps[id_])), deleted
    )


def _is_other(source: _Source | None, stamp: RunStamp) -> bool:
    return source is None or (source.length, source.records, source.rest) != (
        stamp.length,
        stamp.records,
        stamp.rest,
    )


def _sources(connection: Connection) -> dict[str, _Source]:
    table = tables()["sources"].__table__
    return {
        row.run_id: _Source(row.length, row.records, row.rest, json.loads(row.positions), row.head)
        for row in connection.execute(table.select())
    }


def _unsettled_runs(connection: Connection) -> set[str]:
    """Return the runs whose state may change without a change of their files: their writers may
    end.
    """
    table = tables()["runs"].__table__
    return {row.run_id for row in connection.execute(table.select().where(table.c.state == "open"))}


def forget_run(connection: Connection, run_id: str, *only: str) -> None:
    """Delete the rows of a run, in all tables or in the named ones."""
    for name in only or tables().keys() - {META, "exposures"}:
        of = tables()[name].__table__
        connection.execute(of.delete().where(of.c.run_id == run_id))
    if not only and connection.dialect.name == "sqlite":
        from sqlmodel import text

        connection.execute(text(f"delete from {TEXTS} where run_id = :run_id"), {"run_id": run_id})


class _Filling:
    """Adds runs to an index within one transaction."""

    def __init__(self, connection: Connection, archive: IndexedRuns) -> None:
        self._connection = connection
        self._archive = archive
        self.exposures = Exposures(archive)
        self._waiting: dict[str, list[Row]] = {}
        self._with_search = connection.dialect.name == "sqlite"
        self.counts: dict[Table, int] = dict.fromkeys(COLUMNS, 0)
        self.runs = 0
        self.problems: list[tuple[str, str]] = []

    def take_new(self, run_id: str, source: _Source | None, stamp: RunStamp) -> None:
        """Read the new records of a run; all records if the run did not merely grow."""
        with suppress(
            CorruptRun, StorageError, UnknownRun
        ):  # reading the whole run below reports the error
            if (
                source is not None
                and stamp.follows(source.length, source.records)
                and self._goes_on(run_id, source)
            ):
                known_rows = self._known_rows(run_id)
                forget_run(self._connection, run_id, "labels", "runs", "sources")
                self._take(run_id, source, stamp, known_rows)
                return
        if source is not None:
            forget_run(self._connection, run_id)
        self._take(run_id, _Source(), stamp, RunRows(run_id))

    def drop(self, run_id: str) -> None:
        """Delete a run's rows, with those waiting to be written."""
        self._flush()
        forget_run(self._connection, run_id)

    def _goes_on(self, run_id: str, source: _Source) -> bool:
        """Return whether the first new record continues the chain after the last record that was
        read.
        """
        first = next(self._archive.records_after(run_id, dict(source.positions)), None)
        return first is None or first.get("prev") == source.head

    def _known_rows(self, run_id: str) -> RunRows:
        """Return the row builder of a run with the decisions and unfinished calls of earlier
        reads.
        """
        decisions = tables()["decisions"].__table__
        calls = tables()["calls"].__table__
        seqs = {
            row.decision_id: row.seq
            for row in self._connection.execute(
                decisions.select()
                .with_only_columns(decisions.c.decision_id, decisions.c.seq)
                .where(decisions.c.run_id == run_id)
            )
        }
        unfinished = (calls.c.run_id == run_id) & calls.c.outcome.is_(None)
        unfinished_calls = [
            dict(row)
            for row in self._connection.execute(calls.select().where(unfinished)).mappings()
        ]
        self._connection.execute(calls.delete().where(unfinished))
        rows = RunRows(run_id, seqs)
        rows.resume_calls(unfinished_calls)
        return rows

    def _take(self, run_id: str, source: _Source, stamp: RunStamp, rows: RunRows) -> None:
        positions = dict(source.positions)
        head = source.head
        problem = ""
        try:
            for record in self._archive.records_after(run_id, positions):
                head = str(record.get("hash", ""))
                try:
                    for table, row in rows.of(record):
                        if table == "decisions":
                            row["exposure"] = self._exposure(run_id, record)
                        self._add(run_id, table, row)
                except (AttributeError, TypeError, ValueError) as error:
                    read_record(record)  # names the field that is of another type than ours
                    raise CorruptRun(
                        f"record {record.get('seq')} of run {run_id!r} has no rows: {error}"
                    ) from error
        except (CorruptRun, StorageError) as error:
            if isinstance(error, StorageError) and error.kind == "unreachable":
                raise
            problem = error.message
            self.problems.append((run_id, problem))
            self.drop(run_id)
            positions = {}
            head = ""
            rows = RunRows(run_id)
        for table, row in rows.unfinished_calls():
            self._add(run_id, table, row)
        self._add_labels(run_id, rows)
        self._set_run(run_id, problem)
        self._set_source(run_id, stamp, positions, head)
        self.runs += 1

    def _exposure(self, run_id: str, record: Mapping[str, Any]) -> str | None:
        digest, fresh = self.exposures.of(run_id, record)
        self._waiting.setdefault("exposures", []).extend(fresh)
        return digest

    def _add(self, run_id: str, table: Table, row: Row) -> None:
        row["run_id"] = run_id  # the directory's name: the key by which runs are replaced
        self.counts[table] += 1
        self._waiting.setdefault(table, []).append(row)
        if self._with_search:
            self._add_texts(run_id, table, row)
        if len(self._waiting[table]) >= BATCH:
            self._flush()

    def _add_texts(self, run_id: str, table: Table, row: Row) -> None:
        for of, content in _texts_of(table, row):
            text = {"run_id": run_id, "seq": row["seq"], "field": of, "text": content[:MAX_TEXT]}
            self._waiting.setdefault(TEXTS, []).append(text)

    def _add_labels(self, run_id: str, rows: RunRows) -> None:
        try:
            labels = self._archive.labels(run_id)
        except (CorruptRun, StorageError) as error:
            self.problems.append((run_id, error.message))
            return
        position = 0
        for label in labels:
            for table, row in rows.label(position, label.model_dump(mode="json")):
                self._add(run_id, table, row)
                position += 1

    def _set_run(self, run_id: str, problem: str) -> None:
        summary = self._archive.summary(run_id)
        names = (
            "state",
            "opened",
            "closed",
            "parent_run_id",
            "workspace",
            "catalog_revision",
            "records",
            "bytes",
        )
        stated = {name: getattr(summary, name) or None for name in names}
        stated |= {"run_id": run_id, "problem": problem or summary.problem or None}
        if problem:
            stated["state"] = "unreadable"
        self._waiting.setdefault("runs", []).append(run_row(stated))

    def _set_source(
        self, run_id: str, stamp: RunStamp, positions: Mapping[str, int], head: str
    ) -> None:
        row = {
            "run_id": run_id,
            "length": stamp.length,
            "records": stamp.records,
            "rest": stamp.rest,
        }
        row |= {"positions": json.dumps(positions), "head": head, "dirty": True}
        self._waiting.setdefault("sources", []).append(row)

    def _flush(self) -> None:
        from sqlmodel import text

        words = self._waiting.pop(TEXTS, [])
        for table, batch in self._waiting.items():
            insert_rows(self._connection, table, batch)
        self._waiting.clear()
        if words:
            insert = (
                f"insert into {TEXTS} (run_id, seq, field, text) values (:run_id, :seq, :field,"
                " :text)"
            )
            self._connection.execute(text(insert), words)

    def end(self) -> None:
        """Write the waiting rows, and compute the totals of the changed runs."""
        self._flush()
        count_runs(self._connection)


def _texts_of(table: Table, row: Row) -> Iterator[tuple[str, str]]:
    """Yield the texts of a row that are searched, each after the name of its field."""
    if table == "artifacts":
        words = [str(row[name]) for name in ("sha256", "name", "mime_type") if row[name]]
        yield "artifact", " ".join(words)
        return

    is_unfinished = table == "calls" and row["outcome"] is None
    if table not in ("decisions", "calls") or is_unfinished:
        return
    for name, of in _SEARCHED.items():
        if row.get(name):
            yield of, row[name]
