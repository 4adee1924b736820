"""`bundle-router pin`: reviews what servers list, and approves it."""

from __future__ import annotations

import argparse
import getpass
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from bundle_router.cli.importing import append_texts
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_json, progress, say
from bundle_router.cli.shared_arguments import add_config, add_development, add_json, config_folder
from bundle_router.core.catalog import Catalog
from bundle_router.core.servers.pins.reviewed import Approval, approve
from bundle_router.errors import RequestError
from bundle_router.review.imports import bundle_text
from bundle_router.review.unrouted import unpickable_line
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.workbench.server_reviews import Review, json_of, lines_of, remote_servers, review


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "servers", nargs="*", metavar="SERVER", help="servers to review (default: all in use)"
    )
    parser.add_argument(
        "--yes", action="store_true", help="approve without asking: you have read the differences"
    )
    parser.add_argument(
        "--tool", action="append", metavar="NAME", help="approve only this tool; may be repeated"
    )
    parser.add_argument(
        "--write", action="store_true", help="add a first bundle for a new server to bundles.toml"
    )
    parser.add_argument(
        "--full", action="store_true", help="print the whole text of what was not reviewed"
    )
    parser.add_argument(
        "--by", metavar="NAME", help="who approves, for the pin file (default: this user's name)"
    )
    add_development(parser)
    add_config(parser)
    add_json(parser)
    parser.epilog = (
        "Pins are written to bundles/pins/ beside the config folder: commit them. Exit: 0 all is"
        " pinned as it is now, 1 something was not approved, 4 a server could not be asked."
    )


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.catalogs import open_pins, read_catalog

    config = config_folder(arguments)
    local = local_servers(arguments)
    catalog, pins = read_catalog(config, local)
    servers = remote_servers(catalog, arguments.servers)
    if arguments.tool and len(servers) != 1:
        raise RequestError("--tool is for one server", advice="name the server")
    files = open_pins(config)
    reviews: dict[str, Review] = {}
    paths: dict[str, str] = {}
    is_asking = not (arguments.yes or arguments.json)
    # One that asks has the terminal to itself, and asks when all is known.
    advance = nullcontext(lambda _done: None) if is_asking else progress("Reviewing", len(servers))
    with advance as reviewed:
        for row in review(
            catalog, pins, servers, development=arguments.development, together=is_asking
        ):
            reviews[row.server.name] = row
            if not arguments.json:
                for line in lines_of(row, full=arguments.full):
                    say(line)
            if row.again:
                continue
            if row.admitted is not None and not row.clean and _ask_approval(row, arguments):
                with files.unchanged(row.server.name, row.pins):
                    approved = approve(
                        row.server, row.admitted, row.pins, arguments.tool, _approval(arguments.by)
                    )
                    paths[row.server.name] = str(files.write(approved))
                if not arguments.json:
                    say(f"{row.server.name}: pinned in {paths[row.server.name]}")
            if row.clean or row.server.name in paths:
                _first_bundle(row, catalog, local, arguments)
            reviewed(len(reviews))
    rows = [reviews[server.name] for server in servers]
    if arguments.json:
        print_json([{**json_of(row), "written": paths.get(row.server.name)} for row in rows])
    elif not rows:
        say("this config has no server to pin: all its tools are local")
    elif not (
        arguments.yes
        or sys.stdin.isatty()
        or all(row.admitted is None or row.clean for row in rows)
    ):
        say(
            "nothing was approved: there is no terminal to ask on; --yes approves what you have"
            " read"
        )
    if paths and not arguments.json:
        state = (
            read_catalog(config, local)[0] if arguments.write else catalog
        )  # with the bundles that were added
        if only_routed := unpickable_line(state):
            say(only_routed)
    if any(row.admitted is None for row in rows):
        return 4
    if all(row.clean or row.server.name in paths for row in rows):
        return 0
    return 1


def _first_bundle(
    row: Review, catalog: Catalog, local: LocalServers, arguments: argparse.Namespace
) -> None:
    """Show a first bundle if no bundle holds the server's tools yet; with --write add it to
    bundles.toml.
    """
    is_held = any(row.server.name in bundle.servers for bundle in catalog.bundles.values())
    if is_held or row.admitted is None:
        return

    tools = [tool.card.tool for tool in row.admitted.tools]
    if arguments.tool:
        tools = [tool for tool in tools if tool in arguments.tool]
    text = bundle_text(row.server.name, tools) + "\n"

    folder = config_folder(arguments)
    path = Path(folder or "config") / "bundles.toml"
    headline = (
        f"no bundle holds its tools yet; in {path} (--write adds it), with the tools that you want:"
    )
    if arguments.write:
        addition = f"\n{text}" if path.exists() else text
        append_texts(folder, local, {path: addition}, write=True)
        headline = f"added to {path}:"
    if arguments.json:
        return
    say(headline)
    for line in text.splitlines():
        say(f"  {line}")


def _approval(name: str | None) -> Approval:
    """Return who approves now: `name`, or this user's name where none is given."""
    if name is None:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a user without a name, as in containers
            name = ""
    return Approval(datetime.now(UTC).isoformat(timespec="seconds"), name[:200])


def _ask_approval(row: Review, arguments: argparse.Namespace) -> bool:
    if arguments.yes or arguments.json or not sys.stdin.isatty():
        return bool(arguments.yes)
    subject = counted(len(arguments.tool), "tool") if arguments.tool else "all of it"
    sys.stdout.write(f"Approve {subject} of {row.server.name!r} as shown? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
