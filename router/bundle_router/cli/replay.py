"""`bundle-router replay`: replays every recorded decision."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from bundle_router.cli.local import add_local, local_servers
from bundle_router.cli.output import counted, heading, print_json, progress, say, say_whole, table
from bundle_router.cli.shared_arguments import SkippedRuns, add_archive, add_json, archive_of
from bundle_router.core.records.replayed import ReplayedDecision
from bundle_router.errors import RequestError
from bundle_router.review.behaviour import Behaviour, CauseGroup, ChangeKind, edited_words
from bundle_router.review.edit_places import Places
from bundle_router.review.replaying import ReplayOutcome

MAX_ROWS: Final = 50
"""Maximum changed decisions that are printed."""
MAX_NAMES: Final = 8
EXAMPLES: Final = 3
_WORDS: Final[tuple[tuple[ChangeKind, str, str], ...]] = (
    ("gained bundle", "gain the bundle", "bundles"),
    ("lost bundle", "lose the bundle", "bundles"),
    ("gained tool", "gain the tool", "tools"),
    ("lost tool", "lose the tool", "tools"),
    ("asks anew", "would ask search or the model anew", ""),
    ("other order", "show the same in another order", ""),
)


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_ids", nargs="*", metavar="run", help="run ids (default: all)")
    parser.add_argument(
        "--config",
        help="the config to replay against (default: the one each decision was made with)",
    )
    words = f"decisions named for each cause (default {EXAMPLES})"
    parser.add_argument("--examples", type=int, default=EXAMPLES, metavar="N", help=words)
    add_local(parser)
    add_archive(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Return exit status 1 if any decision gives other bundles or tools or, under its own config,
    differs in any way. For an early run (`RunHeader.is_early`) only other bundles count, and other
    differences are named.
    """
    from bundle_router.workbench.config_folders import load_with_places, open_replays

    archive = archive_of(arguments)
    if arguments.local and not arguments.config:
        raise RequestError(
            "--local goes with --config", advice="without it, each decision has its own catalog"
        )
    if arguments.config:
        other, places = load_with_places(arguments.config, local=local_servers(arguments))
    else:
        other, places = (None, {})
    replaying = open_replays(archive, other, max(0, arguments.examples))
    total = ReplayOutcome(Behaviour(replaying.examples))
    skipped = SkippedRuns(archive, named=bool(arguments.run_ids))
    run_ids = arguments.run_ids or archive.run_ids()
    with progress("Replaying", sum(run.records or 0 for run in archive.runs(run_ids))) as advance:
        for run_id in run_ids:
            with skipped.reading(run_id):
                total.merge(replaying.replay_run(run_id, advance))
    if arguments.json:
        print_json(total.to_json(places))
    else:
        _show(total, places)
        if other is not None:
            remote = {s.name for s in other.servers.values() if s.traits.is_remote}
        else:
            remote = set()
        if total.behaviour.decisions and (later := ", ".join(sorted(remote - replaying.known))):
            say(f"no run recorded the state of {later}: taken as reviewed and available")
    return skipped.status or (1 if total.differing_count else 0)


# --- for people -----------------------------------------------------------------------------------


def _show(total: ReplayOutcome, places: Places) -> None:
    behaviour = total.behaviour
    summary = (
        ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in behaviour.counts.most_common())
        or "none"
    )
    say(f"{counted(behaviour.decisions, 'decision')}: {summary}")
    for sentence in total.taints.sentences():
        say_whole("", sentence, under=2)
    for group in behaviour.ordered_groups():
        _show_group(group, places)
    if total.differing:
        heading("decision by decision")
        rows = [_cells(item) for item in total.differing[:MAX_ROWS]]
        table(("run", "seq>", "step", "outcome", "gained", "lost", "differs in"), rows)
        if total.differing_count > len(rows):
            say(
                f"the first {len(rows)} of {total.differing_count:,}; --json lists"
                f" {len(total.differing):,}"
            )
    if total.early_count:
        parts = ", ".join(sorted(total.early_parts))
        say(f"{total.early_count:,} of runs by an early version differ in details alone: {parts}")


def _show_group(group: CauseGroup, places: Places) -> None:
    heading(f"because {edited_words(group.cause, places)}: {counted(group.decisions, 'decision')}")
    for kind, words, noun in _WORDS:
        counts = group.counts_by_name(kind)
        if not counts:
            continue
        names = ", ".join(f"{name} ({count:,})" for name, count in counts[:MAX_NAMES])
        rest_text = (
            f", and {len(counts) - MAX_NAMES} more {noun}" if len(counts) > MAX_NAMES else ""
        )
        text = f"{words} {names}{rest_text}" if noun else f"{counts[0][1]:,} {words}"
        say_whole("  ", text, under=4)
    if group.examples:
        named_ones = ", ".join(f"{one.run_id}/{one.seq} ({one.address})" for one in group.examples)
        rest = group.decisions - len(group.examples)
        say_whole("  such as ", named_ones + (f", and {rest:,} more" if rest else ""), under=4)


def _cells(item: ReplayedDecision) -> tuple[object, ...]:
    gained = _names("+", item.gained, item.gained_tools)
    lost = _names("-", item.lost, item.lost_tools)
    return (
        item.run_id,
        item.seq,
        str(item.address),
        item.outcome,
        gained,
        lost,
        " ".join(item.differs),
    )


def _names(sign: str, bundles: Sequence[str], tools: Sequence[str]) -> str:
    """Return the first names, and how many more there are: a column is as wide as its longest
    cell.
    """
    names = [*(f"{sign}bundle:{id_}" for id_ in bundles), *(f"{sign}{name}" for name in tools)]
    rest = f" … {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return " ".join(names[:MAX_NAMES]) + rest
