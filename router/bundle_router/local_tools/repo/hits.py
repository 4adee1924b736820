"""Values between `local_tools.repo.searching` and its two engines: the search, its hits, and
compiled expressions with the messages for those that are not possible.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import Field

from bundle_router.core.values import Frozen, ToolContext
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.expressions import ExpressionError, compile_expression, escape
from bundle_router.local_tools.repo.confinement import Root

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
"""Maximum bytes of a searched file. Both engines skip larger ones."""


class Ripgrep(Frozen):
    """Arguments of `ripgrep`."""

    pattern: str = Field(
        min_length=1,
        max_length=131_000,
        description=(
            "Regular expression, matched line by line (no look-around, no back-references)."
        ),
    )
    path: str = Field(
        default=".",
        max_length=4096,
        description="File or folder to search, relative to the workspace.",
    )
    glob: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Only files matching this, e.g. '*.py' or 'src/**'; '!*.md' leaves out.",
    )
    ignore_case: bool = Field(default=False, description="Ignore upper and lower case.")
    literal: bool = Field(default=False, description="Treat the pattern as plain text.")
    context: int = Field(
        default=0, ge=0, le=20, description="Lines to show before and after each match."
    )
    max_matches: int = Field(
        default=100, ge=1, le=2000, description="Most matching lines to return."
    )


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, without its end.

    `at` is the byte offset of the first match in it; None for context.
    """

    number: int
    text: bytes
    at: int | None


@dataclass(frozen=True, slots=True)
class FileHits:
    """The matching lines of one file with their context, in order.

    At most `max_matches + 1` of them match.
    """

    path: str
    lines: tuple[Line, ...]


class TextSearch(Protocol):
    """Finds lines. Yields files in path order; closing the generator ends the search."""

    def __call__(
        self, query: Ripgrep, root: Root, context: ToolContext
    ) -> Generator[FileHits, None, None]: ...


MAX_PROGRAM_BYTES: Final = 64 * 1024 * 1024
"""re2's memory for one expression. A pattern that needs more is refused when it is compiled."""

UNSUPPORTED: Final = (
    "back-references and look-around are not supported; for plain text set literal=true",
    "simplify the pattern, or search for a literal part of it",
)


def compile_lines(pattern: str, *, ignore_case: bool, literal: bool) -> Any:
    """Return an expression over bytes in which `^` and `$` are line ends and nothing matches across
    lines.

    Raises ToolFailure `bad_pattern` for syntax that re2 does not support and for patterns that are
    too large.
    """
    lines = f"(?m:{escape(pattern) if literal else pattern})".encode()
    try:
        return compile_expression(
            lines, max_bytes=MAX_PROGRAM_BYTES, ignore_case=ignore_case, one_line=True
        )
    except ExpressionError as error:
        raise bad_pattern(str(error)) from error


def compile_ascii(pattern: str, code: str, message: str) -> Any:
    """Return an expression over text, for globs. Raises ToolFailure with `code`."""
    try:
        return compile_expression(pattern, max_bytes=MAX_PROGRAM_BYTES)
    except ExpressionError as error:
        raise ToolFailure(f"{message}: {error}", code=code) from error


def bad_pattern(why: str) -> ToolFailure:
    """Return the error for both engines: what is wrong, and what is possible instead."""
    return ToolFailure(
        f"the pattern can't be searched for: {why}",
        code="bad_pattern",
        advice="; ".join(UNSUPPORTED),
    )
