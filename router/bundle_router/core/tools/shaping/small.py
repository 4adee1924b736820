"""Whether a result is little work to shape: told by looking at no more of it than that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bundle_router.core.models import Block, Data, Text

_EACH: Final = 16
"""What a value weighs besides its characters: an array of a thousand numbers is no small result."""


def is_small(blocks: Sequence[Block], max_chars: int) -> bool:
    """Return whether text and JSON are at most `max_chars`, roughly, and nothing is media."""
    left = max_chars
    for block in blocks:
        if isinstance(block, Text):
            left -= len(block.text) + _EACH
        elif isinstance(block, Data):
            left = _left(block.value, left)
        else:
            return False
        if left < 0:
            return False
    return True


def _left(value: Any, left: int) -> int:
    """Return what is left of a budget after a JSON value; negative as soon as it is spent."""
    todo = [value]
    while todo and left >= 0:
        value = todo.pop()
        left -= _EACH
        if isinstance(value, str):
            left -= len(value)
        elif isinstance(value, Mapping):
            left -= sum(len(name) for name in value) if len(value) <= left else left + 1
            todo += value.values()
        elif isinstance(value, list | tuple):
            todo += value
    return left
