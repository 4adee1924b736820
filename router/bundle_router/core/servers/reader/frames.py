"""Splits a byte stream into frames, each bounded before it is parsed.

A frame never depends on how its bytes arrived.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, Protocol

_RETRY: Final = re.compile(rb"[0-9]{1,9}")
MIN_RETRY_MS: Final = 100
"""Minimum time after which a stream that a server ended is opened again, as it has no maximum of
times.
"""
_MARK: Final = b"\xef\xbb\xbf"

Frame = tuple[bytes, bytes | bytearray]
"""The kind of a frame (`message`, or the name of an SSE event), and its content."""
MESSAGE: Final = b"message"


class FrameTooLarge(ValueError):
    """A frame exceeds its bound."""


class Framing(Protocol):
    """How messages are framed on a transport."""

    frames: deque[Frame]
    """The complete frames that nobody has taken yet."""
    ends_with_answer: bool
    """Whether nothing follows one frame, so that one that is no message was the answer."""

    def receive(self, piece: bytes) -> None:
        """Take the next bytes. Raises FrameTooLarge."""

    def end(self) -> None:
        """Note that there are no more bytes."""


class LineFrames:
    """One frame a line (stdio). Blank lines are none. Copies no long line."""

    ends_with_answer = False

    def __init__(self, max_bytes: int) -> None:
        self.frames: deque[Frame] = deque()
        self._max_bytes = max_bytes
        self._line = bytearray()

    def receive(self, piece: bytes) -> None:
        *complete, rest = piece.split(b"\n")
        for part in complete:
            self._keep(part)
            line = self._line
            self._line = bytearray()
            if line.startswith(b"\r") or line.endswith(b"\r"):
                line = line.strip(b"\r")
            if line:
                self.frames.append((MESSAGE, line))
        self._keep(rest)

    def end(self) -> None:
        if self._line:
            self.frames.append((MESSAGE, self._line))
            self._line = bytearray()

    @property
    def held(self) -> int:
        """Bytes of the line that is not complete yet."""
        return len(self._line)

    def _keep(self, part: bytes) -> None:
        self._line += part
        if len(self._line) > self._max_bytes:
            self._line = bytearray()
            raise FrameTooLarge(f"a line of more than {self._max_bytes:,} bytes")


class BodyFrame:
    """One frame for the whole body (JSON over HTTP)."""

    ends_with_answer = True

    def __init__(self, max_bytes: int) -> None:
        self.frames: deque[Frame] = deque()
        self._max_bytes = max_bytes
        self._body = bytearray()

    def receive(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > self._max_bytes:
            self._body = bytearray()
            raise FrameTooLarge(f"an answer of more than {self._max_bytes:,} bytes")

    def end(self) -> None:
        if self._body.strip():
            self.frames.append((MESSAGE, self._body))
        self._body = bytearray()


class EventFrames:
    """One frame an event (SSE). Comments and events without data are none. Copies no long line.

    Lines end in LF, CR LF or CR; the stream may begin with a byte order mark.
    """

    ends_with_answer = False

    def __init__(self, max_bytes: int) -> None:
        self.frames: deque[Frame] = deque()
        self.last_id = ""
        """The id of the last event that had one, from which the stream can be resumed."""
        self.retry_ms: int | None = None
        """The time after which the server wants the stream to be opened again."""
        self._max_bytes = max_bytes
        self._held = 0
        self._line = bytearray()
        self._kind = MESSAGE
        self._data: bytearray | None = None
        self._after_cr = False
        self._start: bytes | None = b""

    def receive(self, piece: bytes) -> None:
        piece = self._without_mark(piece)
        self._held += len(piece)
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if piece.endswith(b"\r"):
            self._after_cr = True
        if b"\r" in piece:  # a regular expression would block the loop ten times as long
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        while b"\n\n\n" in piece:  # nothing but blank lines would be 65,000 of them
            piece = piece.replace(b"\n\n\n", b"\n\n")
        rest, *starts = piece.split(b"\n")
        self._line += rest
        if starts:
            self._take_line(self._line)
            for line in starts[:-1]:
                self._take_line(line)
            self._line = bytearray(starts[-1])
        if self._held > self._max_bytes:
            self._check_held()

    def end(self) -> None:
        """Drop an event that is not complete, as the specification says."""
        self._line = bytearray()
        self._data = None

    def _check_held(self) -> None:
        self._held = len(self._line) + len(self._data or b"")
        if self._held > self._max_bytes:
            self.end()
            raise FrameTooLarge(f"an event of more than {self._max_bytes:,} bytes")

    def _without_mark(self, piece: bytes) -> bytes:
        """Return the bytes without the byte order mark that the stream may begin with."""
        if self._start is None:
            return piece
        start = self._start + piece
        if len(start) < len(_MARK) and _MARK.startswith(start):
            self._start = start
            return b""
        self._start = None
        return start.removeprefix(_MARK)

    def _take_line(self, line: bytes | bytearray) -> None:
        if not line:
            self._end_event()
        elif line.startswith(b"data"):
            self._take_data(line)
        elif line.startswith(b"event:"):
            self._kind = bytes(line[6:]).strip() or MESSAGE
        elif line.startswith(b"id:") and b"\0" not in line:
            self.last_id = bytes(line[3:]).strip().decode("utf-8", "replace")
        elif line.startswith(b"retry:") and _RETRY.fullmatch(line[6:].strip()):
            self.retry_ms = max(int(line[6:]), MIN_RETRY_MS)

    def _take_data(self, line: bytes | bytearray) -> None:
        if line.startswith(b"data: "):
            start = 6
        elif line.startswith(b"data:"):
            start = 5
        elif line == b"data":
            start = 4
        else:
            return  # a field of another name
        if self._data is not None:
            self._data += b"\n"
            self._data += memoryview(line)[start:]
        elif isinstance(line, bytearray):
            del line[:start]
            self._data = line
        else:
            self._data = bytearray(line[start:])

    def _end_event(self) -> None:
        if self._data:
            self.frames.append((self._kind, self._data))
        self._data = None
        self._kind = MESSAGE
