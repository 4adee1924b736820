"""The command `bundle-router-deferral`, and the same verbs for `bundle-router deferral`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bundle_router.cli.program import Parser, run_program
from bundle_router.errors import refuse_windows

from bundle_router_deferral import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_program("bundle-router-deferral", lambda: _run_verb(words))


def _run_verb(words: Sequence[str]) -> int:
    refuse_windows(sys.platform)
    from bundle_router_deferral.cli.arguments import declare

    parser = Parser(prog="bundle-router-deferral")
    parser.add_argument(
        "--version",
        action="version",
        version=f"bundle-router-deferral {__version__}",
        help="show the version",
    )
    declare(parser)
    arguments = parser.parse_args(words)
    status: int = arguments.handler(arguments)
    return status
