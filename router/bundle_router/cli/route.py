"""`bundle-router route`: makes one decision, and records it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from secrets import token_hex
from typing import TYPE_CHECKING

from bundle_router.cli.output import print_json, say, say_whole, table
from bundle_router.cli.shared_arguments import add_opening, add_step, open_router, step_from
from bundle_router.core.catalog import Catalog
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.decide.ceiling import ceiling_of
from bundle_router.core.records.decision_record import outcome_json
from bundle_router.core.values import Chosen, Decision, Step
from bundle_router.errors import RequestError
from bundle_router.review.sentences import exposure_line, selection_lines

if TYPE_CHECKING:
    from bundle_router.wiring import Router


def declare(parser: argparse.ArgumentParser) -> None:
    add_step(parser)
    parser.add_argument("--run", help="run id (default: a new one)")
    parser.add_argument("--parent-run", help="the run this one is a sub-agent of")
    parser.add_argument(
        "--no-inherit", action="store_true", help="start a sub-agent without its parent's bundles"
    )
    parser.add_argument(
        "--fixed-list",
        action="store_true",
        help="for agents that read the list of tools once: call_tool calls what is found later",
    )
    parser.add_argument("--principal", default="", help="the principal that the step is for")
    parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    add_opening(parser)


def new_run_id() -> str:
    """Return a unique id that sorts by time."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(2)}"


def run(arguments: argparse.Namespace) -> int:
    step = step_from(
        arguments,
        arguments.run or new_run_id(),
        parent_run_id=arguments.parent_run,
        inherit=not arguments.no_inherit,
        fixed_list=arguments.fixed_list,
        principal=arguments.principal,
        labels=_labels(arguments.label),
    )
    with open_router(arguments) as router:
        if wants_warm_up(router, step):
            router.warm_up_sync()
        decision = router.route_sync(step)
        layers = ceiling_of(router.catalog, address_of(step), step.policy, ())
    if arguments.json:
        names = ("run_id", "seq", "decision_id", "catalog_revision", "input_digest")
        print_json(
            {
                "decision": outcome_json(decision),
                **{name: getattr(decision, name) for name in names},
            }
        )
    else:
        show(decision)
        if layers.ungranted:
            row = (
                f"a row [[policies]] with name, role = '{step.role}' and allow = ['bundle:…']"
                " permits bundles there"
            )
            say(
                "nothing is permitted: no row of policy.toml with `allow` covers"
                f" {layers.ungranted[0]}; {row}"
            )
        for name in _unasked(router.catalog, decision):
            say(
                f"server {name!r} was not asked which tools it has: bundle-router tools --run"
                f" {decision.run_id} asks it"
            )
        if arguments.store:
            place = "the database"
        else:
            place = f"{arguments.runs}/{decision.run_id}/routing.jsonl"
        say(f"recorded in {place} as record {decision.seq}")
    return 0


def _unasked(catalog: Catalog, decision: Decision) -> list[str]:
    """Return the servers of shown bundles of which no tool is known.

    A decision contacts no server.
    """
    targets: set[str] = set()
    for choice in decision.bundles:
        bundle = catalog.bundles[choice.id]
        targets.update(bundle.tools)
        targets.update(bundle.patterns)
    targets -= {row.tool for row in decision.left_out if row.tool is not None}

    servers = {target.partition(".")[0] for target in targets}
    return sorted(servers - {card.server for card in catalog.cards.values()})


def wants_warm_up(router: Router, step: Step) -> bool:
    """Return whether a model may be asked about the step: then a short process must wait until it
    is ready.
    """
    settings = router.catalog.settings
    if not settings.model.names and settings.search.embeddings is None:
        return False
    explanation = router.explain(step, "bundle:")
    return explanation.asks and (
        settings.search.embeddings is not None or explanation.source != "search"
    )


def _labels(options: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise RequestError(
                f"--label {text!r} has no name or no value", advice="write --label ticket=4711"
            )
        if name in labels:
            raise RequestError(f"--label {name}=... is given twice")
        labels[name] = value
    return labels


def show(decision: Decision) -> None:
    """Print a decision for people: what is shown and what is not, with the reasons."""
    degraded = " (degraded)" if decision.degraded else ""
    say_whole("", f"{decision.source}{degraded}: {decision.justification}", under=2)
    for line in selection_lines(decision.search, decision.model):
        say(line)
    shown_ids = decision.bundle_ids
    shown = [row for row in decision.bundles if row.id in shown_ids]
    offered = [row for row in decision.bundles if row.id not in shown_ids]
    _show_bundles("bundle", shown)
    _show_bundles("offered behind search", offered)
    if decision.left_out:
        table(
            ("left out", "code", "detail"),
            [(r.tool or r.id, r.code, r.detail) for r in decision.left_out],
        )
    say(exposure_line(decision.exposure))


def _show_bundles(heading: str, rows: Sequence[Chosen]) -> None:
    if rows:
        table((heading, "reason", "evidence"), [(c.id, c.reason, c.evidence) for c in rows])
