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
        return "the text given" if value is str else f"a value of type {value.__name__}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # A hexadecimal number of any length is legal TOML, and Python refuses to print it in
        # decimal.
        return f"the number {value}" if abs(value) < 10**18 else "a very large number"
    if isinstance(value, float):
        return f"the number {value!r}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a table" if isinstance(value, dict) else "a date or time"


def sentences(wrong: ValidationError, form: type[BaseModel]) -> str:
    """Return what is wrong with the fields of a value, without repeating the caller's text."""
    rows: list[Any] = list(wrong.errors(include_url=False))
    for row in rows:
        row["input"] = row["input"] if isinstance(row["input"], int | float) else type(row["input"])
    found = [explain(row, form, Suggester()) for row in rows]
    text = "; ".join(
        f"{'.'.join(map(str, path))}: {message}{f' ({hint})' if hint else ''}"
        for path, message, hint in found
    )
    return text.replace("must be text in quotes", "must be text").replace(
        "must be a table", "must be a mapping"
    )


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
        name = str(path[-1])
        known = known_keys(form, path[:-1])
        hint = suggester.did_you_mean(name, known) or _unquoted_hint(path, value, known)
        if not hint and len(path) == 2:
            right = [key for key in known_keys(form, ()) if name in known_keys(form, (key,))]
            hint = f"it is a key of [{right[0]}]" if right else ""
        return (
            path,
            f"unknown key {name[:80]!r}",
            hint or (f"known keys: {', '.join(known)}" if known else ""),
        )
    if kind == "missing":
        return path, "is missing", f"add {path[-1]!s} = ..."
    if kind == "literal_error":
        choices = [
            part.strip(" '") for part in str(context["expected"]).replace(" or ", ",").split(",")
        ]
        hint = suggester.did_you_mean(value, choices) if isinstance(value, str) else ""
        parts = [
            one
            for one in choices
            if isinstance(value, str) and len(value) > 2 and value.lower() in one
        ]
        hint = hint or (f"did you mean {parts[0]!r}?" if len(parts) == 1 else "")
        return path, f"must be one of {context['expected']}, not {describe(value)}", hint
    if kind == "repeated":
        return (*path, int(context["index"])), f"{context['item']} is listed twice", ""
    if kind in _WANTED:
        if value is str:
            one = "..."
        elif isinstance(value, str) and len(value) < 60:
            one = repr(value)
        else:
            one = ""
        hint = f"write [{one}]" if _WANTED[kind] == "a list" and one else ""
        if _WANTED[kind] == "a table" and len(path) == 1 and isinstance(value, str):
            hint = f"write [{path[0]}] on a line of its own, and its keys below"
        return path, f"must be {_WANTED[kind]}, not {describe(value)}", hint
    message = error["msg"].removeprefix("Value error, ")
    return path, _bound(kind, value, context) or message[:1].lower() + message[1:], ""


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
