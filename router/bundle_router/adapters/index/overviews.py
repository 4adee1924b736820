"""Totals over many runs: the tables behind `runs stats` and the overview page, one query each; and
lists of steps and of calls across runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from bundle_router.adapters.index.counting import (
    FAILED,
    SEARCHES_BY_STEP,
    principal_sql,
    searched_steps_sql,
)
from bundle_router.adapters.index.database import PREFIX
from bundle_router.core.records.read_model import NOBODY, SEARCHED, RecordQuery, Stats, Tally

Ask = Callable[..., list[dict[str, Any]]]
"""Runs a statement, with the values of the condition bound, and returns its rows."""
ROWS: Final = 15
"""Maximum rows of one table."""
DAYS: Final = 60

_NAME: Final = "rtrim(c.server || '.' || c.tool, '.')"
"""The tool's canonical name; without the dot if it has no server."""
_PRINCIPAL: Final = f"coalesce(nullif({principal_sql('r.principal')}, ''), '{NOBODY}')"
_CALLS: Final = (
    "from {p}calls c join {p}runs r on r.run_id = c.run_id where {where} and c.kind = 'call'"
)
_DECISIONS: Final = "from {p}decisions d join {p}runs r on r.run_id = d.run_id where {where}"
_TABLES: Final[Mapping[str, str]] = {
    "decisions by source": (
        "select d.source as name, count(*) as n, avg(d.elapsed_us) / 1000.0 as amount "
        + _DECISIONS
        + " group by d.source"
    ),
    "routes": (
        "select d.route as name, count(*) as n, avg(d.tokens) as amount "
        + _DECISIONS
        + " and d.route <> '' group by d.route"
    ),
    "fallback reasons": (
        "select d.degraded_code as name, count(*) as n "
        + _DECISIONS
        + " and d.degraded group by d.degraded_code"
    ),
    "model failures": (
        "select d.model_failure as name, count(*) as n "
        + _DECISIONS
        + " and d.model_failure <> '' group by d.model_failure"
    ),
    "calls by bundle": (
        "select c.bundle as name, count(*) as n, sum(c.elapsed_ms) as amount "
        + _CALLS
        + " and c.bundle <> '' group by c.bundle"
    ),
    "calls by tool": (
        "select "
        + _NAME
        + " as name, count(*) as n, sum(c.elapsed_ms) as amount "
        + _CALLS
        + " group by c.server, c.tool"
    ),
    "calls by principal": (
        "select "
        + _PRINCIPAL
        + " as name, count(*) as n, sum(c.elapsed_ms) as amount "
        + _CALLS
        + " group by r.principal"
    ),
    "calls by code": (
        "select c.code as name, count(*) as n " + _CALLS + " and c.code <> '' group by c.code"
    ),
    "denials by bundle": (
        "select c.bundle as name, count(*) as n "
        + _CALLS
        + " and c.outcome = 'denied' group by c.bundle"
    ),
    "denials by code": (
        "select c.code as name, count(*) as n "
        + _CALLS
        + " and c.outcome = 'denied' group by c.code"
    ),
    "denials by tool": (
        "select "
        + _NAME
        + " as name, count(*) as n, 0 as amount, max(c.code) as detail "
        + _CALLS
        + " and c.outcome = 'denied' group by c.server, c.tool, c.code"
    ),
    "denials by principal": (
        "select "
        + _PRINCIPAL
        + " as name, count(*) as n "
        + _CALLS
        + " and c.outcome = 'denied' group by r.principal"
    ),
    "failures by outcome": (
        "select c.outcome as name, count(*) as n "
        + _CALLS
        + " and c.outcome in "
        + FAILED
        + " group by c.outcome"
    ),
    "failures by tool": (
        "select "
        + _NAME
        + " as name, count(*) as n, 0 as amount, max(c.outcome) as detail "
        + _CALLS
        + " and c.outcome in "
        + FAILED
        + " group by c.server, c.tool, c.outcome"
    ),
    "tokens by tool": (
        "select e.tool as name, sum(e.tokens * x.n) as n, sum(x.n) as amount, e.bundle as detail "
        "from (select d.exposure, count(*) as n "
        + _DECISIONS
        + " and d.exposure <> '' group by d.exposure) x join {p}exposures e on e.exposure ="
        " x.exposure where e.place = 'direct' group by e.tool, e.bundle"
    ),
    "shown and never used": (
        "select b.bundle as name, count(*) as n, count(distinct b.run_id) as amount from {p}bundles"
        " b join {p}runs r on r.run_id = b.run_id where {where} and b.shown group by b.bundle"
        " having sum(b.calls) = 0"
    ),
    "asked for and missing": (
        "select f.value as name, sum(f.count) as n, count(*) as amount from {p}facets f join"
        " {p}runs r on r.run_id = f.run_id where {where} and f.facet = 'missing' group by f.value"
    ),
    "principals": (
        "select " + _PRINCIPAL + " as name, count(*) as n, "
        "sum(r.denied) as amount from {p}runs r where {where} group by r.principal"
    ),
    "searched at every step": (
        "select r.run_id as name, r.searches as n, r.decisions as amount from {p}runs r "
        "where {where} and r.decisions > 0 and r.searches >= r.decisions"
        " and " + searched_steps_sql("r.run_id") + " = r.decisions"
    ),
    SEARCHED: (
        "select d.workflow || char(10) || d.role as name, count(s.searches) as n,"
        " count(*) as amount, cast(sum(s.searches) as text) as detail"
        " from {p}decisions d join {p}runs r on r.run_id = d.run_id left join ("
        + SEARCHES_BY_STEP
        + ") s on s.run_id = d.run_id and s.decision_seq = d.seq where {where}"
        " group by d.workflow, d.role having count(s.searches) > 0"
    ),
}
_SLOWEST: Final = (
    "select c.run_id || '/' || c.seq as name, 1 as n, c.elapsed_ms as amount, "
    + _NAME
    + " as detail "
    + _CALLS
    + " and c.elapsed_ms is not null order by c.elapsed_ms desc limit :rows"
)
_MATRIX: Final = (
    "select d.role || char(10) || b.bundle as name, count(*) as n, sum(b.calls) as amount from"
    " {p}bundles b join {p}decisions d on d.run_id = b.run_id and d.seq = b.seq join {p}runs r on"
    " r.run_id = d.run_id where {where} and b.shown group by d.role, b.bundle limit 2000"
)
_MIX: Final = (
    "select substr(d.time, 1, 10) || char(10) || d.source as name, count(*) as n "
    + _DECISIONS
    + " and substr(d.time, 1, 10) >= :since group by name order by name"
)


