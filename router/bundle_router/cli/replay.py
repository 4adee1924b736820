"""`bundle-router replay`: every recorded decision, taken again."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from bundle_router.cli.arguments import add_archive, add_json, archive_of
from bundle_router.cli.attempts import EachRun
from bundle_router.cli.local import add_local, local_servers
from bundle_router.cli.output import print_json, say, table
from bundle_router.core.catalog import Catalog
from bundle_router.core.records import header
from bundle_router.core.records.recorded_catalog import catalog_from
from bundle_router.core.records.replay import Replayed, replay
from bundle_router.errors import CorruptRun, RequestError


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_ids", nargs="*", metavar="run", help="run ids (default: all)")
    parser.add_argument("--config", help="the config to replay against (default: the one each decision was taken with)")
    add_local(parser)
    add_archive(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Exit status 1 when any decision comes out with other bundles, or, under its own config, otherwise at all; of an
    early run (`header.is_early`) only other bundles count, and what else differs is named."""
    from bundle_router.wiring import load_catalog

    archive = archive_of(arguments)
    if arguments.local and not arguments.config:
        raise RequestError(
            "--local goes with --config", advice="without it, decisions bring the catalog they were taken with"
        )
    given = load_catalog(arguments.config, local=local_servers(arguments)) if arguments.config else None
    counts: Counter[str] = Counter()
    differing: list[Replayed] = []
    early: list[Replayed] = []
    known: set[str] = set()
    attempt = EachRun()
    for run_id in arguments.run_ids or archive.run_ids():
        for outcome, replayed in attempt.all(_outcomes(archive, run_id, given, known)):
            counts[outcome] += 1
            if replayed is not None:
                is_early_detail = outcome == "same_bundles" and header.is_early(archive.header(run_id))
                (early if is_early_detail else differing).append(replayed)
    if arguments.json:
        rows = {"differing": differing, "early": early}
        print_json({"counts": dict(counts), **{name: [_row(item) for item in rows[name]] for name in rows}})
    else:
        _show(counts, differing)
        if early:
            parts = sorted({name for item in early for name in item.differs})
            say(f"{len(early)} of runs by an early version differ in details alone: {', '.join(parts)}")
        if counts and (later := _later_servers(given, known)):
            say(f"no run knew {', '.join(later)}: taken here as reviewed and available")
    return attempt.status or (1 if differing else 0)


def _outcomes(
    archive: Any, run_id: str, given: Catalog | None, known: set[str]
) -> Iterator[tuple[str, Replayed | None]]:
    """What became of each decision, and the whole of it where that is a difference: a run may hold 100,000."""
    for replayed in _replays(archive, run_id, given, known):
        is_same = replayed.outcome == "identical" or (given is not None and replayed.outcome == "same_bundles")
        yield replayed.outcome, None if is_same else replayed


def _replays(archive: Any, run_id: str, given: Catalog | None, known: set[str]) -> Iterator[Replayed]:
    """The run's decisions, taken again; the servers that it had are added to `known`."""
    own: dict[str, Catalog] = {}
    for record in archive.decisions(run_id):
        try:
            revision = record.decision.catalog_revision
            if revision not in own:
                own[revision] = catalog_from(archive.catalog(run_id, revision))
                known.update(own[revision].servers)
            then = own[revision]
            yield replay(record, then) if given is None else replay(record, given, then)
        except (KeyError, TypeError, ValidationError) as error:
            raise CorruptRun(
                f"record {record.seq} of run {run_id!r} can't be replayed: {type(error).__name__}: {error}"
            ) from None


def _later_servers(given: Catalog | None, known: set[str]) -> list[str]:
    """Servers elsewhere of which no run has recorded how they stood."""
    servers = given.servers.values() if given is not None else ()
    return sorted(server.name for server in servers if server.traits.is_remote and server.name not in known)


def _row(item: Replayed) -> dict[str, object]:
    names = ("run_id", "seq", "workflow", "role", "step", "outcome")
    lists = ("gained", "lost", "gained_tools", "lost_tools", "differs")
    return {**{name: getattr(item, name) for name in names}, **{name: list(getattr(item, name)) for name in lists}}


def _show(counts: Counter[str], differing: list[Replayed]) -> None:
    total = sum(counts.values())
    say(
        f"{total} decisions: "
        + (", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.most_common()) or "none")
    )
    gained: Counter[str] = Counter(id_ for item in differing for id_ in (*item.gained, *item.gained_tools))
    lost: Counter[str] = Counter(id_ for item in differing for id_ in (*item.lost, *item.lost_tools))
    for id_, n in gained.most_common():
        say(f"  {n} gained {id_}")
    for id_, n in lost.most_common():
        say(f"  {n} lost {id_}")
    if differing:
        rows = [_cells(item) for item in differing[:50]]
        table(("run", "seq>", "step", "outcome", "gained", "lost", "differs in"), rows)


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
