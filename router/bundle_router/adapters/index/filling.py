"""Fills the index with all runs, with named runs, or with what has changed since the last time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.index.changes import Source, find_changes
from bundle_router.adapters.index.counting import count_runs
from bundle_router.adapters.index.database import (
    BATCH,
    OF_NO_RUN,
    PREFIX,
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
from bundle_router.adapters.index.totals import add, subtract
from bundle_router.adapters.tokenizer import token_counter
from bundle_router.core.records.call_records import read_record
from bundle_router.core.records.read_model import SEARCHED_CHARACTERS, RunStamp
from bundle_router.core.records.table_columns import Table
from bundle_router.core.records.tables import COLUMNS, Row, RunRows, run_row
from bundle_router.errors import CorruptRun, StorageError, UnknownRun

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

COUNTS: Final = (
    f"select (select count(*) from {PREFIX}runs) as runs, (select count(*) from {PREFIX}decisions)"
    f" as decisions, (select count(*) from {PREFIX}calls) as calls"
)
PROBLEMS: Final = (
    f"select run_id, problems from {PREFIX}sources where problems <> '[]' order by run_id"
)
"""The problems that were met when runs were read, as JSON lists."""
Report = Callable[[int, int], None]
"""Is told the number of changed runs read so far, and of all."""
RUNS_AT_ONCE: Final = 200
"""Runs per transaction of a refresh."""
_SEARCHED: Final = {
    "goal": "goal",
    "constraints": "goal",
    "arguments": "arguments",
    "result": "result",
}
"""The columns whose texts are searched, and what a hit says it is in."""


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
    """Result of a refresh."""

    changed: tuple[str, ...]
    """The runs that were read, since their files had changed."""
    gone: tuple[str, ...]
    """The runs whose rows were deleted, since they are no longer there."""
    lost: tuple[str, ...] = ()
    """Runs that were deleted while they were read."""


def index_runs(
    archive: IndexedRuns,
    run_ids: Iterable[str],
    url: str,
    *,
    named: bool = False,
    report: Report | None = None,
) -> IndexBuild:
    """Fill the index with runs of an archive.

    `named`: read these runs anew and keep the rows of other runs; else bring the index up to date,
    so that it has the given runs alone.

    A broken run becomes a row with the reason. `report` is called as by `refresh`. Raises
    RequestError for an unusable URL, for foreign tables with our names, and for `named` runs in an
    index of another version; StorageError if the database can't be reached or written.
    """
    from sqlmodel import text

    engine = open_engine(url)
    shown_url = engine.url.render_as_string(hide_password=True)
    try:
        if named:
            return _index_named(archive, list(run_ids), engine, shown_url)
        stamps = archive.stamps()
        wanted_ids = list(run_ids)
        chosen_stamps = {run_id: stamps[run_id] for run_id in wanted_ids if run_id in stamps}
        refreshed = refresh(archive, engine, report, chosen_stamps)
        deleted = (*(id_ for id_ in wanted_ids if id_ not in stamps), *refreshed.lost)
        with translate_errors("read"), engine.connect() as connection:
            counts = connection.execute(text(COUNTS)).mappings().one()
            problems = connection.execute(text(PROBLEMS)).mappings().all()
            return build_of(shown_url, counts, problems, deleted)
    finally:
        engine.dispose()


def _index_named(
    archive: IndexedRuns, run_ids: list[str], engine: Engine, shown_url: str
) -> IndexBuild:
    exposures = Exposures(archive)
    tokens = ResultTokens()
    with translate_errors("written"), writing(engine) as connection:
        prepare(connection, named=True)
        stamps = archive.stamps()
        subtract(connection, run_ids)
        filling = _Filling(connection, archive, exposures, tokens)
        for run_id in run_ids:
            forget_run(connection, run_id)
            filling.take_new(run_id, None, stamps.get(run_id, RunStamp(0, "", "")))
        filling.end()
    counts = filling.counts
    return IndexBuild(
        shown_url, filling.runs, counts["decisions"], counts["calls"], tuple(filling.problems)
    )


def build_of(
    url: str,
    counts: Mapping[Any, Any],
    problems: Iterable[Mapping[Any, Any]],
    deleted: tuple[str, ...],
) -> IndexBuild:
    """Return what an index holds, from the rows of `COUNTS` and `PROBLEMS`."""
    problem_rows = [
        (row["run_id"], text) for row in problems for text in json.loads(row["problems"])
    ]
    return IndexBuild(
        url, counts["runs"], counts["decisions"], counts["calls"], tuple(problem_rows), deleted
    )


def refresh(
    archive: IndexedRuns,
    engine: Engine,
    report: Report | None = None,
    stamps: Mapping[str, RunStamp] | None = None,
) -> RefreshResult:
    """Bring the index up to date with an archive: read new records, delete the rows of deleted
    runs.

    `report` is called with the number of changed runs read so far, and of all. `stamps` are those
    of the runs that the index is to hold (default: all). Raises RequestError, StorageError.
    """
    if stamps is None:
        stamps = archive.stamps()
    exposures = Exposures(archive)
    tokens = ResultTokens()
    lost: list[str] = []
    with translate_errors("brought up to date"):
        with writing(engine) as connection:
            if not has_current_tables(connection):
                prepare(connection, named=False)
            sources = _sources(connection)
            changes = find_changes(archive, stamps, sources, _open_runs(connection))
        changed = changes.to_read
        if report is not None:
            report(0, len(changed))
        for start in range(0, len(changed), RUNS_AT_ONCE):
            part = changed[start : start + RUNS_AT_ONCE]
            with writing(engine) as connection:
                subtract(connection, part)
                filling = _Filling(connection, archive, exposures, tokens)
                for run_id in part:
                    try:
                        filling.take_new(run_id, sources.get(run_id), stamps[run_id])
                    except UnknownRun:  # pruned meanwhile
                        filling.drop(run_id)
                        lost.append(run_id)
                filling.end()
            if report is not None:
                report(start + len(part), len(changed))
        if changes.deleted_runs:
            with writing(engine) as connection:
                subtract(connection, changes.deleted_runs)
                for run_id in changes.deleted_runs:
                    forget_run(connection, run_id)
    return RefreshResult(changes.changed, changes.deleted_runs, tuple(lost))


def _sources(connection: Connection) -> dict[str, Source]:
    table = tables()["sources"].__table__
    return {
        row.run_id: Source(row.length, row.records, row.rest, row.positions, row.head)
        for row in connection.execute(table.select())
    }


def _open_runs(connection: Connection) -> set[str]:
    table = tables()["runs"].__table__
    open_ones = table.select().with_only_columns(table.c.run_id).where(table.c.state == "open")
    return {row.run_id for row in connection.execute(open_ones)}


def forget_run(connection: Connection, run_id: str, *only: str) -> None:
    """Delete the rows of a run, in all tables or in the named ones."""
    for name in only or tables().keys() - OF_NO_RUN:
        of = tables()[name].__table__
        connection.execute(of.delete().where(of.c.run_id == run_id))
    if not only and connection.dialect.name == "sqlite":
        from sqlmodel import text

        connection.execute(text(f"delete from {TEXTS} where run_id = :run_id"), {"run_id": run_id})


class ResultTokens:
    """Counts the tokens of results as those of definitions are counted (cl100k_base).

    1 MB of text takes 0.07 s. The tokenizer is loaded with the first result.
    """

    def __init__(self) -> None:
        self._count: Callable[[str], int] | None = None
        self._is_loaded = False

    def of(self, result: str | None) -> int | None:
        """Return the tokens of a result; None where no tokenizer is installed."""
        if not result:
            return 0
        if not self._is_loaded:
            self._count = token_counter()
            self._is_loaded = True
        return self._count(result) if self._count is not None else None


class _Filling:
    """Adds runs to an index within one transaction."""

    def __init__(
        self,
        connection: Connection,
        archive: IndexedRuns,
        exposures: Exposures,
        tokens: ResultTokens,
    ) -> None:
        self._connection = connection
        self._archive = archive
        self._exposures = exposures
        self._waiting: dict[str, list[Row]] = {}
        self._tokens = tokens
        self._with_search = connection.dialect.name == "sqlite"
        self.counts: dict[Table, int] = dict.fromkeys(COLUMNS, 0)
        self.runs = 0
        self.problems: list[tuple[str, str]] = []

    def take_new(self, run_id: str, source: Source | None, stamp: RunStamp) -> None:
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
                verification = self._known_verification(run_id)
                forget_run(self._connection, run_id, "labels", "runs", "sources")
                self._take(run_id, source, stamp, known_rows, verification)
                return
        if source is not None:
            forget_run(self._connection, run_id)
        self._take(run_id, Source(), stamp, RunRows(run_id), {})

    def drop(self, run_id: str) -> None:
        """Delete a run's rows, with those waiting to be written."""
        self._flush()
        forget_run(self._connection, run_id)

    def _goes_on(self, run_id: str, source: Source) -> bool:
        """Return whether the first new record continues the chain after the last record that was
        read.
        """
        first = next(self._archive.records_after(run_id, source.file_positions()), None)
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

    def _known_verification(self, run_id: str) -> Row:
        """Return what an earlier reading found of a run's chain."""
        runs = tables()["runs"].__table__
        result = self._connection.execute(
            runs.select()
            .with_only_columns(runs.c.verified, runs.c.tampered)
            .where(runs.c.run_id == run_id)
        )
        return dict(result.mappings().one())

    def _take(
        self,
        run_id: str,
        source: Source,
        stamp: RunStamp,
        rows: RunRows,
        verification: Row,
    ) -> None:
        positions = source.file_positions()
        head = source.head
        problem = ""
        earlier = len(self._exposures.problems)
        problems: list[str] = []
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
            problems.append(problem)
            self.drop(run_id)
            positions = {}
            head = ""
            rows = RunRows(run_id)
        for table, row in rows.unfinished_calls():
            self._add(run_id, table, row)
        problems += self._add_labels(run_id, rows)
        problems += [text for _, text in self._exposures.problems[earlier:]]
        self._set_run(run_id, problem, verification)
        self._set_source(run_id, stamp, positions, head, problems)
        self.problems += [(run_id, text) for text in problems]
        self.runs += 1

    def _exposure(self, run_id: str, record: Mapping[str, Any]) -> str | None:
        digest, fresh = self._exposures.of(run_id, record)
        self._waiting.setdefault("exposures", []).extend(fresh)
        return digest

    def _add(self, run_id: str, table: Table, row: Row) -> None:
        row["run_id"] = run_id  # the directory's name: the key by which runs are replaced
        if table == "calls" and row["kind"] == "call":
            row["result_tokens"] = self._tokens.of(row["result"])
        self.counts[table] += 1
        self._waiting.setdefault(table, []).append(row)
        if self._with_search:
            self._add_texts(run_id, table, row)
        if len(self._waiting[table]) >= BATCH:
            self._flush()

    def _add_texts(self, run_id: str, table: Table, row: Row) -> None:
        for of, content in _texts_of(table, row):
            text = {
                "run_id": run_id,
                "seq": row["seq"],
                "field": of,
                "text": content[:SEARCHED_CHARACTERS],
            }
            self._waiting.setdefault(TEXTS, []).append(text)

    def _add_labels(self, run_id: str, rows: RunRows) -> list[str]:
        """Add the reviewers' labels; return why that is impossible, if it is."""
        try:
            labels = self._archive.labels(run_id)
        except (CorruptRun, StorageError) as error:
            return [error.message]
        position = 0
        for label in labels:
            for table, row in rows.label(position, label.model_dump(mode="json")):
                self._add(run_id, table, row)
                position += 1
        return []

    def _verify(self, run_id: str) -> Row:
        """Return how far a run is as it was written, and what is not."""
        try:
            report = self._archive.verify(run_id, catalogs=False)
        except StorageError:  # `problems` says why it can't be read
            return {}
        tampered: str | None
        if report.broken is not None:
            tampered = f"record {report.broken.seq}: {report.broken.detail}"
        else:
            tampered = next(iter(report.problems), None)
        return {"verified": report.records, "tampered": tampered}

    def _set_run(self, run_id: str, problem: str, verification: Row) -> None:
        summary = self._archive.summary(run_id)
        if summary.state != "open" or not verification:
            # that of a long run takes a while: not at each record that is added to it
            verification = self._verify(run_id)
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
        stated |= verification
        if problem:
            stated["state"] = "unreadable"
        self._waiting.setdefault("runs", []).append(run_row(stated))

    def _set_source(
        self,
        run_id: str,
        stamp: RunStamp,
        positions: Mapping[str, int],
        head: str,
        problems: list[str],
    ) -> None:
        row = {
            "run_id": run_id,
            "length": stamp.length,
            "records": stamp.records,
            "rest": stamp.rest,
        }
        row |= {"positions": json.dumps(positions), "head": head, "dirty": True}
        row["problems"] = json.dumps(problems)
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
        """Write the waiting rows, and compute what the changed runs come to."""
        from sqlmodel import text

        self._flush()
        count_runs(self._connection)
        add(self._connection)
        self._connection.execute(text(f"update {PREFIX}sources set dirty = false where dirty"))


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
