"""`bundle-router runs list|stats|search` over the read model: runs, totals, and places of words."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from bundle_router.cli.output import (
    counted,
    heading,
    print_json,
    progress,
    say,
    say_whole,
    show_habits,
    table,
)
from bundle_router.cli.shared_arguments import archive_of
from bundle_router.core.records.read_model import (
    FACETS,
    MARKS,
    SEARCHED,
    SORTS,
    Facet,
    RunQuery,
    Sort,
    counted_tokens,
    cut_sentence,
    duration_text,
)
from bundle_router.core.values.visible import visible
from bundle_router.errors import RequestError
from bundle_router.review.search_habits import counted_habits
from bundle_router.review.unrouted import unrouted_line

if TYPE_CHECKING:
    from bundle_router.adapters.index import RefreshResult, Report, RunIndex
    from bundle_router.core.records.read_model import RunRow, Tally

_LISTED: Final = tuple(facet for facet in FACETS if facet != "mark")
_HELP: Final = {
    "bundle": "that was shown",
    "tool": "that was called or asked for",
    "code": "of a refused call",
    "reason": "of a degraded step",
    "missing": "a name that was asked for and is no tool, or was not shown",
    "outcome": "of a call",
}
AGE: Final = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|w)")
AGE_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DESCENDING: Final = "-"


def add_facets(parser: argparse.ArgumentParser, *, sorting: bool = False) -> None:
    """Add the options that select runs; with `sorting`, also their order and number."""
    of = parser.add_argument_group(
        "which runs", "runs that have each of these somewhere, not one call that has all"
    )
    for facet in _LISTED:
        of.add_argument(
            f"--{facet}",
            action="append",
            default=[],
            metavar="NAME",
            help=_HELP.get(facet, "of a step"),
        )
    for mark, description in (
        ("denied", "a denied call"),
        ("failed", "a failed call"),
        ("degraded", "a degraded decision"),
        ("media", "a picture, sound or the like"),
    ):
        of.add_argument(f"--{mark}", action="store_true", help=f"runs with {description}")
    of.add_argument(
        "--mark", action="append", default=[], choices=MARKS, metavar="MARK", help=", ".join(MARKS)
    )
    of.add_argument(
        "--search",
        default="",
        metavar="WORDS",
        help="words in goals, arguments, results and artifacts",
    )
    of.add_argument("--since", metavar="TIME", help="RFC 3339 time or date, or an age: 12h, 7d")
    of.add_argument("--until", metavar="TIME", help="as --since; a date includes all of that day")
    if sorting:
        orders = [*SORTS, *(f"-{name}" for name in SORTS)]
        sort_help = f"one of {', '.join(SORTS)}; with a '-' the other way round: --sort=-took"
        parser.add_argument("--sort", choices=orders, metavar="ORDER", help=sort_help)
        parser.add_argument("--limit", type=int, help="runs shown (default: 50)")


def query_of(arguments: argparse.Namespace) -> RunQuery:
    """Return the query of the options. Raises RequestError for an invalid time."""
    limit = getattr(arguments, "limit", None)
    if limit is not None and limit < 1:
        raise RequestError("--limit must be at least 1")

    order = getattr(arguments, "sort", None) or "started"
    sort = order.removeprefix(_DESCENDING)
    return RunQuery(
        facets=tuple(_facets_of(arguments)),
        text=arguments.search,
        since=_time(arguments.since),
        until=_time(arguments.until, whole_day=True),
        sort=cast(Sort, sort),
        ascending=(sort == "run") != order.startswith(_DESCENDING),
        limit=RunQuery().limit if limit is None else min(limit, 2**31),
    )


def _facets_of(arguments: argparse.Namespace) -> Iterator[tuple[Facet, str]]:
    for facet in _LISTED:
        for value in getattr(arguments, facet):
            yield facet, value
    for mark in MARKS:
        has_option = getattr(arguments, mark, False) is True
        if has_option or mark in arguments.mark:
            yield "mark", mark


def _time(text: str | None, *, whole_day: bool = False) -> str:
    if text is None:
        return ""
    try:
        if (ago := AGE.fullmatch(text)) is not None:
            time = datetime.now(UTC) - timedelta(seconds=float(ago[1]) * AGE_S[ago[2]])
        else:
            time = datetime.fromisoformat(
                text + "T23:59:59.999999" * (whole_day and len(text) <= len("2026-01-31"))
            )
        time = time.astimezone(UTC) if time.tzinfo is not None else time.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise RequestError(
            f"{text!r} is neither a time nor an age", advice="write e.g. 2026-11-20 or 7d"
        ) from None
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def has_index(arguments: argparse.Namespace) -> bool:
    """Return whether the runs of the options have an index."""
    from bundle_router.adapters.index import index_url

    url = index_url(archive_of(arguments))
    return Path(url.removeprefix("sqlite:///")).is_file()


@contextmanager
def reading_runs() -> Iterator[Report]:
    """Show how many runs of how many were read, where standard error is a terminal.

    Yields the function that sets both.
    """
    with progress("reading runs", 100) as advance:
        yield lambda at, of: advance(100 * at // max(of, 1))


@contextmanager
def index_of(
    arguments: argparse.Namespace,
) -> Iterator[tuple[RunIndex, RefreshResult | None]]:
    """Yield the read model of the options' runs, and what its refresh read; None if that failed."""
    from bundle_router.adapters.index import RunIndex, index_url

    archive = archive_of(arguments)
    with reading_runs() as report, closing(RunIndex(archive, index_url(archive), report)) as index:
        refreshed = index.refresh(now=True)
        if index.notice:
            sys.stderr.write(visible(f"bundle-router: {index.notice}") + "\n")
        if index.stale:
            sys.stderr.write(visible(f"bundle-router: read as it was: {index.stale}") + "\n")
        yield index, refreshed


