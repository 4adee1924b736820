"""JSON of any size, read and written piece by piece: Python's codec holds the interpreter until it is through."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_LARGE: Final = 128 * 1024
_LEVELS: Final = 4
"""Levels down to which objects are taken apart. What is below, and every item of a list, is one piece."""
_BATCH: Final = 256
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder()


def parse(text: str) -> Any:
    """The JSON object or array that the text is; None when it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        if len(text) <= _LARGE:
            return json.loads(text)
        value, end = _value(text, _skip(text, 0), 0)
        return value if _skip(text, end) == len(text) else None
    except (ValueError, RecursionError):
        return None


def dumped(value: Any) -> str:
    """The value as compact JSON in its own order."""
    return "".join(_pieces(value, 0))


def _value(text: str, at: int, level: int) -> tuple[Any, int]:
    opening = text[at : at + 1]
    if level >= _LEVELS or opening not in ("{", "["):
        return _DECODER.raw_decode(text, at)
    closing = "}" if opening == "{" else "]"
    members: dict[str, Any] = {}
    items: list[Any] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        if opening == "{":
            name, at = _DECODER.raw_decode(text, at)
            if not isinstance(name, str):
                raise ValueError("a name was expected")
            members[name], at = _value(text, _after(text, _skip(text, at), ":"), level + 1)
        else:
            item, at = _DECODER.raw_decode(text, at)
            items.append(item)
        at = _skip(text, at)
        if text[at : at + 1] != closing:
            at = _after(text, at, ",")
            if text[at : at + 1] == closing:
                raise ValueError("a comma that nothing follows")
    return (members if opening == "{" else items), at + 1


def _after(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise ValueError(f"{character!r} was expected")
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _pieces(value: Any, level: int) -> Iterator[str]:
    if isinstance(value, dict) and level < _LEVELS and all(isinstance(name, str) for name in value):
        yield "{"
        for index, (name, inner) in enumerate(value.items()):
            yield f"{',' if index else ''}{_dump(name)}:"
            yield from _pieces(inner, level + 1)
        yield "}"
    elif isinstance(value, list | tuple) and len(value) > _BATCH:
        yield "["
        for start in range(0, len(value), _BATCH):
            yield ("," if start else "") + _dump(value[start : start + _BATCH])[1:-1]
        yield "]"
    else:
        yield _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
