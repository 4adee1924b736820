"""`bundle-router eval`: runs case files, the golden tests of a config, and measures routing on
labelled sets.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_json, progress, say, table
from bundle_router.cli.shared_arguments import add_config, add_json, add_runs, config_folder
from bundle_router.core.catalog import Catalog
from bundle_router.core.config.config_text import ConfigFile, from_bytes
from bundle_router.errors import RequestError
from bundle_router.review.cases import Case, Mismatch, line_of, read_cases, run_case

if TYPE_CHECKING:
    from bundle_router.core.search.ranking import Memories
    from bundle_router.review.evaluation import LabelledRow, Measures
    from bundle_router.review.model_comparison import Estimate, ModelFigures
    from bundle_router.workbench.model_trials import ModelComparison

    MeasuredSet = tuple[Path, Measures, tuple[str, ...]]
    """A labelled set's file, its figures, and the bundles that the config lacks."""

LABELLED: Final = ".jsonl"
FORMS: Final = """\
a case file, *.toml: steps, and what they must get (bundles in this order)
  [[cases]]
  name = "reviewers read"
  workflow = "feature"
  role = "reviewer"
  step = "review"
  bundles = ["repo.readonly", "docs.fetch"]
  # where it matters: route, source, left_out, goal, constraints, capabilities

a labelled set, *.jsonl: what was asked for, and the bundles (and tools) needed
  {"goal": "why does slugify drop emoji", "bundles": ["repo.readonly"]}
  {"goal": "what the docs say", "bundles": ["docs.fetch"], "tools": ["docs.fetch"]}

With --model its steps are routed for real, and answers are kept in --runs: the same run again is
free.

Exit: 0 all cases hold, 1 some do not. A labelled set has figures and no verdict.
"""
MAX_LABELLED_BYTES: Final = 256 * 1024 * 1024


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", type=Path, help="case files (TOML) and labelled sets (JSON Lines)"
    )
    parser.add_argument(
        "--share",
        type=float,
        action="append",
        metavar="SHARE",
        help=(
            "share of steps, the most certain first, to show the error rate of; may be repeated"
            " (default: 0.5, 0.8)"
        ),
    )
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME",
        help="also route labelled sets for real with this model; may be repeated",
    )
    parser.add_argument(
        "--max-cost", type=float, metavar="USD", help="stop before questions to models cost more"
    )
    add_runs(parser)
    add_config(parser)
    add_json(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = FORMS


def load_file(path: Path) -> ConfigFile:
    """Return a case file as text. Raises RequestError."""
    try:
        return from_bytes(path.name, str(path), path.read_bytes(), "project")
    except OSError as error:
        raise RequestError(f"{path} can't be read: {error.strerror}") from None


def load_labelled(path: Path) -> tuple[LabelledRow, ...]:
    """Return the rows of a labelled set. Raises RequestError, which names file, line and error."""
    from bundle_router.review.evaluation import read_labelled

    try:
        if path.stat().st_size > MAX_LABELLED_BYTES:
            raise RequestError(f"{path} is larger than {MAX_LABELLED_BYTES:,} bytes")
        return read_labelled(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path} can't be read: {error.strerror}") from None
    except ValueError as error:  # UnicodeDecodeError is one
        raise RequestError(
            f"{path}: {error}", advice="`bundle-router eval --help` shows a line of one"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Return exit status 1 if a case fails.

    A labelled set can't fail: its figures are for people.
    """
    from bundle_router.wiring.catalogs import load_remembering

    shares = tuple(arguments.share or (0.5, 0.8))
    if not all(0.0 < share <= 1.0 for share in shares):
        raise RequestError("--share must be between 0 and 1", advice="write e.g. --share 0.5")
    catalog, memories = load_remembering(config_folder(arguments), local=local_servers(arguments))
    sets = [(path, load_labelled(path)) for path in arguments.files if path.suffix == LABELLED]
    if arguments.model:
        return compare_models(arguments, sets, catalog, memories)
    if arguments.max_cost is not None:
        raise RequestError("--max-cost needs a model to ask", advice="name one with --model")

    files = [load_file(path) for path in arguments.files if path.suffix != LABELLED]
    results = [result for file in files for result in _run_file(file, catalog)]
    failed = [result for result in results if result.mismatches]
    measured: list[MeasuredSet] = []
    if sets:
        measured = _measure_all(sets, catalog, memories, shares)
    if arguments.json:
        cases = [_row(result.file, result.case, result.mismatches) for result in results]
        figures = [_set_json(*measures) for measures in measured]
        print_json({"cases": cases, "failed": len(failed), "sets": figures})
        return 1 if failed else 0

    for result in failed:
        for mismatch in result.mismatches:
            line = line_of(result.file, result.number, mismatch.step - 1)
            say(f"{result.file.display_path}:{line}: {mismatch}")
    if files:
        say(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    for measures in measured:
        _show_set(*measures)
    return 1 if failed else 0


class _CaseResult(NamedTuple):
    """What one case of a file came to: `number` is its place there, from 0."""

    file: ConfigFile
    number: int
    case: Case
    mismatches: tuple[Mismatch, ...]


def _run_file(file: ConfigFile, catalog: Catalog) -> Iterator[_CaseResult]:
    for number, case in enumerate(read_cases(file)):
        yield _CaseResult(file, number, case, run_case(case, catalog))


def _row(file: ConfigFile, case: Case, wrong: tuple[Mismatch, ...]) -> dict[str, object]:
    return {
        "file": file.display_path,
        "name": case.name,
        "passed": not wrong,
        "differences": [str(m) for m in wrong],
    }


# --- labelled sets --------------------------------------------------------------------------------


def _measure_all(
    sets: list[tuple[Path, tuple[LabelledRow, ...]]],
    catalog: Catalog,
    memories: Memories | None,
    shares: tuple[float, ...],
) -> list[MeasuredSet]:
    """Return each set's figures under the config, with learned values, and its bundles that the
    config lacks.
    """
    from bundle_router.core.search.ranking import NO_MEMORIES
    from bundle_router.review.evaluation import measure, rank_row, unknown_ids
    from bundle_router.wiring.searching import make_search_for

    memory = memories or NO_MEMORIES
    search = make_search_for(
        catalog, [row.as_request().text for _, rows in sets for row in rows], memory
    )
    measures = []
    for path, rows in sets:
        ranked = []
        elapsed = []
        for row in rows:
            started = time.perf_counter()
            ranked.append(rank_row(row, catalog, search, memory))
            elapsed.append((time.perf_counter() - started) * 1e3)
        measures.append(
            (path, measure(ranked, elapsed, catalog, shares=shares), unknown_ids(rows, catalog))
        )
    return measures


def _set_json(path: Path, found: Measures, unknown: tuple[str, ...]) -> dict[str, Any]:
    """Return the measures as JSON: rows, never objects keyed by data."""
    return {
        **asdict(found),
        "file": str(path),
        "unknown_bundles": list(unknown),
        "recall": [{"k": k, "value": value} for k, value in found.recall],
        "settled": [{"by": by, "steps": number} for by, number in found.settled],
        "errors": [{"share": share, "error": error} for share, error in found.errors],
    }


def _show_set(path: Path, found: Measures, unknown: tuple[str, ...]) -> None:
    steps = found.rows + found.abstain
    say()
    for ids, reason in (
        (unknown, "not in this config"),
        (found.unpickable, "not for search to pick there"),
    ):
        if ids:
            say(
                f"note: {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}: {reason}, so never"
                " found by it"
            )
    rows: list[tuple[str, str]] = [
        (f"recall@{k}, bundles", _number(value)) for k, value in found.recall
    ]
    rows += [
        ("MRR, bundles", _number(found.mrr)),
        ("nDCG@10, bundles", _number(found.bundle_ndcg)),
        ("nDCG@10, tools", _number(found.tool_ndcg)),
        (f"abstention, AUROC ({found.abstain} need nothing)", _number(found.abstention)),
        ("shown all they need, unasked", _share(found.served)),
        ("shown by search unasked", f"{found.shown_unasked:.1%}"),
        ("  of these wrong", _share(found.wrong_unasked)),
        *(
            (f"error, surest {share:.0%} answered unasked", _share(error))
            for share, error in found.errors
        ),
        ("tokens of tools in the array, a step", f"{found.tokens:,.0f} of {found.all_tokens:,}"),
        ("time per step, median", f"{found.ms:.2f} ms"),
    ]
    table(
        ("measure", "value>"),
        rows,
        title=f"{path}: {counted(steps, 'step')} of {counted(found.groups, 'group')}",
    )
    say("settled by: " + ", ".join(f"{by} {number}" for by, number in found.settled))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


# --- with models ----------------------------------------------------------------------------------

COLUMNS = (
    "model",
    "right",
    "wrong",
    "abstained",
    "needed shown",
    "asked",
    "kept",
    "failed",
    "tokens",
    "cost",
    "time",
)


def compare_models(
    arguments: argparse.Namespace,
    sets: Sequence[tuple[Path, tuple[LabelledRow, ...]]],
    catalog: Catalog,
    memories: Memories | None,
) -> int:
    """Return exit status 0: figures are for people.

    Raises RequestError if there is nothing to route.
    """
    from bundle_router.review.evaluation import unknown_ids
    from bundle_router.workbench.model_trials import ModelTrials

    if not sets or len(sets) != len(arguments.files):
        raise RequestError(
            "--model routes labelled sets, *.jsonl, and nothing else", advice="see eval --help"
        )
    names = tuple(dict.fromkeys(arguments.model))
    budget: float | None = arguments.max_cost
    comparisons: list[tuple[Path, ModelComparison]] = []
    for path, rows in sets:
        trials = ModelTrials(catalog, names, memories, arguments.runs, budget)
        with progress(f"Routing {path.name}", len(rows)) as advance:
            comparison = asyncio.run(trials.run(rows, advance))
        comparisons.append((path, comparison))
        if budget is not None:
            budget -= sum(row.spent_usd for row in comparison.figures)
    if arguments.json:
        print_json({"sets": [{"file": str(path), **asdict(found)} for path, found in comparisons]})
        return 0
    for (path, comparison), (_, rows) in zip(comparisons, sets, strict=True):
        steps = comparison.figures[0].rows
        table(
            COLUMNS,
            map(_model_row, comparison.figures),
            title=f"{path}: {steps:,} of {comparison.rows:,} steps, 95 % intervals",
        )
        if unknown := unknown_ids(rows, catalog):
            say(f"not in this config, so never right: {', '.join(unknown)}")
        say(
            comparison.ended
            or "tokens, cost and time of one question that was asked now; kept: answered by an"
            " earlier run"
        )
    return 0


def _model_row(one: ModelFigures) -> tuple[str, ...]:
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
