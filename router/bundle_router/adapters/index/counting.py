"""Counts of runs, computed in SQL from the rows of their records, for the changed runs only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from bundle_router.adapters.index.database import CHANGED, PREFIX, tables
from bundle_router.core.records.read_model import NOBODY
from bundle_router.core.values.words import GAP_CODES

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

FAILED: Final = (
    "('tool_error','invalid_arguments','timeout','unavailable','busy','budget','cancelled',"
    "'unknown')"
)
UNCOUNTED: Final = "c.kind = 'call' and c.result <> '' and c.result_tokens is null"
"""A result whose tokens were not counted, since no tokenizer was installed when it was indexed."""
MEDIA: Final = (
    "(role = 'media' or mime_type like 'image/%' or mime_type like 'audio/%'"
    " or mime_type like 'video/%')"
)
"""What counts as media: what a tool returned as media, a PDF too, and pictures, sounds and videos
that were inside a text or a resource.
"""


SEARCH_CALL: Final = "tool = 'search_tools' and server = 'router'"
"""A call by which an agent searched for tools."""


def searched_steps_sql(run_id: str) -> str:
    """Return the SQL of a run's number of steps in which its agent searched for tools."""
    return (
        f"(select count(distinct decision_seq) from {PREFIX}calls where {SEARCH_CALL}"
        f" and {PREFIX}calls.run_id = {run_id})"
    )


def _sum(condition: str) -> str:
    return f"coalesce(sum(case when {condition} then 1 else 0 end), 0)"


def principal_sql(principal: str) -> str:
    """Return the SQL of a principal as tables and facets name it: never `NOBODY`, which somebody
    may be called.
    """
    return (
        f"case when ltrim({principal}, '\\') = '{NOBODY}' then '\\' || {principal} else"
        f" {principal} end"
    )


_COUNTS: Final = (
    # calls of a decision, and of each bundle it showed or left out
    f"""update {PREFIX}bundles set calls = (select count(*) from {PREFIX}calls c where c.run_id =
        {PREFIX}bundles.run_id
        and c.decision_seq = {PREFIX}bundles.seq and c.bundle = {PREFIX}bundles.bundle
        and c.kind = 'call' and coalesce(c.outcome, '') <> 'denied') where run_id in {CHANGED}""",
    f"""update {PREFIX}decisions set calls = coalesce(found.calls, 0), used = coalesce(found.used,
        0), result_tokens = found.tokens, results_uncounted = found.uncounted from (
        select d.run_id, d.seq, count(c.seq) as calls, count(distinct case when c.outcome in ('ok',
        'tool_error') then
        c.bundle end) as used, coalesce(sum(c.result_tokens), 0) as tokens,
        {_sum(UNCOUNTED)} as uncounted from {PREFIX}decisions d left join {PREFIX}calls c
        on c.run_id = d.run_id
        and c.decision_seq = d.seq and c.kind = 'call' where d.run_id in {CHANGED} group by
        d.run_id, d.seq) as found
        where found.run_id = {PREFIX}decisions.run_id and found.seq = {PREFIX}decisions.seq""",
    # runs
    f"""update {PREFIX}runs set decisions = 0, calls = 0, denied = 0, failed = 0, degraded = 0,
        model_failures = 0,
        searches = 0, media = 0, labels = 0, tokens = 0, all_tokens = 0, result_tokens = 0,
        results_uncounted = 0, cost_usd = 0, began =
        opened, ended = closed
        where run_id in {CHANGED}""",
    f"""update {PREFIX}runs set decisions = found.decisions, degraded = found.degraded, tokens =
        found.tokens,
        model_failures = found.failures, all_tokens = found.all_tokens, cost_usd = found.cost,
        began = found.began,
        ended = found.ended from (select run_id, count(*) as decisions, {_sum("degraded")} as
        degraded,
        coalesce(sum(tokens), 0) as tokens, {_sum("model_failure is not null")} as failures,
        coalesce(sum(all_tokens), 0) as all_tokens, coalesce(sum(cost_usd), 0) as cost, min(time)
        as began,
        max(time) as ended from {PREFIX}decisions where run_id in {CHANGED} group by run_id) as
        found
        where found.run_id = {PREFIX}runs.run_id""",
    f"""update {PREFIX}runs set calls = found.calls, denied = found.denied, failed = found.failed,
        searches = found.searches, result_tokens = found.tokens,
        results_uncounted = found.uncounted, ended = case when {PREFIX}runs.ended is null or
        found.last > {PREFIX}runs.ended
        then found.last else {PREFIX}runs.ended end from (select run_id, count(*) as calls,
        {_sum("outcome = 'denied'")} as denied, {_sum(f"outcome in {FAILED}")} as failed,
        {_sum(SEARCH_CALL)} as searches, coalesce(sum(c.result_tokens), 0) as tokens,
        {_sum(UNCOUNTED)} as uncounted,
        max(time) as last from {PREFIX}calls c where run_id in {CHANGED} group by run_id) as found
        where found.run_id = {PREFIX}runs.run_id""",
    f"""update {PREFIX}runs set media = found.media from (select run_id, count(distinct sha256) as
        media
        from {PREFIX}artifacts where {MEDIA} and run_id in {CHANGED} group by run_id) as found
        where found.run_id = {PREFIX}runs.run_id""",
    f"""update {PREFIX}runs set labels = found.labels from (select run_id, count(distinct seq) as
        labels
        from {PREFIX}labels where run_id in {CHANGED} group by run_id) as found
        where found.run_id = {PREFIX}runs.run_id""",
    f"""update {PREFIX}runs set workflow = first.workflow, principal = first.principal,
        parent_run_id = coalesce({PREFIX}runs.parent_run_id, first.parent_run_id),
        parent_decision_id = first.parent_decision_id from (select d.run_id, d.workflow,
        d.principal, d.parent_run_id,
        d.parent_decision_id from {PREFIX}decisions d join (select run_id, min(seq) as seq from
        {PREFIX}decisions
        where run_id in {CHANGED} group by run_id) as f on f.run_id = d.run_id and f.seq = d.seq)
        as first
        where first.run_id = {PREFIX}runs.run_id""",
    f"delete from {PREFIX}facets where run_id in {CHANGED}",
)

