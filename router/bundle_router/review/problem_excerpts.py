"""The line of a file that a problem is about, with a caret under what is meant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bundle_router.errors import Problem

WIDTH: Final = 110
"""Characters of a line that are shown."""


def excerpt_lines(problem: Problem, lines: Sequence[str]) -> Iterator[str]:
    """Yield the line, numbered, and the caret; nothing where the problem has no column."""
    if not problem.column or not 0 < problem.line <= len(lines):
        return
    text = lines[problem.line - 1]
    start = max(0, problem.column - 1 - WIDTH // 2) if len(text) > WIDTH else 0
    gutter = f"  {problem.line} | "
    shown = text[start : start + WIDTH]
    yield gutter + shown
    tabs = "".join("\t" if char == "\t" else " " for char in shown[: problem.column - 1 - start])
    yield f"{' ' * (len(gutter) - 2)}| {tabs}^"
