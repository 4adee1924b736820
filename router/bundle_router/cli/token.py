"""`bundle-router token`: creates a bearer token of the service, prints it once and stores its
SHA-256.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from bundle_router.cli.output import print_result
from bundle_router.cli.shared_arguments import add_json
from bundle_router.errors import RequestError


def declare(parser: argparse.ArgumentParser) -> None:
    from bundle_router.service.keys import SCOPES

    parser.add_argument("name", help="its name in logs and records")
    parser.add_argument(
        "--tokens",
        metavar="FILE",
        required=True,
        help="the file that `serve --tokens` reads; made if there is none",
    )
    parser.add_argument(
        "--scope", action="append", required=True, choices=SCOPES, help="may be repeated"
    )
    parser.add_argument(
        "--principal",
        default="",
        help="the principal it speaks for (default: the one a step names)",
    )
    parser.add_argument(
        "--role", default="", help="the role of an agent that connects with it to /mcp"
    )
    parser.add_argument(
        "--expires", metavar="TIME", help="RFC 3339 time or date; without a zone: UTC"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.service.tokens import AccessTokens

    try:
        expires = datetime.fromisoformat(arguments.expires) if arguments.expires else None
    except ValueError:
        raise RequestError(
            f"--expires {arguments.expires!r} is not a time", advice="write e.g. 2027-01-31"
        ) from None
    if expires is not None:
        if expires.tzinfo is not None:
            expires = expires.astimezone(UTC)
        else:
            expires = expires.replace(tzinfo=UTC)
    scopes = list(dict.fromkeys(arguments.scope))
    token = AccessTokens(arguments.tokens).add(
        arguments.name, scopes, arguments.principal, arguments.role, expires
    )
    row = {"name": arguments.name, "token": token, "scopes": scopes, "file": arguments.tokens}
    print_result(arguments, row, token)
    print(f"the token is shown only now; {arguments.tokens} keeps its SHA-256", file=sys.stderr)
    return 0
