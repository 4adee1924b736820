"""Finds the headings and sections of a text, and cuts the requested piece from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.errors import ToolFailure

_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_FENCE: Final = re.compile(r"[ \t>]*(`{3,}|~{3,})")
_MARKUP: Final = re.compile(r"\[([^\[\]]*)\]\([^()]*\)|[`*\\]")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a Markdown text: level 1 to 6, its words without markup, the offset where its
    line starts.
    """

    level: int
    title: str
    start: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `start` to `end` of `total`."""

    text: str
    start: int
    end: int
    total: int


def find_headings(markdown: str) -> list[Heading]:
    """Return the ATX headings of a Markdown text, in order, without those in fenced code."""
    headings = []
    offset = 0
    fence = ""
    for line in markdown.split("\n"):
        if match := _FENCE.match(line):
            run = match.group(1)
            if not fence:
                fence = run
            elif run.startswith(fence) and not line[match.end() :].strip():
                fence = ""
        elif not fence and (match := _HEADING.match(line)):
            title = _MARKUP.sub(r"\1", match.group(2)).strip(" #")
            headings.append(Heading(len(match.group(1)), title, offset))
        offset += len(line) + 1
    return headings


def find_section(headings: Sequence[Heading], wanted: str, total: int) -> tuple[int, int]:
    """Return start and end of the section `wanted`: by its full title, else the start of one, else
    part of one.

    Raises ToolFailure `no_section`, which names the existing sections.
    """
    words = _plain(wanted)
    tests = (
        lambda title: title == words,
        lambda title: title.startswith(words),
        lambda title: words in title,
    )
    for test in tests:
        for index, heading in enumerate(headings):
            if words and test(_plain(heading.title)):
                later = (
                    heading_after.start
                    for heading_after in headings[index + 1 :]
                    if heading_after.level <= heading.level
                )
                return heading.start, next(later, total)
    if headings:
        advice = f"its sections: {outline(headings)}"
    else:
        advice = "it has no headings; page on by offset"
    raise ToolFailure(f"the page has no section {wanted!r}", code="no_section", advice=advice)


def section_at(headings: Sequence[Heading], offset: int, total: int) -> tuple[int, int]:
    """Return start and end of the part at an anchor: its heading's section if it is in or before
    one, else the rest.
    """
    for index, heading in enumerate(headings):
        if heading.start <= offset <= heading.start + heading.level + 1:
            later = (
                heading_after.start
                for heading_after in headings[index + 1 :]
                if heading_after.level <= heading.level
            )
            return heading.start, next(later, total)
    return offset, total


def outline(headings: Sequence[Heading], *, most: int = 40, max_title: int = 80) -> str:
    """Return the headings in one line, at most `most` of them."""
    titles = " | ".join(heading.title[:max_title] for heading in headings[:most] if heading.title)
    if len(headings) > most:
        return f"{titles} | and {len(headings) - most} more"
    return titles


def cut_piece(text: str, offset: int, *, max_chars: int, max_bytes: int) -> Piece:
    """Return the piece from `offset` on: at most `max_chars` characters and `max_bytes` bytes of
    UTF-8, to a line's end if one is near. Raises ToolFailure `bad_offset` if there is nothing at
    `offset`.
    """
    if offset and offset >= len(text):
        raise ToolFailure(
            f"offset {offset} is past the end: there are {len(text)} characters", code="bad_offset"
        )
    part = text[offset : offset + max_chars].encode()[: max(max_bytes, 0)].decode(errors="ignore")
    if offset + len(part) < len(text):
        line_end = part.rfind("\n") + 1
        if line_end > len(part) * 4 // 5:
            part = part[:line_end]
    return Piece(part, offset, offset + len(part), len(text))


def _plain(title: str) -> str:
    return " ".join(title.casefold().split())
