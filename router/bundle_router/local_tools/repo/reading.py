"""`repo.read_file`: a range of lines of a text file, or a media file as an artifact.

Rules:
1. Memory never exceeds `max_bytes` (and one chunk), and the scan never exceeds `SCAN_BYTES`.
2. The first line of the result says which lines these are, of how many, and how to get the next
   ones.
3. Text that is not UTF-8 is shown too, and the result says so. A file with a media signature, or a
   NUL in its first 8 KiB, is binary and never shown as text.
"""

from __future__ import annotations

import codecs
import mimetypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from pydantic import Field, model_validator

from bundle_router.core.values import Frozen, Media, Text, ToolContext, ToolOutput
from bundle_router.errors import ToolFailure
from bundle_router.local_tools.repo.confinement import Root, read_up_to, workspace
from bundle_router.local_tools.repo.file_names import show_name, with_path_read
from bundle_router.local_tools.repo.refusals import count

DEFAULT_LINES: Final = 2000
"""Lines returned when no `end` is given."""
SCAN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a file in which lines are counted.

Beyond it the total is unknown, and the result says so.
"""
_CHUNK: Final = 256 * 1024
_HEAD: Final = 8192

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
)
"""Signatures of files that are binary even without a NUL in their first bytes."""
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class ReadFile(Frozen):
    """Arguments of `read_file`. Lines count from 1; `end` is included."""

    path: str = Field(
        description="File to read, relative to the workspace.", min_length=1, max_length=4096
    )
    start: int | None = Field(default=None, ge=1, description="First line to return (default 1).")
    end: int | None = Field(
        default=None,
        ge=1,
        description=f"Last line to return (default: {DEFAULT_LINES} lines from start).",
    )

    @model_validator(mode="after")
    def _in_order(self) -> ReadFile:
        if self.end is not None and self.end < (self.start or 1):
            raise ValueError("end must not be smaller than start")
        return self


def read_file(arguments: ReadFile, context: ToolContext) -> ToolOutput:
    """Run `repo.read_file`."""
    arguments = with_path_read(arguments)
    with _root_of(arguments.path, context) as root, root.open_for_reader(arguments.path) as file:
        size = os.fstat(file.fileno()).st_size
        name = show_name(root.relative(arguments.path))
        head = read_up_to(file, _HEAD)
        mime_type = _media_type(head, name)
        if mime_type:
            return _as_media(name, head, file, mime_type, context.max_bytes)
        return _as_text(name, _chunks(head, file, context.cancelled), size, arguments, context)


def _root_of(path: str, context: ToolContext) -> Root:
    """Return the workspace; for a file passed with the call, the folder made for it."""
    return Root(os.path.dirname(path)) if path in context.handed else workspace(context)  # noqa: PTH120 - as it came


def _media_type(head: bytes, name: str) -> str:
    """Return the MIME type of a file that is not text; empty for text. Only a hint for people."""
    signed = next((mime for magic, mime in _SIGNATURES if head.startswith(magic)), "")
    if not signed and (head.startswith(_UTF16) or b"\0" not in head):
        return ""
    # The built-in table: the machine's own /etc/mime.types would make results differ between
    # machines.
    return mimetypes.MimeTypes().guess_type(name)[0] or signed or "application/octet-stream"


def _as_media(name: str, head: bytes, file: BinaryIO, mime_type: str, max_bytes: int) -> ToolOutput:
    data = head + read_up_to(file, max(0, max_bytes + 1 - len(head)))
    if len(data) > max_bytes:
        raise ToolFailure(
            f"{name!r} is binary ({mime_type}) and has more than the {max_bytes:,} bytes one result"
            " may hold",
            code="too_large",
            advice=(
                "binary files are only returned whole; raise limits.max_result_bytes to read"
                " this one"
            ),
        )
    words = (
        f"{name}: {mime_type}, {count(len(data), 'byte')}. It is not text, so it is returned as an"
        " artifact."
    )
    return ToolOutput((Text(words), Media(data, mime_type, name.rpartition("/")[2])))


# --- text -----------------------------------------------------------------------------------------


def _chunks(head: bytes, file: BinaryIO, cancelled: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the file as UTF-8 chunks (UTF-16 with a byte order mark is converted), up to SCAN_BYTES
    of it.
    """
    decoder = codecs.getincrementaldecoder("utf-16")("replace") if head.startswith(_UTF16) else None
    scanned = 0
    chunk = head.removeprefix(codecs.BOM_UTF8)
    while chunk:
        scanned += len(chunk)
        yield decoder.decode(chunk).encode("utf-8", "replace") if decoder else chunk
        if cancelled():
            raise ToolFailure("the call was cancelled", code="cancelled")
        chunk = file.read(min(_CHUNK, SCAN_BYTES - scanned))


