"""Parses meta-tools' arguments as models write them: numbers as text, JSON as text, names with
stray spaces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from bundle_router.core.exposure.meta_tools.definitions import meta_schema
from bundle_router.core.values.canonical import encode
from bundle_router.core.values.words import shorten

Unit = Literal["chars", "lines", "bytes"]
UNITS: Final[tuple[Unit, ...]] = ("chars", "lines", "bytes")
MAX_QUERY: Final = 1_000
MAX_SELECTED: Final = 20
MAX_FOUND: Final = 10
"""Tools in one search result, unless fewer are requested."""
MAX_PATTERN: Final = 500
MAX_CONTEXT: Final = 10
DEFAULT_LIMITS: Final[Mapping[Unit, int]] = {"chars": 8_000, "lines": 200, "bytes": 8_000}
SELECT: Final = "select:"
JMESPATH: Final = "jmespath:"
REGEX: Final = "regex:"
_ARTIFACT: Final = re.compile(r"(?:artifact:)?(?:sha256:)?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class SearchTools:
    """Search for tools by their function. `limit`: the maximum number."""

    query: str
    limit: int


@dataclass(frozen=True, slots=True)
class SelectTools:
    """Select tools by name. `dropped` are the names beyond the maximum of one call."""

    names: tuple[str, ...]
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListTools:
    """List the bundles, or with `id` the tools of one."""

    id: str = ""


@dataclass(frozen=True, slots=True)
class GetToolDetails:
    name: str


@dataclass(frozen=True, slots=True)
class CallTool:
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadArtifact:
    """Read a part of an artifact: `limit` of `unit` from `offset` on; a negative offset counts from
    the end.
    """

    sha256: str
    offset: int
    limit: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class SearchArtifact:
    """Find the lines of an artifact that contain `pattern` (or match it: `is_regex`), with so many
    lines around each; or apply the JMESPath expression `query` to an artifact that is JSON.
    """

    sha256: str
    pattern: str
    is_regex: bool
    context: int
    query: str = ""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Describes invalid arguments, and includes the schema."""

    text: str


Wanted = (
    SearchTools
    | SelectTools
    | ListTools
    | GetToolDetails
    | CallTool
    | ReadArtifact
    | SearchArtifact
    | Malformed
)


class _Wrong(Exception):
    """Invalid arguments, in one sentence."""


def parse(tool: str, arguments: Any) -> Wanted:
    """Return the request that a meta-tool's arguments make."""
    try:
        arguments = _mapping(arguments)
        properties = meta_schema(tool)["properties"]
        for name in arguments:
            if name not in properties:
                raise _Wrong(f"there is no argument {shorten(str(name), 80)!r}")
        return _READERS[tool](arguments)
    except _Wrong as wrong:
        return Malformed(
            f"The arguments of {tool!r} do not fit: {wrong}.\nIts schema:"
            f" {encode(meta_schema(tool))}"
        )


def _mapping(value: Any, what: str = "the arguments") -> Mapping[str, Any]:
    """Return an object, or parse one from text: some models write nested arguments as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            raise _Wrong(f"{what} must be an object") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _Wrong(f"{what} must be an object")
    return value


def _text(
    arguments: Mapping[str, Any], name: str, limit: int, *, default: str | None = None
) -> str:
    value = arguments.get(name, default)
    if value is None:
        raise _Wrong(f"{name!r} is missing")
    if not isinstance(value, str):
        raise _Wrong(f"{name!r} must be a string")
    if len(value) > limit:
        raise _Wrong(f"{name!r} has {len(value):,} characters, at most {limit:,} are taken")
    if default is None and not value.strip():
        raise _Wrong(f"{name!r} is empty")
    return value


def _number(
    arguments: Mapping[str, Any], name: str, default: int, least: int | None, most: int
) -> int:
    value = _as_whole_number(arguments.get(name, default))
    if value is None:
        raise _Wrong(f"{name!r} must be a whole number")
    lowest = -most if least is None else least
    is_too_low = least is not None and value < least
    if is_too_low or value > most:
        raise _Wrong(f"{name!r} must be between {lowest:,} and {most:,}")
    return value


def _as_whole_number(value: Any) -> int | None:
    """Return the number that was meant: models also write `"3"` and `3.0`; None if it is none."""
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,12}", value.strip()):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return None


def _artifact(arguments: Mapping[str, Any]) -> str:
    uri = _text(arguments, "uri", 200).strip()
    match = _ARTIFACT.fullmatch(uri)
    if match is None:
        raise _Wrong(
            f"{shorten(uri, 100)!r} is not an artifact: write 'artifact:sha256:' and its 64 hex"
            " digits"
        )
    return match[1]


def _search(arguments: Mapping[str, Any]) -> SearchTools | SelectTools:
    query = _text(arguments, "query", MAX_QUERY).strip()
    limit = _number(arguments, "limit", MAX_FOUND, 1, 1_000)
    if not query.lower().startswith(SELECT):
        return SearchTools(query, limit)
    written = (name.strip() for name in query[len(SELECT) :].split(","))
    names = tuple(dict.fromkeys(name for name in written if name))
    return SelectTools(names[:MAX_SELECTED], names[MAX_SELECTED:])


def _call(arguments: Mapping[str, Any]) -> CallTool:
    return CallTool(
        _text(arguments, "name", 200), _mapping(arguments.get("arguments"), "'arguments'")
    )


def _page(arguments: Mapping[str, Any]) -> ReadArtifact:
    unit = arguments.get("unit", "chars")
    if unit not in UNITS:
        raise _Wrong(f"'unit' must be one of {', '.join(UNITS)}")
    limit = _number(arguments, "limit", DEFAULT_LIMITS[unit], 1, 1_000_000)
    return ReadArtifact(
        _artifact(arguments), _number(arguments, "offset", 0, None, 10**12), limit, unit
    )


def _lines(arguments: Mapping[str, Any]) -> SearchArtifact:
    text = _text(arguments, "pattern", MAX_PATTERN)
    query = text[len(JMESPATH) :].strip() if text.lower().startswith(JMESPATH) else ""
    is_regex = text.lower().startswith(REGEX) and len(text) > len(REGEX)
    pattern = text[len(REGEX) :] if is_regex else text
    context = _number(arguments, "context", 0, 0, MAX_CONTEXT)
    return SearchArtifact(_artifact(arguments), pattern, is_regex, context, query)


_READERS: Final = {
    "search_tools": _search,
    "list_tools": lambda arguments: ListTools(_text(arguments, "bundle", 200, default="").strip()),
    "get_tool_details": lambda arguments: GetToolDetails(_text(arguments, "name", 200)),
    "call_tool": _call,
    "read_artifact": _page,
    "search_artifact": _lines,
}
