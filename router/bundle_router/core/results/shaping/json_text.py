"""Reads and writes JSON of any size without blocking other threads: Python's codec holds the GIL
until it has finished.

Reading passes each object and each number through a Python function, where the GIL can be released.
Writing gives the codec pieces of at most a few thousand values. Still undivided: a single text, and
a list of only texts, `true`s or empty lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]  # typeshed lacks it
from typing import Any, Final

from pydantic_core import from_json, to_json

from bundle_router.core.servers.transport.blocks import take_out_nan

LARGE: Final = 128 * 1024
"""Characters from which a text is read that way, which takes a third longer."""
_LEVELS: Final = 200
"""Levels of a value that are divided; deeper parts are one piece."""
_BATCH: Final = 2_048
_LIGHT: Final = 8
_SHORT: Final = 64
_NO_TEXT: Final = b"0123456789+-.eE,: \t\r\n[]{}truefalsn"
_PLAIN_LEVELS: Final = 100
_CONTAINERS: Final = (dict, list, tuple)
_DIVIDED: Final = frozenset(_CONTAINERS)
_SCALARS: Final = frozenset((int, float, bool, type(None)))
_PIECES: Final = c_make_encoder(
    None, json.JSONEncoder().default, encode_basestring, None, ":", ",", False, False, True
)


def encode_small(value: Any) -> str:
    """Return a value as compact JSON, in its own order, without an encoder of its own."""
    return "".join(_PIECES(value, 0))


def parse(text: str) -> Any:
    """Return the JSON object or array in the text, with null for NaN and infinities; None if it is
    neither.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return (decode_small if len(text) <= LARGE else _decode_large)(text)
    except (ValueError, RecursionError):
        return None


def read_large(data: bytes | bytearray) -> Any:
    """Return the JSON value of large UTF-8, with null for NaN.

    Raises ValueError, RecursionError.
    """
    if _is_little_but_text(data):
        with suppress(ValueError):  # what Python alone reads: lone surrogates, over 200 levels, NaN
            take_out_nan(
                read := {"": from_json(bytes(data), allow_inf_nan=False)}
            )  # 1e999 is an infinity all the same
            return read[""]
    return _decode_large(data.decode())


def _is_little_but_text(data: bytes | bytearray) -> bool:
    """Return whether JSON has so few values that all may be read in one go: few quotes, and few
    numbers after each.
    """
    offset = 0
    for _ in range(_BATCH):
        following = data[offset : offset + _SHORT]
        if len(following) < _SHORT or not following.strip(_NO_TEXT):
            return len(following) < _SHORT
        offset = data.find(b'"', offset) + 1 or len(data)
    return False


def contains(text: str | bytes | bytearray, *marks: Any) -> bool:
    """Return whether a text of any size contains one of the short marks."""
    starts = range(0, len(text), LARGE)
    return any(text.find(mark, at, at + LARGE + len(mark)) >= 0 for at in starts for mark in marks)


