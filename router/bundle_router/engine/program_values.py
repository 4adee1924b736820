"""Results as values for programs of `execute`, and the types of those that a run has recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.exposure.meta_tools.result_types import result_type, schema_of, unwrapped
from bundle_router.core.results.shaping.frame import without_frame
from bundle_router.core.values import Data, Text
from bundle_router.engine.results import Result
from bundle_router.errors import StorageError

MAX_SEEN_BYTES: Final = 1_000_000
"""Bytes of a recorded result from which its type is not read."""


def _recorded_text(result: Result, artifact: Callable[[str], bytes]) -> str:
    """Return the whole text of a recorded result, from its artifact where it was cut."""
    for row in result.artifacts:
        if row.role == "full_result":
            return artifact(row.sha256).decode("utf-8", "replace")
    return without_frame(result.text)


def value_of(result: Result, artifact: Callable[[str], bytes], card: Card | None = None) -> Any:
    """Return a result as a program's value: JSON as its value, also where it came as text; other
    text as text; media as the text and the artifacts' handles. A value that the tool's SDK wrapped
    comes without the wrapper. A recorded result has the same value.
    """
    wraps_result = card is not None and card.wraps_result
    handles = [row.uri for row in result.artifacts if row.role == "media"]
    if handles:
        return {"text": without_frame(result.text), "media": handles}

    if result.whole is None:
        text = _recorded_text(result, artifact)
    else:
        data = [block for block in result.whole if isinstance(block, Data)]
        if len(data) == 1:
            return unwrapped(data[0].value) if wraps_result else data[0].value
        text = "\n".join(block.text for block in result.whole if isinstance(block, Text))

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not wraps_result:
        return value
    value = unwrapped(value)
    is_text = card is not None and card.returns == "str"
    return text if is_text and not isinstance(value, str) else value


def type_of(result: Result, artifact: Callable[[str], bytes], catalog: Catalog) -> str:
    """Return the type of a recorded result in short; nothing for one that can't be read now."""
    full_results = (row for row in result.artifacts if row.role == "full_result")
    if sum(row.bytes for row in full_results) > MAX_SEEN_BYTES:
        return ""
    server = catalog.servers[result.tool.partition(".")[0]]
    try:
        value = value_of(result, artifact, catalog.cards.get(result.tool))
    except (KeyError, StorageError):
        return ""
    return result_type(schema_of(value, has_names=not server.frames_results))
