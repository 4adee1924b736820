"""The words of router/words.toml: one for each concept."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "router" / "docs" / "reference" / "words.md"
HEAD: Final = "| word | meaning | not |\n|---|---|---|\n"
PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of a class name: `MCPServer` has `MCP` and `Server`."""


@dataclass(frozen=True)
class Word:
    """The word for one concept."""

    noun: str
    """The word that is used."""
    concept: str
    """What it means."""
    avoid: tuple[str, ...]
    """The words that are not used for it, as class names have them."""


def words() -> tuple[Word, ...]:
    """Return the words, in the order of the file."""
    table = tomllib.loads((ROOT / "router" / "words.toml").read_text("utf-8"))
    return tuple(Word(row["noun"], row["concept"], tuple(row["not"])) for row in table["words"])


def rejected_words(name: str) -> list[str]:
    """Return the words of a class name that a concept is not called by."""
    avoided = {word for row in words() for word in row.avoid}
    return [part for part in PART.findall(name) if part in avoided]


def words_table() -> str:
    """Return the words as a table of Markdown."""
    rows = [
        f"| {row.noun} | {row.concept} | {', '.join(map(str.lower, row.avoid))} |\n"
        for row in words()
    ]
    return HEAD + "".join(rows)


def page_with_words() -> str:
    """Return the page of words with its table of words replaced by that of `words.toml`."""
    text = PAGE.read_text("utf-8")
    before, found, after = text.partition(HEAD)
    assert found, "words.md has no table of words"
    rest = dropwhile(lambda line: line.startswith("|"), after.splitlines(keepends=True))
    return before + words_table() + "".join(rest)
