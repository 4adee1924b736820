"""The definitions of the router's own tools: constants, counted once."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from bundle_router.core.exposure.placements import Placement
from bundle_router.core.exposure.provider_forms import Format, form_of

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer"}
_HANDLE: Final = {"type": "string", "description": "artifact:..."}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": "object", "properties": properties}
    return shape | {"required": list(required)} if required else shape


_DEFINITIONS: Final = MappingProxyType(
    {
        "search_tools": (
            "Find tools by words or select:a,b",
            _object(("query",), query=_TEXT, limit=_NUMBER),
        ),
        "list_tools": ("List bundles or tools", _object((), bundle=_TEXT)),
        "get_tool_details": ("Schema", _object(("name",), name=_TEXT)),
        "call_tool": ("Call tools", _object(("name",), name=_TEXT, arguments={"type": "object"})),
        "read_artifact": (
            "Read an artifact",
            _object(
                ("uri",),
                uri=_HANDLE,
                offset={**_NUMBER, "description": "negative: from end"},
                limit={**_NUMBER, "description": "how many units"},
                unit={"enum": ["chars", "lines", "bytes"]},
            ),
        ),
        "search_artifact": (
            "Search an artifact",
            _object(
                ("uri", "pattern"),
                uri=_HANDLE,
                pattern={**_TEXT, "description": "text, regex:x or jmespath:x"},
                context={**_NUMBER, "description": "lines around"},
            ),
        ),
        "execute": (
            "Run a Python program that calls tools: r = await name(argument=...); print(...)",
            _object(("code",), code=_TEXT),
        ),
    }
)
EXECUTE: Final = "execute"
"""Runs a program; present if a bundle's `mode` is `code`."""
NAMES: Final[tuple[str, ...]] = tuple(name for name in _DEFINITIONS if name != EXECUTE)
READERS: Final[tuple[str, ...]] = NAMES[4:]
"""Needed wherever a tool's result may be too large to show."""


def meta_names(placement: Placement, *, fixed: bool = False) -> tuple[tuple[str, ...], int]:
    """Return the meta-tools that an array needs, and their index in it.

    If there are tools behind search, all of them come first, so that the array grows after them;
    else only the readers, from the first result that can be paged. `fixed`: the array can't change,
    so all are in it.
    """
    if fixed or placement.found_by_name:
        names = (*NAMES, EXECUTE) if placement.by_program else NAMES
        return names, 0
    if placement.by_program:
        return (NAMES[0], EXECUTE, *READERS), 0
    if placement.reading_from is None:
        return (), 0
    return READERS, placement.reading_from


_TOKENS: Final = MappingProxyType(
    dict(zip(_DEFINITIONS, (49, 34, 37, 43, 81, 76, 52), strict=True))
)
"""Tokens in cl100k_base, OpenAI form; a test counts them again."""


def meta_definitions(names: tuple[str, ...], form: Format) -> tuple[dict[str, Any], ...]:
    """Return fresh copies of the meta-tools' definitions in a provider's form."""
    rows = ((name, *_DEFINITIONS[name]) for name in names)
    return tuple(
        form_of(name, description, _copy(schema), form) for name, description, schema in rows
    )


def meta_schema(name: str) -> dict[str, Any]:
    """Return the schema of one meta-tool's arguments, a fresh copy."""
    schema: dict[str, Any] = _copy(_DEFINITIONS[name][1])
    return schema


def meta_tokens(names: tuple[str, ...]) -> int:
    """Return the tokens of these meta-tools' definitions in an array."""
    return sum(_TOKENS[name] for name in names)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    return [_copy(item) for item in value]
