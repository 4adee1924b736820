"""Values between `local_tools.repo.searching` and `rg`: the search, its hits, and the refusal of a
pattern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import Field

from bundle_router.core.values import Frozen
from bundle_router.errors import ToolFailure

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
"""Maximum bytes of a searched file. Larger ones are skipped."""


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


_UNSUPPORTED: Final = (
    "back-references and look-around are not supported; for plain text set literal=true",
    "simplify the pattern, or search for a literal part of it",
)


def bad_pattern(why: str) -> ToolFailure:
    """Return the error that says what is wrong with a pattern, and what is possible instead."""
    return ToolFailure(
        f"the pattern can't be searched for: {why}",
        code="bad_pattern",
        advice="; ".join(_UNSUPPORTED),
    )
