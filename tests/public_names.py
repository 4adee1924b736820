"""The public names: what the packages export to programs that use them."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeGuard

from bundle_router.core.catalog.config_keys import KEY
from pydantic import BaseModel

MODULES: Final = (
    "bundle_router",
    "bundle_router.errors",
    "bundle_router.tool",
    "bundle_router.testing",
    "bundle_router.service",
    "bundle_router.ports",
    "bundle_router.engine.engine_ports",
    "bundle_router.ext.langchain",
    "bundle_router.ext.openai_agents",
    "bundle_router.ext.pydantic_ai",
    "bundle_router.ext.step_tools",
    "bundle_router.ext.temporal",
    "bundle_router_client",
)
OURS: Final = ("bundle_router", "bundle_router_client", "tests")
NAME: Final = re.compile(r"[A-Za-z_]\w*")


def names_of(module: str) -> Iterator[tuple[str, Any]]:
    """Yield what a module exports: its `__all__` or, without one, what it defines."""
    home = import_module(module)
    exported = getattr(home, "__all__", None)
    if exported is None:
        exported = [
            name
            for name, value in vars(home).items()
            if not name.startswith("_") and getattr(value, "__module__", None) == module
        ]
    for name in exported:
        yield name, getattr(home, name)


@cache
def public_objects() -> dict[str, Any]:
    """Return every public class and function by where it is defined: `module.Name`."""
    return {
        f"{value.__module__}.{value.__name__}": value
        for module in MODULES
        for _, value in names_of(module)
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def is_value(kind: object) -> TypeGuard[type]:
    """Return whether it is one of our classes that holds fields: a dataclass or a model."""
    if not inspect.isclass(kind) or kind.__module__.partition(".")[0] not in OURS:
        return False
    return is_dataclass(kind) or issubclass(kind, BaseModel)


def field_names(value: type) -> list[str]:
    """Return the names of a value's public fields that its own class or our bases declare."""
    if is_dataclass(value):
        names = [one.name for one in fields(value)]
    else:
        names = list(typing.cast("type[BaseModel]", value).model_fields)
    ours = {name for base in value.__mro__ if is_value(base) for name in base.__annotations__}
    return [name for name in names if name in ours and not name.startswith("_")]


@cache
def descriptions_of(value: type) -> Mapping[str, str]:
    """Return the description of each field that has one where it is declared: below it, or as the
    description of a config key or of a model's field.
    """
    described: dict[str, str] = {}
    for base in reversed(value.__mro__):
        if is_value(base):
            described |= _described_below(base)
    if is_dataclass(value):
        keys = {one.name: one.metadata[KEY] for one in fields(value) if KEY in one.metadata}
        described |= {name: key.description for name, key in keys.items()}
    elif issubclass(value, BaseModel):
        given = {name: one.description for name, one in value.model_fields.items()}
        described |= {name: text for name, text in given.items() if text}
    return described


def described_fields(value: type) -> frozenset[str]:
    """Return the fields that have a description (see `descriptions_of`)."""
    return frozenset(descriptions_of(value))


@cache
def _tree_of(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text("utf-8"))


def _described_below(value: type) -> dict[str, str]:
    path = inspect.getsourcefile(value)
    assert path is not None
    declared = [
        node
        for node in ast.walk(_tree_of(path))
        if isinstance(node, ast.ClassDef) and node.name == value.__name__
    ]
    assert len(declared) == 1, value
    body = declared[0].body
    return {
        row.target.id: " ".join(below.value.value.split())
        for row, below in pairwise(body)
        if isinstance(row, ast.AnnAssign)
        and isinstance(row.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


@cache
def _imported_for_checkers(module: str) -> dict[str, Any]:
    """Return what a module imports from ours, `if TYPE_CHECKING` included."""
    path = sys.modules[module].__file__
    assert path is not None
    return {
        alias.asname or alias.name: getattr(import_module(node.module), alias.name)
        for node in ast.walk(_tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module is not None
        if node.module.partition(".")[0] in OURS
        for alias in node.names
    }


def _values_named_in(annotation: str, module: str) -> Iterator[type]:
    """Yield the values of ours that an annotation names."""
    known = vars(sys.modules[module])
    for name in NAME.findall(annotation):
        kind = known[name] if name in known else _imported_for_checkers(module).get(name)
        if is_value(kind):
            yield kind


def values_held_by(value: type) -> set[type]:
    """Return the values of ours that a value's fields hold, by their annotations."""
    public = field_names(value)
    return {
        kind
        for base in value.__mro__
        if is_value(base)
        for name, annotation in base.__annotations__.items()
        if name in public
        for kind in _values_named_in(str(annotation), base.__module__)
    }


def _functions_of(value: object) -> Iterator[FunctionType]:
    if inspect.isfunction(value):
        yield value
    for name, member in vars(value).items() if inspect.isclass(value) else ():
        function = member.fget if isinstance(member, property) else member
        function = getattr(function, "__func__", function)
        if inspect.isfunction(function) and not name.startswith("_"):
            yield function


def values_exchanged_by(value: object) -> set[type]:
    """Return the values of ours that a function, or a class's public methods, take and return."""
    return {
        kind
        for function in _functions_of(value)
        for annotation in function.__annotations__.values()
        for kind in _values_named_in(str(annotation), function.__module__)
    }


@cache
def public_values() -> dict[str, type]:
    """Return every public value: those that are exported, those that what is exported takes and
    returns, and those that these hold.
    """
    exported = public_objects().values()
    waiting = [value for value in exported if is_value(value)]
    waiting += [kind for value in exported for kind in values_exchanged_by(value)]
    found: dict[str, type] = {}
    for value in waiting:
        name = f"{value.__module__}.{value.__name__}"
        if name not in found:
            found[name] = value
            waiting.extend(values_held_by(value))
    return found
