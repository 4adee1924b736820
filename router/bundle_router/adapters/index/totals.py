"""What all runs of an index come to, kept as they are indexed, so that the overview of many runs
reads these sums and no record.

Rules:
1. Every statement here is an aggregate that adds up over runs: the sum over two disjoint sets of
   runs is that over both. So a mean is kept as a sum, and divided when it is read.
2. Before runs are read again, what they contributed is subtracted (`subtract`); after it, what
   they contribute now is added (`add`). Both take the runs marked `dirty`, within one transaction.
3. The same statements answer a query for some runs. There is no second spelling.
4. Each kind of record is read once for all tables (`_GROUPS`): the tables are made of the groups,
   which are few. They read runs by their keys, so the time grows with the chosen runs.
5. SQLite only, as all reading of an index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from bundle_router.adapters.index.counting import (
    FAILED,
    SEARCH_CALL,
    principal_sql,
)
from bundle_router.adapters.index.database import CHANGED, PREFIX
from bundle_router.core.records.read_model import NOBODY, SEARCHED, SEARCHED_CHARACTERS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

TOOL: Final = "rtrim(c.server || '.' || c.tool, '.')"
"""The tool's canonical name; without the dot if it has no server."""
PRINCIPAL: Final = f"coalesce(nullif({principal_sql('r.principal')}, ''), '{NOBODY}')"
TOTALS: Final = "totals"
"""The sums over all chosen runs, one a name."""
CUT: Final = "results cut for search"
"""How many results there are, and how many are longer than what is searched of them (`amount`)."""
FACETS: Final = "facets"
"""How many runs have a value of a facet, which is the `detail`."""

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
_GROUPS: Final[Mapping[str, str]] = {
    "chosen": (
        f"select r.run_id, {PRINCIPAL} as principal, r.searches, r.denied from {{p}}runs r"
        " where {where}"
    ),
    "summed": (
        "select count(*) as runs, sum(r.tampered <> '') as tampered, sum(r.cost_usd) as cost_usd, "
        + ", ".join(f"sum(r.{column}) as {column}" for column in _TOTAL_COLUMNS)
        + " from {p}runs r where {where}"
    ),
    "decided": (
        "select d.source, d.route, d.degraded, d.degraded_code, d.model_failure, d.exposure,"
        " d.workflow, d.role, d.step, count(*) as n, sum(d.elapsed_us) as elapsed_us, sum(d.tokens)"
        " as tokens, sum(d.result_tokens) as result_tokens, sum(case when d.result_tokens > 0 then"
        " d.calls end) as calls from chosen r cross join {p}decisions d on d.run_id = r.run_id"
        " group by 1, 2, 3, 4, 5, 6, 7, 8, 9"
    ),
    "called": (
        f"select r.principal, {TOOL} as tool, c.bundle, c.code, c.outcome, count(*) as n,"
        " sum(c.elapsed_ms) as elapsed_ms, sum(c.result_tokens) as tokens, sum(c.result_tokens > 0)"
        " as results from chosen r cross join {p}calls c on c.run_id = r.run_id and c.kind = 'call'"
        " group by 1, 2, 3, 4, 5"
    ),
    "shown": (
        "select b.bundle, d.role, count(*) as n, sum(b.calls) as calls from chosen r cross join"
        " {p}bundles b on b.run_id = r.run_id and b.shown join {p}decisions d on d.run_id ="
        " b.run_id and d.seq = b.seq group by 1, 2"
    ),
    "shown_in": (
        "select f.value as bundle, count(*) as runs from chosen r cross join {p}facets f on"
        " f.run_id = r.run_id and f.facet = 'bundle' group by 1"
    ),
    "searched": (
        "select d.workflow, d.role, count(distinct d.run_id || ' ' || d.seq) as steps, count(*) as"
        " searches from chosen r cross join {p}calls c on c.run_id = r.run_id and r.searches > 0"
        f" and {SEARCH_CALL} join {{p}}decisions d on d.run_id = c.run_id and d.seq ="
        " c.decision_seq group by 1, 2"
    ),
}
"""What the tables are made of, each of which reads one kind of record once. A group that reads
another stands after it.
"""