def list_runs(arguments: argparse.Namespace) -> int:
    """Print the runs that match the options."""
    query = query_of(arguments)
    with index_of(arguments) as (index, _):
        page = index.runs(query, facets=arguments.json)
        if arguments.json:
            sources: Sequence[Tally] = []
        else:
            sources = index.stats(query).tables.get("decisions by source", [])
    if arguments.json:
        print_json(page.to_json())
    elif not page.runs:
        say(
            "no run matches"
            if query != RunQuery()
            else f"no runs in {arguments.store or arguments.runs}"
        )
    else:
        table(_COLUMNS, [_cells(run) for run in page.runs])
        if page.total > len(page.runs):
            say(f"{len(page.runs)} of {page.total:,} runs; --limit shows more")
        if line := unrouted_line({row.name: row.count for row in sources}):
            say_whole("", line, under=2)
    return 0


_COLUMNS: Final = (
    "run",
    "state",
    "began (UTC)",
    "took>",
    "workflow",
    "steps>",
    "calls>",
    "definition tokens>",
    "of all>",
    "result tokens>",
    "parent",
    "marks",
)


def _cells(run: RunRow) -> Sequence[object]:
    share = f"{run.tokens / run.all_tokens:.0%}" if run.all_tokens else ""
    began = (run.began or run.opened)[:19].replace("T", " ")
    return (
        run.run_id,
        run.state,
        began,
        duration_text(run.took_ms),
        run.workflow,
        run.decisions,
        run.calls,
        f"{run.tokens:,}",
        share,
        counted_tokens(run.result_tokens, run.results_uncounted),
        run.parent_run_id,
        marks_of(run),
    )


def marks_of(run: RunRow) -> str:
    """Return a run's notable marks, in words."""
    marks = (
        ("denied", run.denied),
        ("failed", run.failed),
        ("degraded", run.degraded),
        ("media", run.media),
    )
    words = [f"{count} {word}" for word, count in marks if count]
    words += ["NOT AS IT WAS WRITTEN: " + run.tampered] if run.tampered else []
    return ", ".join([*words, *([run.problem] if run.problem else [])])


