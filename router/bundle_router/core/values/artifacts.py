"""Bytes that are stored: what they are, and their record."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.values.words import shorten
from bundle_router.errors import RequestError, StorageError

_ALWAYS: Final = ("uri", "sha256", "mime_type", "bytes", "role")
SHA256: Final = re.compile(r"[0-9a-f]{64}")
_WHERE_KNOWN: Final = ("claimed_type", "name", "width", "height", "duration_s")


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """Facts from the bytes' own header."""

    mime_type: str
    """The type that the bytes have, whatever they were called."""
    width: int | None = None
    """Pixels; None where the header has none."""
    height: int | None = None
    """Pixels; None where the header has none."""
    duration_s: float | None = None
    """Seconds of sound or film; None where the header has none."""


Describe = Callable[[bytes], MediaFacts]
"""Describes bytes. Passed in, so that shaping stays pure."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored artifact: bytes of a result, by their digest."""

    uri: str
    """`artifact:sha256:<hex>`, the name that a model may pass as an argument."""
    sha256: str
    """The digest in hexadecimal."""
    mime_type: str
    """The type that the bytes have."""
    bytes: int
    """Their number."""
    claimed_type: str = ""
    """The type that the tool claims."""
    name: str = ""
    """The name that the tool gives it."""
    width: int | None = None
    """Pixels, where cheaply known."""
    height: int | None = None
    """Pixels, where cheaply known."""
    duration_s: float | None = None
    """Seconds, where cheaply known."""
    role: str = ""
    """What it is in a result: `media`, `embedded`, `full_result` or `program`."""

    def to_json(self) -> dict[str, object]:
        """Return the row of a record. Unknown values have no field."""
        row = {name: getattr(self, name) for name in _ALWAYS}
        return row | {
            name: value for name in _WHERE_KNOWN if (value := getattr(self, name)) not in ("", None)
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Artifact:
        """Return the artifact that a row describes.

        Raises KeyError for a row without its digest.
        """
        values = {name: row[name] for name in (*_ALWAYS, *_WHERE_KNOWN) if name in row}
        return cls(
            **{"uri": f"artifact:sha256:{row['sha256']}", "mime_type": "", "bytes": 0, **values}
        )


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A stored content: its digest and its size in bytes."""

    sha256: str
    bytes: int


def check_digest(sha256: str) -> None:
    """Raise RequestError for an invalid digest."""
    if not SHA256.fullmatch(sha256):
        raise RequestError(
            f"{shorten(sha256, 100)!r} is not an artifact's digest",
            advice="give the 64 lower-case hex digits behind 'artifact:sha256:'",
        )


def check_size(size: int, most: int) -> None:
    """Raise StorageError for an artifact that is too large."""
    if size > most:
        sentence = (
            f"an artifact of {size:,} bytes is more than the {most:,} that a run keeps of one"
        )
        raise StorageError(
            sentence, kind="too_large", advice="ask the tool for a smaller part of it"
        )
