"""`bundle-router check`: is the config valid, and what in it is dead or risky."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bundle_router.cli.arguments import add_config, add_development, add_json, config_folder
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import print_json, say
from bundle_router.cli.reviewing import Review, json_of, lines_of, remote_servers, review
from bundle_router.cli.vendor import DEFAULT_FOLDER
from bundle_router.core.catalog import Catalog, Server
from bundle_router.core.tools.pins import Pins
from bundle_router.errors import Problem
from bundle_router.review.vendor import drifted_wrappers, module_name


def declare(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 1 when something is dead or risky")
    parser.add_argument("--live", action="store_true", help="also ask every tool server whether it is still as pinned")
    add_development(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.adapters.config_files import content_file, read_config
    from bundle_router.review.lint import check
    from bundle_router.review.lint.pins import pin_problems, unpinned_servers
    from bundle_router.tools.workspace.grammar import problems as check_binary
    from bundle_router.wiring import local_cards, project_folder, read_catalog

    local = local_servers(arguments)
    _, cards = local_cards(local)
    config = config_folder(arguments)
    files = read_config(config)
    problems = check(
        files, cards=cards, check_binary=check_binary, has_content=lambda name: content_file(config, name) is not None
    )
    errors = [problem for problem in problems if problem.level == "error"]
    if errors:
        _show(arguments, problems, None)
        return 2
    catalog, pins = read_catalog(config, cards)
    problems += _unused(local, catalog.servers)
    bundles = _shown(project_folder(config) / "bundles")
    problems += pin_problems(catalog, pins, str(bundles / "pins"))
    for folder in (bundles / "vendored", bundles.parent / DEFAULT_FOLDER):
        problems += _stale_wrappers(catalog, pins, folder)
    asked = remote_servers(catalog, ()) if arguments.live else []
    live = review(catalog, pins, asked, development=arguments.development)
    _show(arguments, problems, catalog, unpinned_servers(catalog, pins), live)
    if any(row.comparison is not None and not row.clean for row in live) or (problems and arguments.strict):
        return 1
    return 4 if any(row.comparison is None for row in live) else 0


def _show(
    arguments: argparse.Namespace,
    problems: Sequence[Problem],
    catalog: Catalog | None,
    unpinned: Sequence[str] = (),
    live: Sequence[Review] = (),
) -> None:
    if arguments.json:
        print_json({
            "valid": catalog is not None, "catalog_revision": catalog.revision if catalog is not None else None,
            "problems": [asdict(p) for p in problems], "unpinned": unpinned, "live": [json_of(row) for row in live],
        })  # fmt: skip
        return
    for problem in problems:
        say(str(problem) if problem.level == "error" else f"{problem.level}: {problem}")
    if catalog is None:
        count = sum(problem.level == "error" for problem in problems)
        say(f"{count} problem{'s' if count != 1 else ''}: the config can't be used")
        return
    for row in live:
        for line in lines_of(row):
            say(line)
    say(
        f"valid: {len(catalog.bundles)} bundles, {len(catalog.routes)} routes, {len(catalog.policies)} "
        f"policies, {len(catalog.servers)} servers; revision {catalog.revision}"
    )
    if config_folder(arguments) is None:
        say("this is the shipped config alone: there is no config folder here (`bundle-router init` writes one)")
    if unpinned:
        say(f"not usable before they are reviewed: {', '.join(unpinned)} (bundle-router pin)")


def _stale_wrappers(catalog: Catalog, pins: Mapping[str, Pins], folder: Path) -> Iterator[Problem]:
    """Vendored wrappers that were made of other definitions than are pinned now."""
    for name in pins:
        path = folder / f"{module_name(name)}.py"
        if not path.is_file():
            continue
        cards = {card.tool: card for card in catalog.cards.values() if card.server == name}
        try:
            stale = drifted_wrappers(path.read_text(encoding="utf-8"), cards)
        except (ValueError, SyntaxError) as wrong:
            yield Problem(str(path), 0, "", f"is no vendored module: {wrong}", "", "warning", "stale-wrapper")
            continue
        if stale:
            message = f"wraps other definitions than are pinned: {', '.join(stale[:10])}"
            yield Problem(str(path), 0, "PINS", message, f"bundle-router vendor {name}", "warning", "stale-wrapper")


def _shown(path: Path) -> Path:
    """The path as someone in the current folder would write it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _unused(local: Iterable[str], servers: Mapping[str, Server]) -> Iterator[Problem]:
    """Local tools that were given and that no server of the config stands for: no bundle can hold them."""
    for name in local:
        if name not in servers or servers[name].transport != "local":
            hint = f"[servers.{name}] with transport = 'local' takes them in"
            message = f"servers.toml has no local server {name!r}, so these tools are not used"
            yield Problem(f"--local {name}", 0, "", message, hint, "warning", "unused-local")
