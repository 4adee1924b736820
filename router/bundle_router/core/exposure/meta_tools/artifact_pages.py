"""Reads artifacts in pages, and searches them by line.

Non-text is described, never decoded into the context.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from bundle_router.core.exposure.meta_tools.coercion import ReadArtifact, SearchArtifact
from bundle_router.core.values.artifacts import MediaFacts
from bundle_router.core.values.words import shorten

MAX_HITS: Final = 50
MAX_LINE: Final = 400
"""Maximum characters of a line that are shown around a match."""
MAX_SEARCHED: Final = 16 * 1024 * 1024
MAX_QUERIED: Final = 16 * 1024 * 1024

Finder = Callable[[str], tuple[int, int] | None]
"""Finds the first match in a line. Must be linear in the line's length."""


def text_of(data: bytes, facts: MediaFacts) -> str | None:
    """Return the bytes as text; None if they are no text."""
    if b"\0" in data[:8192] and not facts.mime_type.startswith("text/"):
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        if not facts.mime_type.startswith("text/"):
            return None
        return data.decode("utf-8", "replace")


def describe_media(uri: str, data: bytes, facts: MediaFacts) -> str:
    """Return a description of bytes that no page can show."""
    size = f" {facts.width}x{facts.height}" if facts.width and facts.height else ""
    return (
        f"[{uri} is {facts.mime_type}{size}, {len(data):,} bytes: not text, so there is nothing to"
        " page or search]"
    )


def read_page(page: ReadArtifact, text: str, data: bytes, cap: int) -> str:
    """Return one page of at most `cap` characters, and where the next one begins."""
    if page.unit == "lines":
        return _line_page(page, text, cap)
    if page.unit == "bytes":
        start, end = _span(page, len(data))
        shown = data[start:end].decode("utf-8", "replace")[:cap]
        end = min(end, start + len(shown.encode("utf-8", "replace"))) if len(shown) == cap else end
        return _frame_page(shown, start, end, len(data), "bytes")
    start, end = _span(page, len(text))
    end = min(end, start + cap)
    return _frame_page(text[start:end], start, end, len(text), "chars")


def _span(page: ReadArtifact, total: int) -> tuple[int, int]:
    start = page.offset if page.offset >= 0 else max(0, total + page.offset)
    start = min(start, total)
    return start, min(total, start + page.limit)


def _line_page(page: ReadArtifact, text: str, cap: int) -> str:
    lines = text.splitlines(keepends=True)
    start, end = _span(page, len(lines))
    lines_kept: list[str] = []
    room = cap
    for line in lines[start:end]:
        if len(line) > room and lines_kept:
            break
        lines_kept.append(
            line if len(line) <= room else line[:room] + "…[the rest of this line: unit chars]\n"
        )
        room -= len(line)
        if room <= 0:
            break
    return _frame_page("".join(lines_kept), start, start + len(lines_kept), len(lines), "lines")


def _frame_page(shown: str, start: int, end: int, total: int, unit: str) -> str:
    if start >= total:
        return f"[nothing there: it has {total:,} {unit}]"
    next_text = f"; next: offset={end}" if end < total else "; the end"
    gap = "" if shown.endswith("\n") else "\n"
    return f"{shown}{gap}[{unit} {start:,} to {end:,} of {total:,}{next_text}]"


def queried(find: Callable[[Any], Any], text: str, cap: int) -> str:
    """Return a query's result on an artifact's JSON, as JSON of at most `cap` characters.

    Raises ValueError if the text is no JSON, and as `find` does.
    """
    if len(text) > MAX_QUERIED:
        raise ValueError(f"the artifact has more than {MAX_QUERIED:,} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("the artifact is not JSON") from None
    result = find(value)
    if result is None:
        return "Nothing found (null)."
    pieces: list[str] = []
    room = cap
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(
        result
    ):  # cut while encoding: it may be huge
        pieces.append(piece[:room])
        room -= len(piece)
        if room < 0:
            return f"{''.join(pieces)}\n(cut: it has more than {cap:,} characters; ask for less)"
    return "".join(pieces)


def search_lines(wanted: SearchArtifact, text: str, find: Finder, cap: int) -> str:
    """Return the lines that match, numbered as in `read_artifact`, at most `cap` characters."""
    lines = text[:MAX_SEARCHED].splitlines()
    hits = 0
    excerpts: dict[int, str] = {}
    room = cap
    for number, line in enumerate(lines):
        span = find(line)
        if span is None:
            continue
        hits += 1
        if hits > MAX_HITS or room <= 0:
            continue
        for near in range(
            max(0, number - wanted.context), min(len(lines), number + wanted.context + 1)
        ):
            mark = ":" if near == number else "-"
            if near not in excerpts or mark == ":":
                body = _text_around(lines[near], span if near == number else (0, 0))
                room -= len(body) + 8 if near not in excerpts else 0
                excerpts[near] = f"{near}{mark} {body}"
    if not hits:
        return f"[{shorten(wanted.pattern, 100)!r} is nowhere in its {len(lines):,} lines]"
    body = _join_lines(excerpts)
    if hits <= MAX_HITS and room > 0:
        limit_text = ""
    else:
        limit_text = ", the first shown: use a narrower pattern to see others"
    if len(text) > MAX_SEARCHED:
        cut = f"; only the first {MAX_SEARCHED:,} characters were searched"
    else:
        cut = ""
    return f"{body}\n[{hits:,} of {len(lines):,} lines{limit_text}{cut}; line numbers count from 0]"


def _join_lines(shown: dict[int, str]) -> str:
    rows: list[str] = []
    last = None
    for number in sorted(shown):
        if last is not None and number != last + 1:
            rows.append("--")
        rows.append(shown[number])
        last = number
    return "\n".join(rows)


def _text_around(line: str, span: tuple[int, int]) -> str:
    if len(line) <= MAX_LINE:
        return line
    start = max(0, min(span[0] - MAX_LINE // 4, len(line) - MAX_LINE))
    end = start + MAX_LINE
    prefix = "…" if start else ""
    suffix = "…" if end < len(line) else ""
    return f"{prefix}{line[start:end]}{suffix}"


def literal(pattern: str) -> Finder:
    """Return a finder for the literal pattern. Without capitals in it, case is ignored."""
    fold = pattern == pattern.lower()

    def find(line: str) -> tuple[int, int] | None:
        index = (line.lower() if fold else line).find(pattern)
        return None if index < 0 else (index, index + len(pattern))

    return find
