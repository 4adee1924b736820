"""`bundle-router replay`: every recorded decision, taken again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from bundle_router.cli.arguments import add_archive, add_json, archive_of
from bundle_router.cli.attempts import EachRun
from bundle_router.cli.local import add_local, local_servers
from bundle_router.cli.output import heading, print_json, progress, say, say_whole, table
from bundle_router.core.catalog import Catalog
from bundle_router.core.records import header
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.recorded_catalog import catalog_from
from bundle_router.core.records.replay import Replayed, replay
from bundle_router.errors import CorruptRun, RequestError
from bundle_router.review.behaviour import Behaviour, CauseFinder, CauseGroup, ChangeKind, edited_words
from bundle_router.review.edit_places import Places

MAX_ROWS: Final = 50
"""Differing decisions that are printed."""
MAX_KEPT: Final = 1_000
"""Differing decisions that `--json` lists one by one."""
MAX_NAMES: Final = 8
EXAMPLES: Final = 3
_EVERY: Final = 200
_MAX_CATALOGS: Final = 8
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
    parser.add_argument("--config", help="the config to replay against (default: the one each decision was taken with)")
    words = f"decisions named for each cause (default {EXAMPLES})"
    parser.add_argument("--examples", type=int, default=EXAMPLES, metavar="N", help=words)
    add_local(parser)
    add_archive(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 when any decision comes out with other bundles or tools, or, under its own config, otherwise at
    all; of an early run (`header.is_early`) only other bundles count, and what else differs is named."""
    from bundle_router.wiring.config_folders import load_with_places

    archive = archive_of(arguments)
    if arguments.local and not arguments.config:
        raise RequestError(
            "--local goes with --config", advice="without it, decisions bring the catalog they were taken with"
        )
    given, places = (
        load_with_places(arguments.config, local=local_servers(arguments)) if arguments.config else (None, {})
    )
    replaying = _Replaying(archive, given, max(0, arguments.examples))
    total, attempt = _Outcome(Behaviour(replaying.examples)), EachRun()
    run_ids = arguments.run_ids or archive.run_ids()
    with progress("Replaying", sum(archive.summary(run_id).records or 0 for run_id in run_ids)) as done:
        for run_id in run_ids:
            for outcome in attempt.all(replaying.whole_run(run_id, done)):
                total.merge(outcome)
    if arguments.json:
        print_json(total.to_json(places))
    else:
        _show(total, places)
        if total.behaviour.decisions and (later := _later_servers(given, replaying.known)):
            say(f"no run knew {', '.join(later)}: taken here as reviewed and available")
    return attempt.status or (1 if total.differing_count else 0)


@dataclass(slots=True)
class _Outcome:
    """What became of decisions. `differing` and `early` hold the first `MAX_KEPT`, the counts are of all."""

    behaviour: Behaviour
    differing: list[Replayed] = field(default_factory=list)
    differing_count: int = 0
    early: list[Replayed] = field(default_factory=list)
    early_count: int = 0
    early_parts: set[str] = field(default_factory=set)

    def add(self, replayed: Replayed, *, is_early_detail: bool) -> None:
        if is_early_detail:
            self.early_count += 1
            self.early_parts.update(replayed.differs)
        else:
            self.differing_count += 1
        rows = self.early if is_early_detail else self.differing
        if len(rows) < MAX_KEPT:
            rows.append(replayed)

    def merge(self, other: _Outcome) -> None:
        self.behaviour.merge(other.behaviour)
        self.differing_count += other.differing_count
        self.early_count += other.early_count
        self.early_parts |= other.early_parts
        self.differing += other.differing[: MAX_KEPT - len(self.differing)]
        self.early += other.early[: MAX_KEPT - len(self.early)]

    def to_json(self, places: Places) -> dict[str, Any]:
        return {
            **self.behaviour.to_json(places),
            "differing": [_row(item) for item in self.differing],
            "differing_count": self.differing_count,
            "early": [_row(item) for item in self.early],
            "early_count": self.early_count,
            "shows_part": len(self.differing) < self.differing_count or len(self.early) < self.early_count,
        }


