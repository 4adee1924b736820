"""Definitions that a provider refuses, rewritten into ones that it takes.

A provider refuses the whole request for one such tool. What each refuses, as its users report it:

| in a schema | OpenAI | Anthropic | becomes |
|---|---|---|---|
| `anyOf`, `oneOf`, `allOf` at the root | refused | refused | properties, and a sentence |
| `not`, `enum` at the root | refused | | a sentence |
| a property's key at the root beyond `[a-zA-Z0-9_.-]{1,64}` | | refused | another key |
| an array without `items` | refused | | `items: {}` |
| `items` as a list (2019 and before) | refused | refused | `prefixItems` |
| `exclusiveMinimum: true` (draft 4) | refused | refused | the number |

Rules:
1. Nothing that a tool takes is lost: what a schema can't say any more is said in the description,
   and the router checks the arguments against the schema as it was admitted.
2. A key has the same other name in every form, and the arguments of a call are mapped back
   (`with_real_names`). That name stands nowhere in the schema.
3. References are led to the new places. A schema whose references lead into its root's
   alternatives stays as it is, and is said (`provider_notes`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.values.canonical import encode
from bundle_router.core.values.schema_tree import SAME_VALUE, all_schemas, rebuilt, schema_at

_KEY: Final = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_NOT_IN_KEYS: Final = re.compile(r"[^a-zA-Z0-9_.-]")
MAX_KEY: Final = 64


@dataclass(frozen=True, slots=True)
class ProviderLimits:
    """What one provider does not take in the schema of a tool."""

    at_root: tuple[str, ...]
    """Keywords that it refuses at the root."""
    limits_keys: bool
    """Whether it limits the keys of the root's properties."""
    needs_items: bool
    """Whether an array has to say what its items are."""


LIMITS: Final[Mapping[str, ProviderLimits]] = {
    "openai": ProviderLimits(("allOf", "anyOf", "oneOf", "not", "enum"), False, True),
    "anthropic": ProviderLimits(("allOf", "anyOf", "oneOf"), True, False),
}
_SENTENCES: Final = {
    "allOf": "All of these hold for the arguments",
    "anyOf": "At least one of these holds for the arguments",
    "oneOf": "Exactly one of these holds for the arguments",
    "not": "This must not hold for the arguments",
    "enum": "The arguments are one of these",
}
_OTHER_DRAFTS: Final = re.compile(r'"items":\[|"exclusiveM(?:in|ax)imum":(?:true|false)')
_COMPOSITION: Final = ("allOf", "anyOf", "oneOf")
"""Keywords whose values are lists of schemas for the same value."""
_VALUES: Final = frozenset(("const", "enum"))
_BOUNDS: Final = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


def accepted(description: str, text: str, schema: dict[str, Any], form: str) -> tuple[str, Any]:
    """Return a description and a schema that the provider takes, for those of a tool.

    `text` is the schema's canonical text. Both are returned as they are where nothing is refused,
    and where nothing could be done about it.
    """
    limits = LIMITS.get(form)
    if limits is None:
        return description, schema
    schema = _with_present_keywords(text, schema, needs_items=limits.needs_items)
    refused = [key for key in limits.at_root if key in schema]
    if refused:
        if _leads_into(schema, refused):
            return description, schema
        schema = _with_targets(schema, refused)
    if limits.limits_keys:
        schema = _renamed(schema, other_names(schema, text))
    if not refused:
        return description, schema
    sentences = [f"{_SENTENCES[key]}: {encode(_in_short(schema[key]))}" for key in refused]
    return "\n\n".join((description, *sentences)).strip(), _without_alternatives(schema, refused)


def provider_notes(text: str, schema: dict[str, Any]) -> tuple[str, ...]:
    """Return what providers refuse in a schema and what becomes of it, for a person who reviews
    it.
    """
    notes = []
    at_root = {key: None for limits in LIMITS.values() for key in limits.at_root if key in schema}
    stays = _leads_into(schema, tuple(at_root))
    for key in at_root:
        who = " and ".join(name for name, limits in LIMITS.items() if key in limits.at_root)
        if stays:
            what = "its schema refers to it, so it stays: such a request fails"
        else:
            what = "they are shown its properties, and a sentence about it"
        notes.append(f"{who} take no {key} at the root: {what}")
    names = other_names(schema, text)
    if names:
        shown = ", ".join(f"{key[:80]!r} as {name!r}" for key, name in list(names.items())[:8])
        notes.append(f"anthropic takes no such keys, and is shown {shown}")
    if _with_present_keywords(text, schema, needs_items=True) is not schema:
        notes.append("its arrays without items and keywords of older drafts are rewritten")
    return tuple(notes)


