"""Collects problems, and finds their places once all are known.

Rules:
1. Everything is collected; nothing stops at the first problem. At most `MAX_PER_FILE` are kept a
   file; the others are counted.
2. Lines are looked up only in files with problems.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from bundle_router.core.config.config_text import ConfigFile
from bundle_router.core.config.positions import Path, Positions, locate, show
from bundle_router.core.values.spelling import Suggester
from bundle_router.errors import Problem

WIDTH: Final = 110
"""Characters of a line that are shown."""
_MARKED: Final = re.compile(r'"[^"]*"|\'[^\']*\'|[\w-]+')
MAX_PER_FILE: Final = 100


class FilePlace(Protocol):
    """Something with a place in a file: an entry."""

    @property
    def file(self) -> ConfigFile: ...
    @property
    def path(self) -> Path: ...


class Report:
    def __init__(self, files: Sequence[ConfigFile]) -> None:
        self.suggester = Suggester()
        self._order = {file.display_path: index for index, file in enumerate(files)}
        self._positions: dict[str, Positions] = {}
        self._lines: dict[str, list[str]] = {}
        self._problems: list[Problem] = []
        self.counts: Counter[str] = Counter()
        self.has_errors = False

    def add(
        self,
        file: ConfigFile,
        path: Path,
        message: str,
        suggestion: str = "",
        *,
        level: str = "error",
        rule: str = "",
    ) -> None:
        """Add one problem at `path`: a path that is not in the text gets its parent's line."""
        self.has_errors = self.has_errors or level == "error"
        self.counts[file.display_path] += 1
        if self.counts[file.display_path] > MAX_PER_FILE:
            return
        if not path:
            self._problems.append(
                Problem(file.display_path, 0, "", message, suggestion, level, rule)
            )
            return
        positions = self._positions_of(file)
        # `role = "x"` may be written for `role = ["x"]`: the element that was found wrong is then
        # the key itself.
        while path and isinstance(path[-1], int) and path not in positions:
            path = path[:-1]
        line, column = positions.place(path) if file.has_lines else (0, 0)
        self._problems.append(
            Problem(
                file.display_path, line, show(path), message, suggestion, level, rule, column=column
            )
        )

    def add_about(
        self, entry: FilePlace, where: str | Path, message: str, suggestion: str = ""
    ) -> None:
        """Add an error about an entry: about all of it (`""`), one of its keys, or a path beneath
        it.
        """
        inner = where
        if isinstance(where, str):
            inner = (where,) if where else ()
        self.add(entry.file, (*entry.path, *inner), message, suggestion)

    def line(self, file: ConfigFile, path: Path) -> int:
        """Return the line of a path, of its parent where it is not in the text; 0 without lines."""
        return self._positions_of(file).line(path) if file.has_lines else 0

    def lines(self, file: ConfigFile) -> Sequence[str]:
        """Return the lines of a file. Split once."""
        lines = self._lines.get(file.display_path)
        if lines is None:
            lines = self._lines[file.display_path] = file.text.split("\n")
        return lines

    def is_full(self, file: ConfigFile) -> bool:
        """Return whether further problems of a file are only counted."""
        return self.counts[file.display_path] >= MAX_PER_FILE

    def _positions_of(self, file: ConfigFile) -> Positions:
        positions = self._positions.get(file.display_path)
        if positions is None:
            positions = self._positions[file.display_path] = locate(file.text)
        return positions

    def add_unreadable(self, file: ConfigFile, problem: Problem) -> None:
        """Add a problem of a file that is not TOML, so that it has no positions."""
        self.has_errors = True
        self.counts[file.display_path] += 1
        self._problems.append(problem)

    def problems(self) -> list[Problem]:
        """Return the problems, in file order and then by line."""
        problems = list(self._problems)
        for path, count in self.counts.items():
            if count > MAX_PER_FILE:
                level = "error" if self.has_errors else "warning"
                problems.append(
                    Problem(
                        path, 0, "", f"and {count - MAX_PER_FILE} further problems", level=level
                    )
                )
        unnumbered = len(self._order)
        return sorted(
            problems,
            key=lambda item: (self._order.get(item.file, unnumbered), item.line or 1 << 62),
        )


def excerpt_lines(problem: Problem, lines: Sequence[str]) -> Iterator[str]:
    """Yield the line, numbered, with carets under the problem; nothing where the problem has no
    column.
    """
    if not problem.column or not 0 < problem.line <= len(lines):
        return
    text = lines[problem.line - 1]
    start = max(0, problem.column - 1 - WIDTH // 2) if len(text) > WIDTH else 0
    gutter = f"  {problem.line} | "
    excerpt = text[start : start + WIDTH]
    yield gutter + excerpt
    offset = problem.column - 1 - start
    tabs = "".join("\t" if char == "\t" else " " for char in excerpt[:offset])
    marked = _MARKED.match(excerpt, offset)
    yield f"{' ' * (len(gutter) - 2)}| {tabs}{'^' * len(marked[0] if marked is not None else '^')}"
