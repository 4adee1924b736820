"""Reads schemas whose keywords are in a form that says nothing, or that another draft has.

Rules, for a schema that is refused as it is:
1. `null` for a keyword, `[]` for an object and `{}` for a list, as PHP writes them, and no
   alternatives at all are as if the keyword were left out. A property that is `null` is any value.
2. `required: true` inside a property, as draft 3 has it, makes the property required.
3. A number that is written as text is a number.
4. References into `#/components/schemas`, which OpenAPI has, lead into `$defs`.
5. Nothing else is changed: what is not certain is refused, and `pin` lists it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from bundle_router.core.values.schema_tree import LISTS, MAPS, ONE, rebuilt

_COMPONENTS: Final = "#/components/schemas/"
_DEFS: Final = "#/$defs/"
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?")
_NUMBERS: Final = frozenset(
    (
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "multipleOf",
    )
)
_WITH_FORM: Final = (
    LISTS
    | MAPS
    | ONE
    | _NUMBERS
    | frozenset(
        (
            "$schema",
            "dependentRequired",
            "description",
            "enum",
            "format",
            "pattern",
            "required",
            "title",
            "type",
        )
    )
)
"""Keywords for which null says nothing. It is a value of `const`, `default` and `examples`."""


def repaired(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema in the form that its present draft has."""
    root = _with_components_as_defs(dict(schema))
    if root.get("type") in (["object", "null"], ["null", "object"]):
        root["type"] = "object"
    root = rebuilt(root, _with_required_properties)
    whole: dict[str, Any] = rebuilt(root, _with_meaning)
    return whole


def _with_components_as_defs(root: dict[str, Any]) -> dict[str, Any]:
    components = root.get("components")
    schemas = components.get("schemas") if isinstance(components, dict) else None
    defs = root.get("$defs") or {}
    if not isinstance(schemas, dict) or not isinstance(defs, dict) or schemas.keys() & defs.keys():
        return root
    moved = {key: value for key, value in root.items() if key != "components"}
    moved["$defs"] = {**defs, **schemas}
    read: dict[str, Any] = rebuilt(moved, _with_reference_to_defs)
    return read


def _with_reference_to_defs(schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_COMPONENTS):
        schema["$ref"] = _DEFS + reference.removeprefix(_COMPONENTS)
    return schema


def _with_required_properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    marked = [name for name, inner in properties.items() if _required_mark(inner) is True]
    if marked:
        required = schema.get("required")
        if not isinstance(required, list):
            required = []
        new = [name for name in marked if name not in required]
        schema["required"] = [*required, *new]
    schema["properties"] = {
        name: {} if inner is None else inner for name, inner in properties.items()
    }
    return schema


def _required_mark(schema: Any) -> Any:
    return schema.get("required") if isinstance(schema, dict) else None


def _with_meaning(schema: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _number(key, value) for key, value in schema.items() if not _says_nothing(key, value)
    }


def _says_nothing(key: str, value: Any) -> bool:
    """Return whether a keyword's value is one that its writer means as "left out"."""
    if value is None:
        return key in _WITH_FORM
    if key == "required":
        return isinstance(value, bool) or value == {}
    if key in MAPS or key in LISTS - ONE:
        return bool(value == [])
    return False


def _number(key: str, value: Any) -> Any:
    if key not in _NUMBERS or not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return float(value) if "." in value else int(value)
