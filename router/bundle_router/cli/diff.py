"""`bundle-router diff`: reports what a config edit newly allows, and what it takes away."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bundle_router.cli.local import add_local, local_servers
from bundle_router.cli.output import heading, print_json, say, say_whole
from bundle_router.cli.shared_arguments import add_json, user_name
from bundle_router.core.catalog import Catalog
from bundle_router.errors import ConfigError, RequestError
from bundle_router.review.behaviour import edits_as_words
from bundle_router.review.edit_places import Places
from bundle_router.review.privileges import (
    EFFECT_SIGNS,
    Addresses,
    Kind,
    PrivilegeDiff,
    PrivilegeRow,
    privilege_diff,
    sentence,
)

MAX_ROWS: Final = 40
"""Maximum printed rows of each kind; `--all` prints all."""
_SIGNS: Final = {"widening": "+", "narrowing": "-", "neutral": "~"}
_KINDS: Final[tuple[Kind, ...]] = ("widening", "narrowing", "neutral")


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "old", metavar="OLD", help="a config folder, a git revision, or revision:folder"
    )
    parser.add_argument(
        "new", metavar="NEW", nargs="?", default="config", help="the same (default: config)"
    )
    parser.add_argument(
        "--allow-widening",
        metavar="REASON",
        help=(
            "exit with 0 although something widens; the reason is kept in changes.jsonl of the"
            " config folder NEW"
        ),
    )
    parser.add_argument(
        "--all", action="store_true", help=f"print every row, not {MAX_ROWS} of a kind"
    )
    add_local(parser)
    add_json(parser)
    parser.epilog = (
        "Exit: 0 nothing widens, or it was allowed; 1 something widens; 2 one of the two is"
        " invalid."
    )


def run(arguments: argparse.Namespace) -> int:
    with ExitStack() as stack:
        old, new = (_load_side(text, arguments, stack) for text in (arguments.old, arguments.new))
        diff = privilege_diff(old.catalog, new.catalog)
        if arguments.allow_widening is not None:
            allowance = _keep(arguments.allow_widening, diff, new)
        else:
            allowance = None
        places = {**old.places, **new.places}
        if arguments.json:
            print_json(
                {
                    **diff.to_json(places),
                    "allowed": arguments.allow_widening,
                    "kept_in": allowance and str(allowance),
                }
            )
        else:
            show_diff(diff, places, None if arguments.all else MAX_ROWS)
            if allowance is not None:
                say(f"allowed: {arguments.allow_widening} (kept in {allowance})")
    if diff.widens and allowance is None:
        return 1
    return 0


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One of the two configs.

    `folder`: where acknowledgements are stored; for a revision, the present folder.
    """

    catalog: Catalog
    places: Places
    folder: Path


def _load_side(text: str, arguments: argparse.Namespace, stack: ExitStack) -> _Loaded:
    """Load a folder, or its content in a git revision. Raises ConfigError, RequestError."""
    from bundle_router.workbench.config_folders import load_with_places, revision_folder

    local = local_servers(arguments)
    if Path(text).is_dir():
        return _Loaded(*load_with_places(text, local=local), Path(text))
    revision, _, folder = text.partition(":")
    folder = folder or "config"
    extracted = stack.enter_context(revision_folder(revision, folder))
    shown = f"{revision}:{folder}"
    try:
        catalog, places = load_with_places(extracted, local=local)
    except ConfigError as error:
        raise ConfigError(
            [replace(row, file=row.file.replace(str(extracted), shown)) for row in error.problems]
        ) from None
    places_shown = {place: file.replace(str(extracted), shown) for place, file in places.items()}
    return _Loaded(catalog, places_shown, Path(folder))


def _keep(reason: str, diff: PrivilegeDiff, new: _Loaded) -> Path | None:
    """Store why a widening was allowed, and return the file; None if nothing widens."""
    from bundle_router.adapters.config_journal import JournaledEdit, make_edit
    from bundle_router.core.config.config_changes import FILE_NAME, ConfigChange
    from bundle_router.review.privileges.privilege_rows import widening_words

    if not reason.strip():
        raise RequestError(
            "--allow-widening needs a reason", advice="say who needs it and what for"
        )
    if not diff.widens:
        return None
    if not new.folder.is_dir():
        raise RequestError(
            f"there is no folder {new.folder} to keep the reason in", advice="name a folder as NEW"
        )
    change = ConfigChange(
        type="widening.allowed",
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        by=user_name(),
        reason=reason.strip(),
        old_revision=diff.old_revision,
        new_revision=diff.new_revision,
        widening=widening_words(diff),
        widening_digest=diff.widening_digest,
    )
    journal = new.folder / FILE_NAME
    return make_edit(new.folder, lambda: JournaledEdit(change, write=lambda: journal))


# --- for people -----------------------------------------------------------------------------------


def show_diff(diff: PrivilegeDiff, places: Places, limit: int | None) -> None:
    """Print what a config edit newly allows and takes away: `limit` rows of each kind, or all."""
    counts = {kind: len(diff.of(kind)) for kind in _KINDS}
    for kind in _KINDS:
        rows = diff.of(kind)
        if not rows:
            continue
        heading(f"{kind} ({len(rows)})")
        for row in rows[:limit]:
            for lead, text, under in row_lines(row, places):
                say_whole(lead, text, under=under)
        if limit is not None and len(rows) > limit:
            say(f"  … {len(rows) - limit} more: --all prints them")
    if not diff.complete:
        say(
            "there are too many names, or globs over them, to look at all addresses: this counts as"
            " widening"
        )
    if diff.rows:
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    else:
        summary = "no difference in powers"
    looked = f"{diff.address_count:,} addresses ({diff.counts_in_words()})"
    say_whole("", f"{summary}; {looked}", under=2)


def row_lines(row: PrivilegeRow, places: Places) -> Iterator[tuple[str, str, int]]:
    """Yield the lines of a row: the text before each, its own text, and the indent of its
    continuation.
    """
    text = sentence(row)
    if row.kind != "neutral" and row.aspect in ("may call", "comes in", "requires"):
        signs = [EFFECT_SIGNS[effect] for effect in row.effects if effect in EFFECT_SIGNS]
        text = f"{text}  {' '.join(signs)}".rstrip()
    yield f"{_SIGNS[row.kind]} ", text, 4
    for address in row.addresses:
        yield "    at ", address_words(address), 7
    if row.edits:
        yield "    because ", "; ".join(edits_as_words(row.edits, places)), 7


def address_words(address: Addresses) -> str:
    """Return addresses in words: `workflow feature, bugfix · role reviewer · any step`."""
    return " · ".join(
        f"any {name}" if labels == ("any",) else f"{name} {', '.join(labels)}"
        for name, labels in address.named().items()
    )
