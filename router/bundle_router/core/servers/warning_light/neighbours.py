"""Finds what a definition says about tools of other servers, or copies from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import Card
from bundle_router.core.servers.admission.cleaning import skeleton
from bundle_router.core.servers.warning_light.hidden import Seen, fold_text

_COMMON_WORDS: Final = re.compile(r"\w{3,}")
_RUN: Final = re.compile(r"[\w.-]+")
MAX_NAME: Final = 128
"""Maximum characters of a tool's name."""
_DIRECTS: Final = re.compile(
    r"\b(?:us(?:e|ing)|call(?:ing)?|invok(?:e|ing)|run(?:ning)?|instead|before|after|when(?:ever)?|must|always|never"
    r"|replaces?|prefer|avoid|do"
    r" not|don't|overrides?|proxy|intercept|deprecated|broken|unsafe|insecure|safer|better"
    r"|should|first|on behalf|wraps?|redirect)\b"
)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tool of some other server that agents may see beside this one."""

    server: str
    tool: str
    description: str


class Neighbourhood:
    """The tools of all servers, indexed once, so that checking one definition costs only its own
    words, however many tools there are.
    """

    def __init__(self, neighbours: Iterable[Neighbour | Card]) -> None:
        self._alike: dict[str, list[Neighbour]] = {}
        self._telling: dict[str, list[tuple[int, Neighbour]]] = {}
        self._count = 0
        self.add(neighbours)

    def add(self, neighbours: Iterable[Neighbour | Card]) -> None:
        for other in neighbours:
            other = Neighbour(other.server, other.tool, other.description)
            self._alike.setdefault(skeleton(other.tool), []).append(other)
            if _is_telling(other.tool):
                self._telling.setdefault(other.tool.lower(), []).append((self._count, other))
            self._count += 1

    def findings_beside(self, definition: Mapping[str, Any], server: str) -> Iterator[Seen]:
        """Yield names and words copied from other servers' tools, and instructions about them."""
        name = str(definition.get("name", ""))
        description = fold_text(str(definition.get("description") or ""))
        words = frozenset(_COMMON_WORDS.findall(description))
        mimicked: set[Neighbour] = set()
        for other in self._alike.get(skeleton(name), ()):
            theirs = frozenset(_COMMON_WORDS.findall(fold_text(other.description)))
            if other.server != server and _overlap(words, theirs) >= 0.6:
                mimicked.add(other)
                yield "mimicry", f"{other.server}.{other.tool}"

        directed: dict[int, Neighbour] = {}
        for word, start in _names_in(description).items():
            if word == name.lower() or not _is_directed(description, start, start + len(word)):
                continue
            for number, other in self._telling.get(word, ()):
                if other.server != server and other not in mimicked:
                    directed[number] = other
        for _, other in sorted(directed.items()):
            yield "speaks-of-others", f"{other.server}.{other.tool}"


def _names_in(description: str) -> dict[str, int]:
    """Return possible tool names in a text, each with its first position."""
    starts: dict[str, int] = {}
    for run in _RUN.finditer(description):
        text = run[0][: MAX_NAME + 1]
        ends = [at for at, letter in enumerate(text) if letter == "."]
        if len(run[0]) <= MAX_NAME:
            ends.append(len(text))
        for end in ends:
            starts.setdefault(text[:end], run.start())
    return starts


def _is_directed(description: str, start: int, end: int) -> bool:
    """Return whether there is an instruction nearby."""
    return _DIRECTS.search(description[max(0, start - 120) : end + 120]) is not None


def _is_telling(name: str) -> bool:
    """Return whether a name is distinctive: `search` is a word, `query_database` is a tool."""
    return "_" in name or "-" in name or re.search(r"[a-z][A-Z]", name) is not None


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0
