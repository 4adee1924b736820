"""The errors of values, as agents read them: one short sentence each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bundle_router.adapters.json_schema.validators import ValidationError

MAX_SHOWN: Final = 60
MAX_LISTED: Final = 20


def display_value(value: Any) -> str:
    """Return the value for a message, shortened if it is large."""
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        if len(value) <= MAX_SHOWN:
            return repr(value)
        return repr(value[:MAX_SHOWN]) + "…"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of many digits"
    return repr(value)


def sentence_of(error: ValidationError, path: Sequence[str | int] = ()) -> str:
    """Return what is wrong, and where."""
    place = (*path, *error.instance_path)
    inner = getattr(error.kind, "error", None)
    if error.kind.name == "propertyNames" and isinstance(inner, ValidationError):
        return sentence_of(inner, (*place, str(inner.instance)))
    where = ".".join(str(part)[:MAX_SHOWN] for part in place) or "arguments"
    return f"{where}: {_what_is_wrong(error)}"


def _what_is_wrong(error: ValidationError) -> str:
    if error.kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
        return "Additional properties are not allowed"
    words = _WORDS.get(error.kind.name)
    if words is None:
        return f"{display_value(error.instance)} does not fit the schema ({error.kind.name})"
    return words(error.instance, error.kind)


def _listed(values: Sequence[Any], most: int = MAX_LISTED) -> str:
    ellipsis = ", …" if len(values) > most else ""
    return ", ".join(display_value(value) for value in values[:most]) + ellipsis


def _unexpected(what: str) -> Callable[[Any, Any], str]:
    def words(_value: Any, kind: Any) -> str:
        verb = "was" if len(kind.unexpected) == 1 else "were"
        return f"{what} are not allowed ({_listed(kind.unexpected, 5)} {verb} unexpected)"

    return words


def _one_of(value: Any, kind: Any) -> str:
    count = "valid under more than one"
    if type(kind).__name__.endswith("OneOfNotValid"):
        count = "not valid under any"
    return f"{display_value(value)} is {count} of the given schemas"


def _type(value: Any, kind: Any) -> str:
    types = sorted(kind.types, key="null".__eq__)
    return f"{display_value(value)} is not of type {_listed(types)}"


def _with_limit(text: str) -> Callable[[Any, Any], str]:
    """Return words of a limit: `{value}`, `{size}` and `{limit}` may be in the text."""

    def words(value: Any, kind: Any) -> str:
        size = len(value) if isinstance(value, list | dict) else 0
        limit = display_value(kind.limit)
        return text.format(value=display_value(value), size=size, limit=limit)

    return words


_WORDS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "type": _type,
    "enum": lambda value, kind: f"{display_value(value)} is not one of [{_listed(kind.options)}]",
    "const": lambda _value, kind: f"{display_value(kind.expected_value)} was expected",
    "required": lambda _value, kind: f"{display_value(kind.property)} is a required property",
    "additionalProperties": _unexpected("Additional properties"),
    "unevaluatedProperties": _unexpected("Unevaluated properties"),
    "unevaluatedItems": _unexpected("Unevaluated items"),
    "additionalItems": _with_limit("it has {size} items, at most {limit} are allowed"),
    "falseSchema": lambda value, _kind: f"{display_value(value)} is not allowed here",
    "anyOf": lambda value, _kind: (
        f"{display_value(value)} is not valid under any of the given schemas"
    ),
    "oneOf": _one_of,
    "not": lambda value, _kind: f"{display_value(value)} matches a schema that it must not match",
    "contains": lambda value, _kind: (
        f"{display_value(value)} does not hold as many of the items it must contain as it should"
    ),
    "uniqueItems": lambda value, _kind: (
        f"{display_value(value)} holds an item more than once: its items must be unique"
    ),
    "minimum": _with_limit("{value} is less than the minimum of {limit}"),
    "maximum": _with_limit("{value} is greater than the maximum of {limit}"),
    "exclusiveMinimum": _with_limit("{value} is less than or equal to the minimum of {limit}"),
    "exclusiveMaximum": _with_limit("{value} is greater than or equal to the maximum of {limit}"),
    "multipleOf": lambda value, kind: (
        f"{display_value(value)} is not a multiple of {display_value(kind.multiple_of)}"
    ),
    "minLength": _with_limit("{value} is too short"),
    "maxLength": _with_limit("{value} is too long"),
    "pattern": lambda value, kind: (
        f"{display_value(value)} does not match {display_value(kind.pattern)}"
    ),
    "minItems": _with_limit("it has {size} items, at least {limit} are expected"),
    "maxItems": _with_limit("it has {size} items, at most {limit} are allowed"),
    "minProperties": _with_limit("it has too few properties"),
    "maxProperties": _with_limit("it has too many properties"),
}