@dataclass(slots=True)
class _Window:
    """Collects lines `first`..`last` of a stream of chunks, up to `max_bytes`, and counts all
    lines.
    """

    first: int
    last: int
    max_bytes: int
    parts: list[bytes] = field(default_factory=list)
    kept: int = 0
    full: bool = False
    breaks: int = 0
    """Line ends so far; the current line is number `breaks + 1`."""
    open_line: bool = False

    def feed(self, chunk: bytes) -> None:
        ends = chunk.count(b"\n")
        start = _after_line_ends(chunk, self.first - 1 - self.breaks)
        stop = len(chunk)
        if self.breaks + ends >= self.last:
            stop = _after_line_ends(chunk, self.last - self.breaks)
        self._keep(chunk[start:stop])
        self.breaks += ends
        self.open_line = not chunk.endswith(b"\n")

    def _keep(self, piece: bytes) -> None:
        room = self.max_bytes - self.kept
        if len(piece) > room:
            self.full = True
            piece = piece[:room]
        if piece:
            self.parts.append(piece)
            self.kept += len(piece)

    @property
    def lines(self) -> int:
        return self.breaks + self.open_line


def _after_line_ends(chunk: bytes, ends: int) -> int:
    """Return the offset after the `ends`-th line end of the chunk; its length if there are fewer, 0
    below 1.
    """
    position = 0
    for _ in range(ends):
        line_end = chunk.find(b"\n", position)
        if line_end < 0:
            return len(chunk)
        position = line_end + 1
    return position


def _as_text(
    name: str, chunks: Iterator[bytes], size: int, arguments: ReadFile, context: ToolContext
) -> ToolOutput:
    first = arguments.start or 1
    window = _Window(first, arguments.end or first + DEFAULT_LINES - 1, context.max_bytes)
    for chunk in chunks:
        window.feed(chunk)
    if size <= SCAN_BYTES:
        total = count(window.lines, "line")
    else:
        total = f"more than {window.lines:,} lines"
    body = b"".join(window.parts)
    if not body and first > window.lines and (first > 1 or size > SCAN_BYTES):
        raise ToolFailure(
            f"{name!r} has {total}; line {first:,} is beyond that",
            code="out_of_range",
            advice=f"use a start between 1 and {max(1, window.lines):,}",
        )
    text, notes = _decode_body(body, window.full)
    head = _heading(name, first, body, total, size, window)
    return ToolOutput((Text("\n".join([head, *notes])), *((Text(text),) if text else ())))


def _heading(name: str, first: int, body: bytes, total: str, size: int, window: _Window) -> str:
    if not body:
        return f"{name}: empty file."
    last = first + body.count(b"\n") - (1 if body.endswith(b"\n") else 0)
    head = (
        f"{name}: lines {first:,}-{last:,} of {total.removesuffix(' lines').removesuffix(' line')}"
        f" ({size:,} bytes)."
    )
    ends_in_newline = body.endswith(b"\n")
    if window.full:
        inside = "" if ends_in_newline else f" inside line {last:,}"
        return (
            f"{head} Cut at {window.max_bytes:,} bytes{inside}. For more:"
            f" start={last + ends_in_newline}."
        )
    if last < window.lines or size > SCAN_BYTES:
        head += f" For more: start={last + 1}."
    return head


def _decode_body(body: bytes, was_cut: bool) -> tuple[str, list[str]]:
    """Return the text, and notes about its encoding.

    A character that was cut in half at the end is dropped.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        return decoder.decode(body, final=not was_cut), []
    except UnicodeDecodeError as error:
        text = body.decode("utf-8", "replace")
        note = (
            f"Not valid UTF-8 (first bad byte 0x{body[error.start]:02x} at byte {error.start:,} of"
            " this part); undecodable bytes are shown as \N{REPLACEMENT CHARACTER}."
        )
        return text, [note]