_OF_DECISIONS: Final = {
    "workflow": "workflow",
    "role": "role",
    "step": "step",
    "principal": principal_sql("principal"),
    "source": "source",
    "reason": "degraded_code",
    "model": "model",
}
_OF_CALLS: Final = {
    "tool": "rtrim(server || '.' || tool, '.')",
    "outcome": "outcome",
    "code": "code",
}
_MARKS: Final = {
    "degraded": "degraded > 0",
    "denied": "denied > 0",
    "failed": "failed > 0",
    "media": "media > 0",
    "tampered": "tampered <> ''",
    "labelled": "labels > 0",
    "model failed": "model_failures > 0",
    "sub-run": "parent_run_id is not null",
    "searched at every step": (
        "decisions > 0 and searches >= decisions"
        f" and {searched_steps_sql(f'{PREFIX}runs.run_id')} = decisions"
    ),
    "open": "state = 'open'",
    "unreadable": "state = 'unreadable'",
}


def _facets() -> list[str]:
    into = f"insert into {PREFIX}facets (run_id, facet, value, count)"
    statements = [
        f"{into} select run_id, '{facet}', {column}, count(*) from {PREFIX}decisions where run_id"
        f" in {CHANGED} and {column} <> '' group by run_id, {column}"
        for facet, column in _OF_DECISIONS.items()
    ]
    statements += [
        f"{into} select run_id, '{facet}', {column}, count(*) from {PREFIX}calls where run_id in"
        f" {CHANGED} and kind = 'call' and {column} <> '' group by run_id, {column}"
        for facet, column in _OF_CALLS.items()
    ]
    statements += [
        (
            f"{into} select run_id, 'bundle', bundle, count(*) from {PREFIX}bundles where run_id in"
            f" {CHANGED} and shown and bundle <> '' group by run_id, bundle"
        ),
        (
            f"{into} select run_id, 'missing', rtrim(server || '.' || tool, '.'), count(*) from"
            f" {PREFIX}calls where run_id in {CHANGED} and outcome = 'denied' and code in"
            f" {(*GAP_CODES, 'unknown_bundle')} group by run_id, server, tool"
        ),
    ]
    statements += [
        f"{into} select run_id, 'mark', '{mark}', 1 from {PREFIX}runs where run_id in {CHANGED}"
        f" and {condition}"
        for mark, condition in _MARKS.items()
    ]
    return statements


def count_runs(connection: Connection) -> None:
    """Compute the counts, bundle usage and facets of the changed (`dirty`) runs."""
    from sqlmodel import text

    for statement in (*_COUNTS, *_facets()):
        connection.execute(text(statement))
    _set_durations(connection)


def _set_durations(connection: Connection) -> None:
    """Set the duration of each run. The two databases have different expressions for it."""
    from sqlalchemy import bindparam, select

    runs = tables()["runs"].__table__
    sources = tables()["sources"].__table__
    changed = select(runs.c.run_id, runs.c.began, runs.c.ended).where(
        runs.c.run_id.in_(select(sources.c.run_id).where(sources.c.dirty))
    )
    took: list[dict[str, Any]] = [
        {"id": run_id, "took": (end - began).total_seconds() * 1000}
        for run_id, began, end in connection.execute(changed)
        if began is not None and end is not None
    ]
    if took:
        update = (
            runs.update().where(runs.c.run_id == bindparam("id")).values(took_ms=bindparam("took"))
        )
        connection.execute(update, took)