def show_stats(arguments: argparse.Namespace) -> int:
    """Print the totals of the runs that match the options."""
    with index_of(arguments) as (index, _):
        stats = index.stats(query_of(arguments))
    habits = counted_habits(stats.tables[SEARCHED])
    if arguments.json:
        print_json({**stats.to_json(), "searching": [habit.to_json() for habit in habits]})
        return 0
    heading(
        f"{counted(stats.runs, 'run')}, {counted(stats.decisions, 'decision')},"
        f" {counted(stats.calls, 'call')}"
    )
    if stats.tampered:
        say(
            f"WARNING: not as it was written: {counted(stats.tampered, 'run')}; `bundle-router runs"
            " list --mark tampered` names them"
        )
    if stats.all_tokens:
        share = f", {stats.tokens / stats.all_tokens:.1%} of what all tools would have been"
    else:
        share = ""
    say(
        f"{stats.tokens:,} tokens of definitions shown{share}; ${stats.cost_usd:.4f} for the"
        " router's model"
    )
    say(
        f"{counted_tokens(stats.result_tokens, stats.results_uncounted)} tokens of results, as the"
        " model saw them"
    )
    for name, rows in stats.tables.items():
        if rows and name not in ("role × bundle", SEARCHED):
            say()
            table(
                (_TITLES.get(name, name), *_MEASURES.get(name, ("count>",))),
                [_stat_cells(name, row) for row in rows],
            )
    show_habits(habits)
    return 0


_TITLES: Final = {"tokens by tool": "tokens of definitions by tool"}
_MEASURES: Final = {
    "decisions by source": ("decisions>", "mean ms>"),
    "routes": ("decisions>", "mean tokens>"),
    "calls by bundle": ("calls>", "ms in all>"),
    "calls by tool": ("calls>", "ms in all>"),
    "tokens by tool": ("tokens>", "steps>", "bundle"),
    "tokens of results by tool": ("tokens>", "calls>"),
    "tokens of results by step": ("tokens>", "calls>"),
    "tokens of results by run": ("tokens>", "calls>"),
    "slowest calls": ("ms>", "tool"),
    "shown and never used": ("steps>", "runs>"),
    "asked for and missing": ("times>", "runs>"),
    "principals": ("runs>", "denied>"),
    "searched at every step": ("searches>", "steps>"),
    "denials by tool": ("count>", "code"),
    "failures by tool": ("count>", "outcome"),
}
"""The columns of a table after its name."""


def _stat_cells(name: str, row: Tally) -> Sequence[object]:
    columns = _MEASURES.get(name, ("count>",))
    if name == "slowest calls":
        return (row.name, f"{row.amount:,.1f}", row.detail)
    if len(columns) == 1:
        return (row.name or "(none)", f"{row.count:,}")
    if columns[-1] in ("code", "outcome"):
        return (row.name, f"{row.count:,}", row.detail)
    amount = f"{row.amount:,.1f}" if "ms" in columns[1] else f"{row.amount:,.0f}"
    return (row.name, f"{row.count:,}", amount, row.detail)[: 1 + len(columns)]


def show_hits(arguments: argparse.Namespace) -> int:
    """Print the places of the words."""
    words = " ".join(arguments.words)
    with index_of(arguments) as (index, _):
        hits = index.search(words, limit=max(1, min(arguments.limit, 2**31)))
        cut = index.results_cut()
    if arguments.json:
        print_json([asdict(hit) for hit in hits])
    elif not hits:
        say(f"no goal, argument, result or artifact contains {words!r}")
    else:
        rows = [
            (hit.run_id, hit.seq, hit.field, hit.about, " ".join(hit.excerpt.split()))
            for hit in hits
        ]
        table(("run", "seq>", "where", "of", "text"), rows)
        best = hits[0]
        say(f"a record in full: bundle-router runs show {best.run_id} --seq {best.seq}")
    if not arguments.json and (sentence := cut_sentence(*cut)):
        say(sentence)
    return 0
