"""`bundle-router explain`: the whole chain of tests for one tool or bundle at one step."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from router.cli.arguments import add_config, add_json, add_step, config_folder, step_from
from router.cli.output import heading, print_json, say, table

SUMMARY = "say why a tool or bundle is, or is not, shown at a step"


def declare(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--tool", help="canonical name: server.tool")
    target.add_argument("--bundle", help="bundle id")
    add_step(parser)
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from router.wiring import Router

    step = step_from(arguments, "explain")
    with Router.open(config_folder(arguments)) as router:
        explanation = router.explain(step, arguments.tool or arguments.bundle)
    if arguments.json:
        print_json({**asdict(explanation), "shown": explanation.shown})
        return 0
    where = f"{step.workflow} / {step.role} / {step.step}"
    heading(f"{explanation.target} at {where}: {'shown' if explanation.shown else 'not shown'}")
    route = f"route {explanation.route!r}" if explanation.route else "no route"
    say(f"{route}, source {explanation.source}" + (", search or a model would be asked" if explanation.asks else ""))
    for chain in explanation.chains:
        say()
        name = f"{chain.tool} in {chain.bundle}" if chain.tool else chain.bundle
        verdict = f"shown as {chain.reason}" if chain.shown else f"{chain.code}: {chain.detail}"
        heading(f"{name}: {verdict}")
        table(("test", "passed", "detail"), [(c.code, "yes" if c.passed else "no", c.detail) for c in chain.checks])
    return 0
