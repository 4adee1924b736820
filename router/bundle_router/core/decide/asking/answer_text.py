"""Finds the JSON of a model's answer in the text around it.

Servers give it in forms of their own: behind a byte order mark, behind thoughts that end in
`</think>` with or without a beginning, in a code fence, after a sentence.
"""

from __future__ import annotations

import json
from typing import Final

from bundle_router.core.values.code_fence import without_fence

MAX_OPENINGS: Final = 50
"""Brackets in a text at which JSON may begin that are tried."""
_END_OF_THOUGHTS: Final = "</think>"
_DECODER: Final = json.JSONDecoder()


def json_text(text: str) -> str:
    """Return the JSON object in a text; the text without thoughts and fence where there is none."""
    answer = text.rpartition(_END_OF_THOUGHTS)[2].lstrip("\ufeff \t\r\n")
    answer = without_fence(answer)
    if answer.startswith(("{", "[")):
        return _value_at(answer, 0) or answer

    place = -1
    for _ in range(MAX_OPENINGS):
        place = answer.find("{", place + 1)
        if place < 0:
            break
        found = _value_at(answer, place)
        if found:
            return found
    return answer


def _value_at(text: str, place: int) -> str:
    """Return the JSON value that begins there; empty if there is none, or it is empty itself."""
    try:
        value, end = _DECODER.raw_decode(text, place)
    except (ValueError, RecursionError):
        return ""
    return text[place:end] if value else ""
