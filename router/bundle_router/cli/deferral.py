"""The verb `deferral`: hands over to the distribution `bundle-router-deferral`.

Where that is not installed, the verb says how to install it. The launchers that `deferral install`
has written call this verb: for them the agent starts all the same, without the proxy.
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec
from typing import Final

from bundle_router import __version__
from bundle_router.errors import NotInstalled, RequestError

PACKAGE: Final = "bundle_router_deferral"
INSTALL: Final = (
    "pip install ../checkout ../checkout/router/deferral (a checkout of Bundle Router; both in one"
    " command, else pip asks an index for the router)"
)
LAUNCHER_MARK: Final = "BUNDLE_ROUTER_DEFERRAL"
"""The environment variable that a launcher sets when it calls this verb."""


def declare(parser: argparse.ArgumentParser) -> None:
    problem = _problem()
    if problem:
        parser.description = f"{parser.description}. It can't be used: {problem}."
        parser.epilog = f"To install it: {INSTALL}"
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        return
    from bundle_router_deferral.cli.arguments import declare as declare_verbs

    declare_verbs(parser)


def run(arguments: argparse.Namespace) -> int:
    """Start a launcher's agent without the proxy. Raises NotInstalled for everybody else."""
    problem = _problem()
    agent = _agent_of(arguments.words) if LAUNCHER_MARK in os.environ else []
    if not agent:
        raise NotInstalled(problem, advice=INSTALL)
    print(f"bundle-router: {problem}; {agent[0]} runs without the proxy", file=sys.stderr)
    sys.stderr.flush()
    try:
        os.execvp(agent[0], agent)  # noqa: S606 - signals and the exit status are the agent's own
    except OSError as error:
        raise RequestError(f"{agent[0]!r} can't be started: {error.strerror}") from None


def _problem() -> str:
    """Return why there is nothing to hand over to; empty if there is."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:  # without an origin it is a folder without modules
        return "bundle-router-deferral is not installed"
    from bundle_router_deferral import __version__ as version

    if version != __version__:
        return f"bundle-router-deferral {version} is installed beside the router {__version__}"
    return ""


def _agent_of(words: list[str]) -> list[str]:
    """Return the agent's command line in `run -- AGENT …`; empty in all other words."""
    if words[:1] != ["run"]:
        return []
    return words[2:] if words[1:2] == ["--"] else words[1:]
