"""Totals over many runs: the tables behind `runs stats` and the overview page, and lists of steps
and of calls across runs.

Over all runs, the tables are the sums that `totals` keeps; over some, the same sums are computed,
if asked so over the newest of them alone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from bundle_router.adapters.index.counting import FAILED
from bundle_router.adapters.index.database import PREFIX
from bundle_router.adapters.index.totals import (
    HOUR_SUMS,
    KEPT_IF,
    MEANS,
    PRINCIPAL,
    TABLES,
    TOOL,
    TOTALS,
    hours_of,
    sums_of,
)
from bundle_router.core.records.read_model import SEARCHED, Period, RecordQuery, Stats, Tally

Ask = Callable[..., list[dict[str, Any]]]
"""Runs a statement, with the values of the condition bound, and returns its rows."""
EVERY: Final = "true"
"""The condition that selects all runs."""
ROWS: Final = 15
"""Maximum rows of one table."""
CELLS: Final = 2000
"""Maximum cells of the matrix of roles and bundles."""
DAYS: Final = 60
"""Maximum days of a chart."""
DAY: Final = len("2026-01-31")
HOUR: Final = len("2026-01-31 12")

_SEARCHING_ALWAYS: Final = (
    "select r.run_id as name, r.searches as n, r.decisions as amount from {p}runs r "
    "where {where} and r.run_id in (select run_id from {p}facets where facet = 'mark' and value ="
    " 'searched at every step') order by n desc, name limit :rows"
)
_SLOWEST: Final = (
    "select c.run_id || '/' || c.seq as name, 1 as n, c.elapsed_ms as amount, "
    + TOOL
    + " as detail from {p}calls c join {p}runs r on r.run_id = c.run_id where {where}"
    " and c.kind = 'call' and c.elapsed_ms is not null"
    " order by c.elapsed_ms desc, c.run_id, c.seq limit :rows"
)
_MOST_RESULTS: Final = (
    "select r.run_id as name, r.result_tokens as n, r.calls as amount from {p}runs r where {where}"
    " and r.result_tokens > 0 order by r.result_tokens desc, r.run_id limit :rows"
)
_RECORDS: Final = {
    "tokens of results by run": _MOST_RESULTS,
    "searched at every step": _SEARCHING_ALWAYS,
    "slowest calls": _SLOWEST,
}
"""Tables of single runs or calls, which no sum holds."""


def sums_tables(ask: Ask, where: str, names: Iterable[str]) -> dict[str, tuple[Tally, ...]]:
    """Return tables of sums over the runs that the condition selects, by name, the highest counts
    first.
    """
    wanted = list(names)
    if where == EVERY:
        listed = ", ".join(f"'{name}'" for name in wanted)
        source = f"select * from {PREFIX}totals where measure in ({listed})"
    else:
        source = sums_of(wanted, where)
    kept = "".join(
        f" and (measure <> '{name}' or {condition})" for name, condition in KEPT_IF.items()
    )
    rows = ask(
        "select * from (select *, row_number() over (partition by measure order by n desc, name,"
        f" detail) as place from ({source}) where true{kept}) where place <= case measure when"
        f" 'role × bundle' then {CELLS} else {ROWS} end order by measure, place"
    )
    tables: dict[str, list[Tally]] = {name: [] for name in wanted}
    for row in rows:
        tables[row["measure"]].append(_tally(row["measure"], row))
    return {name: tuple(tallies) for name, tallies in tables.items()}


def _record_table(ask: Ask, where: str, name: str) -> tuple[Tally, ...]:
    statement = _RECORDS[name].replace("{p}", PREFIX).replace("{where}", where)
    return tuple(_tally(name, row) for row in ask(statement, rows=ROWS))


def _tally(name: str, row: Mapping[str, Any]) -> Tally:
    amount = float(row["amount"] or 0.0)
    if name in MEANS:
        amount = amount / row["n"]

    detail = row.get("detail") or ""
    if name == SEARCHED:
        detail = str(row["extra"])

    title = row["name"] or ""
    return Tally(title, row["n"], amount, detail)


def stats(ask: Ask, where: str, most_records: int | None = None) -> Stats:
    """Return the totals of the runs that the condition selects.

    Of some runs, the tables and the course over time read at most about `most_records` decisions
    and calls (default: all): those of the newest runs.
    """
    totals = _totals(ask, where)
    runs = counted_runs = int(totals["runs"])
    records = totals["decisions"] + totals["calls"]
    if most_records is not None and where != EVERY and records > most_records:
        counted_runs = max(1, int(runs * most_records / records))
        ask, where = newest_alone(ask, where, counted_runs)
    by_time = _sums_over_time(ask, where)
    by_source = _summed(by_time, lambda row: (row["time"][:DAY], row["source"]))
    days = _periods(by_time, DAY)
    tables = sums_tables(ask, where, TABLES)
    tables |= {name: _record_table(ask, where, name) for name in _RECORDS}
    tables["source × day"] = tuple(
        Tally(f"{day}\n{source}", sums["decisions"])
        for (day, source), sums in by_source.items()
        if sums["decisions"]
    )
    return Stats(
        runs=runs,
        counted_runs=counted_runs,
        decisions=int(totals["decisions"]),
        calls=int(totals["calls"]),
        tokens=int(totals["tokens"]),
        all_tokens=int(totals["all_tokens"]),
        result_tokens=int(totals["result_tokens"]),
        results_uncounted=int(totals["results_uncounted"]),
        cost_usd=totals["cost_usd"],
        records=int(totals["records"]),
        verified=int(totals["verified"]),
        tampered=int(totals["tampered"]),
        by_day=tuple(
            (day.time, day.decisions, day.tokens, day.all_tokens) for day in days if day.decisions
        ),
        over_time=tuple(_periods(by_time, HOUR)),
        tables=tables,
    )


def _totals(ask: Ask, where: str) -> dict[str, float]:
    if where == EVERY:
        rows = ask(f"select name, n, amount from {PREFIX}totals where measure = '{TOTALS}'")
    else:
        rows = ask(sums_of([TOTALS], where))
    return defaultdict(float, {row["name"]: row["n"] or row["amount"] or 0.0 for row in rows})


def newest_alone(ask: Ask, where: str, limit: int) -> tuple[Ask, str]:
    """Return the condition that selects the newest of the selected runs alone, with its values
    bound.
    """
    rows = ask(
        f"select r.run_id from {PREFIX}runs r where {where} order by r.began desc, r.run_id"
        " limit :limit",
        limit=limit,
    )
    newest = json.dumps([row["run_id"] for row in rows])
    return partial(ask, newest=newest), "r.run_id in (select value from json_each(:newest))"


def _sums_over_time(ask: Ask, where: str) -> list[dict[str, Any]]:
    """Return the sums of the last days by source, in order; of the hours, where there is one
    day.
    """
    source = f"select * from {PREFIX}hours" if where == EVERY else hours_of(where)
    sums = ", ".join(f"sum({name}) as {name}" for name in HOUR_SUMS)
    return ask(
        f"with found as materialized ({source}), days as (select distinct substr(hour, 1, {DAY}) as"
        f" day from found order by day desc limit {DAYS}) select substr(hour, 1, case (select"
        f" count(*) from days) when 1 then {HOUR} else {DAY} end) as time, source, {sums} from"
        " found where hour >= (select min(day) from days) group by 1, 2 order by 1, 2"
    )


def _periods(by_time: list[dict[str, Any]], length: int) -> list[Period]:
    """Return the sums over all sources by the first `length` characters of their time."""
    sums = _summed(by_time, lambda row: row["time"][:length])
    return [Period(time.replace(" ", "T"), **period) for time, period in sums.items()]


def _summed(
    rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any]
) -> dict[Any, dict[str, Any]]:
    """Return the sums of the rows that have one key, in the order of the first."""
    sums: dict[Any, dict[str, Any]] = {}
    for row in rows:
        of_key = sums.setdefault(key(row), dict.fromkeys(HOUR_SUMS, 0))
        for name in HOUR_SUMS:
            of_key[name] += row[name]
    return sums


# --- lists of steps and of calls ------------------------------------------------------------------


def _during(time: str) -> str:
    """Return the condition that a time begins with a day or hour, which an index can answer."""
    begin = "replace({v}, 'T', ' ')"
    return f"{time} >= {begin} and {time} < {begin} || '~'"


_STEP_FILTERS: Final[Mapping[str, str]] = {
    "workflow": "d.workflow = {v}",
    "role": "d.role = {v}",
    "step": "d.step = {v}",
    "principal": PRINCIPAL.replace("r.", "d.") + " = {v}",
    "source": "d.source = {v}",
    "route": "d.route = {v}",
    "bundle": (
        "exists (select 1 from {p}bundles b where b.run_id = d.run_id and b.seq = d.seq and b.shown"
        " and b.bundle = {v})"
    ),
    "reason": "d.degraded_code = {v}",
    "model": "d.model = {v}",
    "degraded": "d.degraded and {v} <> ''",
    "doubt": "d.doubt <> '' and {v} <> ''",
    "during": _during("d.time"),
}
_CALL_FILTERS: Final[Mapping[str, str]] = {
    "tool": TOOL + " = {v}",
    "bundle": "c.bundle = {v}",
    "outcome": "c.outcome = {v}",
    "code": "c.code = {v}",
    "failed": "c.outcome in " + FAILED + " and {v} <> ''",
    "principal": PRINCIPAL + " = {v}",
    "workflow": "r.workflow = {v}",
    "role": "d.role = {v}",
    "during": _during("c.time"),
}
_SORTS: Final = {
    "steps": {
        "started": "d.time",
        "slow": "d.elapsed_us",
        "tokens": "d.tokens",
        "results": "d.result_tokens",
        "cost": "d.cost_usd",
    },
    "calls": {
        "started": "c.time",
        "slow": "c.elapsed_ms",
        "results": "c.result_tokens",
        "bytes": "c.original_bytes",
    },
}
_COLUMNS: Final = {
    "steps": (
        "d.run_id, d.seq, d.time, d.workflow, d.role, d.step, d.goal, d.principal, d.source,"
        " d.degraded, d.degraded_code, d.route, d.tools, d.tokens, d.all_tokens, d.result_tokens,"
        " d.results_uncounted, d.model,"
        " d.model_failure, d.cost_usd, d.model_ms, d.elapsed_us, d.shown, d.used, d.calls,"
        " d.justification"
    ),
    "calls": (
        "c.run_id, c.seq, c.time, c.kind, "
        + TOOL
        + " as name, c.bundle, c.via, c.outcome, c.code, "
        "c.elapsed_ms, c.result_tokens, c.original_bytes, c.decision_seq, "
        "substr(c.arguments, 1, 300) as arguments, "
        "substr(c.result, 1, 300) as result, "
        "d.role, d.step, d.workflow, r.principal"
    ),
}
_FROM: Final = {
    "steps": "from {p}decisions d join {p}runs r on r.run_id = d.run_id",
    "calls": (
        "from {p}calls c join {p}runs r on r.run_id = c.run_id left join {p}decisions d on d.run_id"
        " = c.run_id and d.seq = c.decision_seq"
    ),
}


def record_rows(ask: Ask, where: str, query: RecordQuery) -> tuple[list[dict[str, Any]], int]:
    """Return the steps or calls that match the query, of the runs that the condition selects, and
    their number.
    """
    filters = _STEP_FILTERS if query.of == "steps" else _CALL_FILTERS
    parts = [where]
    bound = {}
    for number, (name, value) in enumerate(query.equal):
        parts.append(filters[name].replace("{v}", f":e{number}").replace("{p}", PREFIX))
        bound[f"e{number}"] = value
    source = _FROM[query.of].replace("{p}", PREFIX) + " where " + " and ".join(parts)
    order = _SORTS[query.of].get(query.sort, _SORTS[query.of]["started"])
    tie = "d.run_id, d.seq" if query.of == "steps" else "c.run_id, c.seq"
    rows = ask(
        f"select {_COLUMNS[query.of]} {source} order by {order} desc nulls last, {tie} "
        "limit :limit offset :offset",
        **bound,
        limit=query.limit,
        offset=query.offset,
    )
    (total,) = ask(f"select count(*) as n {source}", **bound)
    return rows, int(total["n"])