# --- keywords of other drafts ---------------------------------------------------------------------


def _may_need_change(text: str, schema: dict[str, Any], *, needs_items: bool) -> bool:
    """Return whether a schema may have keywords of other drafts: quick, since most have none."""
    if _OTHER_DRAFTS.search(text):
        return True
    if not needs_items or '"array"' not in text:
        return False
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if "items" not in value and _is_array(value):
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return False


def _with_present_keywords(
    text: str, schema: dict[str, Any], *, needs_items: bool
) -> dict[str, Any]:
    """Return the schema with the keywords of the present draft, the same object if it has them."""
    if not _may_need_change(text, schema, needs_items=needs_items):
        return schema
    moved = any(isinstance(inner.get("items"), list) for inner in all_schemas(schema))

    def change(inner: dict[str, Any]) -> dict[str, Any]:
        inner = _with_numeric_bounds(inner)
        if isinstance(inner.get("items"), list):
            inner = dict(inner)
            inner["prefixItems"] = inner.pop("items")
            inner["items"] = inner.pop("additionalItems", {})
        if needs_items and _is_array(inner) and "items" not in inner:
            inner = {**inner, "items": {}}
        if moved and isinstance(inner.get("$ref"), str):
            inner = {**inner, "$ref": _reference_to_items(schema, inner["$ref"])}
        return inner

    read: dict[str, Any] = rebuilt(schema, change)
    return read


