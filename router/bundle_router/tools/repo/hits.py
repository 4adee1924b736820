"""What a search is asked and what it finds: the values between `tools.repo.searching` and its two engines."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import Field

from bundle_router.core.models import Frozen, ToolContext
from bundle_router.tools.repo.confinement import Root

MAX_FILE_BYTES: Final = 10 * 1024 * 1024
"""Larger files are skipped by both engines."""


class Ripgrep(Frozen):
    """Arguments of `ripgrep`."""

    pattern: str = Field(
        min_length=1,
        max_length=131_000,
        description="Regular expression, matched line by line (no look-around, no back-references).",
    )
    path: str = Field(default=".", max_length=4096, description="File or folder to search, relative to the workspace.")
    glob: str | None = Field(
        default=None,
        min_length=1,
        max_length=1000,
        description="Only files matching this, e.g. '*.py' or 'src/**'; '!*.md' leaves out.",
    )
    ignore_case: bool = Field(default=False, description="Ignore upper and lower case.")
    literal: bool = Field(default=False, description="Treat the pattern as plain text.")
    context: int = Field(default=0, ge=0, le=20, description="Lines to show before and after each match.")
    max_matches: int = Field(default=100, ge=1, le=2000, description="Most matching lines to return.")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file, without its end. `at` is the byte offset of the first match in it; None for context."""

    number: int
    text: bytes
    at: int | None


@dataclass(frozen=True, slots=True)
class FileHits:
    """The matching lines of one file with their context, in order. At most `max_matches + 1` of them match."""

    path: str
    lines: tuple[Line, ...]


class TextSearch(Protocol):
    """Finds lines. Yields files in path order; closing the generator ends the search."""

    def __call__(self, query: Ripgrep, root: Root, context: ToolContext) -> Generator[FileHits, None, None]: ...
