"""Text of a definition as models and readers may have it: nothing in it that they can't see."""

from __future__ import annotations

import re
from typing import Any, Final

from bundle_router.core.tools.admission.identity import rewritten
from bundle_router.core.tools.admission.schemas import Place, pointer, subschemas
from bundle_router.core.tools.shaping.visible import invisible_in, without_invisible

_TERMINAL: Final = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,16}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_])")
_BREAKS: Final = re.compile(r"[\x0b\x0c\x85\u2028\u2029]|\r\n?")
_PRIVATE: Final = re.compile(r"[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_LINE_ENDS: Final = re.compile(r"[\r\n]")
_SHOWN: Final = ("title", "description", "$comment", "default", "examples", "example")
"""Keywords whose values are only ever read."""


def cleaned(text: str) -> str:
    """Return the text without terminal sequences, controls, bidirectional marks, tags, zero-width and private ones."""
    if text.isascii() and text.isprintable():
        return text
    return _PRIVATE.sub("", without_invisible(_BREAKS.sub("\n", _TERMINAL.sub("", text))))


def has_hidden(text: str) -> bool:
    """Return whether the text holds what `cleaned` takes out. Line ends of any kind are not hidden."""
    if text.isascii() and text.isprintable():
        return False
    return invisible_in(_LINE_ENDS.sub("\n", text)) != "" or _PRIVATE.search(text) is not None


def cleaned_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the schema whose readable texts are cleaned; every other value is as it was."""
    copy: dict[str, Any] = rewritten(schema, _with_clean_texts)
    return copy


def _with_clean_texts(schema: dict[str, Any]) -> dict[str, Any]:
    for key in _SHOWN:
        if key in schema:
            schema[key] = _cleaned_value(schema[key])
    return schema


def _cleaned_value(value: Any) -> Any:
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, list):
        return [_cleaned_value(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): _cleaned_value(item) for key, item in value.items()}
    return value


def hidden_value(schema: dict[str, Any]) -> str | None:
    """Return where the schema hides something in what has to stay as it is: property names, enum, const, patterns, and
    keys that nobody knows. None when it does not."""
    waiting: list[tuple[Place, dict[str, Any]]] = [((), schema)]
    while waiting:
        place, current = waiting.pop()
        inside = {where[0] for where, _ in subschemas(current)}
        for key, value in current.items():
            if has_hidden(key) or (key not in _SHOWN and key not in inside and _hidden_inside(value)):
                return pointer((*place, key if not has_hidden(key) else ascii(key)))
        for where, inner in subschemas(current):
            if has_hidden(str(where[-1])):
                return pointer((*place, *where[:-1], ascii(where[-1])))
            if isinstance(inner, dict):
                waiting.append(((*place, *where), inner))
    return None


def _hidden_inside(value: Any) -> bool:
    if isinstance(value, str):
        return has_hidden(value)
    if isinstance(value, list):
        return any(_hidden_inside(item) for item in value)
    if isinstance(value, dict):
        return any(has_hidden(key) or _hidden_inside(item) for key, item in value.items())
    return False
