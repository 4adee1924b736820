"""Reads what a tool server sends: bytes in, events out, for every transport and both eras.

In the manner of h11: this package has no I/O and no clock, and the transports know nothing of
messages.

    reader = ServerReader(EventFrames(max_bytes))
    reader.receive_data(piece)
    while reader.next_size:
        event = reader.next_event()

Rules:
1. A frame is a line (stdio), a whole body (JSON over HTTP) or an event (SSE). It is bounded before
   any of it is parsed; one over the bound ends the stream, because nobody knows which call it
   answered.
2. A frame that holds no message is `Noise` and costs nothing, as servers log to their output and
   send keep-alives. One that was meant as an answer is a `GarbledAnswer`, so that its call ends at
   once.
3. JSON is read as its writer meant it: a byte order mark, UTF-16, broken UTF-8, half pairs of
   surrogates, NaN, an id as text, an error without a code. What it means is never guessed: an
   answer without a result, with two, or to nobody's request is no answer.
4. Values nested deeper than `MAX_LEVELS` are replaced by a sentence.
5. Several messages in one frame (a batch) are several events.
6. A message is bounded before it is parsed, at twice the bytes of one; of those between, only a
   result that says the same twice, as text and as structured output, is one.
"""

from __future__ import annotations

from bundle_router.core.servers.reader.events import (
    Answer,
    EndpointAddress,
    Event,
    GarbledAnswer,
    Noise,
    Notification,
    OversizedAnswer,
    RequestId,
    RpcRefusal,
    RpcResult,
    ServerRequest,
)
from bundle_router.core.servers.reader.frames import (
    BodyFrame,
    EventFrames,
    FrameTooLarge,
    Framing,
    LineFrames,
)
from bundle_router.core.servers.reader.json_values import LARGE, MAX_LEVELS
from bundle_router.core.servers.reader.reader import ServerReader

__all__ = [
    "LARGE",
    "MAX_LEVELS",
    "Answer",
    "BodyFrame",
    "EndpointAddress",
    "Event",
    "EventFrames",
    "FrameTooLarge",
    "Framing",
    "GarbledAnswer",
    "LineFrames",
    "Noise",
    "Notification",
    "OversizedAnswer",
    "RequestId",
    "RpcRefusal",
    "RpcResult",
    "ServerReader",
    "ServerRequest",
]
