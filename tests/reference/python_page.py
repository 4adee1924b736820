"""`reference/python.md`: every public class and function, from its signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tests.public_names import (
    MODULES,
    OURS,
    descriptions_of,
    field_names,
    is_value,
    names_of,
    public_objects,
)
from tests.reference.markdown import GENERATED, code, prose, table, without_gaps

_HEAD: Final = f"""\
# Python

Every public class and function, by the module that one imports it from. {GENERATED} from the docstrings; their examples
are run by the tests.

"""
_WIDTH: Final = 90
_LONGEST: Final = 60
"""Characters of a default that is shown."""


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    shown: set[int] = set()
    for module in MODULES:
        parts += _module(module, shown)
    return without_gaps(parts)


def _module(module: str, shown: set[int]) -> Iterator[str]:
    """Yield the section of a module: what no earlier one has."""
    objects = [
        (name, value)
        for name, value in names_of(module)
        if inspect.isclass(value) or inspect.isfunction(value)
    ]
    yield f"## {module}\n\n{prose(import_module(module).__doc__ or '')}"
    again = [name for name, value in objects if id(value) in shown]
    if again:
        yield f"Also here, and described above: {', '.join(map(code, again))}.\n\n"
    for name, value in objects:
        if id(value) not in shown:
            shown.add(id(value))
            yield from _class(name, value) if inspect.isclass(value) else _function(name, value)


def _class(name: str, value: type) -> Iterator[str]:
    yield f"### {name}\n\n"
    if not is_value(value) and not issubclass(value, Exception):
        yield _signature(name, value)
    yield prose(inspect.getdoc(value) or "")
    if is_value(value):
        yield table(("field", "type", "default", "meaning"), _fields(value))
    for method, found in _methods(value):
        if isinstance(found, property):
            yield f"#### {name}.{method}\n\n{_own_prose(found)}"
        else:
            yield f"#### {name}.{method}\n\n{_signature(method, getattr(value, method))}"
            yield _own_prose(found)


def _own_prose(value: Any) -> str:
    """Return the docstring of a method, and not one that it has of a library's class."""
    return prose(inspect.cleandoc(value.__doc__ or ""))


def _function(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n\n{_signature(name, value)}{prose(inspect.getdoc(value) or '')}"


def _methods(value: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines, or has of a base class which
    has no entry of its own.
    """
    public = public_objects().values()
    seen: set[str] = set()
    for base in value.__mro__:
        is_ours = base.__module__.partition(".")[0] in OURS
        if not is_ours or (base is not value and base in public):
            continue
        for name, found in list(vars(base).items()):
            function = getattr(found, "__func__", found)
            is_method = inspect.isfunction(function) or isinstance(found, property)
            if is_method and not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, found


def _fields(value: type) -> Iterator[tuple[str, str, str, str]]:
    described = descriptions_of(value)
    for name in field_names(value):
        yield (
            code(name),
            code(_annotation(value, name)),
            code(_default(value, name)),
            described[name],
        )


def _annotation(value: type, name: str) -> str:
    """Return the type of a field, as it is written."""
    for base in value.__mro__:
        if name in vars(base).get("__annotations__", {}):
            return _type_text(base.__annotations__[name])
    raise KeyError(name)


def _default(value: type, name: str) -> str:
    """Return the default of a field as it is written; `required` without one."""
    default: object
    if is_dataclass(value):
        (declared,) = [one for one in fields(value) if one.name == name]
        default = declared.default
        is_made = declared.default_factory is not MISSING
    else:
        assert issubclass(value, BaseModel)
        field = value.model_fields[name]
        default = field.default
        is_made = field.default_factory is not None
    if is_made:
        return "empty"
    return "required" if default in (MISSING, PydanticUndefined) else _value_text(default)


def _signature(name: str, value: Any) -> str:
    """Return the signature as code; a long one has a line for each parameter."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return ""
    lead = "async def " if inspect.iscoroutinefunction(inspect.unwrap(value)) else ""
    shown = [one for one in signature.parameters.values() if one.name.lstrip("_") != "self"]
    parameters = list(_parameters([one for one in shown if not one.name.startswith("_")]))
    returned = signature.return_annotation
    arrow = "" if returned is signature.empty else f" -> {_type_text(returned)}"
    text = f"{lead}{name}({', '.join(parameters)}){arrow}"
    if len(text) > _WIDTH:
        lines = "".join(f"    {one},\n" for one in parameters)
        text = f"{lead}{name}(\n{lines}){arrow}"
    return f"```py\n{text}\n```\n\n"


def _parameters(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """Yield each parameter as it is written, and the star before those that go by name."""
    is_by_name = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not is_by_name:
            is_by_name = True
            yield "*"
        is_by_name = is_by_name or one.kind is one.VAR_POSITIONAL
        text = one.name
        if one.kind is one.VAR_POSITIONAL:
            text = f"*{text}"
        elif one.kind is one.VAR_KEYWORD:
            text = f"**{text}"
        if one.annotation is not one.empty:
            text += f": {_type_text(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {_value_text(one.default)}"
        yield text


def _type_text(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _value_text(value: object) -> str:
    """Return a default as it is written, `…` for one that has no short text of its own."""
    if inspect.isclass(value) or inspect.isfunction(value):
        name = value.__name__
        return "…" if name == "<lambda>" else name
    text = repr(value)
    return text if len(text) <= _LONGEST and " at 0x" not in text else "…"
