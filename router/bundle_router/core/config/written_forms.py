"""The written form: exactly what each config file may say, made from the keys that the catalog
declares.

Rules:
1. Unknown keys are refused, and nothing is coerced: `"yes"` is not true, `"5"` is not a number.
2. A form is a pydantic model; `value_of` turns a valid one into the catalog's value. An absent key
   has the default of the catalog's field, or is settled in stage 2.
3. The JSON Schemas that editors read (completion, hover text, red lines) are made from the forms.
   They are draft 7, the newest that the editors' TOML servers read in full. They can't know which
   ids exist; they accept all that stage 1 accepts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model

from bundle_router.core.catalog import Settings
from bundle_router.core.catalog.config_keys import KEY, SAME, Key, key_name
from bundle_router.core.catalog.config_tables import (
    BundlesFile,
    PolicyFile,
    RoutesFile,
    ServersFile,
)

FILES: Final[Mapping[str, type]] = {
    "servers.toml": ServersFile,
    "bundles.toml": BundlesFile,
    "routes.toml": RoutesFile,
    "policy.toml": PolicyFile,
    "router.toml": Settings,
}
"""The declarations of each config file, in the order in which problems are reported."""


class Form(BaseModel):
    """Base of the written forms. TOML has types, so nothing needs coercing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True)

    declares: ClassVar[Any]
    """The catalog's class with this written form; None for an inner table of one."""


@cache
def keys_of(table: type) -> dict[str, Key]:
    """Return the keys of a class of the catalog, by its field's name."""
    return {item.name: item.metadata[KEY] for item in fields(table) if KEY in item.metadata}


@cache
def _fields_by_key(table: type) -> Mapping[str, str]:
    return {key_name(item.name): item.name for item in fields(table)}


@cache
def form_of(table: type) -> type[Form]:
    """Return the written form of a class of the catalog."""
    declarations = {item.name: item for item in fields(table)}
    written: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, declared in keys_of(table).items():
        annotation = _written_type(declared.written or _without_none(declarations[name].type))
        bounds = {**declared.bounds, **({"allow_inf_nan": False} if annotation is float else {})}
        default = declarations[name].default if declared.absent is SAME else declared.absent
        default = None if default == () and get_origin(annotation) is dict else default
        if default is MISSING:
            default = ...
        elif isinstance(default, tuple):
            default = list(default)
        row = (annotation, Field(default, description=declared.description, **bounds))
        if declared.table:
            inner.setdefault(declared.table, {})[name.removeprefix(f"{declared.table}_")] = row
        else:
            written[key_name(name)] = row
    for name, rows in inner.items():
        form = create_model(name.capitalize(), __base__=Form, **rows)
        form.declares = None
        written[name] = (form, Field(None, description=table.TABLES[name]))  # type: ignore[attr-defined]  # by contract
    extra = getattr(table, "JSON_SCHEMA", None)
    made: type[Form] = create_model(
        table.__name__,
        __base__=Form,
        __doc__=(table.__doc__ or "").partition(">>>")[0].rstrip(),  # without its example
        __cls_kwargs__={"json_schema_extra": extra},
        **written,
    )
    made.declares = table
    return made


def _without_none(annotation: Any) -> Any:
    """Return `X` for `X | None`: TOML has no word for none."""
    if get_origin(annotation) in (Union, UnionType):
        return next(item for item in get_args(annotation) if item is not NoneType)
    return annotation


def _written_type(annotation: Any) -> Any:
    """Return the type with the catalog's classes replaced by their forms."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        return form_of(annotation)
    if get_origin(annotation) in (list, dict):
        return get_origin(annotation)[tuple(_written_type(item) for item in get_args(annotation))]
    return annotation


def value_of(written: Any, name: str = "") -> Any:
    """Return the catalog's value of a valid form: tables as its values (named `name`, where their
    name is no key), lists as tuples, other tables as sorted pairs.
    """
    if isinstance(written, Form):
        table = written.declares
        values: dict[str, Any] = {}
        fields_by_key = _fields_by_key(table)
        for key in written.model_fields_set:
            part = getattr(written, key)
            if isinstance(part, Form) and part.declares is None:
                values |= {
                    f"{key}_{inner}": value_of(getattr(part, inner))
                    for inner in part.model_fields_set
                }
            else:
                values[fields_by_key[key]] = value_of(part)
        first = fields(table)[0].name
        if first in keys_of(table):
            return table(**values)
        return table(**{first: name}, **values)
    if isinstance(written, list):
        return tuple(value_of(item) for item in written)
    if isinstance(written, dict):
        pairs = sorted(written.items())
        is_named = any(isinstance(item, Form) for item in written.values())
        if is_named:
            return tuple(value_of(item, key) for key, item in pairs)
        return tuple((key, value_of(item)) for key, item in pairs)
    return written


# --- JSON Schema ----------------------------------------------------------------------------------


def schema_texts() -> dict[str, str]:
    """Return the schema of every config file, by its path relative to the config folder."""
    return {
        f"schema/{file.removesuffix('.toml')}.schema.json": json.dumps(
            schema(file), indent=2, ensure_ascii=False
        )
        + "\n"
        for file in FILES
    }


def schema(file: str) -> dict[str, Any]:
    """Return the schema of one config file."""
    cleaned: dict[str, Any] = _clean(
        form_of(FILES[file]).model_json_schema(ref_template="#/definitions/{model}")
    )
    if "$defs" in cleaned:
        cleaned["definitions"] = cleaned.pop("$defs")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": f"Bundle Router: {file}",
        **cleaned,
    }


def _clean(node: Any) -> Any:
    """Return the schema without null, which TOML has no word for, without made-up titles and
    draft-7 traps.
    """
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node

    cleaned: dict[str, Any] = {}
    for key, value in node.items():
        is_made_up = key == "title" and isinstance(value, str)
        if is_made_up or (key == "default" and value is None):
            continue
        if key == "properties":
            cleaned[key] = {name: _clean(item) for name, item in value.items()}
        else:
            cleaned[key] = _clean(value)

    choices = cleaned.get("anyOf")
    if isinstance(choices, list):
        del cleaned["anyOf"]
        real = [choice for choice in choices if choice != {"type": "null"}]
        chosen = real[0] if len(real) == 1 else {"anyOf": real}
        cleaned = {**chosen, **cleaned}
    if "$ref" in cleaned and len(cleaned) > 1:  # in draft 7 a $ref silences everything beside it
        cleaned = {"allOf": [{"$ref": cleaned.pop("$ref")}], **cleaned}
    return cleaned
