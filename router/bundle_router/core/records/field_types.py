"""The written form of records: their fields, and the types of these.

Rules:
1. A field has the type and the description of the value that it is read into (`fields_of`). What is
   written in another form, the record names.
2. A reader checks types alone: a chain says that a line is as it was sealed, not that this program
   wrote it. An unknown field is nobody's concern, and a word of a closed list may be one of a later
   version.
3. The JSON Schemas in `schemas/` are made from the same forms (`.ci/generate`), and are exact: what
   this version writes, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic_core import SchemaValidator, ValidationError

from bundle_router.errors import CorruptRun

V = TypeVar("V")
Read = Callable[[type[V], Mapping[str, Any]], V]


@dataclass(frozen=True, slots=True)
class FieldForm:
    """The written form of one field of a record."""

    form: Any
    """Its type, `[form]` (a list), `(form, None)`, or `{name: form}` (an object)."""
    described_by: str | tuple[type, str]
    """What it means: a sentence, or the value and its field that have the description."""
    is_optional: bool = False
    """Whether there are records without it: those that it has nothing to say of, or that an earlier
    version wrote.
    """


def fields_of(
    value: type, names: Collection[str] = (), *, optional: Collection[str] = (), **forms: Any
) -> dict[str, FieldForm]:
    """Return the forms of a value's fields that are written under their own names: of all, or of
    those named. `forms` has the form of each that is not written as its type says.
    """
    hints = get_type_hints(value)
    return {
        name: FieldForm(forms.get(name, hints[name]), (value, name), name in optional)
        for name in names or _names_of(value)
    }


def _names_of(value: type) -> Collection[str]:
    if issubclass(value, BaseModel):
        return value.model_fields
    return [one.name for one in fields(value)]  # type: ignore[arg-type]  # a dataclass


def checked(forms: Callable[[], Mapping[str, Any]]) -> Callable[[Read[V]], Read[V]]:
    """Decorate what reads a line whose fields have these forms (see `_schema`): it raises
    CorruptRun, which names the record and the field, for a line that does not fit.
    """
    validator = cache(lambda: SchemaValidator(_schema(forms())))

    def decorate(read: Read[V]) -> Read[V]:
        def read_checked(cls: type[V], line: Mapping[str, Any]) -> V:
            try:
                validator().validate_python(line, strict=True)
                return read(cls, line)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                message = (
                    f"record {line.get('seq')} of run {line.get('run_id')!r} does not fit its type:"
                    f" {_reason(error)}"
                )
                raise CorruptRun(
                    message, advice="bundle-router did not write it, whatever its chain says"
                ) from None

        return wraps(read)(read_checked)

    return decorate


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"field {place.lstrip('.')!r}: {first['msg']}"


def _schema(form: Any) -> Any:
    """Return pydantic's schema of a form (see `FieldForm`)."""
    if isinstance(form, FieldForm):
        schema = _schema(form.form)
        return {"type": "nullable", "schema": schema} if form.is_optional else schema
    if isinstance(form, type) and (is_dataclass(form) or issubclass(form, BaseModel)):
        form = get_type_hints(form)
    if isinstance(form, dict):
        return _object_schema(form)
    origin = get_origin(form)
    parts = form if isinstance(form, list | tuple) else get_args(form)
    if isinstance(form, list) or origin in (list, tuple):
        return {"type": "list", "items_schema": _schema(parts[0])}
    if None in parts or type(None) in parts:
        return {"type": "nullable", "schema": _schema(parts[0])}
    if origin is Literal:
        return {"type": "str"}
    if form in (str, int, float, bool):
        return {"type": form.__name__}
    return {"type": "any"}


def words_of(form: Any) -> Iterator[str]:
    """Yield the names of all fields of a form (see `FieldForm`) and the words of its closed
    lists.
    """
    if isinstance(form, FieldForm):
        form = form.form
    if isinstance(form, type) and (is_dataclass(form) or issubclass(form, BaseModel)):
        form = get_type_hints(form)
    if isinstance(form, Mapping):
        yield from form
        parts: Sequence[Any] = tuple(form.values())
    elif isinstance(form, list | tuple):
        parts = form
    else:
        parts = get_args(form)
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            yield from words_of(part)


def _object_schema(form: Mapping[str, Any]) -> Any:
    fields = {
        name: {"type": "typed-dict-field", "schema": _schema(field)} for name, field in form.items()
    }
    return {"type": "typed-dict", "fields": fields, "total": False}
