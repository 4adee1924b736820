"""Reads JSON of any size from a server's bytes, as its writer meant it."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from pydantic_core import from_json

from bundle_router.core.servers.transport.blocks import take_out_nan

LARGE: Final = 128 * 1024
"""Bytes of a frame from which it is read off the event loop."""
MAX_LEVELS: Final = 150
"""Maximum depth of JSON: pydantic's parser reads 200 levels, and no schema of that depth is
admitted.
"""
_CUT: Final = b'"(left out: nested deeper than 150 levels)"'
_MARKS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


def read_json(data: bytes | bytearray) -> Any:
    """Return the JSON value of a text in any Unicode encoding; null stands for what is no number.

    Raises ValueError.
    """
    if len(data) >= LARGE:
        try:
            return _without_infinities(from_json(data, allow_inf_nan=False))
        except ValueError:  # what this parser is too strict for, and what is no JSON
            pass
    text = cut_deep(_as_utf8(data)).decode("utf-8")
    try:
        value = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:
            return _without_half_pairs(value)
        return value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def cut_deep(text: bytes) -> bytes:
    """Return JSON with a sentence in place of each value nested deeper than `MAX_LEVELS`."""
    if text.count(b"[") + text.count(b"{") <= MAX_LEVELS:
        return text
    parts: list[bytes] = []
    depth = 0
    end = 0
    for match in _MARKS.finditer(text):
        mark = text[match.start()]
        if mark in b"[{":
            depth += 1
            if depth == MAX_LEVELS + 1:
                parts += [text[end : match.start()], _CUT]
        elif mark in b"]}":
            if depth == MAX_LEVELS + 1:
                end = match.end()
            depth -= 1
    return b"".join((*parts, text[end:])) if parts else text


def _as_utf8(data: bytes | bytearray) -> bytes:
    """Return a text in UTF-8 without a byte order mark; broken parts are replaced."""
    encoding = "utf-8" if data[:2] == b'{"' else json.detect_encoding(data)
    return data.decode(encoding, "replace").encode("utf-8", "replace")


def _without_half_pairs(value: Any) -> Any:
    """Return a value in which half a pair of surrogates is a question mark."""
    text = json.dumps(value, ensure_ascii=False)
    return _DECODER.decode(text.encode("utf-8", "replace").decode("utf-8"))


def _without_infinities(value: Any) -> Any:
    """Return a value in which numbers that are too large are null, as JavaScript writes them."""
    holder = {"": value}
    take_out_nan(holder)
    return holder[""]


def _finite(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def _no_number(_constant: str) -> None:
    """Return null for NaN and the infinities, which are no JSON, as JavaScript does."""


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_number)
