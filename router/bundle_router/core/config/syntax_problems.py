"""What is wrong with a text that is no TOML, in words for who wrote it.

Rules:
1. The parser says where it stopped, and often that is not where the mistake is: a missing comma is
   before the place, a key that stands twice has a first one elsewhere. Both are named.
2. What the lines show counts before what the parser says: markers of a merge conflict, quotes of a
   word processor.
3. A message of the parser that is not known here is quoted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.core.config.config_text import ConfigFile
from bundle_router.errors import Problem

_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)$")
_AT_END: Final = " (at end of document)"
_CONFLICT: Final = re.compile(r"<{7}(?: |$)|={7}$|>{7}(?: |$)|\|{7}(?: |$)")
_TYPOGRAPHIC: Final = frozenset("“”„‟‘’‚‛«»")
_KEY: Final = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[\w"'-]+)*)\s*=""")
_HEADER: Final = re.compile(r"\s*\[")
_NO_STRINGS: Final = re.compile(r"""(["']).*?(?<!\\)\1""")
_WORD: Final = re.compile(r"[A-Za-z][\w./:-]*")
_LISTS: Final = ("routes.toml", "policy.toml")
"""Files whose tables are mostly lists."""


@dataclass(frozen=True, slots=True)
class _Mistake:
    """What is wrong, what to do, and where: a line and a column from 1 (0: the whole line)."""

    message: str
    advice: str
    line: int
    column: int = 0


def syntax_problem(file: ConfigFile, error: ValueError) -> Problem:
    """Return the problem of a file that the parser refused."""
    lines = file.text.split("\n")
    reason, line, column = _place(str(error), lines)
    mistake = (
        _conflict(lines)
        or _typographic_quote(lines, line, column)
        or _key_twice(reason, lines, line)
        or _table_twice(reason, lines, line, is_list=file.name in _LISTS)
        or _missing_comma(reason, lines, line, column)
        or _open_list(reason, lines, line)
        or _Mistake(f"not valid TOML: {reason}", _advice(reason, lines, line, column), line, column)
    )
    return Problem(
        file.display_path, mistake.line, "", mistake.message, mistake.advice, column=mistake.column
    )


def _place(message: str, lines: Sequence[str]) -> tuple[str, int, int]:
    """Return the parser's reason, and its line and column."""
    match = _PLACE.search(message)
    if match is not None:
        reason = message[: match.start()]
        return reason[:1].lower() + reason[1:], int(match[1]), int(match[2])
    last = next((row for row in range(len(lines), 0, -1) if lines[row - 1].strip()), 1)
    reason = message.removesuffix(_AT_END)
    return f"{reason[:1].lower()}{reason[1:]}, at the end of the file", last, 0


def _conflict(lines: Sequence[str]) -> _Mistake | None:
    """Look for the markers that git leaves where it could not merge."""
    for number, line in enumerate(lines, start=1):
        if _CONFLICT.match(line) and line[0] != "=":
            return _Mistake(
                "this is a marker of a merge conflict",
                "keep what is right of the two sides, and delete the lines with <<<<<<<, ======="
                " and >>>>>>>",
                number,
                1,
            )
    return None


def _typographic_quote(lines: Sequence[str], line: int, column: int) -> _Mistake | None:
    text = lines[line - 1]
    found = text[column - 1 : column] if column else ""
    if found not in _TYPOGRAPHIC or not found:
        return None
    return _Mistake(
        f"{found} is a typographic quote",
        "write the straight one: \"text\" or 'text'",
        line,
        column,
    )


# --- what stands twice ----------------------------------------------------------------------------


def _key_twice(reason: str, lines: Sequence[str], line: int) -> _Mistake | None:
    if not reason.startswith("cannot overwrite a value"):
        return None
    found = _key_above(lines, line)
    if found is None:
        return None
    key, second = found
    first = next((row for row, other in _keys_before(lines, second) if other == key), 0)
    if first:
        advice = f"line {first} has the first one: delete one of the two"
    else:
        advice = "delete one of the two"
    column = len(lines[second - 1]) - len(lines[second - 1].lstrip()) + 1
    return _Mistake(f"{key} stands a second time in this table", advice, second, column)


def _key_above(lines: Sequence[str], line: int) -> tuple[str, int] | None:
    """Return the key whose value ends in a line, and the key's line: a value may have several."""
    for row in range(line, 0, -1):
        match = _KEY.match(lines[row - 1])
        if match is not None:
            return match[1], row
    return None


