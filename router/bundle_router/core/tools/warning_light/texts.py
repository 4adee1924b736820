"""The texts of a definition, folded so that a phrase can't be dressed up, and cut into sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.tools.admission.lookalikes import as_latin
from bundle_router.core.tools.admission.schemas import pointer
from bundle_router.core.tools.shaping.visible import without_invisible

MAX_TEXTS: Final = 2_000
MAX_CHARS: Final = 20_000
"""Characters of one text that are read. More is a document, and admission cuts it anyway."""
MAX_SENTENCE: Final = 1_000
_SPLIT: Final = re.compile(r"(?<=[.!?;:])\s+|\n+|</?[A-Za-z_|]{2,40}>")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-.\s]+")


@dataclass(frozen=True, slots=True)
class TextPassage:
    """One text with its place. `raw` is as it came, `plain` folded: no invisible characters, look-alikes as Latin,
    lower case. `prose` is false for names and values."""

    where: str
    raw: str
    plain: str
    prose: bool

    def sentences(self) -> list[str]:
        """Return the sentences, none longer than `MAX_SENTENCE`: a longer one is taken in pieces."""
        parts = (part.strip() for part in _SPLIT.split(self.plain))
        return [part[at : at + MAX_SENTENCE] for part in parts for at in range(0, len(part), MAX_SENTENCE)]


def passages(definition: Mapping[str, Any]) -> list[TextPassage]:
    """Return every text of the definition, at most `MAX_TEXTS`. Names of properties are read as words."""
    found = []
    for place, text, prose in _texts(definition):
        raw = text[:MAX_CHARS]
        found.append(TextPassage(pointer(place), raw, folded(raw if prose else " ".join(_WORDS.split(raw))), prose))
        if len(found) == MAX_TEXTS:
            break
    return found


def folded(text: str) -> str:
    """Return the text as it would be read aloud: without what hides, look-alikes resolved, in lower case."""
    if not text.isascii():
        text = as_latin(without_invisible(text)).replace("’", "'").replace("“", '"').replace("”", '"')
    return text.lower()


def _texts(definition: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str, bool]]:
    """(place, text, whether it is prose). Iterative: admission bounds the depth, callers may not have."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), definition)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            yield place, value, " " in value.strip() or len(value) > 60
        elif isinstance(value, dict):
            if place and place[-1] in ("properties", "$defs", "definitions"):
                yield from (((*place, key), key, False) for key in value if isinstance(key, str))
            waiting.extend(((*place, key), value[key]) for key in reversed(list(value)))
        elif isinstance(value, list):
            waiting.extend(((*place, index), item) for index, item in reversed(list(enumerate(value))))
