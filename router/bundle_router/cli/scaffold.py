"""`bundle-router init`: writes a commented config of your own, with JSON Schemas that editors
understand.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from bundle_router.cli.output import print_json, say
from bundle_router.cli.shared_arguments import add_json


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", help="where to write config/ and bundles/ (default: here)"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.config_files.scaffolding import scaffold

    files = scaffold(arguments.folder)
    if arguments.json:
        print_json([asdict(item) for item in files])
        return 0
    for item in files:
        say(f"{item.state:>7}  {item.path}{f'  ({item.note})' if item.note else ''}")
    say("edit bundles.toml, routes.toml and policy.toml in config, then run `bundle-router check`")
    return 0
