"""The written form of a catalog (`catalog.json`), as `Catalog.to_json` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from bundle_router.core.catalog import (
    CATALOG_SCHEMA,
    ApprovalRow,
    Bundle,
    Card,
    Catalog,
    Policy,
    Route,
    Server,
    Settings,
    Skill,
)
from bundle_router.core.catalog.config_keys import key_name
from bundle_router.core.catalog.config_tables import FieldKind
from bundle_router.core.records.field_types import FieldForm, fields_of
from bundle_router.core.values import LocalSettings, TaintSort


def catalog_form() -> Mapping[str, FieldForm]:
    """Return the written form of a catalog."""
    taint = {
        "name": FieldForm(str, "Its name."),
        "sort": FieldForm(TaintSort, "The given taint that it is a sort of."),
    }
    field = {
        "name": FieldForm(str, "Its name."),
        "kind": FieldForm(FieldKind, "What it holds, where that is no list of words.", True),
        "words": FieldForm([str], "The words that it may hold, where it holds one.", True),
    }
    form = {
        "name": FieldForm(str, "Its name."),
        "fields": FieldForm([field], "The fields that an answer may have."),
        "clears": FieldForm([str], "The taints that do not pass through it."),
    }
    return {
        "schema": FieldForm(Literal[CATALOG_SCHEMA], "The form of the file, with its version."),
        **fields_of(
            Catalog,
            (
                *("servers", "bundles", "routes", "policies", "approvals", "settings"),
                *("local", "cards", "skills"),
            ),
            optional=("approvals",),
            servers=[_value_form(Server)],
            bundles=[_value_form(Bundle)],
            routes=[_value_form(Route)],
            policies=[_value_form(Policy)],
            approvals=[_value_form(ApprovalRow)],
            settings=_value_form(Settings),
            local=_value_form(LocalSettings),
            cards=[_value_form(Card)],
            skills=[_value_form(Skill)],
        ),
        **fields_of(
            Catalog,
            ("taints", "forms"),
            optional=("taints", "forms"),
            taints=[taint],
            forms=[form],
        ),
    }


def _value_form(value: type) -> Mapping[str, FieldForm]:
    """Return the form of a value of the catalog: without `ADDED` fields at their default."""
    forms = {name: _form(hint) for name, hint in get_type_hints(value).items()}
    return {
        key_name(name): FieldForm(forms[name], field.described_by, field.is_optional)
        for name, field in fields_of(value, optional=getattr(value, "ADDED", ())).items()
    }


def _form(hint: Any) -> Any:
    """Return the form of a type; values of the catalog in it have theirs."""
    parts = get_args(hint)
    if _is_value(hint):
        return _value_form(hint)
    if get_origin(hint) is tuple and Ellipsis in parts:
        return [_form(parts[0])]
    if _is_value(*parts[:1]) and parts[1:] == (NoneType,):
        return (_value_form(parts[0]), None)
    return hint


def _is_value(hint: Any = None) -> bool:
    return isinstance(hint, type) and (is_dataclass(hint) or issubclass(hint, BaseModel))
