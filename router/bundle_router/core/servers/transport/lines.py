"""Splits a byte stream into lines or events, which are bounded before any other work: in length,
and JSON in depth.

A line over the maximum ends the stream, because nobody knows which call it answered.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LEVELS: Final = 150
"""Maximum depth of JSON.

The SDK's parser reads 200 levels, and no schema of that depth is admitted.
"""
_CUT: Final = b'"(left out: nested deeper than 150 levels)"'
_FIELDS: Final = (b"event:", b"id:")
_RETRY: Final = re.compile(rb"retry: ?([0-9]{1,9})")
MIN_RETRY_MS: Final = 100
"""Minimum time after which a stream that a server ended is opened again, as it has no maximum of
times.
"""
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def cut_deep(text: bytes) -> bytes:
    """Return JSON with a sentence in place of each value nested deeper than `MAX_LEVELS`."""
    if text.count(b"[") + text.count(b"{") <= MAX_LEVELS:
        return text
    kept: list[bytes] = []
    depth = end = 0
    for found in _MARKS.finditer(text):
        mark = text[found.start()]
        if mark in b"[{":
            depth += 1
            if depth == MAX_LEVELS + 1:
                kept += [text[end : found.start()], _CUT]
        elif mark in b"]}":
            end = found.end() if depth == MAX_LEVELS + 1 else end
            depth -= 1
    return b"".join((*kept, text[end:])) if kept else text


class LineTooLong(ValueError):
    """The stream has a line over the maximum."""


class LineBuffer:
    """Splits chunks at newlines, and copies no long line.

    Holds at most `cap` bytes and one chunk.
    """

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.held = bytearray()

    def feed(self, chunk: bytes) -> list[bytearray]:
        """Return the complete lines without their ends; blank ones are skipped.

        Raises LineTooLong.
        """
        *complete, rest = chunk.split(b"\n")
        lines = []
        for piece in complete:
            self._keep(piece)
            line = self.held
            self.held = bytearray()
            if line.startswith(b"\r") or line.endswith(b"\r"):
                line = line.strip(b"\r")
            if line:
                lines.append(line)
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self.held += piece
        if len(self.held) > self._cap:
            self.held = bytearray()
            raise LineTooLong(f"a line of more than {self._cap:,} bytes")


class EventBuffer:
    """Splits an event stream into events, and copies no long line.

    `held`: about the bytes of the incomplete event.
    """

    def __init__(self) -> None:
        self.held = 0
        self._line = bytearray()
        self._data: bytearray | None = None
        self._fields: list[bytes | bytearray] = []
        self._after_cr = False

    def feed(self, piece: bytes) -> list[tuple[bytearray, list[bytes | bytearray]]]:
        """Return the complete events: their data, and the lines of other fields.

        Lines end in LF, CR LF or CR.
        """
        self.held += len(piece)
        if self._after_cr:
            piece = piece.removeprefix(b"\n")
        self._after_cr = piece.endswith(b"\r")
        if b"\r" in piece:  # a regular expression would block the loop ten times as long
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        while b"\n\n\n" in piece:  # nothing but blank lines would be 65,000 of them
            piece = piece.replace(b"\n\n\n", b"\n\n")
        rest, *starts = piece.split(b"\n")
        self._line += rest
        if not starts:
            return []
        events = []
        lines: list[bytes | bytearray] = [self._line, *starts[:-1]]
        for line in lines:
            if line.startswith(b"data:"):
                self._add_data(line)
            elif line.startswith(_FIELDS):
                self._fields.append(line)
            elif line.startswith(b"retry:") and (found := _RETRY.fullmatch(line)):
                self._fields.append(b"retry: %d" % max(int(found[1]), MIN_RETRY_MS))
            elif not line:
                if self._data is not None or self._fields:
                    events.append((self._data or bytearray(), self._fields))
                    self._data = None
                    self._fields = []
                self.held = len(piece)
        self._line = bytearray(starts[-1])
        return events

    def _add_data(self, line: bytes | bytearray) -> None:
        start = 6 if line.startswith(b"data: ") else 5
        if self._data is not None:
            self._data += b"\n"
            self._data += memoryview(line)[start:]
        elif isinstance(line, bytearray):
            del line[:start]
            self._data = line
        else:
            self._data = bytearray(line[start:])
