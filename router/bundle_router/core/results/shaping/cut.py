"""Bounds the text for the model: text keeps head and tail at line ends, JSON keeps whole leading
items.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.results.shaping.json_text import dump
from bundle_router.core.values.visible import visible

HEAD_SHARE: Final = 0.6
"""The head says what a result is, the tail how it ended (a test run's summary, an error's last
line).
"""

_SEARCHED: Final = 4
"""Levels of a JSON value that are searched for its largest array."""
_REFERENCE: Final = re.compile(r"\[artifact artifact:sha256:[0-9a-f]{64}[^\[\]\n]{0,400}\]")
_LONG_WORD: Final = 1_000
_BETWEEN_WORDS: Final = ' \t,"'
"""Where a line is cut: of a secret that is cut in two, no rule would recognise the halves."""
_ESCAPE: Final = re.compile(r"\\u[0-9a-f]{0,4}\Z")


@dataclass(frozen=True, slots=True)
class CutText:
    """`text` with its notice; `kept` characters of it come from the result.

    `rule` names what was done.
    """

    text: str
    kept: int
    rule: str


def shares(sizes: Sequence[int], cap: int) -> list[int]:
    """Return the maximum characters of each piece: small pieces whole, the others equal parts of
    the rest.
    """
    grants = [0] * len(sizes)
    room = cap
    order = sorted(range(len(sizes)), key=lambda index: (sizes[index], index))
    for position, index in enumerate(order):
        grants[index] = min(sizes[index], room // (len(order) - position))
        room -= grants[index]
    return grants


def head_tail(text: str, budget: int, hidden: int = 0) -> CutText:
    """Return head and tail of a text longer than `budget` characters, cut at line ends if there are
    any near.

    `hidden`: characters already missing in the middle, which the notice counts too.
    """
    head_end = _cut_before(text, int(budget * HEAD_SHARE))
    tail_start = _cut_after(text, len(text) - (budget - int(budget * HEAD_SHARE)))
    head = text[:head_end]
    tail = text[tail_start:]
    line = "" if not head or head.endswith("\n") else "\n"
    left_out = tail_start - head_end + hidden
    total = len(text) + hidden
    notice = f"{line}[{left_out:,} of {total:,} characters left out here]\n"
    return CutText(head + notice + tail, len(head) + len(tail), "head_tail")


def leading_items(value: Any, budget: int) -> CutText | None:
    """Return the value with only the leading items of its largest array, within `budget` characters
    of compact JSON.

    None if there is no array that could be shortened enough, or if not one item fits.
    """
    array = _large_array(value)
    if array is None:
        return None
    path, items = array
    rest = len(compact(_with_items(value, path, [])))
    count = 0
    for item in items:
        rest += len(compact(item)) + (1 if count else 0)
        if rest > budget:
            break
        count += 1
    if count in (0, len(items)):
        return None
    text = compact(_with_items(value, path, items[:count]))
    place = visible(".".join(path)[:80])
    notice = f"\n[{place + ': ' if place else ''}{count:,} of {len(items):,} items shown]"
    return CutText(text + notice, len(text), "leading_items")


def compact(value: Any) -> str:
    """Return the value as compact JSON in its own order, with invisible characters escaped."""
    return visible(dump(value))


def _large_array(value: Any) -> tuple[list[str], list[Any]] | None:
    """Return the array that makes up most of the value, with its path of keys."""
    path: list[str] = []
    for _ in range(_SEARCHED):
        if isinstance(value, list):
            return path, value
        if not isinstance(value, dict):
            return None
        inner = [key for key, item in value.items() if isinstance(item, list | dict)]
        if not inner:
            return None
        key = max(inner, key=lambda name: len(dump(value[name]))) if len(inner) > 1 else inner[0]
        path.append(key)
        value = value[key]
    return (path, value) if isinstance(value, list) else None


def _with_items(value: Any, path: Sequence[str], items: list[Any]) -> Any:
    if not path:
        return items
    return {
        key: _with_items(item, path[1:], items) if key == path[0] else item
        for key, item in value.items()
    }


def _cut_before(text: str, at: int) -> int:
    """Return a position at or before `at`: after a line end if one is in the second half, else
    between words; never inside a reference.
    """
    at = _edge_outside(text, at, before=True)
    line_end = text.rfind("\n", at // 2, at)
    if line_end >= 0:
        return line_end + 1
    word_end = max(text.rfind(space, max(at // 2, at - _LONG_WORD), at) for space in _BETWEEN_WORDS)
    if word_end >= 0:
        return word_end + 1
    if partial := _ESCAPE.search(text[max(0, at - 6) : at]):
        return at - len(partial[0])
    return at


def _cut_after(text: str, at: int) -> int:
    """Return such a position for the start of the tail: at or after `at`."""
    at = _edge_outside(text, at, before=False)
    half = at + (len(text) - at) // 2
    line_end = text.find("\n", at - 1 if at else 0, half)
    if line_end >= 0:
        return line_end + 1
    places = [text.find(space, at, min(half, at + _LONG_WORD)) for space in _BETWEEN_WORDS]
    return min((place for place in places if place >= 0), default=at)


def _edge_outside(text: str, at: int, *, before: bool) -> int:
    """Return `at`, or the edge of the artifact reference that contains it."""
    opened = text.rfind("[artifact ", max(0, at - 600), at)
    match = _REFERENCE.match(text, opened) if opened >= 0 else None
    if match is None or match.end() <= at:
        return at
    return match.start() if before else match.end()
