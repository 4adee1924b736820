"""Size, depth and number of nodes of a JSON value, found without recursion and without going on past a limit."""

from __future__ import annotations

import math
from typing import Any

from bundle_router.core.tools.admission.admitted import DefinitionLimits, RefusalCode

Fault = tuple[RefusalCode, str]


def beyond_bounds(value: Any, limits: DefinitionLimits) -> Fault | None:
    """Return why the value is more than may be looked at, or is not JSON; None when it is fine.

    Bytes are counted as the text's own length plus what its punctuation needs, so that no encoder has to run first.
    """
    waiting: list[tuple[Any, int]] = [(value, 1)]
    nodes = size = 0
    while waiting:
        item, depth = waiting.pop()
        nodes += 1
        if nodes > limits.max_nodes:
            return "too_many_nodes", f"more than {limits.max_nodes:,} values"
        if depth > limits.max_depth:
            return "too_deep", f"nested more than {limits.max_depth} levels"
        if isinstance(item, dict):
            for key in item:
                if not isinstance(key, str):
                    return "not_json", f"an object key is a {type(key).__name__}"
                size += _length(key) + 4
            waiting.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list):
            waiting.extend((inner, depth + 1) for inner in item)
            size += 2 + len(item)
        elif isinstance(item, str):
            size += _length(item) + 2
        elif (fault := _number_fault(item)) is not None:
            return fault
        else:
            size += 8
        if size > limits.max_bytes:
            return "too_large", f"more than {limits.max_bytes:,} bytes"
    return None


def _length(text: str) -> int:
    """Return an upper bound of the UTF-8 length, without encoding: 4 bytes a character outside ASCII."""
    return len(text) if text.isascii() else 4 * len(text)


def _number_fault(item: object) -> Fault | None:
    if isinstance(item, int):
        return ("too_large", "a number of more than 300 digits") if item.bit_length() > 1_000 else None
    if isinstance(item, float):
        return None if math.isfinite(item) else ("not_json", f"{item} is not a JSON number")
    return None if item is None else ("not_json", f"holds a {type(item).__name__}")
