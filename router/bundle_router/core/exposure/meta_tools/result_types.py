"""What a tool gives a program of `execute`, in the short form of arguments.

Rules:
1. The type is that of the tool's output schema, or else of a result that this run has recorded.
2. Types hold names and kinds, never a value. Of a recorded result, names are shown only where they
   all look like fields' names, and never those of a server whose results are framed: nobody has
   reviewed them.
3. A schema with `result` for its only property is that of a value which is no object: SDKs send
   such values as `{"result": …}`, and programs get them without that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bundle_router.core.exposure.meta_tools.signatures import kind_of, object_of
from bundle_router.core.values.schema_tree import schema_at

MAX_TYPE: Final = 300
"""Maximum characters of a type."""
WRAPPER: Final = "result"
_MAX_ITEMS: Final = 20
"""Items of a list that are looked at."""
_MAX_FIELDS: Final = 40
_MAX_LEVELS: Final = 4
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_ANY: Final[Mapping[str, Any]] = {}


def is_wrapper(schema: Mapping[str, Any]) -> bool:
    """Return whether an output schema wraps a value that is no object (rule 3)."""
    properties = schema.get("properties")
    return isinstance(properties, Mapping) and list(properties) == [WRAPPER]


def unwrapped(value: Any) -> Any:
    """Return a value without its wrapper, if it has one."""
    if isinstance(value, dict) and list(value) == [WRAPPER]:
        return value[WRAPPER]
    return value


def result_type(schema: Mapping[str, Any]) -> str:
    """Return the type that an output schema describes; nothing for one that says nothing.

    >>> from bundle_router.core.exposure.meta_tools.result_types import result_type
    >>> degrees = {"type": "number"}
    >>> result_type({"type": "object", "properties": {"c": degrees, "at": {"type": "string"}}})
    '{c?: num, at?}'
    """
    inner: Any = schema
    if is_wrapper(schema):
        inner = schema["properties"][WRAPPER]
    text = kind_of(inner, schema)
    if text == "any":
        return ""
    rows = _target(inner, schema)
    suffix = ""
    if rows.get("type") == "array":
        rows = _target(rows.get("items"), schema)
        suffix = "[]"
    properties = rows.get("properties")
    if properties and isinstance(properties, Mapping):
        text = object_of(rows, schema) + suffix
    return text if len(text) <= MAX_TYPE else text[: MAX_TYPE - 1] + "…"


def _target(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the one that it refers to; an empty one for what is none."""
    if isinstance(schema, Mapping) and "$ref" in schema:
        schema = schema_at(root, schema["$ref"])
    return schema if isinstance(schema, Mapping) else _ANY


def schema_of(value: Any, *, has_names: bool, level: int = 0) -> Mapping[str, Any]:
    """Return a schema of a recorded value (rule 2)."""
    if level > _MAX_LEVELS:
        return _ANY
    if value is None:
        return {"type": "null"}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer"}
    if isinstance(value, float):
        return {"type": "number"}
    if isinstance(value, str):
        return {"type": "string"}
    if isinstance(value, list):
        items = [
            schema_of(item, has_names=has_names, level=level + 1) for item in value[:_MAX_ITEMS]
        ]
        return {"type": "array", "items": _merged(items)}
    if not isinstance(value, dict):
        return _ANY
    are_fields = len(value) <= _MAX_FIELDS and all(map(_FIELD.fullmatch, value))
    if not (has_names and are_fields):
        return {"type": "object"}
    properties = {
        name: schema_of(inner, has_names=True, level=level + 1) for name, inner in value.items()
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def _merged(schemas: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the schema of values that have these: objects as one, with what some lack optional."""
    if not schemas:
        return _ANY
    different: list[Mapping[str, Any]] = []
    for schema in schemas:
        if schema not in different:
            different.append(schema)
    if len(different) == 1:
        return different[0]
    if not all("properties" in schema for schema in different):
        return {"anyOf": different}
    properties: dict[str, list[Mapping[str, Any]]] = {}
    for schema in different:
        for name, inner in schema["properties"].items():
            properties.setdefault(name, []).append(inner)
    required = [
        name for name in properties if all(name in schema["required"] for schema in different)
    ]
    merged = {name: _merged(inner) for name, inner in properties.items()}
    return {"type": "object", "properties": merged, "required": required}
