"""The command line.

Each verb is a module that declares its arguments and runs; this one parses, and `program` maps
errors to an exit status.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import Final

from bundle_router import __version__
from bundle_router.cli.program import Parser, run_program
from bundle_router.errors import refuse_windows

VERBS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("scaffold", "write a commented config and its JSON Schemas; never overwrites"),
    "check": ("checking", "validate the config, and report what is legal but dead or risky"),
    "diff": (
        "diff",
        "compare two configs: what the new one newly allows at any step, and what it takes away",
    ),
    "allow": ("allow", "permit a bundle to a role and route it there; shows what that widens"),
    "demo": ("demo", "run a small workflow end to end and show what happened"),
    "route": ("route", "decide what a step may see, and write it to the run directory"),
    "search": ("search", "rank bundles, or tools, for a request"),
    "explain": ("explain", "say why a tool or bundle is, or is not, shown at a step"),
    "tools": ("tools", "list the tools that a run's current decision shows, and what they cost"),
    "call": ("call", "call a tool that a run's current decision shows"),
    "approvals": (
        "answering",
        "list and show calls that wait for somebody's word; grant, refuse or withdraw them",
    ),
    "runs": (
        "runs",
        "list, search, show, count, verify, export, import, index, publish or prune runs; print the"
        " schemas of their records",
    ),
    "replay": (
        "replay",
        "make recorded decisions again, under their own config or another, and compare",
    ),
    "eval": (
        "eval",
        "check the decisions of case files (.toml); measure routing on labelled sets (.jsonl)",
    ),
    "learn": (
        "learn",
        (
            "learn from past runs: show what they teach and what it would change; accept it, or"
            " label steps"
        ),
    ),
    "import": (
        "importing",
        "take over MCP servers from .mcp.json, Claude, Cursor, VS Code or Codex; all untrusted",
    ),
    "login": ("login", "authorize a tool server that has auth = 'oauth', in your browser"),
    "pin": ("pin", "show what tool servers list now against what was reviewed, and approve it"),
    "examples": (
        "examples",
        "have a model write examples for bundles, by which search finds them; adds what you accept",
    ),
    "vendor": ("vendor", "write typed Python wrappers for a server's pinned tools"),
    "serve": ("serve", "serve engines over HTTP, agents over MCP, and pages for people"),
    "token": ("token", "make a bearer token for the service: shown once, stored as its SHA-256"),
    "completion": ("completion", "print the script that completes this command in your shell"),
    "deferral": (
        "deferral",
        (
            "find where an agent's tool definitions are not deferred, and change it (needs"
            " bundle-router-deferral)"
        ),
    ),
}
"""Each verb, in the order a newcomer meets them: its module in this package, and its purpose.

Only verbs that work are listed.
"""


def parser(load: Collection[str] = VERBS) -> argparse.ArgumentParser:
    """Return the argument parser.

    Only the modules of the verbs in `load` are imported, with their options.
    """
    top = Parser(
        prog="bundle-router",
        description="Decides which bundles of tools each step of a workflow may see, and says why.",
    )
    top.add_argument(
        "--version",
        action="version",
        version=f"bundle-router {__version__}",
        help="show the version",
    )
    verbs = top.add_subparsers(dest="verb", metavar="verb", required=True)
    for name, (module_name, summary) in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary)
        if name in load:
            module = import_module(f"bundle_router.cli.{module_name}")
            module.declare(sub)
            sub.set_defaults(
                handler=getattr(module, "run", None)
            )  # None: each of its own verbs has one
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_program("bundle-router", lambda: _run_verb(words))


def _run_verb(words: Sequence[str]) -> int:
    verb = next((word for word in words if word in VERBS), "")
    if verb:
        refuse_windows(sys.platform)
    arguments = parser((verb,)).parse_args(words)
    status: int = arguments.handler(arguments)
    return status
