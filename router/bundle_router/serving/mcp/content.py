"""A result as MCP content: its text, and its media as blocks a client can show.

Rules:
1. The text comes first and names every artifact by its handle, whatever follows: clients that drop what they do not
   know lose nothing, and a model can hand the handle on.
2. An image or a sound is sent as such where its bytes are of a kind that is shown everywhere (by what they are, not by
   what a server calls them) and small enough; any other media is linked. Whole results that were cut are only named:
   the text says how to read on.
3. The media of one answer stay under one MiB, however many there are (`MAX_INLINE`); a client that speaks an older
   revision gets no block that its revision does not know.
4. A resource's text is of a type that no client renders as a page or an app, whatever its server calls it.
5. Media that can't be read any more costs itself, not the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from bundle_router.core.tools.artifact_handles import PREFIX
from bundle_router.core.tools.shaping import Part
from bundle_router.core.tools.shaping.media_forms import IMAGES
from bundle_router.engine.results import Result
from bundle_router.errors import RequestError, RouterError

MAX_INLINE: Final = 700_000
"""Bytes of media in one answer. Base64 adds a third, and some clients take no event over 1 MiB."""
MAX_BLOCKS: Final = 64
"""Blocks of media in one answer. The text names the others."""
INERT: Final = frozenset(
    ("text/plain", "text/markdown", "text/csv", "application/json", "application/yaml", "application/toml")
)
AUDIO_SINCE: Final = "2025-03-26"
LINKS_SINCE: Final = "2025-06-18"
"""Protocol revisions, which compare as text."""

Json = dict[str, Any]
Media = Callable[[str, bool], Awaitable[Json]]
"""An artifact as an MCP block, by its URI; as a resource link where the second is true."""


async def content_of(result: Result, media: Media, max_inline: int, revision: str) -> list[Json]:
    """Return the content blocks of a result, for a client of that protocol revision. At most `max_inline` bytes go
    inline of any one artifact."""
    blocks = [_block(part) for part in result.parts] or [{"type": "text", "text": result.text}]
    if not result.artifacts:
        return blocks
    return [*blocks, *[block async for block in _shown(result, media, max_inline, revision)]]


def _block(part: Part) -> Json:
    if not part.uri:
        return {"type": "text", "text": part.text}
    mime_type = part.mime_type if part.mime_type in INERT else "text/plain"
    return {"type": "resource", "resource": {"uri": part.uri, "mimeType": mime_type, "text": part.text}}


async def _shown(result: Result, media: Media, max_inline: int, revision: str) -> AsyncIterator[Json]:
    left = MAX_INLINE
    for stored in [one for one in result.artifacts if one.role != "full_result"][:MAX_BLOCKS]:
        inline = stored.bytes <= min(left, max_inline) and _is_shown(stored.mime_type, revision)
        if not inline and revision < LINKS_SINCE:
            continue
        try:
            block = await media(stored.uri, not inline)
        except RouterError:
            continue  # the text still names it, and reading it says what is wrong
        left -= stored.bytes if inline else 0
        yield block


def _is_shown(mime_type: str, revision: str) -> bool:
    return mime_type in IMAGES or (mime_type.startswith("audio/") and revision >= AUDIO_SINCE)


async def resource_of(uri: str, media: Media) -> Json:
    """Return the contents of an artifact as `resources/read` gives them, with the type that its bytes have.

    Raises RequestError for what is no artifact of the run, is empty, or is more than one answer holds.
    """
    if not uri.startswith(PREFIX):
        raise RequestError(f"{uri[:200]!r} is not an artifact", advice=f"give {PREFIX} and 64 hex digits")
    block = await media(uri, False)
    if block["type"] == "resource":
        resource: Json = block["resource"]
        return resource
    if block["type"] == "resource_link":
        what = f"{block['mimeType']}, {block['size']:,} bytes"
        raise RequestError(f"{uri} is {what}: too much for one answer", advice="read_artifact reads text in pages")
    if "data" not in block:
        raise RequestError(block["text"].strip("[]"))
    return {"uri": uri, "mimeType": block["mimeType"], "blob": block["data"]}
