"""JSON of any size, read and written so that other threads have their turn: Python's codec holds the interpreter until
it is through.

While a text is read, each object and each number of it is handed through a function of Python, where the interpreter
may pass to another thread. What is written is handed to the codec in pieces that hold no more than a few thousand
values. What is still one piece: a text, and a list of nothing but texts, `true`s or empty lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_json

LARGE: Final = 128 * 1024
"""Characters from which on a text is read that way; it takes a third longer."""
_LEVELS: Final = 200
"""Levels down to which a value is taken apart; what is below is one piece."""
_BATCH: Final = 2_048
_CONTAINERS: Final = (dict, list, tuple)
encode_small: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # `json` makes one each time


def parse(text: str) -> Any:
    """Return the JSON object or array that the text is; None when it is neither."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text) if len(text) <= LARGE else _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def parse_finite(text: str) -> Any:
    """Return the JSON value that a large text is, null for what is no number. Raises ValueError, RecursionError."""
    return _FINITE.decode(text)


def dump(value: Any, *, indented: bool = False) -> str:
    """Return the value as JSON in its own order: compact, or `indented` by a space a level."""
    return "".join(pieces(value, indented=indented))


def pieces(value: Any, level: int = 0, *, indented: bool = False) -> Iterator[str]:
    """Yield what `dumped` joins: no piece holds more than one text, or a few thousand values."""
    line = "\n" + " " * level if indented else ""
    if level >= _LEVELS or _weight(value) < _BATCH:
        yield _written(value, line)
    elif isinstance(value, dict):
        before = "{" + line + " " * indented
        for name, part in value.items():
            yield before + encode_small({name: 0})[1:-2] + " " * indented
            yield from pieces(part, level + 1, indented=indented)
            before = "," + line + " " * indented
        yield line + "}"
    else:
        before = "["
        group: list[Any] = []
        weight = 0
        for part in value:
            heavy = (added := 1 + _weight(part)) >= _BATCH
            if group and (heavy or weight + added >= _BATCH):
                yield before + _written(group, line)[1 : -1 - len(line)]
                before, group, weight = ",", [], 0
            if heavy:
                yield before + line + " " * indented
                before = ","
                yield from pieces(part, level + 1, indented=indented)
            else:
                group.append(part)
                weight += added
        yield (before + _written(group, line)[1 : -1 - len(line)] if group else "") + line + "]"


def _written(value: Any, line: str) -> str:
    """Return a value in one go: compact, or with the ends of its lines where it stands."""
    if not line:
        return encode_small(value)
    try:  # Python's own takes ten times as long where it indents
        text = to_json(value, indent=1, inf_nan_mode="constants").decode()
    except ValueError:  # a lone surrogate
        text = json.dumps(value, ensure_ascii=False, indent=1)
    return text.replace("\n", line)


def _weight(value: Any) -> int:
    """Return how many values there are inside a value, counted as far as a piece may go."""
    if not isinstance(value, _CONTAINERS):
        return 0
    todo, weight = [value], 0
    while todo:
        one = todo.pop()
        weight += len(one)
        if weight >= _BATCH:
            return weight
        todo.extend(
            [part for part in (one.values() if isinstance(one, dict) else one) if isinstance(part, _CONTAINERS)]
        )
    return weight


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def no_number(_constant: str) -> None:
    """Return what stands for NaN and the infinities, which are no JSON: null, as in JavaScript."""


decode_small: Final = json.JSONDecoder(parse_constant=no_number).decode
_DECODER: Final = json.JSONDecoder(
    object_hook=lambda value: value, parse_int=lambda text: int(text), parse_float=lambda text: float(text)
)
_FINITE: Final = json.JSONDecoder(
    object_hook=lambda value: value, parse_int=lambda text: int(text), parse_float=_finite, parse_constant=no_number
)
