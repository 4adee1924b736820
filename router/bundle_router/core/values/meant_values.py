"""Reads arguments as a tool's schema shows they were meant, where they do not fit it.

Models write `null` for what they leave out, and lists, objects, numbers and truth values as text.

Rules:
1. A value whose type its schema permits stays as it is. So does one that is about to fail for
   another reason, such as a number below its minimum.
2. `null` for a property that may be left out, or that has a default, is left out.
3. Text is read as JSON where that gives a type that is permitted and text is not.
4. Nothing is guessed: no list is made of its only item, no text of a number (which may have lost
   its zeros), and text that is no JSON stays.
5. A whole number that is written with a point (`5.0`), where only an integer is permitted, is an
   integer: schemas take it, and many servers don't.
6. The result is checked against the schema by the caller, as every value is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bundle_router.core.values.schema_tree import schema_at

_MAX_DEPTH: Final = 32
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,3})?")
_TRUTH: Final = {"true": True, "false": False}
_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


def as_meant(value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the value as its schema shows it was meant; the same object if nothing was changed."""
    return _Reader(schema).read(value, schema, 0)


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root

    def read(self, value: Any, schema: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            return value
        choices = list(self._choices(schema, 0))
        permitted = _permitted_types(choices)
        if not permitted & _types_of(value):
            value = _converted(value, permitted)
        if isinstance(value, float) and value.is_integer() and "number" not in permitted:
            value = int(value)
        if isinstance(value, Mapping):
            return self._object(value, choices, depth)
        if isinstance(value, list):
            return self._items(value, choices, depth)
        return value

    def _choices(self, schema: Any, depth: int) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas of which one must permit a value: its alternatives, or itself."""
        if depth > _MAX_DEPTH or not isinstance(schema, Mapping):
            yield {}
            return
        if "$ref" in schema:
            yield from self._choices(schema_at(self._root, schema["$ref"]), depth + 1)
            return
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(alternatives, list) or "type" in schema or "properties" in schema:
            yield schema
            return
        for alternative in alternatives:
            yield from self._choices(alternative, depth + 1)

    def _object(
        self, value: Mapping[str, Any], choices: list[Mapping[str, Any]], depth: int
    ) -> Mapping[str, Any]:
        described = [choice for choice in choices if isinstance(choice.get("properties"), Mapping)]
        if len(described) != 1:
            return value  # none, or several: which is meant is not certain
        schema = described[0]
        properties = schema["properties"]
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        read = {}
        for name, item in value.items():
            inner = properties.get(name)
            may_be_absent = name not in needed or _has_default(inner)
            if item is None and may_be_absent and not self._permits_null(inner):
                continue
            read[name] = self.read(item, inner, depth + 1)
        is_same = len(read) == len(value) and all(
            read[name] is item for name, item in value.items()
        )
        return value if is_same else read

    def _items(self, value: list[Any], choices: list[Mapping[str, Any]], depth: int) -> list[Any]:
        described = [choice for choice in choices if isinstance(choice.get("items"), Mapping)]
        if len(described) != 1:
            return value
        inner = described[0]["items"]
        read = [self.read(item, inner, depth + 1) for item in value]
        is_same = all(after is before for after, before in zip(read, value, strict=True))
        return value if is_same else read

    def _permits_null(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping):
            return True  # of a property that is not described nothing is certain
        return "null" in _permitted_types(list(self._choices(schema, 0)))


def _permitted_types(choices: list[Mapping[str, Any]]) -> frozenset[str]:
    """Return the types that the schemas permit; all where one does not say."""
    permitted: set[str] = set()
    for choice in choices:
        permitted |= _said_types(choice)
        if choice.get("nullable") is True:
            permitted.add("null")
    return frozenset(permitted)


def _said_types(schema: Mapping[str, Any]) -> frozenset[str]:
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset((said,))
    if isinstance(said, list):
        return frozenset(map(str, said))
    if "const" in schema:
        return _types_of(schema["const"])
    values = schema.get("enum")
    if isinstance(values, list) and values:
        return frozenset().union(*map(_types_of, values))
    return _TYPES


def _types_of(value: Any) -> frozenset[str]:
    """Return the names that JSON Schema has for a value's type."""
    if value is None:
        return frozenset(("null",))
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, int):
        return frozenset(("integer", "number"))
    if isinstance(value, float):
        names = ("integer", "number") if value.is_integer() else ("number",)
        return frozenset(names)
    if isinstance(value, str):
        return frozenset(("string",))
    return frozenset(("object",) if isinstance(value, Mapping) else ("array",))


def _converted(value: Any, permitted: frozenset[str]) -> Any:
    """Return the value as a type that is permitted; the value itself if nothing is certain."""
    if isinstance(value, str):
        read = _read_text(value.strip())
        return read if read is not None and permitted & _types_of(read) else value
    return value


def _read_text(text: str) -> Any:
    """Return what text stands for: a number, a truth value, a list or an object; None if none."""
    if text.lower() in _TRUTH:
        return _TRUTH[text.lower()]
    if not text.startswith(("{", "[")) and not _NUMBER.fullmatch(text):
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _has_default(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "default" in schema