def _keys_before(lines: Sequence[str], line: int) -> list[tuple[int, str]]:
    """Return the keys of the same table above a line, with their lines, from the top."""
    keys = []
    for row in range(line - 1, 0, -1):
        text = lines[row - 1]
        if _HEADER.match(text) and header_names(text) is not None:
            break
        match = _KEY.match(text)
        if match is not None:
            keys.append((row, match[1]))
    return keys[::-1]


def _table_twice(reason: str, lines: Sequence[str], line: int, *, is_list: bool) -> _Mistake | None:
    if not re.match(r"cannot (?:declare|overwrite|mutate|redefine)", reason):
        return None
    second = header_names(lines[line - 1])
    if second is None:
        return None
    above = (row for row in range(1, line) if header_names(lines[row - 1]) == second)
    first = next(above, 0)
    header = lines[line - 1].split("#")[0].strip()
    if is_list and not header.startswith("[["):
        advice = f"write [{header}] for each of several"
    elif first:
        advice = f"line {first} has the first one: put all of its keys there"
    else:
        advice = "put all of its keys under one header"
    return _Mistake(f"{header} stands a second time", advice, line, 1)


def header_names(text: str) -> tuple[str, ...] | None:
    """Return the names of a line that is a table's header; None for another line.

    >>> from bundle_router.core.config.syntax_problems import header_names
    >>> header_names('[bundles."repo.readonly"]  # ours')
    ('bundles', 'repo.readonly')
    """
    if not _HEADER.match(text):
        return None
    try:
        value = tomllib.loads(text)
    except ValueError:
        return None
    names = []
    while value:
        ((name, inner),) = value.items()
        names.append(name)
        value = inner[0] if isinstance(inner, list) else inner
    return tuple(names)


# --- what is missing ------------------------------------------------------------------------------


def _missing_comma(reason: str, lines: Sequence[str], line: int, column: int) -> _Mistake | None:
    if not reason.startswith(("unclosed array", "unclosed inline table")) or not column:
        return None
    before = lines[line - 1][: column - 1].rstrip()
    row = line
    while not before and row > 1:
        row -= 1
        before = _without_comment(lines[row - 1]).rstrip()
    if not before or before[-1] in ",[{=":
        return None
    return _Mistake("a comma is missing after this", "write , between two items", row, len(before))


def _open_list(reason: str, lines: Sequence[str], line: int) -> _Mistake | None:
    """Look for a list without its end: the parser reads on, and stops at the next header."""
    is_header = _HEADER.match(lines[line - 1]) is not None
    is_open = reason.startswith("unclosed array") or reason.endswith("at the end of the file")
    if not is_open and not (is_header and reason.startswith("invalid value")):
        return None
    depth = 0
    for row in range(line - 1 if is_header else line, 0, -1):
        text = _NO_STRINGS.sub("", _without_comment(lines[row - 1]))
        match = _KEY.match(lines[row - 1])
        depth += text.count("]") - text.count("[")
        if match is None:
            continue
        if depth >= 0:
            return None
        return _Mistake(
            f"the list of {match[1]} does not end", "write ] after its last item", row, 1
        )
    return None


def _without_comment(text: str) -> str:
    """Return a line without the comment at its end."""
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "#":
            return text[:position]
    return text


def _advice(reason: str, lines: Sequence[str], line: int, column: int) -> str:
    """Return what to write instead."""
    text = lines[line - 1][column - 1 :] if column else ""
    word = _WORD.match(text)
    if line == 1 and text.startswith("{"):
        return "this is JSON; `bundle-router import` takes over the servers of a .mcp.json"
    if reason.startswith("expected '='") and text.lstrip().startswith(":"):
        return "write = in place of :"
    if reason.startswith("expected '='"):
        return "a line is a key, =, and its value; a table begins with [name]"
    if reason.startswith("expected newline"):
        return 'one key a line; a quote inside "…" is written \\"'
    if "\\" in reason or "escape" in reason:
        return "a backslash inside \"…\" is written twice; inside '…' once"
    if reason.startswith("invalid value") and not text.strip():
        return "write a value after ="
    if word and word[0] in ("True", "False"):
        return f"write {word[0].lower()}"
    if word and reason.startswith("invalid value"):
        return "put text in quotes"
    return ""
