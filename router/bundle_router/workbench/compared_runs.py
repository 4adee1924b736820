"""Compares two recorded runs, by their rows in the index and the configs that they hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bundle_router.core.catalog.step_address import PARTS
from bundle_router.review.run_comparison import (
    ComparedCall,
    ComparedStep,
    ConfigDifference,
    RunComparison,
    StepPair,
    compare_steps,
    config_difference,
)
from bundle_router.workbench.run_reader import RunReader

MAX_CONFIGS: Final = 3
"""Maximum pairs of revisions whose configs are compared: those of the most steps."""
_Row = Mapping[str, Any]


def compare_runs(reader: RunReader, a: str, b: str) -> RunComparison:
    """Return two runs of a reader beside each other. Raises UnknownRun."""
    run_a = reader.index.run(a)
    run_b = reader.index.run(b)
    pairs = compare_steps(compared_steps(reader, a), compared_steps(reader, b))
    return RunComparison(run_a, run_b, pairs, tuple(_configs(reader, a, b, pairs)))


def compared_steps(reader: RunReader, run_id: str) -> list[ComparedStep]:
    """Return the steps of a run with their calls, as they are compared."""
    tools = reader.index.exposed_tools(run_id)
    calls = _by_decision(reader.index.rows_of("calls", run_id))
    bundles: dict[int, list[str]] = defaultdict(list)
    for row in reader.index.rows_of("bundles", run_id, shown=True):
        bundles[row["seq"]].append(row["bundle"] or "")
    return [
        _step(row, bundles[row["seq"]], tools.get(row["exposure"] or ""), calls[row["seq"]])
        for row in reader.index.rows_of("decisions", run_id)
    ]


def _by_decision(rows: Iterable[_Row]) -> dict[int, list[ComparedCall]]:
    calls: dict[int, list[ComparedCall]] = defaultdict(list)
    for row in rows:
        if row["decision_seq"] is not None:
            calls[row["decision_seq"]].append(_call(row))
    return calls


def _step(
    row: _Row, bundles: list[str], tools: tuple[str, ...] | None, calls: list[ComparedCall]
) -> ComparedStep:
    decision_ms = (row["elapsed_us"] or 0) / 1000
    return ComparedStep(
        seq=row["seq"],
        address=tuple(row[part.name] or "" for part in PARTS),
        goal=row["goal"] or "",
        branch=row["branch"] or "",
        key=row["key"] or "",
        source=row["source"] or "",
        degraded=bool(row["degraded"]),
        doubt=row["doubt"] or "",
        bundles=tuple(bundles),
        tools=tools,
        tokens=row["tokens"] or 0,
        revision=row["catalog_revision"] or "",
        elapsed_ms=decision_ms + sum(call.elapsed_ms for call in calls),
        calls=tuple(calls),
    )


def _call(row: _Row) -> ComparedCall:
    name = f"{row['server'] or ''}.{row['tool'] or ''}".strip(".")
    return ComparedCall(
        seq=row["seq"],
        tool=name,
        arguments=row["arguments"] or "",
        outcome=row["outcome"] or "",
        code=row["code"] or "",
        result=row["result"] or "",
        elapsed_ms=row["elapsed_ms"] or 0.0,
        key=row["key"] or "",
    )


def _configs(
    reader: RunReader, a: str, b: str, pairs: Iterable[StepPair]
) -> Iterable[ConfigDifference]:
    revisions = Counter(
        (pair.a.revision, pair.b.revision)
        for pair in pairs
        if pair.a is not None and pair.b is not None and pair.a.revision != pair.b.revision
    )
    for (old, new), count in revisions.most_common(MAX_CONFIGS):
        catalogs = reader.recorded_catalog(a, old), reader.recorded_catalog(b, new)
        yield config_difference((old, new), count, *catalogs)
