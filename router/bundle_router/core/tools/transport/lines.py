"""Lines out of a byte stream, bounded before anything looks at them: in length, and JSON in depth.

A line longer than the cap can't be answered for: nobody knows which call it belonged to. So it ends the stream.
"""

from __future__ import annotations

import re
from typing import Final

MAX_LEVELS: Final = 150
"""The SDK's parser reads 200, and nothing of that depth is a tool's schema that is admitted."""
_CUT: Final = b'"(left out: nested deeper than 150 levels)"'
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def cut_deep(text: bytes) -> bytes:
    """Return JSON with a sentence in the place of each value that is nested deeper than `MAX_LEVELS`."""
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
    """The stream holds a line over the cap. `seen` bytes of it were read."""

    def __init__(self, seen: int, cap: int) -> None:
        super().__init__(f"a line of more than {cap:,} bytes")
        self.seen = seen


class LineBuffer:
    """Splits what is fed at newlines. Linear in the bytes fed; holds at most `cap` bytes and one chunk."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: list[bytes] = []
        self._held = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the complete lines, without their ends; blank ones are left out. Raises LineTooLong."""
        *whole, rest = chunk.split(b"\n")
        lines = []
        for piece in whole:
            self._keep(piece)
            line = b"".join(self._parts).strip(b"\r")
            self._parts, self._held = [], 0
            if line:
                lines.append(line)
        self._keep(rest)
        return lines

    def _keep(self, piece: bytes) -> None:
        self._held += len(piece)
        if self._held > self._cap:
            seen, self._held, self._parts = self._held, 0, []
            raise LineTooLong(seen, self._cap)
        if piece:
            self._parts.append(piece)
