"""`bundle-router examples`: has a model write examples for bundles, for a person to accept."""

from __future__ import annotations

import argparse
import difflib
import sys
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bundle_router.cli.local import local_servers
from bundle_router.cli.output import counted, print_json, progress, say
from bundle_router.cli.shared_arguments import (
    add_config,
    add_json,
    add_runs,
    config_folder,
    user_name,
)
from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.errors import RequestError
from bundle_router.review.example_writing.bundles_text import (
    Addition,
    addition_lines,
    with_additions,
)
from bundle_router.review.example_writing.candidates import (
    ENOUGH,
    lacking_examples,
    pickable_bundles,
)

if TYPE_CHECKING:
    from bundle_router.workbench.example_writer import ExampleDrafts

FILE: Final = "bundles.toml"
MAX_COST_USD: Final = 0.10
EPILOG: Final = """The model reads your description, `avoid` and examples of a bundle and, where all
of its servers are trusted, the pinned names and descriptions of its tools; else the tools' names
alone. Nothing is written before you agree: on a terminal you are asked; elsewhere --yes writes what
a run without it showed (answers are kept for a day). Exit: 0 each bundle got something to add, 4 a
model failed or a limit was reached."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "bundles",
        nargs="*",
        metavar="BUNDLE",
        help="bundles to write for (default: those with fewer than three examples)",
    )
    parser.add_argument(
        "--all", action="store_true", help="write for every bundle that search or a model may pick"
    )
    parser.add_argument(
        "--yes", action="store_true", help="add them without asking: you have read the difference"
    )
    parser.add_argument(
        "--max-cost",
        type=float,
        metavar="USD",
        help=f"ask about no further bundle before this is exceeded (default: {MAX_COST_USD:.2f})",
    )
    add_config(parser)
    add_runs(parser)
    add_json(parser)
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace) -> int:
    from bundle_router.wiring.catalogs import read_catalog
    from bundle_router.workbench.config_editing import ConfigEditor
    from bundle_router.workbench.example_writer import write_examples

    folder = config_folder(arguments)
    if folder is None:
        raise RequestError(
            "there is no config folder whose bundles could get examples",
            advice="make one with `bundle-router init`",
        )
    local = local_servers(arguments)
    catalog, _ = read_catalog(folder, local)
    editor = ConfigEditor(folder, local=local)
    (opened,) = (file for file in editor.files() if file.name == FILE)
    bundles = _chosen(arguments, catalog, tomllib.loads(opened.text).get("bundles", {}))
    if not bundles:
        return _show_no_bundle(arguments)
    limit_usd = MAX_COST_USD if arguments.max_cost is None else arguments.max_cost
    with progress("Asking the model", len(bundles)) as advance:
        drafts = write_examples(
            catalog,
            bundles,
            runs=arguments.runs,
            max_cost_usd=limit_usd,
            is_default_cost=arguments.max_cost is None,
            done=advance,
        )
    additions = _additions(drafts)
    text, impossible = with_additions(opened.text, additions)
    path = Path(folder, FILE)
    difference = _difference(opened.text, text, path)
    if not arguments.json:
        _show(drafts, difference, impossible)
    is_written = bool(difference) and _is_agreed(arguments, path)
    if is_written:
        reason = f"examples written by {', '.join(sorted({row.model for row in drafts.drafts}))}"
        editor.save({FILE: text}, {FILE: opened.digest}, by=user_name(), reason=reason)
    if arguments.json:
        paths = [str(path)] if is_written else []
        print_json({**asdict(drafts), "difference": difference, "written": paths})
    elif is_written:
        say(f"added to {path}")
    elif difference and not (arguments.yes or sys.stdin.isatty()):
        say("nothing was written: --yes adds just this, and asks no model again today")
    return 4 if drafts.failed or drafts.remaining_bundles else 0


# --- which bundles --------------------------------------------------------------------------------


def _chosen(arguments: argparse.Namespace, catalog: Catalog, own: Collection[str]) -> list[Bundle]:
    """Return the bundles to write for. Raises RequestError for a named one that is not the file's,
    or that nothing may pick.
    """
    if not arguments.bundles:
        choose = pickable_bundles if arguments.all else lacking_examples
        return choose(catalog, own)
    bundles = []
    for name in dict.fromkeys(arguments.bundles):
        bundle = catalog.bundle(name)
        if bundle is None:
            raise RequestError(f"unknown bundle {name!r}", advice="see `bundle-router check`")
        if bundle.id not in own:
            raise RequestError(
                f"bundle {name!r} is not declared in this folder's {FILE}",
                advice="examples are added where a bundle is declared",
            )
        if not pickable_bundles(catalog, (bundle.id,)):
            raise RequestError(
                f"neither search nor a model may pick bundle {name!r}",
                advice="it is disabled, not selectable or given to every step",
            )
        bundles.append(bundle)
    return bundles


def _show_no_bundle(arguments: argparse.Namespace) -> int:
    if arguments.json:
        print_json(
            {"drafts": [], "failed": [], "remaining_bundles": [], "difference": "", "written": []}
        )
    else:
        say(f"each bundle of {FILE} has at least {ENOUGH} examples (--all asks for more)")
    return 0


# --- what is added --------------------------------------------------------------------------------


def _additions(drafts: ExampleDrafts) -> list[Addition]:
    day = datetime.now(UTC).date().isoformat()
    return [
        Addition(
            draft.bundle,
            draft.answer.examples,
            draft.answer.words,
            f"Written by {draft.model} on {day} (bundle-router examples).",
        )
        for draft in drafts.drafts
    ]


def _difference(old: str, new: str, path: Path) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), str(path), str(path)
    )
    return "".join(lines)


def _is_agreed(arguments: argparse.Namespace, path: Path) -> bool:
    if arguments.yes or arguments.json or not sys.stdin.isatty():
        return bool(arguments.yes)
    sys.stdout.write(f"Add this to {path}? [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# --- showing --------------------------------------------------------------------------------------


def _show(drafts: ExampleDrafts, difference: str, impossible: Sequence[Addition]) -> None:
    for line in difference.splitlines():
        say(line)
    for addition in impossible:
        say(f"{addition.bundle}: no place for lines of their own was found; add by hand:")
        for line in addition_lines(addition):
            say(f"  {line}")
    for draft in drafts.drafts:
        for text, reason in draft.answer.refusals:
            say(f"{draft.bundle}: not taken: {text!r}: {reason}")
    for bundle, reason in drafts.failed:
        say(f"{bundle}: nothing to add: {reason}")
    if drafts.remaining_bundles:
        say(f"not asked about, since {drafts.end_reason}: {', '.join(drafts.remaining_bundles)}")
    say(f"{counted(drafts.calls, 'call')}, ${drafts.cost_usd:.6f} as far as prices are known")
