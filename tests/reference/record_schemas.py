"""The JSON Schema of each type of record, from the forms by which records are written and read, so
that no field is described twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from bundle_router.core.records import written_records
from bundle_router.core.records.field_types import FieldForm, fields_of
from bundle_router.core.records.written_records import RECORDS, WrittenRecord
from pydantic import BaseModel

from tests.public_names import descriptions_of

SCHEMAS: Final = Path(written_records.__file__).with_name("schemas")
"""The folder of the generated files."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}


def schema_texts() -> dict[str, str]:
    """Return the text of each schema, by the name of its file."""
    return {
        f"{record.type}.schema.json": json.dumps(schema_of(record), indent=2) + "\n"
        for record in RECORDS
    }


def schema_of(record: WrittenRecord) -> dict[str, Any]:
    """Return the schema of a type of record."""
    return {
        "$schema": DIALECT,
        "title": f"Bundle Router: {record.type}",
        "description": f"{record.meaning} It is {record.place}.",
        **_object_schema(record.form()),
    }


def description_of(field: FieldForm) -> str:
    """Return what a field means, in the words of JSON. Raises KeyError where its value does not
    say.
    """
    if isinstance(field.described_by, str):
        text = field.described_by
    else:
        value, name = field.described_by
        text = descriptions_of(value)[name]
    return re.sub(r"\bNone\b", "null", text)


def _object_schema(form: Mapping[str, FieldForm]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            name: {"description": description_of(field), **schema_of_form(field.form)}
            for name, field in form.items()
        },
        "required": [name for name, field in form.items() if not field.is_optional],
        "additionalProperties": False,
    }


def schema_of_form(form: Any) -> dict[str, Any]:
    """Return the schema of a form (see `FieldForm`)."""
    if isinstance(form, type) and (is_dataclass(form) or issubclass(form, BaseModel)):
        return _object_schema(fields_of(form))
    if isinstance(form, Mapping):
        return _object_schema(form)
    if isinstance(form, type) and form in _PLAIN:
        return {"type": _PLAIN[form]}
    origin = get_origin(form)
    if origin is tuple and Ellipsis not in get_args(form):
        return {"type": "array", "prefixItems": list(map(schema_of_form, get_args(form)))}
    if isinstance(form, list) or origin in (list, tuple):
        (item, *_) = form if isinstance(form, list) else get_args(form)
        return {"type": "array", "items": schema_of_form(item)}
    if origin is Literal:
        return {"enum": list(get_args(form))}
    return _either(form if isinstance(form, tuple) else get_args(form))


def _either(choices: tuple[Any, ...]) -> dict[str, Any]:
    """Return the schema of a value that is one of several: of words, of types, or null."""
    schemas = [schema_of_form(choice) for choice in choices if choice not in (None, type(None))]
    is_nullable = len(schemas) < len(choices)
    if all("enum" in schema for schema in schemas):
        words = [word for schema in schemas for word in schema["enum"]]
        return {"enum": [*words, None] if is_nullable else words}
    if len(schemas) > 1:
        return {"anyOf": [*schemas, {"type": "null"}] if is_nullable else schemas}
    (schema,) = schemas
    if is_nullable:
        schema = {**schema, "type": [schema["type"], "null"]}
    return schema
