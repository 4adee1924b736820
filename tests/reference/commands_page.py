"""`reference/commands.md`: every verb of the command line with its arguments, from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from bundle_router.cli import parser

from tests.reference.markdown import GENERATED, code, table, without_gaps

_HEAD: Final = f"""\
# Commands

Every verb of `bundle-router`, in the order in which a newcomer meets them, with its arguments. {GENERATED}; `--help`
behind a verb prints the same. What the exit statuses mean stands among the [codes](codes.md#exit-statuses).

A shell completes verbs, options and their values by a script that starts no Python. Write it once, and again after an upgrade:

```sh
bundle-router completion bash > ~/.local/share/bash-completion/completions/bundle-router   # needs bash-completion
bundle-router completion zsh > ~/.zfunc/_bundle-router   # with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
bundle-router completion fish > ~/.config/fish/completions/bundle-router.fish
```

"""


def page() -> str:
    """Return the text of the page."""
    top = parser()
    parts = [_HEAD]
    for verb, sub in verbs_of(top):
        parts += _verb(verb, sub, level=2)
    return without_gaps(parts)


def verbs_of(parent: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the verbs of a parser, each with its own parser."""
    for action in parent._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _verb(words: str, verb: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """Yield the section of a verb, and those of its own verbs."""
    yield f"{'#' * level} {words}\n\n"
    if verb.description:
        text = verb.description
        yield f"{text[0].upper()}{text[1:].rstrip('.')}.\n\n"
    yield table(("argument", "meaning"), _arguments(verb))
    for name, inner in verbs_of(verb):
        yield from _verb(f"{words} {name}", inner, level + 1)


def _arguments(verb: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield each argument with its meaning: first those that are typed without a name, as in
    `--help`.
    """
    for action in sorted(verb._actions, key=lambda action: bool(action.option_strings)):
        is_help = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        if not is_help and action.help != argparse.SUPPRESS:
            yield code(_spelling(action)), _meaning(action)


def _spelling(action: argparse.Action) -> str:
    """Return an argument as it is typed."""
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return value
    return f"{', '.join(action.option_strings)} {value}".rstrip()


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        name = " ".join(action.metavar)
    elif action.metavar is not None:
        name = action.metavar
    elif action.choices is not None:
        name = "|".join(map(str, action.choices))
    else:
        name = action.dest.upper() if action.option_strings else action.dest
    if action.nargs in ("?", "*"):
        return f"[{name}{' …' if action.nargs == '*' else ''}]"
    return f"{name} …" if action.nargs == "+" else name


def _meaning(action: argparse.Action) -> str:
    text = action.help or ""
    for name in ("dest", "default", "metavar", "prog"):
        text = text.replace(f"%({name})s", str(getattr(action, name, "")))
    text = text.replace("%%", "%")
    return f"{text} (required)" if action.option_strings and action.required else text