class JsonSizes:
    """The sizes of the parts of a JSON value, found in one pass.

    `is_plain`: nothing in it is replaced when shown.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.is_plain = isinstance(value, dict | list)
        self._weights: dict[int, int] = {}
        if isinstance(value, _CONTAINERS):
            self._weigh(value, 1)

    def weight(self, value: Any) -> int:
        """Return about how many values are inside the value or a part of it."""
        return self._weights.get(id(value), _LIGHT)

    def _weigh(self, value: Any, level: int) -> int:
        weight = len(value)
        parts = value
        self.is_plain = self.is_plain and level <= _PLAIN_LEVELS
        if isinstance(value, dict):
            parts = value.values()
            declared = type(value.get("data")) is str or type(value.get("blob")) is str
            self.is_plain = self.is_plain and not declared and all(map(is_short, value))
        for part in parts:
            if type(part) in _SCALARS:
                continue
            if isinstance(part, _CONTAINERS):
                weight += self._weigh(part, level + 1) if level < _LEVELS else _LIGHT
            elif self.is_plain:
                self.is_plain = is_short(part)
        if weight > _LIGHT:
            self._weights[id(value)] = weight
        return weight

    def release(self, references_to: Callable[[object], int]) -> None:
        """Take the value apart, except what others refer to: freeing it all at once would hold the
        interpreter.
        """
        waiting = [self.value]
        self.value = None
        holders = 4  # the block, the piece, `one` and the question
        while waiting:
            value = waiting.pop()
            while isinstance(value, dict | list) and value and references_to(value) <= holders:
                part = value.popitem()[1] if isinstance(value, dict) else value.pop()
                if self.weight(part) >= _BATCH:
                    waiting.append(part)
                del part
            holders = 2


def abridge(
    value: Any, survey: JsonSizes, values: int, room: int, levels: int = 3
) -> tuple[Any, int, int] | None:
    """Return a value of at most so many values and bytes of JSON, and how many it has: an object
    over them without the largest of its members, down to so many levels. None for another value
    over them.
    """
    count = survey.weight(value)
    if count <= values and (size := len(dump(value).encode("utf-8", "replace"))) <= room:
        return value, count, size
    if not isinstance(value, dict) or not levels:
        return None
    kept = {}
    values_left = values
    room_left = room
    for name, part in sorted(value.items(), key=lambda member: survey.weight(member[1])):
        abridged = abridge(
            part, survey, values_left - 1, room_left - 4 * len(name) - _LIGHT, levels - 1
        )
        if abridged is not None:
            kept[name], count, size = abridged
            values_left -= count + 1
            room_left -= size + 4 * len(name) + _LIGHT
        if values_left <= 0:
            break
    return kept, values - values_left, room - room_left


def is_short(text: Any) -> bool:
    """Return whether the value is no text, or a text that can't hold media."""
    if not isinstance(text, str) or len(text) >= 256 or "data:" in text or "DATA:" in text:
        return not isinstance(text, str)
    return len(text) < 64 or " " in text.strip()


def dump(value: Any, survey: JsonSizes | None = None, *, indented: bool = False) -> str:
    """Return the value as JSON in its own order: compact, or `indented` by a space a level."""
    is_little = survey is None and not indented and type(value) is dict and len(value) < _BATCH
    if is_little and _DIVIDED.isdisjoint(
        map(type, value.values())
    ):  # as most structured results: no part to survey
        return encode_small(value)
    return "".join(pieces(value, survey or JsonSizes(value), indented=indented))


def pieces(
    value: Any, survey: JsonSizes, level: int = 0, *, indented: bool = False
) -> Iterator[str]:
    """Yield the pieces that `dump` joins: none holds more than one text, or a few thousand
    values.
    """
    line = "\n" + " " * level if indented else ""
    if level >= _LEVELS or survey.weight(value) < _BATCH:
        yield _written(value, line)
        return
    is_object = isinstance(value, dict)
    separator, after = "{}" if is_object else "[]"
    group: dict[Any, Any] = {}
    weight = 0

    def grouped() -> str:
        return (
            separator
            + _written(group if is_object else list(group.values()), line)[1 : -1 - len(line)]
        )

    for name, part in value.items() if is_object else enumerate(value):
        weight += (added := survey.weight(part))
        if group and weight >= _BATCH:
            yield grouped()
            separator = ","
            group = {}
            weight = added
        if added < _BATCH:
            group[name] = part
            continue
        yield (
            separator
            + line
            + " " * indented
            + (encode_small({name: 0})[1:-2] + " " * indented if is_object else "")
        )
        yield from pieces(part, survey, level + 1, indented=indented)
        separator = ","
        weight = 0
    yield (grouped() if group else "") + line + after


def _written(value: Any, line: str) -> str:
    """Return the JSON of a value in one go: compact, or indented for its place."""
    if not line:
        return encode_small(value)
    try:  # Python's own encoder takes ten times as long with indentation
        text = to_json(value, indent=1, inf_nan_mode="constants").decode()
    except ValueError:  # a lone surrogate
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return text.replace("\n", line)


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def no_number(_constant: str) -> None:
    """Return null for NaN and the infinities, which are no JSON, as JavaScript does."""


decode_small: Final = json.JSONDecoder(parse_float=_finite, parse_constant=no_number).decode
_decode_large: Final = json.JSONDecoder(
    object_hook=lambda value: value,
    parse_int=lambda text: int(text),
    parse_float=_finite,
    parse_constant=no_number,
).decode
