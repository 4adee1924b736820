"""`bundle-router deferral`: finds where an agent's tool definitions are no longer deferred, mends
it, and brings deferral to agents without it. `audit` exits with 0 if it found nothing, 1 with
findings, 2 if it could not be done.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from bundle_router.cli.shared_arguments import add_json, add_runs
from bundle_router.errors import RequestError

from bundle_router_deferral.cli.audit_verb import add_sources, run_audit
from bundle_router_deferral.cli.change_verbs import run_apply, run_report, run_undo
from bundle_router_deferral.cli.proxy_verbs import (
    add_probe,
    add_run,
    run_install,
    run_probe,
    run_run,
    run_status,
    run_uninstall,
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs, each with its handler."""
    parser.description = "Find where an agent's tool definitions are not deferred, and change it."
    verbs = parser.add_subparsers(metavar="verb", required=True)
    audit = _verb(
        verbs,
        "audit",
        "say which requests deferred their tools, and why the others did not",
        run_audit,
    )
    add_sources(audit)
    audit.add_argument("--requests", action="store_true", help="list every request too")
    add_runs(audit)

    apply = _verb(
        verbs, "apply", "correct what the audit found: a dry run, unless --yes", _run_apply
    )
    apply.add_argument(
        "causes",
        nargs="*",
        metavar="finding",
        help=(
            "what to correct, e.g. env-off (default: all found); proxy:AGENT, alone, installs the"
            " proxy for an agent"
        ),
    )
    _add_yes(apply, "carry it out")
    add_sources(apply, positional=False)

    undo = _verb(verbs, "undo", "take back a change that `apply` or `install` made", run_undo)
    undo.add_argument(
        "change", nargs="?", help="its id, as `status` and `report` name it (default: the newest)"
    )

    report = _verb(
        verbs, "report", "compare the requests before each change with those after it", run_report
    )
    add_sources(report, positional=False)

    ask = _verb(
        verbs,
        "probe",
        "ask a gateway whether it accepts deferral: nothing is sent, unless --yes",
        run_probe,
    )
    add_probe(ask)
    _add_yes(ask, "send the requests (they are billed)")

    start = _verb(
        verbs, "run", "start an agent behind a proxy that defers its tools: run -- AGENT …", run_run
    )
    add_run(start)

    install = _verb(
        verbs,
        "install",
        "always start an agent behind the proxy: dry run, unless --yes",
        run_install,
    )
    install.add_argument("agent", help="its command, e.g. opencode")
    _add_yes(install, "carry it out")
    uninstall = _verb(
        verbs,
        "uninstall",
        "take back what `install` did: dry run, unless --yes",
        run_uninstall,
    )
    uninstall.add_argument("agent", help="its command, as it was installed with")
    _add_yes(uninstall, "carry it out")

    status = _verb(
        verbs, "status", "list launchers, changes, probes and what proxies did", run_status
    )
    status.add_argument(
        "--runs", default="", help="folder of the numbers (default: runs where it exists)"
    )


def _verb(
    verbs: Any, name: str, summary: str, handler: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=summary)
    parser.set_defaults(handler=handler)
    add_json(parser)
    return parser


def _add_yes(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--yes", action="store_true", help=what)


def _run_apply(arguments: argparse.Namespace) -> int:
    agents = [
        cause.removeprefix("proxy:") for cause in arguments.causes if cause.startswith("proxy:")
    ]
    if not agents:
        return run_apply(arguments)
    if len(arguments.causes) > 1:
        raise RequestError(
            "proxy:AGENT can't be combined with other findings", advice="apply those by themselves"
        )
    return run_install(argparse.Namespace(agent=agents[0], yes=arguments.yes, json=arguments.json))
