"""Markdown of the generated pages: tables, docstrings, signatures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_GAPS: Final = re.compile(r"\s+")
GENERATED: Final = "This page is generated (`.ci/generate`)"


def code(text: object) -> str:
    """Return inline code; empty for an empty text."""
    return f"`{text}`" if str(text) else ""


def cell(text: str) -> str:
    """Return the text of one cell of a table, on one line."""
    return _GAPS.sub(" ", text).strip().replace("|", "\\|")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; empty without rows."""
    lines = [f"| {' | '.join(map(cell, row))} |\n" for row in rows]
    if not lines:
        return ""
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n{''.join(lines)}\n"


def prose(docstring: str) -> str:
    """Return a docstring as Markdown, with its examples as code."""
    blocks = re.split(r"\n\s*\n", docstring.strip())
    return "".join(f"{_block(block)}\n\n" for block in blocks if block.strip())


def _block(text: str) -> str:
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    lead, mark, example = text.partition("\n>>>")
    if mark:
        return f"{lead}\n\n```pycon\n>>>{example}\n```"
    return text


def without_gaps(parts: Iterable[str]) -> str:
    """Return the parts of a page as its text: at most one blank line in a row, and a newline at
    its end.
    """
    return re.sub(r"\n{3,}", "\n\n", "".join(parts)).rstrip() + "\n"


def headings(page: str) -> Iterator[tuple[int, str]]:
    """Yield the level and the text of each heading of a page; code is no heading."""
    is_code = False
    for line in page.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and (found := re.match(r"(#+) (.*)", line)):
            yield len(found[1]), found[2]


def entries(page: str, level: int = 0) -> list[str]:
    """Return what a page has an entry for: the headings of a level, or with 0 the first cell of
    each row of its tables.
    """
    if level:
        return [text.strip("`") for depth, text in headings(page) if depth == level]
    rows = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    return [row.replace("\\|", "|") for row in rows]
