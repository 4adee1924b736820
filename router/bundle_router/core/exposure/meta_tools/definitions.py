"""The definitions of the router's own tools.

They are constants, counted once, but for one sentence: the description of `search_tools` names what
is behind it, in the operator's words. It stays the same within a decision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
            "Find tools that are not in your list by what they do",
            _object(
                ("query",),
                query={**_TEXT, "description": "words, or names: select:a,b"},
                limit=_NUMBER,
            ),
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


READ_ONLY: Final = frozenset(NAMES) - {"call_tool"}
"""Those that change nothing, which MCP's annotations say."""
MAX_BEHIND: Final = 240
"""Maximum characters of the operator's words in the description of `search_tools`."""
CHARS_A_TOKEN: Final = 4
"""Characters per token of such words (cl100k_base: 4.2 to 5.1 measured)."""

_TOKENS: Final = MappingProxyType(
    dict(zip(_DEFINITIONS, (64, 34, 37, 43, 81, 76, 52), strict=True))
)
"""Tokens in cl100k_base, OpenAI form; a test counts them again."""


def meta_definitions(
    names: tuple[str, ...], form: Format, behind: Sequence[str] = ()
) -> tuple[dict[str, Any], ...]:
    """Return fresh copies of the meta-tools' definitions in a provider's form.

    `behind`: the operator's words for each bundle that has tools behind search.
    """
    definitions = []
    for name in names:
        description, schema = _DEFINITIONS[name]
        if name == "search_tools":
            description += behind_text(behind)
        definition = form_of(name, description, _copy(schema), form)
        if form == "mcp" and name in READ_ONLY:
            definition["annotations"] = {"readOnlyHint": True}
        definitions.append(definition)
    return tuple(definitions)


def behind_text(behind: Sequence[str]) -> str:
    """Return the sentence that says what is behind search, as many bundles as fit; empty if none
    has words.
    """
    words = [text.rstrip(". ") for text in behind if text]
    if not words:
        return ""
    listed = [words[0][:MAX_BEHIND]]
    for text in words[1:]:
        if len("; ".join((*listed, text))) > MAX_BEHIND:
            break
        listed.append(text)
    rest = len(words) - len(listed)
    more = f"; and {rest} more" if rest else ""
    return f". Behind it: {'; '.join(listed)}{more}"


def meta_schema(name: str) -> dict[str, Any]:
    """Return the schema of one meta-tool's arguments, a fresh copy."""
    schema: dict[str, Any] = _copy(_DEFINITIONS[name][1])
    return schema


def meta_tokens(names: tuple[str, ...], behind: Sequence[str] = ()) -> int:
    """Return the tokens of these meta-tools' definitions in an array: counted, but for the
    operator's words, which are estimated.
    """
    counted = sum(_TOKENS[name] for name in names)
    if "search_tools" not in names:
        return counted
    return counted + math.ceil(len(behind_text(behind)) / CHARS_A_TOKEN)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    return [_copy(item) for item in value]
