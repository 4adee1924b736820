"""`bundle-router allow`: permits a bundle to a role, and routes it there."""

from __future__ import annotations

import argparse

from bundle_router.cli.diff import show_diff
from bundle_router.cli.local import local_servers
from bundle_router.cli.output import print_json, say
from bundle_router.cli.shared_arguments import add_config, add_json, config_folder, user_name
from bundle_router.errors import ConfigError, RequestError
from bundle_router.review.allowance import BundleAllowance, with_allowance


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="the id of a bundle of the config")
    parser.add_argument(
        "--role", required=True, help="the role whose steps may have it, and get it"
    )
    parser.add_argument("--workflow", default="", help="only in this workflow (default: in any)")
    parser.add_argument(
        "--no-route",
        action="store_true",
        help="permit it alone: steps that no route covers find it by search, or a model picks it",
    )
    parser.add_argument(
        "--yes", action="store_true", help="write it: you have read what it newly allows"
    )
    add_config(parser)
    add_json(parser)
    parser.epilog = (
        "Writes policy.toml and routes.toml, keeps their comments, and keeps what it widened in"
        " changes.jsonl, where the config pages undo it. Exit: 0 written, or allowed already; 1 it"
        " would widen, and --yes was not given."
    )


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.workbench.config_editing import ConfigEditor
    from bundle_router.workbench.config_folders import load_with_places

    folder = config_folder(arguments)
    if folder is None:
        raise RequestError(
            "there is no config folder to write to", advice="make one with `bundle-router init`"
        )
    local = local_servers(arguments)
    catalog, _ = load_with_places(folder, local=local)
    editor = ConfigEditor(folder, local=local)
    files = {file.name: file for file in editor.files()}
    # A file that the folder lacks is the shipped one in force, and is written whole.
    texts = {name: file.text if file.digest else file.shipped for name, file in files.items()}
    allowance = BundleAllowance(
        arguments.bundle, arguments.role, arguments.workflow, routed=not arguments.no_route
    )
    drafts = with_allowance(catalog, texts, allowance)
    if not drafts:
        return _report_nothing(arguments)

    preview = editor.preview(drafts, max_decisions=0)
    diff = preview.privileges
    if diff is None:
        raise ConfigError(preview.problems)
    places = dict(preview.places or {})
    if not arguments.json:
        show_diff(diff, places, None)
    if arguments.yes:
        editor.save(
            drafts,
            {name: file.digest for name, file in files.items()},
            by=user_name(),
            reason=_command(allowance),
            acknowledged=diff.widening_digest,
        )
    written = [str(editor.folder / name) for name in drafts] if arguments.yes else []
    if arguments.json:
        print_json({**diff.to_json(places), "written": written, "text": drafts})
    elif written:
        say(f"written: {', '.join(written)}")
    else:
        names = " and ".join(str(editor.folder / name) for name in drafts)
        say(f"nothing was written: --yes writes this to {names}")
    return 0 if arguments.yes else 1


def _report_nothing(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json({"written": [], "text": {}})
    else:
        say(f"nothing to write: role {arguments.role!r} may have {arguments.bundle!r} already")
    return 0


def _command(allowance: BundleAllowance) -> str:
    """Return the command that was given, as the reason of the change."""
    words = f"bundle-router allow {allowance.bundle} --role {allowance.role}"
    if allowance.workflow:
        words += f" --workflow {allowance.workflow}"
    if not allowance.routed:
        words += " --no-route"
    return words
