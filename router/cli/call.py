"""`bundle-router call`: one tool call on a run, recorded."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from router.cli.arguments import add_config, add_json, add_runs, add_workspace, config_folder, json_object
from router.cli.local import local_servers
from router.cli.output import print_json, say

SUMMARY = "call a tool that a run's current decision shows"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tool", help="canonical name: server.tool")
    parser.add_argument("arguments", nargs="?", default="{}", help="a JSON object (default: {})")
    parser.add_argument("--run", required=True, help="run id")
    add_config(parser)
    add_runs(parser)
    add_workspace(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from router.wiring import Router

    given = json_object(arguments.arguments)
    config, local = config_folder(arguments), local_servers(arguments)
    with Router.open(config, runs=arguments.runs, workspace=arguments.workspace, local=local) as router:
        result = router.call_sync(arguments.run, arguments.tool, given)
    if arguments.json:
        print_json(asdict(result))
    else:
        say(result.text)
        for artifact in result.artifacts:
            say(f"artifact {artifact.uri} {artifact.mime_type} {artifact.bytes:,} bytes")
    if result.ok:
        return 0
    return 3 if result.outcome in ("denied", "invalid_arguments") else 4
