"""Reads bytes that JSON or text holds, in each form that tools send: the one decoder of results.

- base64 of either alphabet, padded or not, with blanks and line breaks (also as `\\n`) in it
- a `data:` URI, with base64 or percent signs
- Node's `{"type": "Buffer", "data": [137, 80, …]}`, a list of bytes, and a `Uint8Array` as JSON
  has it: `{"0": 137, "1": 80, …}`
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_SLICE: Final = 256 * 1024
"""Characters that are decoded at a time, because a decoder holds the GIL until it has finished."""
_WINDOW: Final = 64 * 1024
"""Characters per match of a regular expression, which holds the GIL likewise."""
_LETTERS: Final = re.compile(r"[A-Za-z0-9+/_-]*+")
_BLANKS: Final = re.compile(r"\s|\\[nrt]")
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_HEAD: Final = re.compile(
    r"data:(?P<type>[a-z]{1,20}\\?/[a-z0-9.+-]{1,80})?(?P<rest>[^,]{0,200}),", re.IGNORECASE
)
_TYPES: Final = ("mimeType", "mime_type", "mediaType", "media_type")
_PLACES: Final = ("data", "blob", "base64", "bytes", "b64_json", "url", "uri")
"""Where blocks of media hold their bytes, or the address of them."""
_NO_BASE64: Final = ("url", "uri")


@dataclass(frozen=True, slots=True)
class EncodedBytes:
    """Bytes that were read."""

    data: bytes
    mime_type: str = ""
    """The type that is said beside them, unchecked; empty where none is."""


def read_bytes(value: object) -> EncodedBytes | None:
    """Return the bytes in a value; None if it holds none, as an address does. Never raises."""
    if isinstance(value, str):
        text = value.strip()
        if text[:5].lower() == "data:":
            return read_data_uri(text)
        data = decode_base64(text)
        return None if data is None else EncodedBytes(data)
    if isinstance(value, Mapping):
        if value.get("type") == "Buffer":
            return read_bytes(value.get("data"))
        value = _numbered_items(value)
    if not isinstance(value, list | tuple) or not value or not are_numbers(value):
        return None
    try:
        return EncodedBytes(bytes(value))
    except (TypeError, ValueError):
        return None


def are_numbers(value: object) -> bool:
    """Return whether a value is a list that may be one of bytes: its first item tells."""
    return isinstance(value, list | tuple) and bool(value) and type(value[0]) is int


def _numbered_items(value: Mapping[str, Any]) -> list[Any]:
    """Return the items of an object whose keys are "0", "1", "2" …; none of any other."""
    if "0" not in value:
        return []
    if not all(key == str(place) for place, key in enumerate(value)):
        return []
    return list(value.values())


def read_media(block: Mapping[str, Any]) -> EncodedBytes | None:
    """Return the bytes of a block or object that says it is media, wherever it holds them.

    None if it holds none: an address of them, or what is in no form that is known here.
    """
    inner = [block.get(name) for name in ("source", "image_url", str(block.get("type")))]
    holders = [block, *(one for one in inner if isinstance(one, Mapping))]
    claims = [type_said(holder) for holder in holders]
    claimed = next(filter(None, claims), "")
    for holder in holders:
        found = _bytes_within(holder)
        if found is not None:
            return EncodedBytes(found.data, claimed or found.mime_type)
    return None


def _bytes_within(holder: Mapping[str, Any]) -> EncodedBytes | None:
    """Return the bytes in the first place of an object that holds some."""
    for place in _PLACES:
        value = holder.get(place)
        is_address = place in _NO_BASE64
        if is_address and not (isinstance(value, str) and is_data_uri(value)):
            continue
        found = read_bytes(value)
        if found is not None and found.data:
            return found
    return None


def type_said(holder: Mapping[str, Any]) -> str:
    """Return the type that an object says its bytes have; nothing if it says none."""
    words = (holder.get(key) for key in _TYPES)
    return next((word[:1_000] for word in words if isinstance(word, str)), "")


def is_data_uri(text: str) -> bool:
    """Return whether a text begins as a `data:` URI does."""
    return text.lstrip()[:5].lower() == "data:"


def read_data_uri(uri: str) -> EncodedBytes | None:
    """Return the bytes of a `data:` URI; None for what is none."""
    head = _HEAD.match(uri)
    if head is None:
        return None
    mime_type = (head["type"] or "").replace("\\", "")
    payload = uri[head.end() :]
    is_base64 = head["rest"].rpartition(";")[2].strip().lower() == "base64"
    if not is_base64:
        return EncodedBytes(_without_percents(payload.encode("utf-8", "replace")), mime_type)
    if "%" in payload:
        payload = _without_percents(payload.encode("utf-8", "replace")).decode("latin-1")
    data = decode_base64(payload)
    return None if data is None else EncodedBytes(data, mime_type)


def _without_percents(text: bytes) -> bytes:
    return _PERCENT.sub(lambda sign: bytes([int(sign[1], 16)]), text)


def decode_base64(text: str) -> bytes | None:
    """Return what base64 stands for; None if the text is none.

    A single letter too many at the end, as in base64 that was cut off, is left out.
    """
    body = text.replace("\\/", "/") if "\\/" in text else text
    if not is_base64(body):
        body = without_blanks(body)
        if not is_base64(body):
            return None
    body = body.rstrip("=")
    if len(body) % 4 == 1:
        body = body[:-1]
    if "-" in body or "_" in body:
        body = body.replace("-", "+").replace("_", "/")
    body += "=" * (-len(body) % 4)
    slices = (body[start : start + _SLICE] for start in range(0, len(body), _SLICE))
    try:
        return b"".join(map(binascii.a2b_base64, slices))
    except (binascii.Error, ValueError):
        return None


def without_blanks(text: str) -> str:
    """Return a text without blanks and ends of lines, also those that JSON writes as two letters.

    That is for base64, which has no backslash.
    """
    return _BLANKS.sub("", text)


def is_base64(text: str, least: int = 0) -> bool:
    """Return whether a text is base64 of at least `least` letters, padded or not."""
    end = 0
    while (match := _LETTERS.match(text, end, end + _WINDOW)) is not None and match.end() > end:
        end = match.end()
    return end >= least and text[end : end + 3] in ("", "=", "==")
