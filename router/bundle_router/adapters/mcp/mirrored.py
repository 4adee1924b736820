"""The arguments that a modern server also wants as headers (`x-mcp-header` in a tool's schema).

Rules:
1. An annotation counts on a text, whole number or truth value that is reached by `properties`
   alone, and names a header that nothing else of the schema names. One that does not makes the
   whole schema's annotations void, as the specification wants.
2. A value that no header can hold is sent in base64, in the specification's form.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

PREFIX: Final = "mcp-param-"
_KEY: Final = "x-mcp-header"
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE: Final = re.compile(r"[\x20-\x7E]*")
_ENCODED: Final = re.compile(r"=\?base64\?.*\?=")
_TYPES: Final = ("string", "boolean", "integer")
_ONE: Final = (
    "items",
    "additionalProperties",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
    "contains",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
)
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS: Final = ("$defs", "definitions", "dependentSchemas", "patternProperties")

Path = tuple[str, ...]


def mirrored_arguments(schema: Mapping[str, Any]) -> dict[Path, str]:
    """Return the header of each argument that is to be sent as one, by its path; none if an
    annotation is invalid.
    """
    found: dict[Path, str] = {}
    seen: set[str] = set()
    for path, position in _positions(schema, ()):
        if _KEY not in position:
            continue
        header = position[_KEY]
        if not path or not isinstance(header, str) or not _TOKEN.fullmatch(header):
            return {}
        if position.get("type") not in _TYPES or header.lower() in seen:
            return {}
        seen.add(header.lower())
        found[path] = header
    return found


def headers_for(mirrored: Mapping[Path, str], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers for the arguments of a call; none for what is left out or null."""
    headers = {}
    for path, header in mirrored.items():
        text = _text_of(_value_at(arguments, path))
        if text is not None:
            headers[PREFIX + header.lower()] = header_value(text)
    return headers


def header_value(text: str) -> str:
    """Return a text as a header can hold it; half a pair of surrogates is a question mark."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if _SAFE.fullmatch(text) and text == text.strip() and not _ENCODED.fullmatch(text):
        return text
    encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
    return f"=?base64?{encoded}?="


def _positions(
    schema: object, path: Path | None
) -> Iterator[tuple[Path | None, Mapping[str, Any]]]:
    """Yield every schema within a schema, with its path where `properties` alone lead to it."""
    waiting: list[tuple[Path | None, object]] = [(path, schema)]
    while waiting:
        where, position = waiting.pop()
        if not isinstance(position, Mapping):
            continue
        yield where, position
        properties = position.get("properties")
        if isinstance(properties, Mapping):
            for name, inner in properties.items():
                waiting.append((None if where is None else (*where, str(name)), inner))
        for key in _ONE:
            waiting.append((None, position.get(key)))
        for key in _LISTS:
            inner = position.get(key)
            waiting += [(None, one) for one in inner] if isinstance(inner, list) else []
        for key in _MAPS:
            inner = position.get(key)
            waiting += [(None, one) for one in inner.values()] if isinstance(inner, dict) else []


def _value_at(arguments: Mapping[str, Any], path: Path) -> object:
    value: object = arguments
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def _text_of(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        return None
    try:
        return str(value)
    except ValueError:  # a number of too many digits
        return None
