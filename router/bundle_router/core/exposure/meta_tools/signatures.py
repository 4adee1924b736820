"""One line for one tool: its name, parameters and purpose, at a tenth of its schema's tokens.

A parameter without a type is a string; `?` marks an optional one; required ones come first. A
schema can be anything that admission accepted, so every part is bounded, and a type without a short
form is `any`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bundle_router.core.catalog import Card
from bundle_router.core.values.canonical import EACH, budget_left
from bundle_router.core.values.schema_tree import schema_at

MAX_DESCRIPTION: Final = 300
MAX_PARAMETERS: Final = 12
MAX_REQUIRED: Final = 40
"""Maximum parameters that are named: so many of any kind, and so many required ones."""
MAX_ENUM: Final = 60
"""Maximum characters of an enum's values."""

_WORDS: Final = {
    "integer": "int",
    "number": "num",
    "boolean": "bool",
    "array": "list",
    "null": "null",
}
_OUTER: Final = -1
"""The depth of a result, which shows a level more than an argument: rows of models are common."""
_LINE_ENDS: Final = str.maketrans({"\n": "\\n", "\r": "\\r"})
"""A server's names and values can't begin a line, which would look like the signature of another
tool.
"""
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9(\[`\"'])|(?<=[。！？])")
_NOISE: Final = re.compile(r"[*_`#]{2,}|`")


def signature(name: str, card: Card) -> str:
    """Return the signature: `name(required, count: int, optional?)`."""
    schema = card.input_schema()
    return f"{name}({_parameters(schema, schema, 0)})".translate(_LINE_ENDS)


def object_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return an object's type as parameters are written: `{at, c: num, note?}`."""
    return f"{{{_parameters(schema, root, _OUTER)}}}".translate(_LINE_ENDS)


def kind_of(schema: Any, root: Mapping[str, Any]) -> str:
    """Return the short form of a type; `any` if it has none."""
    return _kind(schema, root, _OUTER).translate(_LINE_ENDS)


def takes_nothing(card: Card) -> bool:
    """Return whether the tool has no parameters at all."""
    schema = card.input_schema()
    combined = any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf"))
    return (
        not _properties(schema)
        and not combined
        and schema.get("additionalProperties") in (None, False)
    )


def one_line(text: str, limit: int) -> str:
    """Return the first sentences of a description that fit `limit` characters, on one line, without
    markup. A first sentence that does not fit is cut at a word.
    """
    plain = " ".join(_NOISE.sub("", text).split())
    line = ""
    for sentence in _SENTENCE.split(plain):
        longer = f"{line} {sentence}".strip()
        if len(longer) > limit:
            break
        line = longer
    if line or not plain:
        return line
    cut = plain[: max(limit - 1, 0)]
    return (cut.rpartition(" ")[0] or cut) + "…"


def _required_names(schema: Mapping[str, Any]) -> frozenset[str]:
    required = schema.get("required")
    if isinstance(required, Sequence):
        return frozenset(name for name in required if isinstance(name, str))
    return frozenset()


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return dict(properties) if isinstance(properties, Mapping) else {}


def _parameters(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    required = _required_names(schema)
    properties = _properties(schema)
    ordered = sorted(properties, key=lambda key: key not in required)
    room = min(MAX_REQUIRED, max(MAX_PARAMETERS, sum(key in required for key in properties)))
    parts = [
        _parameter(key, properties[key], key in required, root, depth) for key in ordered[:room]
    ]
    if len(ordered) > room:
        parts.append(f"+{len(ordered) - room}")
    return ", ".join(parts)


def _parameter(key: str, schema: Any, required: bool, root: Mapping[str, Any], depth: int) -> str:
    name = key if len(key) <= 64 else key[:63] + "…"
    kind = _kind(schema, root, depth)
    return f"{name}{'' if required else '?'}{'' if kind == 'str' else f': {kind}'}"


def _listed_values(schema: Mapping[str, Any]) -> Any:
    """Return what a schema says are all the values, unchecked; None if it says nothing of it."""
    if "enum" in schema:
        return schema["enum"]
    if "const" in schema:
        return [schema["const"]]
    return None


def _joined_values(values: Any) -> str | None:
    """Return the values with a bar between them; None if there are none, or they are too long."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not values:
        return None
    if budget_left(values, (EACH + 1) * (MAX_ENUM + 1)) < 0:
        return None
    choices = "|".join(str(value) for value in values)
    if len(choices) > MAX_ENUM:
        return None
    return choices


def _kind(schema: Any, root: Mapping[str, Any], depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > 3:
        return "any"
    if "$ref" in schema:
        return _kind(schema_at(root, schema["$ref"]), root, depth + 1)
    values = _listed_values(schema)
    choices = _joined_values(values)
    if choices is not None:
        return choices
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), Sequence):
            return _join_kinds([_kind(part, root, depth + 1) for part in schema[key][:6]])
    kind = schema.get("type")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return _join_kinds([_kind({**schema, "type": one}, root, depth + 1) for one in kind[:6]])
    if kind == "array":
        if not schema.get("items"):
            return "list"
        return f"{_kind(schema['items'], root, depth + 1)}[]"
    if kind == "object" or "properties" in schema:
        return _object(schema, root, depth)
    if kind in (None, "string"):
        if kind == "string" or values:
            return "str"
        return "any"
    return _WORDS.get(str(kind), "any")


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    properties = _properties(schema)
    required = _required_names(schema)
    if depth > 1 or not 0 < len(properties) <= 6:
        return "object"
    return "{" + ", ".join(key[:64] + ("" if key in required else "?") for key in properties) + "}"


def _join_kinds(kinds: Sequence[str]) -> str:
    names = [kind for kind in dict.fromkeys(kinds) if kind != "null"]
    return "|".join(names) if 0 < len(names) <= 3 else "any"
