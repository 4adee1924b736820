"""What all runs of an index come to, kept as they are indexed, so that the overview of many runs
reads these sums and no record.

Rules:
1. Every statement here is an aggregate that adds up over runs: the sum over two disjoint sets of
   runs is that over both. So a mean is kept as a sum, and divided when it is read.
2. Before runs are read again, what they contributed is subtracted (`subtract`); after it, what
   they contribute now is added (`add`). Both take the runs marked `dirty`, within one transaction.
3. The same statements answer a query for some runs. There is no second spelling.
4. SQLite only, as all reading of an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from bundle_router.adapters.index.counting import (
    FAILED,
    SEARCHES_BY_STEP,
    principal_sql,
)
from bundle_router.adapters.index.database import CHANGED, PREFIX
from bundle_router.core.records.read_model import NOBODY, SEARCHED, SEARCHED_CHARACTERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

TOOL: Final = "rtrim(c.server || '.' || c.tool, '.')"
"""The tool's canonical name; without the dot if it has no server."""
PRINCIPAL: Final = f"coalesce(nullif({principal_sql('r.principal')}, ''), '{NOBODY}')"
CALLS: Final = (
    "from {p}calls c join {p}runs r on r.run_id = c.run_id where {where} and c.kind = 'call'"
)
DECISIONS: Final = "from {p}decisions d join {p}runs r on r.run_id = d.run_id where {where}"


def _sums(
    name: str, source: str, *, detail: str = "''", amount: str = "0", extra: str = "0"
) -> str:
    """Return the statement of a table: its rows are sums over `source`, by name and detail."""
    return (
        f"select coalesce({name}, '') as name, coalesce({detail}, '') as detail, count(*) as n,"
        f" coalesce({amount}, 0) as amount, coalesce({extra}, 0) as extra {source} group by 1, 2"
    )


def _counted_results(name: str, source: str) -> str:
    """Return the statement of the tokens of results, with the number of those results."""
    return (
        f"select coalesce({name}, '') as name, '' as detail, sum(c.result_tokens) as n, count(*) as"
        f" amount, 0 as extra {source} and c.result_tokens > 0 group by 1"
    )


_TOTAL_COLUMNS: Final = (
    "decisions",
    "calls",
    "tokens",
    "all_tokens",
    "result_tokens",
    "results_uncounted",
    "records",
    "verified",
)
_RUNS: Final = "from {p}runs r where {where}"
_TOTALS: Final = " union all ".join(
    [
        f"select 'runs' as name, '' as detail, count(*) as n, 0 as amount, 0 as extra {_RUNS}",
        f"select 'tampered', '', coalesce(sum(r.tampered <> ''), 0), 0, 0 {_RUNS}",
        f"select 'cost_usd', '', 0, coalesce(sum(r.cost_usd), 0), 0 {_RUNS}",
        *(
            f"select '{column}', '', coalesce(sum(r.{column}), 0), 0, 0 {_RUNS}"
            for column in _TOTAL_COLUMNS
        ),
    ]
)
TOTALS: Final = "totals"
"""The sums over all chosen runs, one a name."""
CUT: Final = "results cut for search"
"""How many results there are, and how many are longer than what is searched of them (`amount`)."""
FACETS: Final = "facets"
"""How many runs have a value of a facet, which is the `detail`."""