def _is_array(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type")
    return kind == "array" or (isinstance(kind, list) and "array" in kind)


def _with_numeric_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    for exclusive, bound in _BOUNDS:
        if not isinstance(schema.get(exclusive), bool):
            continue
        schema = dict(schema)
        is_exclusive = schema.pop(exclusive)
        if is_exclusive and bound in schema:
            schema[exclusive] = schema.pop(bound)
    return schema


def _reference_to_items(root: Mapping[str, Any], reference: str) -> str:
    """Return a reference with the places of lists of items as they are now."""
    if not reference.startswith("#/"):
        return reference
    parts = reference[2:].split("/")
    for index, part in enumerate(parts):
        place = schema_at(root, "/".join(("#", *parts[:index])))
        if not isinstance(place, Mapping) or not isinstance(place.get("items"), list):
            continue
        if part == "items":
            parts[index] = "prefixItems"
        elif part == "additionalItems":
            parts[index] = "items"
    return "/".join(("#", *parts))


# --- keys -----------------------------------------------------------------------------------------


def other_names(schema: Mapping[str, Any], text: str) -> dict[str, str]:
    """Return the names that the keys have which a provider refuses, by key."""
    names: dict[str, str] = {}
    keys = {key for part in _same_value(schema) for key in _properties(part)}
    for key in sorted(key for key in keys if not _KEY.fullmatch(key)):
        base = _NOT_IN_KEYS.sub("_", key)[:MAX_KEY] or "_"
        name = base
        number = 2
        while f'"{name}"' in text or name in names.values():
            end = f"_{number}"
            name = base[: MAX_KEY - len(end)] + end
            number += 1
        names[key] = name
    return names


def with_real_names(arguments: Mapping[str, Any], schema_text: str) -> Mapping[str, Any]:
    """Return a call's arguments with the keys that the tool has, for those that a model was shown.

    The same object if the model was shown no others.
    """
    if all(f'"{name}"' in schema_text for name in arguments):
        return arguments
    names = other_names(json.loads(schema_text), schema_text)
    keys = {name: key for key, name in names.items()}
    if keys.keys().isdisjoint(arguments):
        return arguments
    return {keys.get(name, name): value for name, value in arguments.items()}


def _renamed(schema: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema with other keys, wherever it speaks of the arguments themselves."""
    if not names:
        return schema

    def lead(inner: dict[str, Any]) -> dict[str, Any]:
        reference = inner.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/properties/"):
            return inner
        key, slash, rest = reference.removeprefix("#/properties/").partition("/")
        real = key.replace("~1", "/").replace("~0", "~")
        if real not in names:
            return inner
        return {**inner, "$ref": f"#/properties/{names[real]}{slash}{rest}"}

    renamed: dict[str, Any] = _with_names(rebuilt(schema, lead), names)
    return renamed


def _with_names(schema: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(schema, dict):
        return schema
    changed = dict(schema)
    for keyword in ("properties", "dependencies", "dependentRequired", "dependentSchemas"):
        table = changed.get(keyword)
        if isinstance(table, dict):
            changed[keyword] = {names.get(key, key): value for key, value in table.items()}
    for keyword in ("dependencies", "dependentRequired"):
        table = changed.get(keyword)
        if isinstance(table, dict):
            changed[keyword] = {key: _names_in(value, names) for key, value in table.items()}
    changed["required"] = _names_in(changed.get("required"), names)
    if changed["required"] is None:
        del changed["required"]
    for keyword in SAME_VALUE & changed.keys():
        value = changed[keyword]
        if isinstance(value, list):
            changed[keyword] = [_with_names(inner, names) for inner in value]
        elif keyword in ("dependencies", "dependentSchemas"):
            changed[keyword] = {key: _with_names(inner, names) for key, inner in value.items()}
        else:
            changed[keyword] = _with_names(value, names)
    return changed


def _names_in(value: Any, names: Mapping[str, str]) -> Any:
    if not isinstance(value, list):
        return value
    return [names.get(name, name) if isinstance(name, str) else name for name in value]


# --- alternatives at the root ---------------------------------------------------------------------


def _leads_into(schema: Mapping[str, Any], keywords: Sequence[str]) -> bool:
    """Return whether a reference leads into one of these keywords of the root."""
    places = tuple(f"#/{keyword}/" for keyword in keywords)
    if not places:
        return False
    references = [str(inner.get("$ref", "")) for inner in all_schemas(schema)]
    return any(f"{reference}/".startswith(places) for reference in references)


def _with_targets(schema: dict[str, Any], keywords: Sequence[str]) -> dict[str, Any]:
    """Return the schema with what its root's alternatives refer to in place of the references."""
    changed = dict(schema)
    for keyword in keywords:
        if isinstance(schema[keyword], list):
            changed[keyword] = [_target(schema, inner) or inner for inner in schema[keyword]]
    return changed


def _same_value(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schema and its alternatives at the root, references followed."""
    yield schema
    for keyword in _COMPOSITION:
        alternatives = schema.get(keyword)
        if isinstance(alternatives, list):
            yield from filter(None, (_target(schema, inner) for inner in alternatives))


def _target(root: Mapping[str, Any], schema: Any) -> Mapping[str, Any] | None:
    if isinstance(schema, Mapping) and "$ref" in schema:
        schema = schema_at(root, schema["$ref"])
    return schema if isinstance(schema, Mapping) else None


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str)]


def _without_alternatives(schema: dict[str, Any], refused: Sequence[str]) -> dict[str, Any]:
    """Return the schema without these keywords of its root, with all properties that they
    describe; those that are always required stay so.
    """
    plain = {key: value for key, value in schema.items() if key not in refused}
    properties = _Properties()
    properties.add(schema)
    required = _required(schema)
    for keyword in filter(_COMPOSITION.__contains__, refused):
        parts = [part for part in schema[keyword] if isinstance(part, dict)]
        for part in parts:
            properties.add(part)
        required += _always_required(parts, of_all=keyword == "allOf")
    plain["properties"] = properties.schema()
    if required:
        plain["required"] = list(dict.fromkeys(required))
    return plain


class _Properties:
    """The properties that several schemas of one object describe."""

    def __init__(self) -> None:
        self._schemas: dict[str, list[Any]] = {}

    def add(self, schema: Mapping[str, Any]) -> None:
        for key, value in _properties(schema).items():
            schemas = self._schemas.setdefault(key, [])
            if value not in schemas:
                schemas.append(value)

    def schema(self) -> dict[str, Any]:
        """Return a schema by property: any of those that describe it."""
        return {
            key: schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            for key, schemas in self._schemas.items()
        }


def _always_required(parts: Sequence[Mapping[str, Any]], *, of_all: bool) -> list[str]:
    """Return the names that one of the parts requires (`of_all`), or each of them."""
    names: list[str] = []
    for part in parts:
        names.extend(_required(part))
    if of_all:
        return names
    return [name for name in names if names.count(name) == len(parts)]


def _in_short(value: Any) -> Any:
    """Return what a sentence says of alternatives: of properties, whose schemas stand among the
    properties anyway, their names and what tells the alternatives apart.
    """
    if isinstance(value, list):
        return list(map(_in_short, value))
    if not isinstance(value, dict):
        return value
    short = dict(value)
    short.pop("type", None)
    short.pop("description", None)
    properties = _properties(value)
    if properties:
        short["properties"] = {key: _what_differs(inner) for key, inner in properties.items()}
    return short


def _what_differs(schema: Any) -> Any:
    """Return a property's schema if it names single values, else an empty one."""
    if isinstance(schema, dict) and not _VALUES.isdisjoint(schema):
        return schema
    return {}
