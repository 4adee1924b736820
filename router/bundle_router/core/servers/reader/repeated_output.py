"""Whether a large result fits where what it says twice, as text and as structured output, counts
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bundle_router.core.values import Data, Text


def fits_once(result: Mapping[str, Any], size: int, max_bytes: int) -> bool:
    """Return whether a result of `size` bytes repeats its structured output as text, and both the
    texts and the rest of the message have at most `max_bytes`.

    The texts are JSON of the structured output, of what it holds under its only key
    (`{"result": …}`), or of the items of such a list, as SDKs send them.
    """
    content = result.get("content")
    structured = result.get("structuredContent")
    if structured is None or not isinstance(content, list):
        return False
    texts = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "text":
            text = block.get("text")
            if isinstance(text, str):
                texts.append(Text(text))
    text_bytes = sum(len(block.text.encode("utf-8", "surrogatepass")) for block in texts)
    if max(text_bytes, size - text_bytes) > max_bytes:
        return False
    # Few results are that large, and routing loads no shaping.
    from bundle_router.core.results.shaping.shape import without_copies

    return len(without_copies([*texts, Data(structured)])) <= len(texts)
