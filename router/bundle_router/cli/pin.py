"""`bundle-router pin`: reviews what servers list, and approves it."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bundle_router.cli.importing import append_texts, text_of
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_json, progress, say
from bundle_router.cli.shared_arguments import add_config, add_development, add_json, config_folder
from bundle_router.core.catalog import Catalog
from bundle_router.core.servers.pins.reviewed import PinReview, approve
from bundle_router.errors import RequestError
from bundle_router.review.imports import bundle_text
from bundle_router.review.library import Recognition, first_bundles, no_longer_read
from bundle_router.wiring.catalogs import LocalServers
from bundle_router.workbench.library_reader import read_library
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
        "--write",
        action="store_true",
        help="add first bundles for a new server to bundles.toml: the library's where it knows the"
        " definitions, else guesses",
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
            if not arguments.json:
                for line in _outdated_readings(row, catalog):
                    say(line)
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
        print_json(
            [
                {
                    **json_of(row),
                    "no_longer_read": _no_longer_read(row),
                    "written": paths.get(row.server.name),
                }
                for row in rows
            ]
        )
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
    if any(row.admitted is None for row in rows):
        return 4
    if all(row.clean or row.server.name in paths for row in rows):
        return 0
    return 1


def _no_longer_read(row: Review) -> tuple[str, ...]:
    """Return the tools that have changed since they were read for the library."""
    if row.clean or row.admitted is None or row.pins is None:
        return ()
    return no_longer_read(row.pins.reviewed(row.server), row.admitted, read_library())


def _outdated_readings(row: Review, catalog: Catalog) -> Iterator[str]:
    """Yield the tools that have changed since they were read for the library, with the bundles that
    may still say what was read.
    """
    for tool in _no_longer_read(row):
        name = f"{row.server.name}.{tool}"
        for bundle in catalog.bundles.values():
            if name in bundle.tools:
                effects = ", ".join(bundle.effects)
                yield (
                    f"  library  {name}: not as it was read for the library of bundles; look"
                    f" whether it may stay in {bundle.id} (effects: {effects})"
                )


def _first_bundle(
    row: Review, catalog: Catalog, local: LocalServers, arguments: argparse.Namespace
) -> None:
    """Show first bundles if no bundle holds the server's tools yet; with --write add them to
    bundles.toml.
    """
    is_held = any(row.server.name in bundle.servers for bundle in catalog.bundles.values())
    if is_held or row.admitted is None:
        return

    tools = row.admitted.tools
    if arguments.tool:
        tools = tuple(tool for tool in tools if tool.card.tool in arguments.tool)
    listed = replace(row.admitted, tools=tools)
    is_trusted = row.server.trust == "trusted"
    languages = catalog.settings.search.languages
    first = first_bundles(listed, read_library(), trusted=is_trusted, languages=languages)

    folder = config_folder(arguments)
    path = Path(folder or "config") / "bundles.toml"
    present = text_of(path, path.parent) if path.exists() else ""
    if first.text.strip() in present:  # comments alone hold no tool, so they come again
        headline = f"stands in {path}, in comments:"
    elif arguments.write:
        addition = f"\n{first.text}" if present else first.text
        stub = bundle_text(row.server.name, ())  # what `import --write` left for this server
        append_texts(folder, local, {path: addition}, write=True, instead_of=stub)
        headline = f"written to {path}:" if stub in present else f"added to {path}:"
    else:
        headline = (
            f"no bundle holds its tools yet; in {path} (--write adds it), with the tools that you"
            " want:"
        )
    if arguments.json:
        return
    say(_knowledge(row.server.name, first.recognition))
    say(headline)
    for line in first.text.splitlines():
        say(f"  {line}".rstrip())


def _knowledge(name: str, recognition: Recognition) -> str:
    """Return what the library of bundles knows about a server, in words."""
    if recognition.server is None:
        return f"{name}: not in the library of bundles, so what its tools do is guessed"
    read, by_name, unknown = (
        len(recognition.known_by(known_by)) for known_by in ("digest", "name", "unknown")
    )
    line = f"{name}: like {recognition.server.server!r} of the library of bundles: "
    line += f"{counted(read, 'definition')} as read there"
    if by_name:
        line += f", {by_name} by name alone"
    if unknown:
        line += f", {unknown} unknown"
    return line


def _approval(name: str | None) -> PinReview:
    """Return who approves now: `name`, or this user's name where none is given."""
    if name is None:
        try:
            name = getpass.getuser()
        except (KeyError, OSError):  # a user without a name, as in containers
            name = ""
    return PinReview(datetime.now(UTC).isoformat(timespec="seconds"), name[:200])


def _ask_approval(row: Review, arguments: argparse.Namespace) -> bool:
    if arguments.yes or arguments.json or not sys.stdin.isatty():
        return bool(arguments.yes)
    subject = counted(len(arguments.tool), "tool") if arguments.tool else "all of it"
    sys.stdout.write(f"Approve {subject} of {row.server.name!r} as shown? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
