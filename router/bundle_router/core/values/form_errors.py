"""Turns pydantic's validation errors into plain sentences for editors of config and callers."""

from __future__ import annotations

import types
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from bundle_router.core.values.spelling import Suggester

_WANTED = {
    "string_type": "text in quotes",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}


UNQUOTED: Final = "an id with dots needs quotes"


def describe(value: Any) -> str:
    """Describe a value in at most some 60 characters (a type by its name)."""
    if isinstance(value, type):
        if value is str:
            return "the text given"
        return f"a value of type {value.__name__}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # A hexadecimal number of any length is legal TOML, and Python refuses to print it in
        # decimal.
        if abs(value) < 10**18:
            return f"the number {value}"
        return "a very large number"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time"


def sentences(wrong: ValidationError, form: type[BaseModel]) -> str:
    """Return what is wrong with the fields of a value, without repeating the caller's text."""
    clauses = []
    for error in wrong.errors(include_url=False):
        if not isinstance(error["input"], int | float):
            error["input"] = type(error["input"])
        path, message, hint = explain(error, form, Suggester())
        clause = f"{'.'.join(map(str, path))}: {message}"
        clauses.append(f"{clause} ({hint})" if hint else clause)
    text = "; ".join(clauses).replace("must be text in quotes", "must be text")
    return text.replace("must be a table", "must be a mapping")


def explain(
    error: ErrorDetails, form: type[BaseModel], suggester: Suggester
) -> tuple[tuple[str | int, ...], str, str]:
    """Return the key path, message and suggestion for one validation error of a form."""
    path = error["loc"]
    if path and path[-1] == "[key]":
        path = path[:-1]
    kind = error["type"]
    value = error["input"]
    context = error.get("ctx", {})
    if kind == "extra_forbidden":
        hint = _unknown_key_hint(path, value, form, suggester)
        return path, f"unknown key {str(path[-1])[:80]!r}", hint
    if kind == "missing":
        return path, "is missing", f"add {path[-1]!s} = ..."
    if kind == "literal_error":
        expected = str(context["expected"])
        hint = _choice_hint(value, expected, suggester) if isinstance(value, str) else ""
        return path, f"must be one of {expected}, not {describe(value)}", hint
    if kind == "repeated":
        return (*path, int(context["index"])), f"{context['item']} is listed twice", ""
    if kind in _WANTED:
        hint = _form_hint(path, value, _WANTED[kind])
        return path, f"must be {_WANTED[kind]}, not {describe(value)}", hint
    message = error["msg"].removeprefix("Value error, ")
    return path, _bound(kind, value, context) or message[:1].lower() + message[1:], ""


def _unknown_key_hint(
    path: tuple[str | int, ...], value: Any, form: type[BaseModel], suggester: Suggester
) -> str:
    """Return what may have been meant by an unknown key: a similar key, one of another table, or
    else those that are known there.
    """
    name = str(path[-1])
    names = known_keys(form, path[:-1])
    hint = suggester.did_you_mean(name, names) or _unquoted_hint(path, value, names)
    if hint:
        return hint
    if len(path) == 2:
        for table in known_keys(form, ()):
            if name in known_keys(form, (table,)):
                return f"it is a key of [{table}]"
    return f"known keys: {', '.join(names)}" if names else ""


def _choice_hint(value: str, expected: str, suggester: Suggester) -> str:
    """Return which of the choices, in pydantic's words, a text may have meant."""
    choices = [part.strip(" '") for part in expected.replace(" or ", ",").split(",")]
    hint = suggester.did_you_mean(value, choices)
    if hint or len(value) <= 2:
        return hint
    holding = [choice for choice in choices if value.lower() in choice]
    if len(holding) != 1:
        return ""
    return f"did you mean {holding[0]!r}?"


def _form_hint(path: tuple[str | int, ...], value: Any, wanted: str) -> str:
    """Return how to write a text as the list or the table that is wanted."""
    is_text = isinstance(value, str)
    if wanted == "a list":
        if value is str:
            return "write [...]"
        if is_text and len(value) < 60:
            return f"write [{value!r}]"
    if wanted == "a table" and is_text and len(path) == 1:
        return f"write [{path[0]}] on a line of its own, and its keys below"
    return ""


def _bound(kind: str, value: Any, context: dict[str, Any]) -> str:
    sides = {
        "greater_than": "more than",
        "greater_than_equal": "at least",
        "less_than": "less than",
    }
    sides["less_than_equal"] = "at most"
    if kind in sides:
        limit = next(context[key] for key in ("gt", "ge", "lt", "le") if key in context)
        return f"must be {sides[kind]} {limit:,}, not {describe(value)}"
    if kind == "string_pattern_mismatch":
        if context["pattern"].startswith(r"^\$"):
            return "must name an environment variable, as '${NAME}', and not hold what it holds"
        return f"{describe(value)} does not match /{context['pattern']}/"
    if kind in ("too_short", "string_too_short"):
        return "must not be empty"
    if kind in ("too_long", "string_too_long"):
        unit = "characters" if kind == "string_too_long" else "entries"
        return f"must have at most {context['max_length']} {unit}"
    return ""


def _unquoted_hint(path: tuple[str | int, ...], value: Any, known: tuple[str, ...]) -> str:
    """Return what to write for an unquoted bundle id, whose dots TOML reads as tables inside
    tables.
    """
    if len(path) != 3 or path[0] != "bundles":
        return ""
    words = list(map(str, path[1:]))
    while isinstance(value, dict) and value and not value.keys() & set(known):
        word, value = next(iter(value.items()))
        words.append(word)
    if not isinstance(value, dict) or len(words) > 16:
        return ""
    return f'{UNQUOTED}: [bundles."{".".join(words)}"]'


def known_keys(form: type[BaseModel], path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Return the keys that the table at `path` may have."""
    annotation: Any = form
    for part in path:
        if _is_form(annotation):
            field = annotation.model_fields.get(str(part))
            if field is None:
                return ()
            annotation = field.annotation
        else:
            inner = [item for item in get_args(annotation) if item is not ...]
            if not inner:
                return ()
            annotation = inner[-1]
        annotation = _bare_annotation(annotation)
    return tuple(annotation.model_fields) if _is_form(annotation) else ()


def _is_form(annotation: Any) -> bool:
    return (
        isinstance(annotation, type)
        and not get_args(annotation)
        and issubclass(annotation, BaseModel)
    )


def _bare_annotation(annotation: Any) -> Any:
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = next(item for item in get_args(annotation) if item is not type(None))
    return annotation
