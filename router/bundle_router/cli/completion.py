"""`bundle-router completion SHELL`: prints the script that completes this command in a shell.

The script holds the words of every verb, so that completing starts no Python: after an upgrade it
is written again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHELLS: Final = ("bash", "zsh", "fish")
FOLDERS: Final = frozenset({"config", "runs", "workspace", "to", "folder"})
"""The arguments, by the names of their values, for which a folder is given."""


def declare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.epilog = (
        "bash: write it to ~/.local/share/bash-completion/completions/bundle-router; zsh: to"
        " _bundle-router in a folder of $fpath; fish: to"
        " ~/.config/fish/completions/bundle-router.fish"
    )


def run(arguments: argparse.Namespace) -> int:
    print(script(arguments.shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell for every verb that is installed."""
    import shtab

    from bundle_router.cli import parser

    top = parser()
    for action in _actions_of(top):
        kind = _kind_of_path(action)
        if kind:
            setattr(action, "complete", kind)  # noqa: B010 - where shtab looks for it
    text: str = shtab.complete(top, shell)
    return text


def _actions_of(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its verbs."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            yield action
            continue
        for verb in action.choices.values():
            yield from _actions_of(verb)


def _kind_of_path(action: argparse.Action) -> str:
    """Return shtab's word for the paths that an argument takes; empty if it takes none."""
    if action.dest in FOLDERS and action.nargs != 0:
        return "directory"
    is_path = action.metavar in ("FILE", "FOLDER") or action.type is Path
    return "file" if is_path else ""
