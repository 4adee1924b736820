"""The word lists of search: stop words, words that say little, and synonyms. They are data (`word_lists.toml`)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Final

_LISTS: Final[dict[str, Any]] = tomllib.loads(
    files("bundle_router.core.search").joinpath("word_lists.toml").read_text(encoding="utf-8")
)


def _words(name: str) -> frozenset[str]:
    return frozenset(_LISTS[name].split())


def _words_by_name(name: str) -> Mapping[str, frozenset[str]]:
    return MappingProxyType({key: frozenset(words.split()) for key, words in _LISTS[name].items()})


def _synonyms() -> tuple[tuple[str, tuple[str, ...]], ...]:
    table: dict[str, dict[str, None]] = {}
    for group in _LISTS["alike"].replace("\n", " | ").split("|"):
        members = group.split()
        for word in members:
            table.setdefault(word, {}).update(dict.fromkeys(other for other in members if other != word))
    for row in _LISTS["broader"].split("|"):
        broader, _, narrower = row.partition(":")
        for word in narrower.split():
            table.setdefault(word, {})[broader.strip()] = None
    return tuple((word, tuple(others)) for word, others in sorted(table.items()))


STOP_WORDS: Final = _words("stop_words")
FOREIGN_STOP_WORDS: Final = _words_by_name("foreign_stop_words")
GENERIC: Final = _words("generic")
CONVERSATION: Final = _words("conversation")
ACTIONS: Final = _words_by_name("actions")
PREFACE: Final = _words("preface")
FILE_KINDS: Final = MappingProxyType(
    {ending: kind for kind, endings in _LISTS["file_kinds"].items() for ending in endings.split()}
)
"""File extension: words for the kind of file."""
SYNONYMS: Final = _synonyms()
"""`(word, words it may stand for)`, by word."""
