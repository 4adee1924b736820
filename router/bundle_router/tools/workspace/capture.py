"""A stream's beginning and end in bounded memory, and text that is safe to show."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""C0 and C1 controls but tab and newline, line separators, and what turns the direction of text or hides in it."""


def printable(data: bytes) -> str:
    """The bytes as UTF-8 text, with everything a terminal or a reader could be misled by written as `\\xNN`."""
    text = data.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return _UNSAFE.sub(
        lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", text
    )


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """What is shown of a stream of `total` bytes: `text`, in which `dropped` bytes are named and left out."""

    text: str
    total: int
    dropped: int


class Capture:
    """Keeps the first and the last `limit / 2` bytes it is fed and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:  # trimmed seldom, so that feeding stays linear
            del self._tail[: -self._half]

    def kept(self) -> KeptOutput:
        """The text, of at most `limit` bytes and the line that names what is missing."""
        head, tail = bytes(self._head), bytes(self._tail[-self._half :])
        if len(head) + len(tail) == self.total and _size(head + tail) <= 2 * self._half:
            return KeptOutput(printable(head + tail), self.total, 0)
        while head and _size(head) > self._half:  # escapes made it longer than the bytes were
            head = head[: len(head) * self._half // (_size(head) + 1)]
        while tail and _size(tail) > self._half:
            tail = tail[-(len(tail) * self._half // (_size(tail) + 1)) or len(tail) :]
        dropped = self.total - len(head) - len(tail)
        middle = f"\n[… {dropped:,} bytes left out …]\n" if dropped else ""
        return KeptOutput(printable(head) + middle + printable(tail), self.total, dropped)


def _size(data: bytes) -> int:
    return len(printable(data).encode("utf-8"))