def _sums(
    name: str,
    group: str,
    *,
    detail: str = "''",
    n: str = "sum(n)",
    amount: str = "0",
    extra: str = "0",
) -> str:
    """Return the statement of a table: its rows are sums over a group, by name and detail."""
    return (
        f"select coalesce({name}, '') as name, coalesce({detail}, '') as detail, {n} as n,"
        f" coalesce({amount}, 0) as amount, coalesce({extra}, 0) as extra from {group} group by"
        " 1, 2"
    )


_DENIED: Final = "called where outcome = 'denied'"
_FAILURES: Final = f"called where outcome in {FAILED}"
_RESULTS: Final = "called where results > 0"
_ELAPSED_MS: Final = "sum(elapsed_ms)"

TABLES: Final[Mapping[str, str]] = {
    "decisions by source": _sums("source", "decided", amount="sum(elapsed_us) / 1000.0"),
    "routes": _sums("route", "decided where route <> ''", amount="sum(tokens)"),
    "fallback reasons": _sums("degraded_code", "decided where degraded"),
    "model failures": _sums("model_failure", "decided where model_failure <> ''"),
    "calls by bundle": _sums("bundle", "called where bundle <> ''", amount=_ELAPSED_MS),
    "calls by tool": _sums("tool", "called", amount=_ELAPSED_MS),
    "calls by principal": _sums("principal", "called", amount=_ELAPSED_MS),
    "calls by code": _sums("code", "called where code <> ''"),
    "denials by bundle": _sums("bundle", _DENIED),
    "denials by code": _sums("code", _DENIED),
    "denials by tool": _sums("tool", _DENIED, detail="code"),
    "denials by principal": _sums("principal", _DENIED),
    "failures by outcome": _sums("outcome", _FAILURES),
    "failures by tool": _sums("tool", _FAILURES, detail="outcome"),
    "tokens by tool": _sums(
        "e.tool",
        "decided d join {p}exposures e on e.exposure = d.exposure where e.place = 'direct'",
        detail="e.bundle",
        n="sum(e.tokens * d.n)",
        amount="sum(d.n)",
    ),
    "tokens of results by tool": _sums("tool", _RESULTS, n="sum(tokens)", amount="sum(results)"),
    "tokens of results by step": _sums(
        "workflow || ' / ' || role || ' / ' || step",
        "decided where result_tokens > 0",
        n="sum(result_tokens)",
        amount="sum(calls)",
    ),
    "shown and never used": _sums(
        "s.bundle",
        "shown s left join shown_in i on i.bundle = s.bundle",
        n="sum(s.n)",
        amount="max(i.runs)",
        extra="sum(s.calls)",
    ),
    "asked for and missing": _sums(
        "f.value",
        "chosen r cross join {p}facets f on f.run_id = r.run_id and f.facet = 'missing'",
        n="sum(f.count)",
        amount="count(*)",
    ),
    "principals": _sums("principal", "chosen", n="count(*)", amount="sum(denied)"),
    SEARCHED: _sums(
        "coalesce(workflow, '') || char(10) || coalesce(role, '')",
        "(select workflow, role, 0 as searched_steps, n as steps, 0 as searches from decided"
        " union all select workflow, role, steps, 0, searches from searched)",
        n="sum(searched_steps)",
        amount="sum(steps)",
        extra="sum(searches)",
    ),
    "role × bundle": _sums(
        "coalesce(role, '') || char(10) || bundle", "shown", amount="sum(calls)"
    ),
}
"""The tables of an overview: name, detail, count, amount, and what else a table needs."""
MEANS: Final = frozenset(("decisions by source", "routes"))
"""Tables whose amount is shown as a mean."""
KEPT_IF: Final[Mapping[str, str]] = {"shown and never used": "extra = 0", SEARCHED: "n > 0"}
"""Which rows of a table are shown, where not all are."""

