"""One canonical JSON for everything that is hashed or compared: sorted keys, no spaces, ASCII.

ASCII output keeps one record on one line for every reader (U+2028 and U+0085 end a line for some of them) and keeps
control and bidirectional characters from reaching a terminal raw.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Any, Final

_CHECKED: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
# `json` makes one of these anew for each value.
_PIECES: Final = c_make_encoder(None, _CHECKED.default, encode_basestring_ascii, None, ":", ",", True, False, False)


def encode(value: Any) -> str:
    """Return the canonical JSON text of a JSON value. Raises ValueError on NaN, infinities and cycles, TypeError on
    other types, RecursionError for a value that is nested too deep."""
    try:
        return "".join(_PIECES(value, 0))
    except RecursionError:  # too deep, or a cycle
        return _CHECKED.encode(value)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value


decode: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode
"""Returns the value of a JSON text that `encode` can write again. Raises ValueError, RecursionError."""


class EncodedObject(dict[str, Any]):
    """A JSON object with its canonical text, for use in many records. It is never changed."""

    __slots__ = ("text",)

    def __init__(self, value: Mapping[str, Any], text: str | None = None) -> None:
        super().__init__(value)
        self.text = encode(value) if text is None else text


class EncodedRows(list[Any]):
    """A JSON list with its canonical text (see `EncodedObject`)."""

    __slots__ = ("text",)

    def __init__(self, rows: Sequence[Any]) -> None:
        super().__init__(rows)
        self.text = encode(rows)


def text_of(value: Any) -> str:
    """Return what `encode` does, or the text of an encoded value."""
    return value.text if isinstance(value, (EncodedObject, EncodedRows)) else encode(value)


def encode_object(value: Mapping[str, Any]) -> str:
    """Return what `encode` does for an object; the text of encoded values in it is used unchanged."""
    kinds = set(map(type, value.values()))
    if EncodedObject not in kinds and EncodedRows not in kinds:
        return encode(value)
    parts: list[str] = []
    others: dict[str, Any] = {}
    for name in sorted(value):
        item = value[name]
        if type(item) is EncodedObject or type(item) is EncodedRows:
            if others:
                parts.append(encode(others)[1:-1])
                others = {}
            parts.append(f"{encode_basestring_ascii(name)}:{item.text}")
        else:
            others[name] = item
    if others:
        parts.append(encode(others)[1:-1])
    return "{" + ",".join(parts) + "}"


def digest(data: str | bytes) -> str:
    """Return `sha256:<64 hex digits>` of the text (as UTF-8) or bytes."""
    return (
        "sha256:" + hashlib.sha256(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data).hexdigest()
    )


def digest_of(value: Any) -> str:
    """Return the digest of a value's canonical JSON."""
    return digest(encode(value))
