"""Reads and writes the JSON of results: what is no number of JSON is null, and an object keeps its
own order.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from pydantic_core import to_json

from bundle_router.core.values.encoded_bytes import are_numbers

_PLAIN_LEVELS: Final = 100
"""Levels down to which a value is looked at; a deeper one is not plain."""
_SHORTEST_LIST: Final = 32
_FIRST_BYTES: Final = frozenset(
    (head[0], head[1])
    for head in (
        b"\x89P",
        b"\xff\xd8",
        b"GI",
        b"RI",
        b"%P",
        b"PK",
        b"Og",
        b"ID",
        b"fL",
        b"\x1a\x45",
    )
)
"""How PNG, JPEG, GIF, RIFF, PDF, ZIP, Ogg, MP3, FLAC and WebM begin."""
_CONTAINERS: Final = (dict, list, tuple)
_SCALARS: Final = frozenset((int, float, bool, type(None)))
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def parse(text: str) -> Any:
    """Return the JSON object or array in the text, with null for NaN and infinities; None if it is
    neither.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def is_plain(value: Any) -> bool:
    """Return whether a value is an object or array of which all is shown as it is."""
    return isinstance(value, dict | list) and _has_plain_parts(value, 1)


def _has_plain_parts(value: Any, level: int) -> bool:
    if level > _PLAIN_LEVELS:
        return False
    parts = value
    if isinstance(value, dict):
        if value.get("type") == "Buffer" or "0" in value:
            return False
        if ("data" in value or "blob" in value) and _may_have_payload(value):
            return False
        if not all(map(is_short, value)):
            return False
        parts = value.values()
    elif len(value) >= _SHORTEST_LIST and may_be_bytes(value):
        return False
    for part in parts:
        if type(part) in _SCALARS:
            continue  # most parts of a large value: told before all else
        if isinstance(part, _CONTAINERS):
            if not _has_plain_parts(part, level + 1):
                return False
        elif not is_short(part):
            return False
    return True


def _may_have_payload(value: dict[str, Any]) -> bool:
    payloads = (value.get("data"), value.get("blob"))
    return any(isinstance(payload, str) or are_numbers(payload) for payload in payloads)


def may_be_bytes(value: Any) -> bool:
    """Return whether a value may be bytes as JSON has them: Node's Buffer, a `Uint8Array`, or a
    list of numbers that begins as media do.
    """
    if isinstance(value, dict):
        return value.get("type") == "Buffer" or _begin_media(value.get("0"), value.get("1"))
    return len(value) >= _SHORTEST_LIST and _begin_media(value[0], value[1])


def _begin_media(first: Any, second: Any) -> bool:
    return type(first) is int and type(second) is int and (first, second) in _FIRST_BYTES


def is_short(text: Any) -> bool:
    """Return whether the value is no text, or a text that can't hold media."""
    if not isinstance(text, str) or len(text) >= 256 or "data:" in text or "DATA:" in text:
        return not isinstance(text, str)
    return len(text) < 64 or " " in text.strip()


def dump(value: Any, *, indented: bool = False) -> str:
    """Return the value as JSON in its own order: compact, or `indented` by a space a level."""
    if not indented:
        return _ENCODER.encode(value)
    try:  # Python's own encoder takes ten times as long with indentation
        return to_json(value, indent=1, inf_nan_mode="constants").decode()
    except ValueError:  # a lone surrogate
        return json.dumps(value, ensure_ascii=False, indent=1)


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _no_number(_constant: str) -> None:
    """Return null for NaN and the infinities, which are no JSON, as JavaScript does."""


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
