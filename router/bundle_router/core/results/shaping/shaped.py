"""Values of shaping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from bundle_router.core.values.artifacts import Artifact, MediaFacts

Role = Literal["media", "embedded", "full_result", "program"]
"""`media`: a media block; `embedded`: found inside text or JSON; `full_result`: the full text of a
cut result.
"""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes to store. `claimed_type` and `name` are the tool's claims: recorded, not trusted."""

    data: bytes = field(repr=False)
    sha256: str
    role: Role
    facts: MediaFacts
    claimed_type: str = ""
    name: str = ""

    @property
    def uri(self) -> str:
        return f"artifact:sha256:{self.sha256}"

    def stored_as(self, sha256: str) -> Artifact:
        facts = self.facts
        size = len(self.data)
        is_seen = (
            facts.mime_type,
            size,
            self.claimed_type,
            self.name,
            facts.width,
            facts.height,
            facts.duration_s,
        )
        return Artifact(f"artifact:sha256:{sha256}", sha256, *is_seen, self.role)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a result as the model sees it."""

    text: str
    """The piece; of an embedded resource without the line that names it."""
    uri: str = ""
    """The address of the embedded resource; empty for other text."""
    mime_type: str = ""
    """The resource's type, as its tool claims."""


@dataclass(frozen=True, slots=True)
class ShapedResult:
    """A result as the model sees it.

    Every blob is named in the text, or in the full result that the text names.

    `original_bytes`: the tool's result (text as UTF-8, JSON compact, media as bytes). `kept_bytes`:
    `text` as UTF-8. `rule`: the steps taken, joined by `+` in this order: `copies`, `references`,
    `escapes`, `leading_items`, `head_tail`, `framed`, `dropped`; `as_is` if none. `flags`:
    `looks_like_error`. `parts`: the text piece by piece, if the result has embedded resources and
    nothing was cut; else empty.
    """

    text: str
    blobs: tuple[Blob, ...] = ()
    original_bytes: int = 0
    kept_bytes: int = 0
    rule: str = "as_is"
    flags: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @classmethod
    def empty(cls) -> ShapedResult:
        """Return the result of a call without one, because it was cancelled or never made."""
        return cls("")
