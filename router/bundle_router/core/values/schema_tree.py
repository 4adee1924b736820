"""Where schemas are inside a JSON Schema, and where its references lead.

It covers drafts 4 to 2020-12 together, because servers mix them: keywords differ less in where they
may be than in what they mean. Nothing here evaluates a schema against a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

Place = tuple[str | int, ...]

ONE: Final = frozenset(
    (
        "additionalItems",
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
MAPS: Final = frozenset(
    ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
)
LISTS: Final = frozenset(("allOf", "anyOf", "items", "oneOf", "prefixItems"))
SAME_VALUE: Final = frozenset(
    ("allOf", "anyOf", "dependencies", "dependentSchemas", "else", "if", "not", "oneOf", "then")
)
"""Keywords whose inner schemas are about the same value, not a part of it."""


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """Yield the direct inner schemas with their places: `("items",)`, `("anyOf", 2)`,
    `("properties", "id")`.
    """
    for key, value in schema.items():
        if key in LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                yield (key, index), inner
        elif key in MAPS and isinstance(value, dict):
            yield from _named_subschemas(key, value)
        elif key in ONE:
            yield (key,), value


def _named_subschemas(key: str, value: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    for name, inner in value.items():
        is_names = key == "dependencies" and isinstance(inner, list)
        if not is_names:
            yield (key, name), inner


def rebuilt(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Return the schema with every schema in it, and then itself, replaced by `change` of it.

    It is the same object if nothing was changed.
    """
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = dict(schema)
    for (key, *inside), inner in subschemas(schema):
        name = str(key)
        inner_copy = rebuilt(inner, change)
        if inner_copy is inner:
            continue
        if not inside:
            copy[name] = inner_copy
            continue
        if copy[name] is schema[name]:
            copy[name] = schema[name].copy()
        copy[name][inside[0]] = inner_copy
    copy = change(copy)
    is_same = len(copy) == len(schema) and all(
        copy.get(key) is value for key, value in schema.items()
    )
    return schema if is_same else copy


def pointer(place: Place) -> str:
    """Return the place as a JSON Pointer, for messages; `/` is the whole schema."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in place) or "/"


def target_of(root: Mapping[str, Any], anchors: Mapping[str, Any], ref: str) -> Any:
    """Return the target of a reference inside the schema (a schema, if it is valid); None if there
    is none.
    """
    if ref == "#":
        return root
    if not ref.startswith("#/"):
        return anchors.get(unquote(ref[1:])) if ref.startswith("#") else None
    value: Any = root
    for escaped in unquote(ref[2:]).split("/"):
        part = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif (
            isinstance(value, list)
            and part.isascii()
            and part.isdigit()
            and int(part[:9]) < len(value)
        ):
            value = value[int(part[:9])]
        else:
            return None
    return value


def schema_at(root: Mapping[str, Any], reference: object) -> Any:
    """Return the target of a reference inside the schema, by path or by anchor; None if there is
    none.
    """
    if not isinstance(reference, str):
        return None
    by_path = reference == "#" or reference.startswith("#/")
    return target_of(root, {} if by_path else anchors_in(root), reference)


def anchors_in(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schemas in a schema that have an anchor, by its name; the first of several."""
    anchors: dict[str, Any] = {}
    for schema in all_schemas(root):
        for name in anchor_names(schema):
            anchors.setdefault(name, schema)
    return anchors


def all_schemas(root: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it, in the order in which they are written."""
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict):
            yield schema
            waiting.extend(inner for _, inner in reversed(list(subschemas(schema))))


def anchor_names(schema: Mapping[str, Any]) -> Iterator[str]:
    for key in ("$anchor", "$dynamicAnchor", "$id"):
        if isinstance(schema.get(key), str):
            yield schema[key].removeprefix("#")
