"""Lists of steps and of calls across runs: who was denied what, which decisions a model made, what was slow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bundle_router.adapters.index.counting import FAILED
from bundle_router.adapters.index.database import PREFIX
from bundle_router.adapters.index.overviews import Ask
from bundle_router.core.records.read_model import RecordQuery

_NAME: Final = "c.server || '.' || c.tool"
_STEP_FILTERS: Final[Mapping[str, str]] = {
    "source": "d.source = {v}", "role": "d.role = {v}", "step": "d.step = {v}", "workflow": "d.workflow = {v}",
    "principal": "d.principal = {v}", "reason": "d.degraded_code = {v}", "model": "d.model = {v}",
    "degraded": "d.degraded and {v} <> ''", "route": "d.route = {v}",
    "bundle": "exists (select 1 from {p}bundles b where b.run_id = d.run_id and b.seq = d.seq and b.shown "
    "and b.bundle = {v})",
}  # fmt: skip
_CALL_FILTERS: Final[Mapping[str, str]] = {
    "tool": _NAME + " = {v}", "outcome": "c.outcome = {v}", "code": "c.code = {v}", "bundle": "c.bundle = {v}",
    "failed": "c.outcome in " + FAILED + " and {v} <> ''", "principal": "r.principal = {v}",
    "workflow": "r.workflow = {v}", "role": "d.role = {v}",
}  # fmt: skip
_SORTS: Final = {
    "steps": {"started": "d.time", "slow": "d.elapsed_us", "tokens": "d.tokens", "cost": "d.cost_usd"},
    "calls": {"started": "c.time", "slow": "c.elapsed_ms", "bytes": "c.original_bytes"},
}
FILTERS: Final = {"steps": tuple(_STEP_FILTERS), "calls": tuple(_CALL_FILTERS)}
"""What steps and calls can be narrowed by."""
_COLUMNS: Final = {
    "steps": "d.run_id, d.seq, d.time, d.workflow, d.role, d.step, d.goal, d.principal, d.source, d.degraded, "
    "d.degraded_code, d.route, d.tools, d.tokens, d.all_tokens, d.model, d.model_failure, d.cost_usd, d.model_ms, "
    "d.elapsed_us, d.shown, d.used, d.calls, d.justification",
    "calls": "c.run_id, c.seq, c.time, c.kind, " + _NAME + " as name, c.bundle, c.via, c.outcome, c.code, "
    "c.elapsed_ms, c.original_bytes, c.decision_seq, substr(c.arguments, 1, 300) as arguments, "
    "substr(c.result, 1, 300) as result, "
    "d.role, d.step, d.workflow, r.principal",
}  # fmt: skip
_FROM: Final = {
    "steps": "from {p}decisions d join {p}runs r on r.run_id = d.run_id",
    "calls": "from {p}calls c join {p}runs r on r.run_id = c.run_id left join {p}decisions d on d.run_id = c.run_id "
    "and d.seq = c.decision_seq",
}


def record_rows(ask: Ask, where: str, query: RecordQuery) -> tuple[list[dict[str, Any]], int]:
    """Return the steps or calls that are asked for, of the runs of the condition, and how many there are."""
    filters = _STEP_FILTERS if query.of == "steps" else _CALL_FILTERS
    parts, bound = [where], {}
    for at, (name, value) in enumerate(query.equal):
        parts.append(filters[name].replace("{v}", f":e{at}").replace("{p}", PREFIX))
        bound[f"e{at}"] = value
    source = _FROM[query.of].replace("{p}", PREFIX) + " where " + " and ".join(parts)
    order = _SORTS[query.of].get(query.sort, _SORTS[query.of]["started"])
    tie = "d.run_id, d.seq" if query.of == "steps" else "c.run_id, c.seq"
    rows = ask(
        f"select {_COLUMNS[query.of]} {source} order by {order} is null, {order} desc, {tie} "
        "limit :limit offset :offset",
        **bound, limit=query.limit, offset=query.offset,
    )  # fmt: skip
    (total,) = ask(f"select count(*) as n {source}", **bound)
    return rows, int(total["n"])
