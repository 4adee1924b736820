"""The events that a server's bytes mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RequestId = int | str


@dataclass(frozen=True, slots=True)
class RpcResult:
    """The result of a request."""

    id: RequestId
    """The request's id; one that is a number as text, or with `.0`, as the number."""
    result: dict[str, Any]
    """The result, unchecked."""
    size: int
    """Bytes of the frame it came in."""


@dataclass(frozen=True, slots=True)
class RpcRefusal:
    """An error in place of a result."""

    id: RequestId | None
    """The request's id; None where the server could not tell."""
    code: int
    """The server's code; -32603 (internal error) where it gave none that is a number."""
    message: str
    """The server's own words, or a sentence in their place."""
    data: Any
    """What else the server said of it."""


@dataclass(frozen=True, slots=True)
class Notification:
    """A notification of the server."""

    method: str
    params: Mapping[str, Any]
    """Its params; empty for one without."""
    size: int
    """Bytes of the frame it came in."""


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request of the server, which wants an answer."""

    id: RequestId
    """The id, as the server wrote it."""
    method: str
    params: Mapping[str, Any]
    """Its params; empty for one without."""
    size: int
    """Bytes of the frame it came in."""


@dataclass(frozen=True, slots=True)
class GarbledAnswer:
    """What was meant as an answer, and is none."""

    id: RequestId | None
    """The request that it ends; None where nothing tells."""


@dataclass(frozen=True, slots=True)
class OversizedAnswer:
    """An answer of more bytes than one may have, also where what it says twice counts once."""

    id: RequestId | None
    """The request that it ends; None where the server could not tell."""
    size: int
    """Bytes of the frame it came in."""
    max_bytes: int
    """Bytes that an answer may have."""


@dataclass(frozen=True, slots=True)
class Noise:
    """A frame, or a part of one, that is no message and was not meant as an answer."""

    excerpt: bytes
    """Its first bytes."""


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """The address that requests are sent to (the first event of the deprecated SSE transport)."""

    address: str


Answer = RpcResult | RpcRefusal | GarbledAnswer | OversizedAnswer
"""What ends a request."""
Event = Answer | Notification | ServerRequest | Noise | EndpointAddress
