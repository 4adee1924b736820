"""`bundle-router call`: one tool call on a run, recorded."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bundle_router.cli.output import print_json, say
from bundle_router.cli.shared_arguments import add_opening, json_object, open_router


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tool", help="canonical name: server.tool")
    parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object (default: {})")
    parser.add_argument("--run", required=True, help="run id")
    add_opening(parser)


def run(arguments: argparse.Namespace) -> int:

    call_arguments = json_object(arguments.arguments)
    with open_router(arguments) as router:
        result = router.call_sync(arguments.run, arguments.tool, call_arguments)
    if arguments.json:
        print_json(asdict(result))
    else:
        say(result.text)
        for artifact in result.artifacts:
            say(f"artifact {artifact.uri} {artifact.mime_type} {artifact.bytes:,} bytes")
    if result.ok:
        return 0
    if result.outcome in ("denied", "invalid_arguments"):
        return 3
    return 4
