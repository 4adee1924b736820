"""What a definition says about, or takes from, tools of other servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.tools.admission.lookalikes import skeleton
from bundle_router.core.tools.warning_light.hidden import Seen
from bundle_router.core.tools.warning_light.texts import folded

_COMMON_WORDS: Final = re.compile(r"\w{3,}")
_DIRECTS: Final = re.compile(
    r"\b(?:us(?:e|ing)|call(?:ing)?|invok(?:e|ing)|run(?:ning)?|instead|before|after|when(?:ever)?|must|always|never"
    r"|replaces?|prefer|avoid|do not|don't|overrides?|proxy|intercept|deprecated|broken|unsafe|insecure|safer|better"
    r"|should|first|on behalf|wraps?|redirect)\b"
)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tool of some other server that agents may see beside this one."""

    server: str
    tool: str
    description: str


def seen_beside(definition: Mapping[str, Any], server: str, neighbours: Sequence[Neighbour]) -> Iterator[Seen]:
    """Names and words taken from other servers' tools, and orders about them."""
    name, description = str(definition.get("name", "")), folded(str(definition.get("description") or ""))
    mine = frozenset(_COMMON_WORDS.findall(description))
    own_skeleton = skeleton(name)
    for other in neighbours:
        if other.server == server:
            continue
        theirs = frozenset(_COMMON_WORDS.findall(folded(other.description)))
        if skeleton(other.tool) == own_skeleton and _overlap(mine, theirs) >= 0.6:
            yield "mimicry", f"{other.server}.{other.tool}"
        elif _is_telling(other.tool) and other.tool.lower() != name.lower():
            found = re.search(rf"(?<![\w.-]){re.escape(other.tool.lower())}(?![\w-])", description)
            if found and _DIRECTS.search(description[max(0, found.start() - 120) : found.end() + 120]):
                yield "speaks-of-others", f"{other.server}.{other.tool}"


def _is_telling(name: str) -> bool:
    """Whether a name is one that nobody writes by chance: `search` is a word, `query_database` is a tool."""
    return "_" in name or "-" in name or re.search(r"[a-z][A-Z]", name) is not None


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0
