"""The part of a definition that is compared: everything except volatile fields and meaningless
order.

A volatile path is `[tool:]/segment/segment…`, where `tool` is a name or glob (absent: every tool of
the server) and a segment is a JSON Pointer segment (`~1` for '/', `~0` for '~') or `*` for any one,
as in `/inputSchema/properties/since/default`, `list_*:/_meta` and
`/inputSchema/properties/*/description`. `/instructions` is the server's instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.values.canonical import digest_of, encode
from bundle_router.core.values.patterns import matches
from bundle_router.core.values.schema_tree import rebuilt

INSTRUCTIONS: Final = ("instructions",)
_UNORDERED: Final = ("required", "enum", "type", "anyOf", "oneOf", "allOf")
"""Lists of a schema whose order has no meaning in JSON Schema."""


class VolatileError(ValueError):
    """A volatile path is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class VolatilePath:
    """One parsed path. It never covers a whole definition."""

    tool: str
    segments: tuple[str, ...]


def volatile_paths(texts: Iterable[str]) -> tuple[VolatilePath, ...]:
    """Return the parsed paths of `servers.toml`'s `volatile`. Raises VolatileError."""
    return tuple(_parse(text) for text in texts)


def _parse(text: str) -> VolatilePath:
    tool = "*"
    pointer = text
    if not text.startswith("/"):
        tool, _, pointer = text.partition(":")
    segments = tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    if not tool or not pointer.startswith("/") or not all(segments):
        raise VolatileError(
            f"{text[:120]!r} is not a path: write '/inputSchema/properties/since/default' or"
            " 'tool:/_meta'"
        )
    if segments[0] in ("*", "name"):
        raise VolatileError(f"{text[:120]!r} would leave nothing to recognise the tool by")
    return VolatilePath(tool, segments)


def identity(
    definition: Mapping[str, Any], instructions: str, volatile: Sequence[VolatilePath] = ()
) -> str:
    """Return the `sha256:…` of the compared part (rule 7 of the package).

    The definition must be within the bounds.
    """
    if any(path.segments == INSTRUCTIONS for path in volatile):
        instructions_text = ""
    else:
        instructions_text = instructions
    return digest_of(
        {"tool": normalize_definition(definition, volatile), "instructions": instructions_text}
    )


def normalize_definition(
    definition: Mapping[str, Any], volatile: Sequence[VolatilePath] = ()
) -> dict[str, Any]:
    """Return a copy of the definition without volatile fields, and with meaningless order made
    canonical.
    """
    volatile_paths = [path.segments for path in volatile if matches(path.tool, definition["name"])]
    copy: dict[str, Any] = _without_paths(dict(definition), volatile_paths)
    for key in ("inputSchema", "outputSchema"):
        if key in copy:
            copy[key] = rebuilt(copy[key], _sorted_lists)
    return copy


def _without_paths(value: Any, paths: Sequence[tuple[str, ...]]) -> Any:
    """Return a copy of the value without the parts at these paths (in a list: null, to keep the
    positions).
    """
    if not paths:
        return value
    if isinstance(value, dict):
        fields = {}
        for key, inner in value.items():
            rest = [path[1:] for path in paths if path[0] in (key, "*")]
            if () not in rest:
                fields[key] = _without_paths(inner, rest)
        return fields
    if isinstance(value, list):
        items = []
        for index, inner in enumerate(value):
            rest = [path[1:] for path in paths if path[0] in (str(index), "*")]
            items.append(None if () in rest else _without_paths(inner, rest))
        return items
    return value


def _sorted_lists(schema: dict[str, Any]) -> dict[str, Any]:
    for key in _UNORDERED:
        if isinstance(schema.get(key), list):
            schema[key] = sorted(schema[key], key=encode)
    return schema
