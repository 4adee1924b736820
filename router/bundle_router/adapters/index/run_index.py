"""Queries of the index, with bounded numbers of rows.

SQLite only. See the package for the rules of the tables.

Rules:
1. No user input is part of a statement: values are bound, names come from closed lists.
2. A list reads one row more than it shows; counts are computed by the database.
3. Times are RFC 3339 in UTC, as in the records.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from bundle_router.adapters.index.changes import IndexChanges, Source, find_changes
from bundle_router.adapters.index.counting import FAILED, MEDIA
from bundle_router.adapters.index.database import (
    PREFIX,
    SEARCH,
    TEXTS,
    VERSION,
    BrokenIndex,
)
from bundle_router.adapters.index.exposures import IndexedRuns
from bundle_router.adapters.index.filling import (
    COUNTS,
    PROBLEMS,
    IndexBuild,
    RefreshResult,
    Report,
    build_of,
    refresh,
)
from bundle_router.adapters.index.index_file import IndexFile, version_in
from bundle_router.adapters.index.overviews import (
    EVERY,
    Ask,
    newest_alone,
    record_rows,
    stats,
    sums_tables,
)
from bundle_router.adapters.index.totals import CUT, FACETS, TOOL, sums_of
from bundle_router.core.catalog.step_address import PARTS, address_from_json
from bundle_router.core.records.outline import MARKS
from bundle_router.core.records.read_model import (
    FACET_RUNS,
    NOBODY,
    ArtifactUse,
    Facet,
    FacetCount,
    RecordQuery,
    RunPage,
    RunPart,
    RunQuery,
    RunRow,
    RunStamp,
    Sort,
    Stats,
    Tally,
    TextHit,
    Timeline,
)
from bundle_router.core.records.table_columns import Table
from bundle_router.core.records.tables import COLUMNS
from bundle_router.core.results.artifact_handles import PREFIX as HANDLE
from bundle_router.core.values import Address
from bundle_router.errors import RequestError, StorageError, UnknownRun

VALUES_SHOWN: Final = 12
"""Maximum values of one facet that are counted."""
LOOK_S: Final = 2.0
"""Minimum seconds between two refreshes."""
FIRST_S: Final = 5.0
"""Seconds that a reader waits for the first refresh."""
LONG_S: Final = 0.25
"""Seconds after which a refresh counts as slow: the next one runs in the background."""
_SORTS: Final[Mapping[Sort, str]] = {
    "started": "began",
    "took": "took_ms",
    "steps": "decisions",
    "calls": "calls",
    "tokens": "tokens",
    "saved": "all_tokens - tokens",
    "results": "result_tokens",
    "cost": "cost_usd",
    "denied": "denied",
    "failed": "failed",
    "run": "run_id",
}
_WORD: Final = re.compile(r"\w+", re.UNICODE)
MAX_WORDS: Final = 16
RANKED: Final = 5_000
"""Matches of a search that are ranked at most: ranking 250,000 took 15 s."""
_RUN_COLUMNS: Final = ", ".join(name for name in COLUMNS["runs"])
_SUB_RUN_COLUMNS: Final = ", ".join(f"r.{name}" for name in COLUMNS["runs"])


class RunIndex:
    """The index of one archive, refreshed as it is read. Any number of threads may use it."""

    def __init__(
        self,
        archive: IndexedRuns,
        url: str,
        report: Report | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self._archive = archive
        self._file = IndexFile(url)
        self._lock = threading.Lock()
        self._looked = -look_s
        self._look_s = look_s
        self._report = report
        self._took: float | None = None
        self._beside: threading.Thread | None = None
        self._readable = threading.Event()
        self.rows_read = 0
        """Number of rows that queries have returned so far."""
        self.stale = ""
        """Why the last refresh failed or is incomplete; empty if it succeeded."""

    def close(self) -> None:
        if self._beside is not None:
            self._beside.join()
        self._file.close()

    @property
    def notice(self) -> str:
        """What happened to the index's file, in a sentence; empty if nothing did."""
        return self._file.notice

    def refresh(self, *, now: bool = False) -> RefreshResult | None:
        """Refresh the index, unless that was done a moment ago.

        If it can't be written, it is read as it is. If its file is no usable database, that is
        moved aside, and a new one is made; if it can't be read, an index of this process alone is
        made. `notice` says so.

        If the last refresh was slow, this one runs in a background thread while the present rows
        are read. So does the first one, which may have to read every run, after `FIRST_S` and once
        it has made the tables.
        """
        if not now and ((first := self._took is None) or self._took > LONG_S):
            if (
                time.monotonic() - self._looked >= self._look_s + (self._took or 0.0)
                and not self._lock.locked()
            ):
                thread = threading.Thread(target=self._look, name="index-look", daemon=True)
                thread.start()
                self._beside = thread  # another request may join it: it was started
            if first and self._beside is not None:
                self._beside.join(FIRST_S)
                self._readable.wait()
            return None
        with self._lock:
            begin_s = time.monotonic()
            if not now and begin_s - self._looked < self._look_s:
                return None
            try:
                outcome = self._bring_up_to_date()
                self.stale = ""
            except StorageError as error:
                outcome = None
                self.stale = error.message
            self._looked = time.monotonic()
            self._took = self._looked - begin_s
            return outcome

    def _bring_up_to_date(self) -> RefreshResult:
        """Read the runs that changed. Without any, nothing is written."""
        stamps = self._archive.stamps()
        try:
            changes = self._changes(stamps)
        except BrokenIndex as error:
            self._file.move_aside(error.message)
            changes = None
        except StorageError as error:
            self._file.do_without(error.message)
            changes = None
        if changes is not None and not changes.to_read and not changes.deleted_runs:
            self._report_progress(0, 0)
            return RefreshResult((), ())
        try:
            return self._fill(stamps)
        except BrokenIndex as error:
            self._file.move_aside(error.message)
        except (RequestError, StorageError) as error:
            if changes is not None or self._file.is_private:  # it is read as it is
                raise
            self._file.do_without(error.message)
        return self._fill(stamps)

    def _fill(self, stamps: Mapping[str, RunStamp]) -> RefreshResult:
        return refresh(self._archive, self._file.engine(), self._report_progress, stamps)

    def _changes(self, stamps: Mapping[str, RunStamp]) -> IndexChanges | None:
        """Return what the index has to do; None if it has no tables of this version."""
        if not self._file.exists():
            return None
        with self._file.reading() as connection:
            if version_in(connection) != VERSION:
                return None
            rows = self._rows(
                connection, f"select run_id, length, records, rest from {PREFIX}sources"
            )
            sources = {
                row["run_id"]: Source(row["length"], row["records"], row["rest"]) for row in rows
            }
            open_runs = self._rows(
                connection, f"select run_id from {PREFIX}runs where state = 'open'"
            )
        return find_changes(self._archive, stamps, sources, {row["run_id"] for row in open_runs})

    def _look(self) -> None:
        try:
            self.refresh(now=True)
        except RequestError as error:
            self.stale = error.message
        finally:
            self._readable.set()

    def _report_progress(self, done: int, of: int) -> None:
        """Report progress. Readers see the progress of the first refresh in `stale`."""
        if self._took is None and done < of:
            self.stale = f"{done:,} of {of:,} runs have been read so far"
        self._readable.set()
        if self._report is not None and done:
            self._report(done, of)

    def _rows(
        self, connection: sqlite3.Connection, query: str, **bound: Any
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = connection.execute(query, bound).fetchall()
        self.rows_read += len(rows)
        return rows

    def _ask(self, query: str, **bound: Any) -> list[dict[str, Any]]:
        """Connect, and return the rows of one query."""
        with self._file.reading() as connection:
            return self._rows(connection, query, **bound)

    def contents(self, refreshed: RefreshResult) -> IndexBuild:
        """Return what the index holds after a refresh.

        Raises StorageError where the index is not one that others can read.
        """
        if self._file.is_private:
            raise StorageError(
                self.notice or "the place of the index can't be written",
                kind="read_only",
                advice="name a database with --url",
            )
        with self._file.reading() as connection:
            (counts,) = self._rows(connection, COUNTS)
            problems = self._rows(connection, PROBLEMS)
        return build_of(self._file.url, counts, problems, refreshed.lost)

    # --- runs -------------------------------------------------------------------------------------

    def runs(self, query: RunQuery, *, facets: bool = True) -> RunPage:
        """Return the runs that match the query, with the facets that can narrow them."""
        condition, bound = conditions(query)
        order = _SORTS[query.sort]
        way = "asc" if query.ascending else "desc"
        with self._file.reading() as connection:
            rows = self._rows(
                connection,
                f"select {_RUN_COLUMNS} from {PREFIX}runs r where {condition} "
                f"order by {order} {way} nulls last, run_id {way} limit :limit offset :offset",
                **bound,
                limit=query.limit,
                offset=query.offset,
            )
            (total,) = self._rows(
                connection, f"select count(*) as n from {PREFIX}runs r where {condition}", **bound
            )
            ask = partial(self._rows, connection, **bound)
            facet_counts = _facets(ask, condition, total["n"]) if facets else {}
        return RunPage(tuple(run_of(row) for row in rows), total["n"], facet_counts)

    def run(self, run_id: str) -> RunRow:
        """Return one run. Raises UnknownRun."""
        rows = self._ask(
            f"select {_RUN_COLUMNS} from {PREFIX}runs where run_id = :run_id", run_id=run_id
        )
        if not rows:
            from bundle_router.adapters.redaction import (
                quoted_run_id,  # loaded where there is no run
            )

            raise UnknownRun(
                f"there is no run {quoted_run_id(run_id)}",
                advice="`bundle-router runs list` lists them",
            )
        return run_of(rows[0])

    def newer_than(self, run_id: str, query: RunQuery) -> int:
        """Return how many of the matching runs began after the given run."""
        condition, bound = conditions(query)
        (count,) = self._ask(
            f"select count(*) as n from {PREFIX}runs r where {condition} and "
            f"began > (select began from {PREFIX}runs where run_id = :newest)",
            **bound,
            newest=run_id,
        )
        return int(count["n"])

    # --- one run ----------------------------------------------------------------------------------

    def timeline(self, run_id: str, *, start: int = 0, limit: int = 200) -> Timeline:
        """Return the records of a run from `start` on, at most `limit` of them."""
        with self._file.reading() as connection:
            decisions = self._part(connection, "decisions", run_id, start, limit + 1)
            calls = self._part(connection, "calls", run_id, start, limit + 1)
            seqs = sorted([row["seq"] for row in (*decisions, *calls)])
            end = seqs[limit] if len(seqs) > limit else None
            last = end - 1 if end is not None else max(seqs, default=-1)
            bundles = self._rows_between(connection, "bundles", run_id, start, last)
            artifacts = self._rows_between(connection, "artifacts", run_id, start, last)
            earlier = self._rows(
                connection,
                f"select * from {PREFIX}decisions where run_id = :run_id and seq in (select"
                f" decision_seq from {PREFIX}calls where run_id = :run_id and seq between :start"
                " and :last and decision_seq < :start) order by seq",
                run_id=run_id,
                start=start,
                last=last,
            )
            subs = self._rows(
                connection,
                f"select {_SUB_RUN_COLUMNS} from {PREFIX}runs r left join {PREFIX}decisions d on"
                " d.run_id = r.parent_run_id and d.decision_id = r.parent_decision_id where"
                " r.parent_run_id = :run_id and (d.seq is null or d.seq between :start and :last)"
                " order by r.began limit 200",
                run_id=run_id,
                start=start,
                last=last,
            )
        return Timeline(
            tuple(row for row in decisions if row["seq"] <= last),
            by_seq(bundles),
            tuple(row for row in calls if row["seq"] <= last),
            by_seq(artifacts),
            tuple(run_of(row) for row in subs),
            end,
            tuple(restore_types("decisions", row) for row in earlier),
        )

    def parts(self, run_id: str, size: int) -> tuple[RunPart, ...]:
        """Return the run in parts of so many records, in order."""
        counts = ", ".join(
            f"coalesce(sum(mark = '{mark}'), 0) as {mark},"
            f" min(case when mark = '{mark}' then seq end) as first_{mark}"
            for mark in MARKS
        )
        rows = self._ask(
            "with marked as (select seq, 1 as step, case when doubt <> '' then 'doubt' end as mark"
            f" from {PREFIX}decisions where run_id = :run_id union all select seq, 0, case when"
            f" outcome = 'denied' then 'denied' when outcome in {FAILED} then 'failed' end from"
            f" {PREFIX}calls where run_id = :run_id), placed as (select *, row_number() over (order"
            " by seq) - 1 as place from marked) select min(seq) as first_seq, max(seq) as last_seq,"
            f" count(*) as records, sum(step) as steps, {counts} from placed group by place / :size"
            " order by first_seq",
            run_id=run_id,
            size=size,
        )
        return tuple(RunPart(**row) for row in rows)

    def _part(
        self, connection: sqlite3.Connection, table: Table, run_id: str, start: int, limit: int
    ) -> list[dict[str, Any]]:
        rows = self._rows(
            connection,
            f"select * from {PREFIX}{table} where run_id = :run_id and seq >= :start order by seq"
            " limit :limit",
            run_id=run_id,
            start=start,
            limit=limit,
        )
        return [restore_types(table, row) for row in rows]

    def _rows_between(
        self, connection: sqlite3.Connection, table: Table, run_id: str, start: int, last: int
    ) -> list[dict[str, Any]]:
        rows = self._rows(
            connection,
            f"select * from {PREFIX}{table} where run_id = :run_id and seq between :start and :last"
            " order by seq, position",
            run_id=run_id,
            start=start,
            last=last,
        )
        return [restore_types(table, row) for row in rows]

    def neighbours_of(self, run_id: str, seq: int) -> tuple[int | None, int | None]:
        """Return the `seq` of the decisions of a run before and after a record."""
        (row,) = self._ask(
            f"select (select max(seq) from {PREFIX}decisions where run_id = :run_id and seq < :seq)"
            f" as before, (select min(seq) from {PREFIX}decisions where run_id = :run_id and seq >"
            " :seq) as after",
            run_id=run_id,
            seq=seq,
        )
        return row["before"], row["after"]

    def rows_of(
        self, table: Table, run_id: str, *, limit: int = -1, **equal: Any
    ) -> list[dict[str, Any]]:
        """Return the first `limit` rows of a run in one table whose columns have the `equal`
        values.
        """
        assert set(equal) <= COLUMNS[table].keys(), equal  # noqa: S101 - a caller's bug, not input
        condition = "".join(f" and {name} = :{name}" for name in equal)
        rows = self._ask(
            f"select * from {PREFIX}{table} where run_id = :run_id{condition} order by seq limit"
            " :limit",
            run_id=run_id,
            limit=limit,
            **equal,
        )
        return [restore_types(table, row) for row in rows]

    def exposed_tools(self, run_id: str) -> dict[str, tuple[str, ...]]:
        """Return the tools that the run's decisions showed, by the digest of what was shown."""
        rows = self._ask(
            f"select exposure, tool from {PREFIX}exposures where exposure in (select exposure from"
            f" {PREFIX}decisions where run_id = :run_id) order by exposure, position",
            run_id=run_id,
        )
        tools: dict[str, list[str]] = {}
        for row in rows:
            tools.setdefault(row["exposure"], []).append(row["tool"])
        return {exposure: tuple(names) for exposure, names in tools.items()}

    def media(
        self, run_id: str, *, offset: int = 0, limit: int = 60
    ) -> tuple[list[dict[str, Any]], int]:
        """Return the media that a run's calls returned, each once, and their number.

        A row is that of the first call which returned it, with the call's `server`, tool (`call`)
        and `time`, and how many records have it (`uses`).
        """
        found = (
            f"select sha256, min(seq) as seq, count(*) as uses from {PREFIX}artifacts where"
            f" run_id = :run_id and {MEDIA} group by sha256"
        )
        with self._file.reading() as connection:
            rows = self._rows(
                connection,
                f"select a.*, m.uses, c.server, c.tool as call, c.time from ({found}) m join"
                f" {PREFIX}artifacts a on a.run_id = :run_id and a.seq = m.seq and a.sha256 ="
                f" m.sha256 left join {PREFIX}calls c on c.run_id = a.run_id and c.seq = a.seq"
                " group by m.sha256 order by a.seq, a.position limit :limit offset :offset",
                run_id=run_id,
                limit=limit,
                offset=offset,
            )
            (total,) = self._rows(connection, f"select count(*) as n from ({found})", run_id=run_id)
        return [{**row, "time": iso_time(row["time"])} for row in rows], total["n"]

    def never_used(self, run_id: str) -> list[tuple[str, int]]:
        """Return the bundles that the run showed but never called, with the number of steps that
        showed them.
        """
        rows = self._ask(
            f"select bundle, count(*) as steps from {PREFIX}bundles where run_id = :run_id and"
            " shown group by bundle having sum(calls) = 0 order by steps desc, bundle",
            run_id=run_id,
        )
        return [(row["bundle"], row["steps"]) for row in rows]

    def refused(self, run_id: str) -> list[tuple[str, str, int]]:
        """Return the tools that the run asked for and was refused, each with the code and how
        often.
        """
        rows = self._ask(
            "select rtrim(server || '.' || tool, '.') as name, code, count(*) as n from"
            f" {PREFIX}calls where run_id = :run_id and outcome = 'denied' group by name, code"
            " order by n desc, name limit 200",
            run_id=run_id,
        )
        return [(row["name"], row["code"] or "", row["n"]) for row in rows]

    def addresses(self) -> list[Address]:
        """Return every address with a decision, the most frequent first, at most 500."""
        columns = ", ".join(part.name for part in PARTS)
        rows = self._ask(
            f"select {columns}, count(*) as n from {PREFIX}decisions"
            f" group by {columns} order by n desc limit 500",
        )
        return [address_from_json({name: word or "" for name, word in row.items()}) for row in rows]

    # --- across runs ------------------------------------------------------------------------------

    def search(self, words: str, *, limit: int = 50, run_id: str | None = None) -> list[TextHit]:
        """Return the texts that contain all the words (or words that begin with them), the best
        first; where more than `RANKED` do, those that were indexed last.
        """
        match = match_of(words)
        if not match:
            return []
        if self._has_many(match):
            score, order = "-s.rowid", "s.rowid desc"
        else:
            score, order = "s.rank", "s.rank"
        only = ""
        if run_id is not None:
            only = f" and (select run_id from {TEXTS} where id = s.rowid) = :run_id"
        rows = self._ask(
            # FTS5 makes excerpts of the rows alone that its own order and limit leave
            f"with hits as materialized (select s.rowid as id, {score} as score,"
            f" snippet({SEARCH}, 0, '', '', ' … ', 24) as excerpt from {SEARCH} s"
            f" where {SEARCH} match :match{only} order by {order} limit :limit)"
            f" select t.run_id, t.seq, t.field, h.excerpt, r.began, {TOOL} as tool, d.workflow,"
            f" d.role, d.step from hits h join {TEXTS} t on t.id = h.id"
            f" join {PREFIX}runs r on r.run_id = t.run_id"
            f" left join {PREFIX}calls c on c.run_id = t.run_id and c.seq = t.seq"
            f" left join {PREFIX}decisions d on d.run_id = t.run_id and d.seq = t.seq"
            " order by h.score, r.began desc, t.seq",
            match=match,
            limit=limit,
            run_id=run_id,
        )
        return [
            TextHit(
                row["run_id"],
                row["seq"],
                row["field"],
                row["excerpt"],
                iso_time(row["began"]),
                row["tool"] or " / ".join(row[name] or "" for name in ("workflow", "role", "step")),
            )
            for row in rows
        ]

    def _has_many(self, match: str) -> bool:
        """Return whether more texts match than are ranked."""
        (count,) = self._ask(
            f"select count(*) as n from (select rowid from {SEARCH} where {SEARCH} match :match"
            " limit :limit)",
            match=match,
            limit=RANKED + 1,
        )
        return bool(count["n"] > RANKED)

    def results_cut(self) -> tuple[int, int]:
        """Return how many results there are, and of how many only the first `SEARCHED_CHARACTERS`
        are searched.
        """
        with self._file.reading() as connection:
            sums = sums_tables(partial(self._rows, connection), EVERY, [CUT])[CUT]
        return (sums[0].count, int(sums[0].amount)) if sums else (0, 0)

    def artifact(self, digest: str, *, limit: int = 200) -> list[ArtifactUse]:
        """Return the records that made the artifact, then those whose arguments name it, both by
        time.
        """
        with self._file.reading() as connection:
            producers = self._rows(
                connection,
                "select a.run_id, a.seq, c.time, c.kind, rtrim(c.server || '.' || c.tool, '.') as"
                f" tool, a.mime_type, a.bytes, a.name, a.role from {PREFIX}artifacts a join"
                f" {PREFIX}calls c on c.run_id = a.run_id and c.seq = a.seq where a.sha256 ="
                " :digest order by c.time limit :limit",
                digest=digest,
                limit=limit,
            )
            took = self._rows(
                connection,
                "select c.run_id, c.seq, c.time, c.kind, rtrim(c.server || '.' || c.tool, '.') as"
                f" tool from {SEARCH} s join {TEXTS} t on t.id = s.rowid join {PREFIX}calls c on"
                f" c.run_id = t.run_id and c.seq = t.seq where {SEARCH} match :match and t.field ="
                " 'arguments' order by c.time limit :limit",
                match=match_of(digest),
                limit=limit,
            )
        return [
            ArtifactUse(
                row["run_id"],
                row["seq"],
                iso_time(row["time"]),
                row["kind"],
                row["tool"] or "",
                row.get("mime_type") or "",
                row.get("bytes") or 0,
                row.get("name") or "",
                row.get("role") or "",
                is_taken,
            )
            for rows, is_taken in ((producers, False), (took, True))
            for row in rows
        ]

    def records(self, query: RecordQuery) -> tuple[list[dict[str, Any]], int]:
        """Return the steps or calls that match the query, newest first, and their number."""
        condition, bound = conditions(query.runs)
        with self._file.reading() as connection:  # so that all queries see one state of the index
            ask = partial(self._rows, connection, **bound)
            rows, total = record_rows(ask, condition, query)
        return [{**row, "time": iso_time(row["time"])} for row in rows], total

    def stats(self, query: RunQuery, most_records: int | None = None) -> Stats:
        """Return the totals of the matching runs.

        Of a query that leaves runs out, the tables and the course over time read at most about
        `most_records` decisions and calls, those of the newest runs (default: all); `counted_runs`
        says of how many.
        """
        condition, bound = conditions(query)
        with self._file.reading() as connection:  # so that all queries see one state of the index
            return stats(partial(self._rows, connection, **bound), condition, most_records)

    def table(self, name: str) -> Mapping[str, Tally]:
        """Return one table of `stats` over all runs, by its rows' names."""
        with self._file.reading() as connection:
            tables = sums_tables(partial(self._rows, connection), EVERY, [name])
        return {row.name: row for row in tables[name]}


def _facets(ask: Ask, where: str, runs: int) -> dict[Facet, tuple[FacetCount, ...]]:
    """Return the most frequent values of each facet, of the `FACET_RUNS` newest of the selected
    runs.
    """
    if where == EVERY:
        counts = f"select * from {PREFIX}totals where measure = '{FACETS}'"
    else:
        if runs > FACET_RUNS:
            ask, where = newest_alone(ask, where, FACET_RUNS)
        counts = sums_of([FACETS], where)
    rows = ask(
        "select detail as facet, name as value, n from (select detail, name, n, row_number()"
        f" over (partition by detail order by n desc, name) as place from ({counts})) where"
        " place <= :values order by detail, n desc, name",
        values=VALUES_SHOWN,
    )
    by_facet: dict[Facet, list[FacetCount]] = {}
    for row in rows:
        by_facet.setdefault(row["facet"], []).append(FacetCount(row["value"], row["n"]))
    return {facet: tuple(values) for facet, values in by_facet.items()}


def conditions(query: RunQuery) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition on `bundle_router_runs r`, and the values bound in it."""
    parts: list[str] = []
    bound: dict[str, Any] = {}

    def bind(value: Any) -> str:
        bound[f"v{len(bound)}"] = value
        return f":v{len(bound) - 1}"

    def one_of(facet: str, values: Sequence[str]) -> str:
        listed = ", ".join(bind(value) for value in values)
        among = (
            f"select run_id from {PREFIX}facets where facet = {bind(facet)} and value in ({listed})"
        )
        unnamed = " or r.principal = ''" if facet == "principal" and NOBODY in values else ""
        return f"(r.run_id in ({among}){unnamed})"

    facet_values: dict[str, list[str]] = {}
    for facet, value in query.facets:
        facet_values.setdefault(facet, []).append(value)
    for name, values in facet_values.items():
        if name == "mark":  # a run has each of the marks that are asked for
            parts += [one_of(name, [value]) for value in values]
        else:
            parts.append(one_of(name, values))
    for time_, sign in ((query.since, ">="), (query.until, "<")):
        if time_:
            parts.append(f"r.began {sign} {bind(time_.replace('T', ' ').removesuffix('Z'))}")
    if query.text.strip():
        match = match_of(query.text)
        by_text = (
            f"select t.run_id from {SEARCH} s join {TEXTS} t on t.id = s.rowid where {SEARCH} match"
            f" {bind(match)}"
        )
        # no longer text is in an id, and SQLite refuses long patterns
        part = query.text.strip()[:129]
        pattern = "%" + re.sub(r"([%_\\])", r"\\\1", part) + "%"
        by_id = f"r.run_id like {bind(pattern)} escape '\\'"
        parts.append(f"(r.run_id in ({by_text}) or {by_id})" if match else by_id)
    return " and ".join(parts) or EVERY, bound


def match_of(words: str) -> str:
    """Return user input as a full-text query: every word quoted, as a prefix; empty without
    words.
    """
    return " ".join(f'"{word}"*' for word in _WORD.findall(words.replace(HANDLE, ""))[:MAX_WORDS])


def run_of(row: Mapping[str, Any]) -> RunRow:
    """Return a row of `runs` as a value: missing numbers become 0, missing words empty."""
    absent: dict[str, Any] = {"text": "", "integer": 0, "real": 0.0}
    fields = restore_types("runs", row)
    values: dict[str, Any] = {
        name: fields[name] if fields[name] is not None else absent[kind]
        for name, kind in COLUMNS["runs"].items()
    }
    return RunRow(**values)


def restore_types(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with times and booleans restored, which SQLite has no types for."""
    kinds = COLUMNS[table]
    restored = dict(row)
    for name, value in row.items():
        if kinds.get(name) == "timestamp":
            restored[name] = iso_time(value)
        elif kinds.get(name) == "boolean" and value is not None:
            restored[name] = bool(value)
    return restored


def iso_time(value: Any) -> str:
    """Return SQLite's time in the records' form; empty for none."""
    return value.replace(" ", "T") + "Z" if isinstance(value, str) else ""


def by_seq(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[Mapping[str, Any], ...]]:
    """Group rows by their sequence number."""
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["seq"], []).append(row)
    return {seq: tuple(of) for seq, of in groups.items()}
