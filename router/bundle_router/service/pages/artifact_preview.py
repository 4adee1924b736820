"""What the page of an artifact shows of its bytes.

Rules:
1. The type is that of the content, whatever a server claimed. Pictures, sounds and videos that a
   browser may show are embedded from their own address; all else is told as text by the server.
2. Nothing of an artifact is markup of the page: every text is escaped by the templates.
3. A page is bounded: so many lines, rows of bytes, or values of JSON. Lines and bytes have further
   pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

MAX_LINES: Final = 1000
MAX_LINE: Final = 2000
"""Maximum characters of one line."""
MAX_MATCHES: Final = 100
"""Maximum matched lines that are listed."""
MAX_NODES: Final = 2000
MAX_DEPTH: Final = 30
MAX_JSON_BYTES: Final = 2_000_000
"""Larger JSON is shown as text."""
HEX_ROWS: Final = 256
ROW_BYTES: Final = 16
ZOOMS: Final = ("fit", "100", "200", "400")

Form = Literal["picture", "audio", "video", "json", "text", "hex"]
_TEXTS: Final = ("text/", "application/json", "application/xml", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class JsonNode:
    """One value of JSON, with its name in the object or list that holds it."""

    name: str
    text: str
    """The value of what has no parts; of an object or list, how many it has."""
    parts: tuple[JsonNode, ...] = ()
    omitted: int = 0
    """Parts that are not shown, for want of room."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of a text, numbered from 1."""

    number: int
    text: str
    is_match: bool = False


@dataclass(frozen=True, slots=True)
class TextPage:
    """Consecutive lines of a text, and the lines that hold the words that were looked for."""

    lines: tuple[TextLine, ...]
    total: int
    words: str
    matches: tuple[int, ...]
    """Numbers of matched lines, at most `MAX_MATCHES`."""
    match_count: int
    previous: int | None
    """The first line of the page before; None on the first page."""
    next: int | None


@dataclass(frozen=True, slots=True)
class HexRow:
    """`ROW_BYTES` bytes: where they begin, their digits, and their ASCII with dots for the rest."""

    offset: str
    digits: str
    ascii: str


@dataclass(frozen=True, slots=True)
class HexPage:
    """Consecutive rows of bytes."""

    rows: tuple[HexRow, ...]
    previous: int | None
    next: int | None


@dataclass(frozen=True, slots=True)
class ArtifactPreview:
    """How an artifact is shown: its form, the other forms it has, and the values of the form."""

    form: Form
    forms: tuple[Form, ...]
    zoom: str = "fit"
    width: int | None = None
    """The width in pixels at which a picture is drawn; None to fit it to the page."""
    tree: JsonNode | None = None
    text: TextPage | None = None
    hex: HexPage | None = None


def forms_of(mime_type: str, size: int, *, is_inline: bool) -> tuple[Form, ...]:
    """Return the forms in which bytes of a type can be shown, the best first."""
    kind = mime_type.partition("/")[0]
    if is_inline and kind == "image":
        return ("picture", "hex")
    if is_inline and kind == "audio":
        return ("audio", "hex")
    if is_inline and kind == "video":
        return ("video", "hex")
    if mime_type == "application/json" and size <= MAX_JSON_BYTES:
        return ("json", "text", "hex")
    if mime_type.startswith(_TEXTS):
        return ("text", "hex")
    return ("hex",)


def preview(
    data: bytes,
    forms: tuple[Form, ...],
    asked: Mapping[str, str],
    pixels: int | None = None,
) -> ArtifactPreview:
    """Return how bytes are shown, by what was asked of the page.

    `asked` holds `as` (a form), `zoom`, `q` (words to find), `line` and `offset`; what does not fit
    is ignored. `pixels` is a picture's own width.
    """
    form = next((each for each in forms if each == asked.get("as")), forms[0])
    if form == "picture":
        return _picture(forms, asked.get("zoom", ""), pixels)
    if form == "json":
        tree = json_tree(data)
        if tree is not None:
            return ArtifactPreview("json", forms, tree=tree)
        form = "text"
    if form == "text":
        page = text_page(text_of(data), asked.get("q", ""), _number(asked.get("line", "")))
        return ArtifactPreview("text", forms, text=page)
    if form == "hex":
        return ArtifactPreview("hex", forms, hex=hex_page(data, _number(asked.get("offset", ""))))
    return ArtifactPreview(form, forms)