_TOTALS: Final = " union all ".join(
    [
        "select 'cost_usd' as name, '' as detail, 0 as n, coalesce(cost_usd, 0) as amount,"
        " 0 as extra from summed",
        *(
            f"select '{column}', '', coalesce({column}, 0), 0, 0 from summed"
            for column in ("runs", "tampered", *_TOTAL_COLUMNS)
        ),
    ]
)
SUMS: Final[Mapping[str, str]] = {
    **TABLES,
    TOTALS: _TOTALS,
    FACETS: _sums(
        "f.value",
        "chosen r cross join {p}facets f on f.run_id = r.run_id",
        detail="f.facet",
        n="count(*)",
    ),
    CUT: _sums(
        "''",
        "chosen r cross join {p}calls c on c.run_id = r.run_id and c.result <> ''",
        n="count(*)",
        amount=f"sum(length(c.result) > {SEARCHED_CHARACTERS})",
    ),
}
"""Every table whose sums are kept in `totals`, by its name there: a statement over `_GROUPS`."""

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
_HOURS: Final[tuple[str, ...]] = (
    (
        "select substr(d.time, 1, 13) as hour, coalesce(d.source, '') as source, count(*) as"
        " decisions, coalesce(sum(d.tokens), 0) as tokens, coalesce(sum(d.all_tokens), 0) as"
        " all_tokens, 0 as result_tokens, coalesce(sum(d.degraded), 0) as degraded, "
        "sum(case when d.doubt <> '' then 1 else 0 end) as doubted, coalesce(sum(d.cost_usd), 0)"
        " as cost_usd, 0 as calls, 0 as denied, 0 as failed from chosen r cross join {p}decisions d"
        " on d.run_id = r.run_id where d.time is not null group by 1, 2"
    ),
    (
        "select substr(c.time, 1, 13) as hour, '' as source, 0 as decisions, 0 as tokens, 0 as"
        " all_tokens, coalesce(sum(c.result_tokens), 0) as result_tokens, 0 as degraded,"
        " 0 as doubted, 0 as cost_usd, count(*) as calls, sum(case when"
        " c.outcome = 'denied' then 1 else 0 end) as denied, "
        f"sum(case when c.outcome in {FAILED} then 1 else 0 end) as failed from chosen r cross join"
        " {p}calls c on c.run_id = r.run_id where c.kind = 'call' and c.time is not null"
        " group by 1, 2"
    ),
)
"""What the records of an hour (UTC) come to, decisions by their source."""

_OF_CHANGED: Final = f"r.run_id in {CHANGED}"
_NOTHING: Final = 1e-9
"""What subtracting leaves of an amount that was added before, at most."""


def sums_of(names: Iterable[str], where: str) -> str:
    """Return the statement of some tables of `SUMS` over the runs that the condition selects.

    Its rows are those of `totals`.
    """
    return _over(
        where,
        " union all ".join(
            f"select '{name}' as measure, name, detail, n, amount, extra from ({SUMS[name]})"
            for name in names
        ),
    )


def hours_of(where: str) -> str:
    """Return the statement of `hours` over the runs that the condition selects.

    Two rows of an hour add up: one is of its decisions, one of its calls.
    """
    return _over(where, " union all ".join(_HOURS))


def _over(where: str, statement: str) -> str:
    groups = ", ".join(f"{name} as materialized ({group})" for name, group in _GROUPS.items())
    return f"with {groups} {statement}".replace("{p}", PREFIX).replace("{where}", where)


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
    connection.exec_driver_sql(
        f"insert into {PREFIX}totals (measure, name, detail, n, amount, extra) select measure,"
        f" name, detail, {sign}n, {sign}amount, {sign}extra from ({sums_of(SUMS, _OF_CHANGED)})"
        " where true on conflict do update set n = n + excluded.n, amount = amount +"
        " excluded.amount, extra = extra + excluded.extra"
    )
    columns = ", ".join(HOUR_SUMS)
    changes = ", ".join(f"{sign}{column}" for column in HOUR_SUMS)
    sums = ", ".join(f"{column} = {column} + excluded.{column}" for column in HOUR_SUMS)
    connection.exec_driver_sql(
        f"insert into {PREFIX}hours (hour, source, {columns}) select hour, source, {changes} from"
        f" ({hours_of(_OF_CHANGED)}) where true on conflict do update set {sums}"
    )
    if sign:
        connection.exec_driver_sql(
            f"delete from {PREFIX}totals where n = 0 and extra = 0 and abs(amount) < {_NOTHING}"
        )
        connection.exec_driver_sql(f"delete from {PREFIX}hours where decisions = 0 and calls = 0")
