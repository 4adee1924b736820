"""One canonical JSON for everything that is hashed or compared: sorted keys, no spaces, ASCII.

ASCII output keeps one record on one line for every reader (U+2028 and U+0085 end a line for some of
them) and keeps control and bidirectional characters from reaching a terminal raw.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Any, Final

_CHECKED: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)
# `json` makes one of these anew for each value, which takes as long as a small value itself (6.9 of
# 15.7 µs).
_PIECES: Final = c_make_encoder(
    None, _CHECKED.default, encode_basestring_ascii, None, ":", ",", True, False, False
)


def encode(value: Any) -> str:
    """Return the canonical JSON text of a JSON value.

    Raises ValueError on NaN, infinities and cycles, TypeError on other types, RecursionError for a
    value that is nested too deep.
    """
    try:
        return "".join(_PIECES(value, 0))
    except RecursionError:  # too deep, or a cycle
        return _CHECKED.encode(value)


PIECE: Final = 32 * 1024
"""Characters of a value that an event loop encodes or reads itself, in about a millisecond."""
EACH: Final = 16
"""Weight of a value besides its characters: an array of a thousand numbers is not small."""


def budget_left(value: Any, left: int) -> int:
    """Return the rest of a budget of characters after a JSON value; negative as soon as it is
    exceeded.
    """
    todo = [value]
    while todo and left >= 0:
        value = todo.pop()
        left -= EACH
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, int):
            left -= value.bit_length() >> 2
        elif isinstance(value, (list, tuple)):
            todo += value
        elif isinstance(value, (dict, Mapping)):  # the check for dict is fast
            left -= sum(map(len, map(str, value))) if len(value) <= left else left + 1
            todo += value.values()
    return left


def holds_more_than(most: int, value: object) -> bool:
    """Return whether there are more than so many values in a JSON value. Counting stops there."""
    waiting = [value]
    count = 0
    while waiting and count <= most:
        item = waiting.pop()
        if isinstance(item, Mapping | list | tuple):
            count += len(item)
            waiting.extend(item.values() if isinstance(item, Mapping) else item)
    return count > most


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value


decode: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_finite).decode
"""Returns the value of a JSON text that `encode` can write again.

Raises ValueError, RecursionError.
"""


def flat_json(value: Any, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Return the fields of a frozen dataclass (with slots) of plain values as JSON, or those that
    are named.
    """
    names = names or value.__slots__
    return {name: getattr(value, name) for name in names}


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
    if isinstance(value, (EncodedObject, EncodedRows)):
        return value.text
    return encode(value)


def encode_object(value: Mapping[str, Any]) -> str:
    """Return what `encode` does for an object; the text of encoded values in it is used
    unchanged.
    """
    kinds = set(map(type, value.values()))
    if EncodedObject not in kinds and EncodedRows not in kinds:
        return encode(value)
    parts: list[str] = []
    plain: dict[str, Any] = {}
    for name in sorted(value):
        item = value[name]
        if type(item) is EncodedObject or type(item) is EncodedRows:
            if plain:
                parts.append(encode(plain)[1:-1])
                plain = {}
            parts.append(f"{encode_basestring_ascii(name)}:{item.text}")
        else:
            plain[name] = item
    if plain:
        parts.append(encode(plain)[1:-1])
    return "{" + ",".join(parts) + "}"


@lru_cache(2)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


def time_text(time_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as RFC 3339 UTC with microseconds:
    `2026-11-21T08:02:00.123456Z`.
    """
    seconds, ns = divmod(time_ns, 1_000_000_000)
    return f"{_second(seconds)}.{ns // 1_000:06d}Z"


def time_ns(text: str) -> int:
    """Return the nanoseconds since 1970 of a time that `time_text` wrote."""
    whole = datetime.fromisoformat(f"{text[:19]}+00:00")
    return int(whole.timestamp()) * 1_000_000_000 + int(text[20:26]) * 1_000


def digest(data: str | bytes) -> str:
    """Return `sha256:<64 hex digits>` of the text (as UTF-8) or bytes."""
    return (
        "sha256:"
        + hashlib.sha256(
            data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        ).hexdigest()
    )


def digest_of(value: Any) -> str:
    """Return the digest of a value's canonical JSON."""
    return digest(encode(value))