TABLES: Final[Mapping[str, str]] = {
    "decisions by source": _sums("d.source", DECISIONS, amount="sum(d.elapsed_us) / 1000.0"),
    "routes": _sums("d.route", DECISIONS + " and d.route <> ''", amount="sum(d.tokens)"),
    "fallback reasons": _sums("d.degraded_code", DECISIONS + " and d.degraded"),
    "model failures": _sums("d.model_failure", DECISIONS + " and d.model_failure <> ''"),
    "calls by bundle": _sums("c.bundle", CALLS + " and c.bundle <> ''", amount="sum(c.elapsed_ms)"),
    "calls by tool": _sums(TOOL, CALLS, amount="sum(c.elapsed_ms)"),
    "calls by principal": _sums(PRINCIPAL, CALLS, amount="sum(c.elapsed_ms)"),
    "calls by code": _sums("c.code", CALLS + " and c.code <> ''"),
    "denials by bundle": _sums("c.bundle", CALLS + " and c.outcome = 'denied'"),
    "denials by code": _sums("c.code", CALLS + " and c.outcome = 'denied'"),
    "denials by tool": _sums(TOOL, CALLS + " and c.outcome = 'denied'", detail="c.code"),
    "denials by principal": _sums(PRINCIPAL, CALLS + " and c.outcome = 'denied'"),
    "failures by outcome": _sums("c.outcome", f"{CALLS} and c.outcome in {FAILED}"),
    "failures by tool": _sums(TOOL, f"{CALLS} and c.outcome in {FAILED}", detail="c.outcome"),
    "tokens by tool": (
        "select e.tool as name, coalesce(e.bundle, '') as detail, sum(e.tokens * x.n) as n,"
        " sum(x.n) as amount, 0 as extra from (select d.exposure, count(*) as n "
        + DECISIONS
        + " and d.exposure <> '' group by d.exposure) x join {p}exposures e on e.exposure ="
        " x.exposure where e.place = 'direct' group by 1, 2"
    ),
    "tokens of results by tool": _counted_results(TOOL, CALLS),
    "tokens of results by step": _counted_results(
        "d.workflow || ' / ' || d.role || ' / ' || d.step",
        "from {p}calls c join {p}runs r on r.run_id = c.run_id join {p}decisions d on d.run_id ="
        " c.run_id and d.seq = c.decision_seq where {where} and c.kind = 'call'",
    ),
    "shown and never used": _sums(
        "b.bundle",
        "from {p}bundles b join {p}runs r on r.run_id = b.run_id where {where} and b.shown",
        amount="count(distinct b.run_id)",
        extra="sum(b.calls)",
    ),
    "asked for and missing": (
        "select f.value as name, '' as detail, sum(f.count) as n, count(*) as amount, 0 as extra"
        " from {p}facets f join {p}runs r on r.run_id = f.run_id where {where} and f.facet ="
        " 'missing' group by 1"
    ),
    "principals": _sums(PRINCIPAL, _RUNS, amount="sum(r.denied)"),
    SEARCHED: (
        "select coalesce(d.workflow, '') || char(10) || coalesce(d.role, '') as name, '' as detail,"
        " count(s.searches) as n, count(*) as amount, coalesce(sum(s.searches), 0) as extra"
        " from {p}decisions d join {p}runs r on r.run_id = d.run_id left join ("
        + SEARCHES_BY_STEP
        + ") s on s.run_id = d.run_id and s.decision_seq = d.seq where {where} group by 1"
    ),
    "role × bundle": _sums(
        "coalesce(d.role, '') || char(10) || b.bundle",
        "from {p}bundles b join {p}decisions d on d.run_id = b.run_id and d.seq = b.seq join"
        " {p}runs r on r.run_id = d.run_id where {where} and b.shown",
        amount="sum(b.calls)",
    ),
}
"""The tables of an overview: name, detail, count, amount, and what else a table needs."""
MEANS: Final = frozenset(("decisions by source", "routes"))
"""Tables whose amount is shown as a mean."""
KEPT_IF: Final[Mapping[str, str]] = {"shown and never used": "extra = 0", SEARCHED: "n > 0"}
"""Which rows of a table are shown, where not all are."""

_FACET_RUNS: Final = (
    "select f.value as name, f.facet as detail, count(*) as n, 0 as amount, 0 as extra from"
    " {p}facets f join {p}runs r on r.run_id = f.run_id where {where} group by 1, 2"
)
_CUT_RESULTS: Final = _sums(
    "''",
    "from {p}calls c join {p}runs r on r.run_id = c.run_id where {where} and c.result <> ''",
    amount=f"sum(length(c.result) > {SEARCHED_CHARACTERS})",
)
SUMS: Final[Mapping[str, str]] = {
    **TABLES,
    TOTALS: _TOTALS,
    FACETS: _FACET_RUNS,
    CUT: _CUT_RESULTS,
}
"""Every statement whose sums are kept in `totals`, by its name there."""

