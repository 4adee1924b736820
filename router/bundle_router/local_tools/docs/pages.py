"""Decodes bytes to clean text, and cuts the requested piece from a text."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bundle_router.errors import ToolFailure

_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 and C1, but newline and tab
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of writing direction
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # byte order marks, annotations, lone surrogates
    "\U000e0000-\U000e007f]"  # tag characters
)
_META_CHARSET: Final = re.compile(
    rb"""<meta[^<>]{0,200}?charset\s{0,9}=\s{0,9}["']?([A-Za-z0-9_.:-]{1,40})""", re.I
)
_CHARSETS: Final = re.compile(
    r"utf-?8(-sig)?|utf-?16(-?[lb]e)?|(us-)?ascii|iso-?8859-?\d{1,2}|latin-?1|windows-?125\d|cp125\d|koi8-[ru]"
    r"|shift[_-]jis|euc-(jp|kr)|iso-2022-jp|gb2312|gbk|gb18030|big5|macintosh"
)
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


def decode_text(body: bytes, charset: str) -> str:
    """Return the text of a body.

    `charset` is from the header; a byte order mark overrides it, `<meta>` replaces it.

    Never raises: an unknown or unsuitable charset is read as UTF-8, and undecodable bytes become
    U+FFFD.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if body.startswith(mark):
            return clean_text(body.decode(name, "replace"))
    if not charset and (match := _META_CHARSET.search(body[:2048])):
        charset = match.group(1).decode("ascii").lower()
    # A list, because Python's codecs are more than charsets: zlib, idna, unicode_escape.
    name = charset if _CHARSETS.fullmatch(charset) else "utf-8"
    try:
        return clean_text(body.decode(name, "replace"))
    except LookupError:  # iso-8859-99
        return clean_text(body.decode("utf-8", "replace"))


def clean_text(text: str) -> str:
    """Return the text without controls (but newline and tab), direction overrides and tags, and
    with `\\n` line ends.
    """
    text = (
        text.replace("\r\n", "\n")
        .replace("\r", "\n")
        .replace("\u2028", "\n")
        .replace("\u2029", "\n")
    )
    return _CONTROLS.sub("", text)


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