_WHOLE: Final = {"slowest calls": _SLOWEST, "role × bundle": _MATRIX, "source × day": _MIX}
"""Tables that are ordered otherwise than by their counts."""


def table(ask: Ask, where: str, name: str, since: str = "") -> tuple[Tally, ...]:
    """Return one table over the runs that the condition selects; of days, those from `since` on."""
    statement = _WHOLE.get(name) or _TABLES[name] + " order by n desc, name limit :rows"
    return tuple(
        Tally(row["name"] or "", row["n"], float(row.get("amount") or 0.0), row.get("detail") or "")
        for row in ask(_filled(statement, where), rows=ROWS, since=since)
    )


def _filled(statement: str, where: str) -> str:
    return statement.replace("{p}", PREFIX).replace("{where}", where)


def stats(ask: Ask, where: str) -> Stats:
    """Return the totals of the runs that the condition selects."""
    (total,) = ask(
        _filled(
            "select count(*) as runs, coalesce(sum(decisions), 0) as decisions,"
            " coalesce(sum(calls), 0) as calls, coalesce(sum(tokens), 0) as tokens,"
            " coalesce(sum(all_tokens), 0) as all_tokens, coalesce(sum(cost_usd), 0) as cost_usd"
            " from {p}runs r where {where}",
            where,
        )
    )
    days = ask(
        _filled(
            "select substr(d.time, 1, 10) as day, count(*) as n, coalesce(sum(d.tokens), 0) as"
            " tokens, coalesce(sum(d.all_tokens), 0) as all_tokens "
            + _DECISIONS
            + " and d.time is not null group by day order by day desc limit :days",
            where,
        ),
        days=DAYS,
    )
    since = days[-1]["day"] if days else ""
    tables = {name: table(ask, where, name, since) for name in (*_TABLES, *_WHOLE)}
    by_day = tuple(
        (row["day"], row["n"], row["tokens"], row["all_tokens"]) for row in reversed(days)
    )
    return Stats(**total, by_day=by_day, tables=tables)


# --- lists of steps and of calls ------------------------------------------------------------------

_STEP_FILTERS: Final[Mapping[str, str]] = {
    "workflow": "d.workflow = {v}",
    "role": "d.role = {v}",
    "step": "d.step = {v}",
    "principal": _PRINCIPAL.replace("r.", "d.") + " = {v}",
    "source": "d.source = {v}",
    "route": "d.route = {v}",
    "bundle": (
        "exists (select 1 from {p}bundles b where b.run_id = d.run_id and b.seq = d.seq and b.shown"
        " and b.bundle = {v})"
    ),
    "reason": "d.degraded_code = {v}",
    "model": "d.model = {v}",
    "degraded": "d.degraded and {v} <> ''",
}
_CALL_FILTERS: Final[Mapping[str, str]] = {
    "tool": _NAME + " = {v}",
    "bundle": "c.bundle = {v}",
    "outcome": "c.outcome = {v}",
    "code": "c.code = {v}",
    "failed": "c.outcome in " + FAILED + " and {v} <> ''",
    "principal": _PRINCIPAL + " = {v}",
    "workflow": "r.workflow = {v}",
    "role": "d.role = {v}",
}
_SORTS: Final = {
    "steps": {
        "started": "d.time",
        "slow": "d.elapsed_us",
        "tokens": "d.tokens",
        "cost": "d.cost_usd",
    },
    "calls": {"started": "c.time", "slow": "c.elapsed_ms", "bytes": "c.original_bytes"},
}
_COLUMNS: Final = {
    "steps": (
        "d.run_id, d.seq, d.time, d.workflow, d.role, d.step, d.goal, d.principal, d.source,"
        " d.degraded, d.degraded_code, d.route, d.tools, d.tokens, d.all_tokens, d.model,"
        " d.model_failure, d.cost_usd, d.model_ms, d.elapsed_us, d.shown, d.used, d.calls,"
        " d.justification"
    ),
    "calls": (
        "c.run_id, c.seq, c.time, c.kind, "
        + _NAME
        + " as name, c.bundle, c.via, c.outcome, c.code, "
        "c.elapsed_ms, c.original_bytes, c.decision_seq, substr(c.arguments, 1, 300) as arguments, "
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
        f"select {_COLUMNS[query.of]} {source} order by {order} is null, {order} desc, {tie} "
        "limit :limit offset :offset",
        **bound,
        limit=query.limit,
        offset=query.offset,
    )
    (total,) = ask(f"select count(*) as n {source}", **bound)
    return rows, int(total["n"])
