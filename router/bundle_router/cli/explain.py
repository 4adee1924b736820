"""`bundle-router explain`: prints all tests of one tool or bundle, at a step or in a recorded
decision.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import heading, print_json, say, say_whole, table
from bundle_router.cli.shared_arguments import (
    ADDRESS,
    add_archive,
    add_config,
    add_json,
    add_step,
    archive_of,
    config_folder,
    step_from,
)
from bundle_router.core.catalog.step_address import address_of
from bundle_router.core.records.decision_record import DecisionRecord
from bundle_router.core.records.explanation import Chain, Explanation, explain
from bundle_router.core.values import Step
from bundle_router.errors import RequestError
from bundle_router.review.sentences import selection_lines


def declare(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--tool", help="canonical name: server.tool")
    target.add_argument("--bundle", help="bundle id")
    add_step(parser, required=False)
    parser.add_argument(
        "--run",
        help=(
            "explain a recorded decision of this run, under the config it was made with: the last"
            " one, or the last of this --step (--role, --workflow)"
        ),
    )
    parser.add_argument("--seq", type=int, help="the number of the decision")
    add_config(parser)
    add_archive(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    explain_step = _explain_now if arguments.run is None else _explain_recorded
    step, explanation = explain_step(arguments, _target(arguments))
    if arguments.tool is not None and explanation.is_unknown:
        of_bundle = explain_step(arguments, f"bundle:{arguments.tool}")
        if not of_bundle[1].is_unknown:
            step, explanation = of_bundle
            if not arguments.json:
                say(f"{arguments.tool!r} is a bundle, no tool: explained as --bundle does")
    if arguments.json:
        print_json({**asdict(explanation), "shown": explanation.shown})
    else:
        _show(step, explanation)
    return 0


def _target(arguments: argparse.Namespace) -> str:
    if arguments.tool is not None:
        return f"tool:{arguments.tool}"
    return f"bundle:{arguments.bundle}"


def _explain_now(arguments: argparse.Namespace, target: str) -> tuple[Step, Explanation]:
    """Explain the step that the options describe, under the present config."""
    from bundle_router.wiring import Router

    missing = [f"--{name}" for name in ADDRESS if getattr(arguments, name) is None]
    if missing:
        raise RequestError(
            f"explain needs {', '.join(missing)}", advice="or --run, for a recorded decision"
        )
    step = step_from(arguments, "explain")
    with Router.open(config_folder(arguments), local=local_servers(arguments)) as router:
        return step, router.explain(step, target)


def _explain_recorded(arguments: argparse.Namespace, target: str) -> tuple[Step, Explanation]:
    """Explain a decision as it was made: with its config, its facts, and search's and the model's
    answers.
    """
    from bundle_router.core.records.replayed import catalog_from

    archive = archive_of(arguments)
    record = _decision(archive.decisions(arguments.run), arguments)
    explanation = explain(
        catalog_from(archive.catalog(arguments.run, record.decision.catalog_revision)),
        record.facts,
        record.decision.before,
        record.step,
        target,
        lambda _: record.reply,
    )
    return record.step, explanation


def _decision(decisions: Iterable[DecisionRecord], arguments: argparse.Namespace) -> DecisionRecord:
    """Return the decision with the given number, else the last at the named step, else the last."""
    seq = arguments.seq
    values = {name: getattr(arguments, name) for name in ADDRESS}
    address = {name: value for name, value in values.items() if value is not None}
    all_decisions = list(decisions)
    for record in reversed(all_decisions):
        if seq in (None, record.decision.seq) and _is_at(record.step, address):
            return record

    parts = [f"at {name} {value!r}" for name, value in address.items()]
    if seq is not None:
        parts.insert(0, str(seq))
    sentence = f"run {arguments.run!r} has no decision {' '.join(parts)}".rstrip()
    present = [f"{record.decision.seq} ({record.step.step})" for record in all_decisions[:50]]
    raise RequestError(sentence, advice=f"its decisions: {', '.join(present) or 'none'}")


def _is_at(step: Step, address: Mapping[str, str]) -> bool:
    return all(getattr(step, name) == value for name, value in address.items())


def _show(step: Step, explanation: Explanation) -> None:
    result = "shown" if explanation.shown else "not shown"
    heading(f"{explanation.target} at {address_of(step)}: {result}")
    route = f"route {explanation.route!r}" if explanation.route else "no route"
    degraded = " (degraded)" if explanation.degraded else ""
    source = f"{route}, source {explanation.source}{degraded}"
    if explanation.asks and explanation.search is None and explanation.model is None:
        say(f"{source}, search or a model would be asked")
    else:
        say(source)
        say_whole("", explanation.justification, under=2)

    for line in selection_lines(explanation.search, explanation.model):
        say(line)
    for chain in explanation.chains:
        _show_chain(chain)


def _show_chain(chain: Chain) -> None:
    say()
    name = f"{chain.tool} in {chain.bundle}" if chain.tool else chain.bundle
    verdict = f"shown as {chain.reason}" if chain.shown else f"{chain.code}: {chain.detail}"
    heading(f"{name}: {verdict}")
    rows = [(check.code, "no" if check.passed else "yes", check.detail) for check in chain.checks]
    table(("refusal", "applies", "detail"), rows)
