"""Corrects mistakes that have one right answer, as edits of the text: `bundle-router check --fix`.

Only the mistake is edited, so comments and layout stay as they are. (A TOML library that keeps
comments would write the whole file again, by its own rules.) A merely likely correction, such as
that of a misspelt name, is left to a person.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from bundle_router.core.catalog import Bundle
from bundle_router.core.config.config_text import ConfigFile, guard
from bundle_router.core.config.positions import Path, Positions, locate
from bundle_router.core.config.servers import command_words
from bundle_router.core.config.written_forms import FILES, form_of, keys_of

_LISTS: Final = ("routes", "policies", "binaries")


@dataclass(frozen=True, slots=True)
class ConfigFix:
    """One edit: `text` replaces the characters from `start` to `end`."""

    line: int
    what: str
    start: int
    end: int
    text: str


def fix_text(file: ConfigFile) -> tuple[str, tuple[ConfigFix, ...]]:
    """Return the corrected text of a file, and the edits in the order of their places."""
    if file.name not in FILES or file.fault is not None or guard(file) is not None:
        return file.text, ()
    try:
        data = tomllib.loads(file.text)
    except ValueError:
        return file.text, ()
    fixes = sorted(
        {*_headers(file.text, data), *_values(file, data), *_commands(file.text, data)},
        key=lambda f: f.start,
    )
    text = file.text
    for fix in reversed(fixes):
        text = text[: fix.start] + fix.text + text[fix.end :]
    return text, tuple(fixes)


def _fix(text: str, what: str, start: int, end: int, new: str) -> ConfigFix:
    return ConfigFix(text.count("\n", 0, start) + 1, what, start, end, new)


def _headers(text: str, data: dict[str, Any]) -> Iterator[ConfigFix]:
    """Yield `[[routes]]` for `[routes]`, and the quotes that a bundle's id with dots needs."""
    for key in _LISTS:
        header = re.search(rf"^[ \t]*(\[[ \t]*{key}[ \t]*\])(?!\])", text, re.MULTILINE)
        if isinstance(data.get(key), dict) and header is not None:
            yield _fix(text, f"[{key}] is a list of tables", *header.span(1), f"[[{key}]]")
    inner = {declared.table for declared in keys_of(Bundle).values()}
    for header in re.finditer(
        r"^[ \t]*\[[ \t]*bundles\.([a-z0-9_-]+(?:\.[a-z0-9_-]+)+)[ \t]*\]", text, re.MULTILINE
    ):
        words = header[1].split(".")
        tail = words[-1:] if words[-1] in inner else []
        id_ = ".".join(words[: len(words) - len(tail)])
        if "." in id_:
            yield _fix(
                text, "an id with dots needs quotes", *header.span(1), ".".join([f'"{id_}"', *tail])
            )


def _values(file: ConfigFile, data: dict[str, Any]) -> Iterator[ConfigFix]:
    """Yield lists for single texts where a list is needed, and lists without their repetitions."""
    try:
        form_of(FILES[file.name]).model_validate(data)
    except ValidationError as error:
        positions = locate(file.text)
        for detail in error.errors(include_url=False):
            span = positions.span(detail["loc"])
            if span is None:
                continue
            if detail["type"] in ("list_type", "tuple_type") and isinstance(detail["input"], str):
                source = file.text[span[0] : span[1]]
                yield _fix(
                    file.text, f"{detail['loc'][-1]} is a list: [{source}]", *span, f"[{source}]"
                )
            elif detail["type"] == "repeated":
                yield from _repeated_tables(file.text, positions, detail["loc"], detail["input"])


def _repeated_tables(
    text: str, positions: Positions, path: Path, items: list[Any]
) -> Iterator[ConfigFix]:
    for index, item in enumerate(items):
        span = positions.span((*path, index))
        previous = positions.span((*path, index - 1))
        if item in items[:index] and span is not None and previous is not None:
            between = text[previous[1] : span[0]]
            if "#" not in between:  # a comment there is about the item: a person should look
                yield _fix(text, f"{item!r} is listed twice", previous[1], span[1], "")


def _commands(text: str, data: dict[str, Any]) -> Iterator[ConfigFix]:
    """Yield `command` and `args` for a command line in one text."""
    servers = data.get("servers")
    for name, server in servers.items() if isinstance(servers, dict) else ():
        command = server.get("command") if isinstance(server, dict) else None
        if not isinstance(command, str) or "'" in command or '"' in command:
            continue
        words = command_words(command)
        if len(words) < 2:
            continue
        positions = locate(text)
        span = positions.span(("servers", name, "command"))
        args = positions.span(("servers", name, "args"))
        arguments = ", ".join(json.dumps(word) for word in words[1:])
        if span is None:
            continue
        description = "the program alone stands in command"
        if args is None:
            yield _fix(text, description, *span, f"{json.dumps(words[0])}\nargs = [{arguments}]")
        elif isinstance(server["args"], list):
            yield _fix(text, description, *span, json.dumps(words[0]))
            yield _fix(
                text,
                "its arguments are in args",
                args[0],
                args[0] + 1,
                f"[{arguments}{', ' if server['args'] else ''}",
            )