HOUR_SUMS: Final = (
    "decisions",
    "tokens",
    "all_tokens",
    "result_tokens",
    "degraded",
    "doubted",
    "cost_usd",
    "calls",
    "denied",
    "failed",
)
"""The columns of `hours` that add up."""
HOURS: Final[tuple[str, ...]] = (
    (
        "select substr(d.time, 1, 13) as hour, coalesce(d.source, '') as source, count(*) as"
        " decisions, coalesce(sum(d.tokens), 0) as tokens, coalesce(sum(d.all_tokens), 0) as"
        " all_tokens, 0 as result_tokens, coalesce(sum(d.degraded), 0) as degraded, "
        "sum(case when d.doubt <> '' then 1 else 0 end) as doubted, coalesce(sum(d.cost_usd), 0)"
        " as cost_usd, 0 as calls, 0 as denied, 0 as failed "
        + DECISIONS
        + " and d.time is not null group by 1, 2"
    ),
    (
        "select substr(c.time, 1, 13) as hour, '' as source, 0 as decisions, 0 as tokens, 0 as"
        " all_tokens, coalesce(sum(c.result_tokens), 0) as result_tokens, 0 as degraded,"
        " 0 as doubted, 0 as cost_usd, count(*) as calls, sum(case when"
        " c.outcome = 'denied' then 1 else 0 end) as denied, "
        f"sum(case when c.outcome in {FAILED} then 1 else 0 end) as failed "
        + CALLS
        + " and c.time is not null group by 1, 2"
    ),
)
"""What the records of an hour (UTC) come to, decisions by their source."""

_OF_CHANGED: Final = f"r.run_id in {CHANGED}"
_NOTHING: Final = 1e-9
"""What subtracting leaves of an amount that was added before, at most."""


def filled(statement: str, where: str) -> str:
    """Return a statement over the runs that the condition selects."""
    return statement.replace("{p}", PREFIX).replace("{where}", where)


def subtract(connection: Connection, run_ids: Iterable[str]) -> None:
    """Subtract what the runs contributed so far, and mark them `dirty`."""
    if connection.dialect.name != "sqlite":
        return
    mark = f"update {PREFIX}sources set dirty = true where run_id = :run_id"
    rows = [{"run_id": run_id} for run_id in run_ids]
    if rows and connection.exec_driver_sql(mark, rows).rowcount:
        _take(connection, "-")


def add(connection: Connection) -> None:
    """Add what the `dirty` runs contribute."""
    if connection.dialect.name == "sqlite":
        _take(connection, "")


def _take(connection: Connection, sign: str) -> None:
    for name, statement in SUMS.items():
        connection.exec_driver_sql(
            f"insert into {PREFIX}totals (measure, name, detail, n, amount, extra) select"
            f" :measure, name, detail, {sign}n, {sign}amount, {sign}extra from"
            f" ({filled(statement, _OF_CHANGED)}) where true on conflict do update set"
            " n = n + excluded.n, amount = amount + excluded.amount,"
            " extra = extra + excluded.extra",
            {"measure": name},
        )
    columns = ", ".join(HOUR_SUMS)
    changes = ", ".join(f"{sign}{column}" for column in HOUR_SUMS)
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in HOUR_SUMS)
    for statement in HOURS:
        connection.exec_driver_sql(
            f"insert into {PREFIX}hours (hour, source, {columns}) select hour, source,"
            f" {changes} from ({filled(statement, _OF_CHANGED)}) where true on conflict do"
            f" update set {sums}"
        )
    if sign:
        connection.exec_driver_sql(
            f"delete from {PREFIX}totals where n = 0 and extra = 0 and abs(amount) < {_NOTHING}"
        )
        connection.exec_driver_sql(f"delete from {PREFIX}hours where decisions = 0 and calls = 0")