def _picture(forms: tuple[Form, ...], zoom: str, pixels: int | None) -> ArtifactPreview:
    if zoom not in ZOOMS or zoom == "fit" or pixels is None:
        return ArtifactPreview("picture", forms)
    return ArtifactPreview("picture", forms, zoom, pixels * int(zoom) // 100)


# --- text -----------------------------------------------------------------------------------------


def text_of(data: bytes) -> str:
    """Return the text of bytes; of JSON on one line, laid out over lines."""
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = data.decode(encoding, "replace")
    if len(data) > MAX_JSON_BYTES or text.strip()[:1] not in ("{", "[") or "\n" in text.strip():
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def text_page(text: str, words: str, first_line: int) -> TextPage:
    """Return a page of lines.

    With words and no line, it begins with the page of the first line that holds them, whatever
    their case.
    """
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    matches = _matching_lines(lines, words.strip().casefold())
    wanted = first_line
    if not wanted:
        wanted = matches[0] if matches else 1

    last = max(len(lines) - 1, 0)
    start = min(max(wanted - 1, 0), last) // MAX_LINES * MAX_LINES
    shown = lines[start : start + MAX_LINES]
    matched = frozenset(matches)
    rows = [
        TextLine(number, _shortened(line), number in matched)
        for number, line in enumerate(shown, start + 1)
    ]
    return TextPage(
        lines=tuple(rows),
        total=len(lines),
        words=words.strip(),
        matches=tuple(matches[:MAX_MATCHES]),
        match_count=len(matches),
        previous=start - MAX_LINES + 1 if start else None,
        next=start + MAX_LINES + 1 if start + MAX_LINES < len(lines) else None,
    )


def _matching_lines(lines: Sequence[str], sought: str) -> Sequence[int]:
    """Return the numbers of the lines that hold a text, from 1; none without a text."""
    if not sought:
        return ()
    return [number for number, line in enumerate(lines, 1) if sought in line.casefold()]


def _shortened(line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]} … ({len(line):,} characters)"


# --- JSON -----------------------------------------------------------------------------------------


def json_tree(data: bytes) -> JsonNode | None:
    """Return the values of JSON; None where it can't be read."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return _JsonDrawing().node("", value, 0)


class _JsonDrawing:
    """Draws one value of JSON, within the bounds of a page."""

    def __init__(self) -> None:
        self._room = MAX_NODES

    def node(self, name: str, value: Any, depth: int) -> JsonNode:
        if isinstance(value, dict):
            count = f"{len(value):,} field{'' if len(value) == 1 else 's'}"
            return self._holder(name, count, iter(value.items()), len(value), depth)
        if isinstance(value, list):
            count = f"{len(value):,} item{'' if len(value) == 1 else 's'}"
            items = ((str(index), item) for index, item in enumerate(value))
            return self._holder(name, count, items, len(value), depth)
        return JsonNode(name, _shortened(json.dumps(value, ensure_ascii=False)))

    def _holder(
        self, name: str, count: str, items: Iterator[tuple[str, Any]], total: int, depth: int
    ) -> JsonNode:
        parts: list[JsonNode] = []
        if depth < MAX_DEPTH:
            for key, value in items:
                if self._room <= 0:
                    break
                self._room -= 1
                parts.append(self.node(key, value, depth + 1))
        return JsonNode(name, count, tuple(parts), total - len(parts))


# --- bytes ----------------------------------------------------------------------------------------


def hex_page(data: bytes, offset: int) -> HexPage:
    """Return the page of rows that holds a byte."""
    size = HEX_ROWS * ROW_BYTES
    start = min(offset, max(len(data) - 1, 0)) // size * size
    rows = [
        _hex_row(at, data[at : at + ROW_BYTES])
        for at in range(start, min(start + size, len(data)), ROW_BYTES)
    ]
    previous = start - size if start else None
    return HexPage(tuple(rows), previous, start + size if start + size < len(data) else None)


def _hex_row(offset: int, row: bytes) -> HexRow:
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
    return HexRow(f"{offset:08x}", row.hex(" "), text)


def _number(text: str) -> int:
    """Return a typed number; 0 where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
