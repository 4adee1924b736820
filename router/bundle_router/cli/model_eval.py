"""`bundle-router eval --model`: routes labelled steps for real with several models and with none, and compares them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.cli.output import print_json, progress, say, table
from bundle_router.core.catalog import Catalog
from bundle_router.errors import RequestError

if TYPE_CHECKING:
    from bundle_router.core.search.ranking import Memories
    from bundle_router.review.evaluation import LabelledRow
    from bundle_router.review.model_comparison import Estimate, ModelFigures
    from bundle_router.wiring.model_trials import ModelComparison

COLUMNS = ("model", "right", "wrong", "abstained", "needed shown", "asked", "kept", "failed", "tokens", "cost", "time")


def compare_models(
    arguments: argparse.Namespace,
    sets: Sequence[tuple[Path, tuple[LabelledRow, ...]]],
    catalog: Catalog,
    memories: Memories | None,
) -> int:
    """Return exit status 0: figures are for people. Raises RequestError if there is nothing to route."""
    from bundle_router.review.evaluation import unknown_ids
    from bundle_router.wiring.model_trials import ModelTrials

    if not sets or len(sets) != len(arguments.files):
        raise RequestError("--model routes labelled sets, *.jsonl, and nothing else", advice="see eval --help")
    names = tuple(dict.fromkeys(arguments.model))
    left: float | None = arguments.max_cost
    made: list[tuple[Path, ModelComparison]] = []
    for path, rows in sets:
        trials = ModelTrials(catalog, names, memories, arguments.runs, left)
        with progress(f"Routing {path.name}", len(rows)) as done:
            found = asyncio.run(trials.run(rows, done))
        made.append((path, found))
        if left is not None:
            left -= sum(row.spent_usd for row in found.figures)
    if arguments.json:
        print_json({"sets": [{"file": str(path), **asdict(found)} for path, found in made]})
        return 0
    for (path, found), (_, rows) in zip(made, sets, strict=True):
        steps = found.figures[0].rows
        table(COLUMNS, map(_row, found.figures), title=f"{path}: {steps:,} of {found.rows:,} steps, 95 % intervals")
        if unknown := unknown_ids(rows, catalog):
            say(f"not in this config, so never right: {', '.join(unknown)}")
        say(found.ended or "tokens, cost and time of one question that was asked now; kept: answered by an earlier run")
    return 0


def _row(one: ModelFigures) -> tuple[str, ...]:
    failed = ", ".join(f"{kind} {number}" for kind, number in one.failures) or "–"
    shares = (one.right, one.wrong, one.abstained, one.needed_shown)
    counts = (str(one.asked), str(one.cached), failed) if one.model is not None else ("–", "–", "–")
    return (
        one.model or "none",
        *(_cell(value, ".2f") for value in shares),
        *counts,
        _cell(one.tokens, ",.0f"),
        _cell(one.cost_usd, ".6f", "$"),
        _cell(one.ms, ",.0f", after=" ms"),
    )


def _cell(value: Estimate, form: str, before: str = "", after: str = "") -> str:
    if value.value is None:
        return "–"
    return f"{before}{value.value:{form}}{after} ({value.low:{form}} to {value.high:{form}})"
