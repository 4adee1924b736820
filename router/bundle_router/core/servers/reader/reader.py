"""The reader of one stream of a server."""

from __future__ import annotations

from collections import deque

from bundle_router.core.servers.reader.events import EndpointAddress, Event, Noise
from bundle_router.core.servers.reader.frames import MESSAGE, Framing
from bundle_router.core.servers.reader.messages import read_frame

_ENDPOINT = b"endpoint"


class ServerReader:
    """Turns a server's bytes into events.

    `receive_data` and `receive_end` only frame; `next_event` parses, so a large frame
    (`next_size`) can be parsed in another thread. Not for two threads at once.

    With `max_bytes`, only a result that says the same twice, as text and as structured output, may
    have more.
    """

    def __init__(self, framing: Framing, max_bytes: int | None = None) -> None:
        self.framing = framing
        self._max_bytes = max_bytes
        self.noise = 0
        """Number of frames that were no message."""
        self._events: deque[Event] = deque()

    def receive_data(self, piece: bytes) -> None:
        """Take the next bytes. Raises FrameTooLarge: the stream can't be read any further."""
        self.framing.receive(piece)

    def receive_end(self) -> None:
        """Note that the stream has ended. Its last frame may be complete by that."""
        self.framing.end()

    @property
    def next_size(self) -> int:
        """Bytes that `next_event` will parse: 0 if it needs more data, 1 for an event at hand."""
        if self._events:
            return 1
        frames = self.framing.frames
        return max(len(frames[0][1]), 1) if frames else 0

    def next_event(self) -> Event:
        """Return the next event. Call it while `next_size` is not 0; it never raises then."""
        if not self._events:
            kind, content = self.framing.frames.popleft()
            self._events.extend(self._read(kind, content))
        event = self._events.popleft()
        if isinstance(event, Noise):
            self.noise += 1
        return event

    def _read(self, kind: bytes, content: bytes | bytearray) -> list[Event]:
        if kind == MESSAGE:
            is_answer = self.framing.ends_with_answer
            return read_frame(content, is_answer=is_answer, max_bytes=self._max_bytes)
        if kind == _ENDPOINT:
            return [EndpointAddress(content.decode("utf-8", "replace"))]
        return [Noise(kind)]
