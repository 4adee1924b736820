"""Stored artifacts in providers' forms. Made on request for the engine: never recorded, never text.

An artifact that a provider does not accept, or that is empty or too large, becomes a sentence: a
model that is told can continue, while a refused request can't. So does a picture that no provider
takes (`picture_faults`); over MCP it is linked.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from bundle_router.core.exposure.provider_forms import Format
from bundle_router.core.results.shaping.picture_faults import picture_fault
from bundle_router.core.values.artifacts import MediaFacts

IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
AUDIO: Final = {"audio/wav": "wav", "audio/mpeg": "mp3"}
PDF: Final = "application/pdf"
MAX_BYTES: Final[dict[Format, int]] = {"openai": 15_000_000, "anthropic": 3_750_000, "mcp": 700_000}
"""Maximum bytes in one message.

Providers count after base64, which adds a third (Anthropic: 5 MB an image; OpenAI: 20 MB; one MCP
event: 1 MiB). Larger ones are named, and over MCP linked.
"""
MAX_TEXT: Final = 200_000


def media_form(
    uri: str, data: bytes, facts: MediaFacts, form: Format, *, link: bool = False
) -> dict[str, Any]:
    """Return one part of a message (`openai`, `anthropic`) or one content block (`mcp`; `link`: a
    resource link).
    """
    kind = facts.mime_type.partition(";")[0]
    name = f"artifact-{uri.rpartition(':')[2][:12]}"
    fault = picture_fault(data, facts.width, facts.height) if kind in IMAGES else ""
    if form == "mcp" and (link or fault or len(data) > MAX_BYTES[form]):
        return {
            "type": "resource_link",
            "uri": uri,
            "name": name,
            "mimeType": facts.mime_type,
            "size": len(data),
        }
    if not data:
        return _sentence(f"{uri} is empty")
    if len(data) > MAX_BYTES[form]:
        return _sentence(
            f"{uri} is {kind} of {len(data):,} bytes; at most {MAX_BYTES[form]:,} fit a message"
        )
    if fault:
        return _sentence(f"{uri} is {kind}, {len(data):,} bytes, and can't be shown: {fault}")
    make = {"openai": _openai, "anthropic": _anthropic}.get(form)
    part = make(kind, data, name) if make is not None else _mcp(uri, kind, data, facts)
    if part is None:
        return _sentence(f"{uri} is {kind}, {len(data):,} bytes: {form} takes no such content")
    return part


def _sentence(text: str) -> dict[str, Any]:
    return {"type": "text", "text": f"[{text}]"}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _text(kind: str, data: bytes) -> str | None:
    """Return the bytes as text, cut; None if they are no text."""
    if not (
        kind.startswith("text/") or kind in ("application/json", "application/xml", "image/svg+xml")
    ):
        return None
    text = data.decode("utf-8", "replace")
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[{len(text) - MAX_TEXT:,} characters left out]"


def _openai(kind: str, data: bytes, name: str) -> dict[str, Any] | None:
    if kind in IMAGES:
        return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{_base64(data)}"}}
    if kind in AUDIO:
        return {
            "type": "input_audio",
            "input_audio": {"data": _base64(data), "format": AUDIO[kind]},
        }
    if kind == PDF:
        file = {"filename": f"{name}.pdf", "file_data": f"data:{PDF};base64,{_base64(data)}"}
        return {"type": "file", "file": file}
    text = _text(kind, data)
    return {"type": "text", "text": text} if text is not None else None


def _anthropic(kind: str, data: bytes, name: str) -> dict[str, Any] | None:
    if kind in IMAGES or kind == PDF:
        source = {"type": "base64", "media_type": kind, "data": _base64(data)}
        return {"type": "document" if kind == PDF else "image", "source": source}
    text = _text(kind, data)
    if text is None:
        return None
    return {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": text},
        "title": name,
    }


def _mcp(uri: str, kind: str, data: bytes, facts: MediaFacts) -> dict[str, Any]:
    if kind in IMAGES:
        return {"type": "image", "data": _base64(data), "mimeType": kind}
    if kind.startswith("audio/"):
        return {"type": "audio", "data": _base64(data), "mimeType": kind}
    text = _text(kind, data)
    inside = {"blob": _base64(data)} if text is None else {"text": text}
    return {"type": "resource", "resource": {"uri": uri, "mimeType": facts.mime_type, **inside}}