class _Replaying:
    """Takes the decisions of one run after another again. `known`: the servers that the runs had."""

    def __init__(self, archive: Any, given: Catalog | None, examples: int) -> None:
        self.known: set[str] = set()
        self.examples = examples
        self._archive = archive
        self._given = given
        self._own: dict[str, Catalog] = {}
        self._finders: dict[str, CauseFinder] = {}
        self._before = 0

    def whole_run(self, run_id: str, done: Callable[[int], None]) -> Iterator[_Outcome]:
        """Yield what became of a run's decisions, once: a run that is broken anywhere contributes nothing."""
        outcome, last = _Outcome(Behaviour(self.examples)), -1
        is_early = self._given is None and header.is_early(self._archive.header(run_id))
        for number, record in enumerate(self._archive.decisions(run_id)):
            try:
                self._add(record, outcome, is_early=is_early)
            except (KeyError, TypeError, ValidationError) as error:
                raise CorruptRun(
                    f"record {record.seq} of run {run_id!r} can't be replayed: {type(error).__name__}: {error}"
                ) from None
            last = record.seq
            if number % _EVERY == 0:
                done(self._before + last)
        self._before += last + 1
        yield outcome

    def _add(self, record: DecisionRecord, outcome: _Outcome, *, is_early: bool) -> None:
        then = self._catalog(record.step.run_id, record.decision.catalog_revision)
        if self._given is None:
            replayed = replay(record, then)
            outcome.behaviour.add(replayed, {})
            if replayed.outcome != "identical":
                outcome.add(replayed, is_early_detail=is_early and replayed.outcome == "same_bundles")
            return
        replayed = replay(record, self._given, then)
        if replayed.outcome in ("identical", "same_bundles"):
            outcome.behaviour.add(replayed, {})
            return
        finder = self._finders.get(then.revision)
        if finder is None:
            finder = self._finders[then.revision] = CauseFinder(then, self._given)
        outcome.behaviour.add(replayed, finder.causes(record, replayed))
        outcome.add(replayed, is_early_detail=False)

    def _catalog(self, run_id: str, revision: str) -> Catalog:
        """Return a recorded catalog. A few are kept: runs of one config share one."""
        found = self._own.get(revision)
        if found is None:
            if len(self._own) >= _MAX_CATALOGS:
                self._own.clear()
                self._finders.clear()
            found = self._own[revision] = catalog_from(self._archive.catalog(run_id, revision))
            self.known.update(found.servers)
        return found


def _later_servers(given: Catalog | None, known: set[str]) -> list[str]:
    """Servers elsewhere of which no run has recorded how they stood."""
    servers = given.servers.values() if given is not None else ()
    return sorted(server.name for server in servers if server.traits.is_remote and server.name not in known)


def _row(item: Replayed) -> dict[str, object]:
    names = ("run_id", "seq", "workflow", "role", "step", "outcome")
    lists = ("gained", "lost", "gained_tools", "lost_tools", "differs")
    return {**{name: getattr(item, name) for name in names}, **{name: list(getattr(item, name)) for name in lists}}


# --- for people ------------------------------------------------------------------------------------------------------


def _show(total: _Outcome, places: Places) -> None:
    behaviour = total.behaviour
    said = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in behaviour.counts.most_common()) or "none"
    say(f"{behaviour.decisions:,} decisions: {said}")
    for group in behaviour.ordered():
        _show_group(group, places)
    if total.differing:
        heading("decision by decision")
        rows = [_cells(item) for item in total.differing[:MAX_ROWS]]
        table(("run", "seq>", "step", "outcome", "gained", "lost", "differs in"), rows)
        if total.differing_count > len(rows):
            say(f"the first {len(rows)} of {total.differing_count:,}; --json lists {MAX_KEPT:,}")
    if total.early_count:
        parts = ", ".join(sorted(total.early_parts))
        say(f"{total.early_count:,} of runs by an early version differ in details alone: {parts}")


def _show_group(group: CauseGroup, places: Places) -> None:
    heading(f"because {edited_words(group.cause, places)}: {_decisions(group.decisions)}")
    for kind, words, noun in _WORDS:
        named = group.named(kind)
        if not named:
            continue
        shown = ", ".join(f"{name} ({count:,})" for name, count in named[:MAX_NAMES])
        more = f", and {len(named) - MAX_NAMES} more {noun}" if len(named) > MAX_NAMES else ""
        text = f"{words} {shown}{more}" if noun else f"{named[0][1]:,} {words}"
        say_whole("  ", text, under=4)
    if group.examples:
        named_ones = ", ".join(f"{one.run_id}/{one.seq} ({one.role} / {one.step})" for one in group.examples)
        rest = group.decisions - len(group.examples)
        say_whole("  such as ", named_ones + (f", and {rest:,} more" if rest else ""), under=4)


def _decisions(count: int) -> str:
    return f"{count:,} decision{'s' if count != 1 else ''}"


def _cells(item: Replayed) -> tuple[object, ...]:
    gained = " ".join(f"+{name}" for name in (*item.gained, *item.gained_tools))
    lost = " ".join(f"-{name}" for name in (*item.lost, *item.lost_tools))
    return (
        item.run_id,
        item.seq,
        f"{item.workflow} / {item.role} / {item.step}",
        item.outcome,
        gained,
        lost,
        " ".join(item.differs),
    )
