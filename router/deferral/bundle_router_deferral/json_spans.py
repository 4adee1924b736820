"""Edits JSON text by spans: only the edited bytes change. Pure.

The standard decoder finds the positions, value by value. So numbers, escapes, indentation, line
ends and a byte order mark elsewhere stay. Text with comments, trailing commas or duplicate keys is
refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined] # the decoder's own scanner of strings
from typing import Any, Final

MAX_DEPTH: Final = 200
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class NotEditable(ValueError):
    """The text can't be edited safely, for this reason."""


def _constant(name: str) -> float:
    raise NotEditable(f"it holds {name}, which is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_constant)


Splitter = Callable[[str, str, int], tuple[Any, int] | None]


def skip_space(text: str, at: int) -> int:
    if at >= len(text) or text[at] not in " \t\r\n":
        return at
    match = _SPACE.match(text, at)
    return match.end() if match else at


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an object: its key, its value, and their positions."""

    key: str
    value: Any
    key_start: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Element:
    """An element of an array with its position."""

    value: Any
    start: int
    end: int


def members(text: str, offset: int, split: Splitter | None = None) -> Iterator[Member]:
    """Yield the members of the object that begins at `at`, in order.

    Raises ValueError if there is none.

    `split` may parse a value itself: it gets the text, the key and the value's start, and returns
    value and end, or None.
    """
    if text[offset : offset + 1] != "{":
        raise ValueError("no object")
    offset = skip_space(text, offset + 1)
    while text[offset] != "}":
        if text[offset] != '"':
            raise ValueError("a key is expected")
        key_start = offset
        key, offset = scanstring(text, offset + 1, True)
        offset = skip_space(text, offset)
        if text[offset] != ":":
            raise ValueError("a colon is expected")
        start = skip_space(text, offset + 1)
        value, end = (split(text, key, start) if split else None) or _DECODER.raw_decode(
            text, start
        )
        yield Member(key, value, key_start, start, end)
        offset = _next_separator(text, end, "}")


def read_elements(text: str, offset: int) -> tuple[list[Element], int]:
    """Return the elements of the array that begins at `at`, and its end.

    Raises ValueError if there is none.
    """
    if text[offset : offset + 1] != "[":
        raise ValueError("no array")
    elements = []
    offset = skip_space(text, offset + 1)
    while text[offset] != "]":
        value, end = _DECODER.raw_decode(text, offset)
        elements.append(Element(value, offset, end))
        offset = _next_separator(text, end, "]")
    return elements, offset + 1


def _next_separator(text: str, end: int, closing: str) -> int:
    offset = skip_space(text, end)
    if text[offset] == closing:
        return offset
    if text[offset] != ",":
        raise ValueError("a comma is expected")
    return skip_space(text, offset + 1)


def start_of(text: str) -> int:
    """Return the start of the document, after a byte order mark and space."""
    return skip_space(text, 1 if text.startswith("\ufeff") else 0)


def read_editable(data: bytes) -> str:
    """Return the text of a JSON object that may be edited.

    Raises NotEditable with the reason if it may not.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise NotEditable("it is not UTF-8") from None
    try:
        value = json.loads(
            text[start_of(text) :], object_pairs_hook=_unique_object, parse_constant=_constant
        )
    except json.JSONDecodeError as wrong:
        raise NotEditable(_reason(text[start_of(text) :], wrong)) from None
    except RecursionError:
        raise NotEditable("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise NotEditable("it is not a JSON object")
    return text


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise NotEditable(f"the key {twice!r} stands in it twice")
    return value


def _reason(text: str, wrong: json.JSONDecodeError) -> str:
    rest = text[wrong.pos :].lstrip()
    prefix = text[: wrong.pos].rstrip()
    place = f"line {wrong.lineno}"
    if rest.startswith(("//", "/*")) or prefix.endswith(("//", "/*")):
        return f"it has comments ({place}), which the agent itself can't read"
    if rest.startswith(("}", "]")) or prefix.endswith(","):
        return f"it has a trailing comma ({place}), which the agent itself can't read"
    return f"it is not JSON ({place}: {wrong.msg})"


def find(text: str, keys: Sequence[str]) -> Member | None:
    """Return the member at a path of keys."""
    offset = start_of(text)
    result: Member | None = None
    for key in keys:
        if text[offset : offset + 1] != "{":
            return None
        result = next((member for member in members(text, offset) if member.key == key), None)
        if result is None:
            return None
        offset = result.start
    return result


def set_member(text: str, keys: Sequence[str], value: Any) -> str:
    """Return the text with the member at `keys` set to `value`; missing objects on the way are
    created.
    """
    source = json.dumps(value)
    present = find(text, keys)
    if present is not None:
        return text[: present.start] + source + text[present.end :]
    parent = find(text, keys[:-1])
    if keys[:-1] and parent is None:
        return set_member(text, keys[:-1], {keys[-1]: value})
    offset = start_of(text) if parent is None else parent.start
    if text[offset] != "{":
        raise NotEditable(f"{'.'.join(keys[:-1])!r} is no object")
    siblings = list(members(text, offset))
    if not siblings:
        end = text.index("}", offset)
        return text[: offset + 1] + f"{json.dumps(keys[-1])}: {source}" + text[end:]
    first = siblings[0]
    last = siblings[-1]
    gap = text[offset + 1 : first.key_start]
    key_end = scanstring(text, first.key_start + 1, True)[1]
    colon = text[key_end : first.start]
    return (
        text[: last.end] + f",{gap or ' '}{json.dumps(keys[-1])}{colon}{source}" + text[last.end :]
    )


def remove_member(text: str, keys: Sequence[str]) -> str:
    """Return the text without the member at `keys`. Raises NotEditable if there is none."""
    if find(text, keys) is None:
        raise NotEditable(f"{'.'.join(keys)!r} is not in it")
    offset = start_of(text) if (parent := find(text, keys[:-1])) is None else parent.start
    siblings = list(members(text, offset))
    index = [member.key for member in siblings].index(keys[-1])
    return _cut_item(text, offset, [(member.key_start, member.end) for member in siblings], index)


def remove_element(text: str, keys: Sequence[str], value: Any) -> str:
    """Return the text without the elements that equal `value` in the array at `keys`."""
    while True:
        array = find(text, keys)
        if array is None or text[array.start] != "[":
            return text

        elements = read_elements(text, array.start)[0]
        values = [element.value for element in elements]
        if value not in values:
            return text
        spans = [(element.start, element.end) for element in elements]
        text = _cut_item(text, array.start, spans, values.index(value))


def _cut_item(text: str, at: int, spans: Sequence[tuple[int, int]], index: int) -> str:
    """Remove one item of the object or array at `at`, with its then superfluous comma."""
    start, end = spans[index]
    if len(spans) == 1:
        return text[: at + 1] + text[skip_space(text, end) :]
    if index + 1 < len(spans):
        return text[:start] + text[spans[index + 1][0] :]
    return text[: spans[index - 1][1]] + text[end:]
