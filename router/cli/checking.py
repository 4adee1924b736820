"""`bundle-router check`: is the config valid, and what in it is dead or risky."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict

from router.cli.arguments import add_config, add_json, config_folder
from router.cli.local import local_servers
from router.cli.output import print_json, say
from router.core.catalog import Server
from router.errors import Problem

SUMMARY = "validate the config, and report what is legal but dead or risky"


def declare(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something is dead or risky")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundles.workspace.grammar import problems as check_binary
    from router.adapters.configfiles import content_file, read_config
    from router.core.config import check, load
    from router.wiring import local_cards

    local = local_servers(arguments)
    _, cards = local_cards(local)
    config = config_folder(arguments)
    files = read_config(config)
    problems = check(
        files, cards=cards, check_binary=check_binary, has_content=lambda name: content_file(config, name) is not None
    )
    errors = [problem for problem in problems if problem.level == "error"]
    if not errors:
        problems += _unused(local, load(files, cards=cards).servers)
    if arguments.json:
        revision = None if errors else load(files, cards=cards).revision
        print_json({"valid": not errors, "catalog_revision": revision, "problems": [asdict(p) for p in problems]})
    else:
        for problem in problems:
            say(str(problem) if problem.level == "error" else f"{problem.level}: {problem}")
        if errors:
            say(f"{len(errors)} problem{'s' if len(errors) != 1 else ''}: the config can't be used")
        else:
            catalog = load(files, cards=cards)
            say(
                f"valid: {len(catalog.bundles)} bundles, {len(catalog.routes)} routes, {len(catalog.policies)} "
                f"policies, {len(catalog.servers)} servers; revision {catalog.revision}"
            )
    if errors:
        return 2
    return 1 if problems and arguments.strict else 0


def _unused(local: Iterable[str], servers: Mapping[str, Server]) -> Iterator[Problem]:
    """Local tools that were given and that no server of the config stands for: no bundle can hold them."""
    for name in local:
        if name not in servers or servers[name].transport != "local":
            hint = f"[servers.{name}] with transport = 'local' takes them in"
            message = f"servers.toml has no local server {name!r}, so these tools are not used"
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")
