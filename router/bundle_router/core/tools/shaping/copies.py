"""Drops what a result says twice.

Servers that return a structured value repeat it as text: as the same JSON, as the plain string inside a wrapper
(`{"result": "…"}`, `{"content": "…"}`), or as one text block per item of a list. JSON is kept as the value (its
compact form is half the tokens of the pretty one), a plain string as the text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bundle_router.core.models import Block, Data, Text
from bundle_router.core.tools.shaping.json_text import parse


def without_copies(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks in order, each thing said once."""
    kept: list[Block | None] = list(blocks)
    for at, block in enumerate(blocks):
        if isinstance(block, Data) and any(_settle(kept, at, value) for value in _forms(block.value)):
            kept[at] = None
    return [block for block in kept if block is not None]


def _forms(value: Any) -> list[Any]:
    """Return the value, and what is inside it when it is a wrapper with a single key."""
    inner = [next(iter(value.values()))] if isinstance(value, dict) and len(value) == 1 else []
    return [value, *inner]


def _settle(kept: list[Block | None], at: int, value: Any) -> bool:
    """Return True when the texts say what the value says; the better of the two then stands in the texts' place."""
    texts = [(index, block.text) for index, block in enumerate(kept) if isinstance(block, Text) and not block.uri]
    for index, text in texts:
        if _same(text, value):
            if not isinstance(value, str):
                kept[index] = Data(value)
            return True
    if len(texts) < 2 or not isinstance(value, list) or len(value) != len(texts):
        return False
    if not all(_same(text, item) for (_, text), item in zip(texts, value, strict=True)):
        return False
    if not all(isinstance(item, str) for item in value):
        for index, _ in texts:
            kept[index] = None
        kept[texts[0][0]] = Data(value)
    return True


def _same(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text.strip() == value.strip() and value.strip() != ""
    if isinstance(value, dict | list):
        parsed = parse(text)
        return type(parsed) is type(value) and _equal(parsed, value)
    return text.strip() == json.dumps(value)


def _equal(left: Any, right: Any) -> bool:
    """Equal as JSON: unlike Python's, `1` and `true` differ, and NaN equals nothing."""
    waiting = [(left, right)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            waiting.extend((value, other[name]) for name, value in one.items())
        elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            waiting.extend(zip(one, other, strict=True))
        elif type(one) is not type(other) or one != other:
            return False
    return True
