"""Cleans text of definitions for models and readers: removes everything that they can't see."""

from __future__ import annotations

import re
import unicodedata
from typing import Any, Final

from bundle_router.core.values.schema_tree import Place, pointer, rebuilt, subschemas
from bundle_router.core.values.visible import invisible_in, visible, without_invisible

_TERMINAL: Final = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,16}[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\^_])"
)
_BREAKS: Final = re.compile(r"[\x0b\x0c\x85\u2028\u2029]|\r\n?")
_PRIVATE: Final = re.compile(r"[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_LINE_ENDS: Final = re.compile(r"[\r\n]")
_SHOWN: Final = ("title", "description", "$comment", "default", "examples", "example")
"""Keywords whose values are only read by people and models."""


def cleaned(text: str) -> str:
    """Return the text without terminal sequences, controls, bidirectional marks, tags, zero-width
    and private ones.
    """
    if text.isascii() and text.isprintable():
        return text
    return _PRIVATE.sub("", without_invisible(_BREAKS.sub("\n", _TERMINAL.sub("", text))))


def has_hidden(text: str) -> bool:
    """Return whether the text holds characters that `cleaned` removes.

    Line ends of any kind are not hidden.
    """
    if text.isascii() and text.isprintable():
        return False
    return invisible_in(_LINE_ENDS.sub("\n", text)) != "" or _PRIVATE.search(text) is not None


def cleaned_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with readable texts cleaned; other values are unchanged."""
    copy: dict[str, Any] = rebuilt(schema, _with_clean_texts)
    return copy


def _with_clean_texts(schema: dict[str, Any]) -> dict[str, Any]:
    for key in _SHOWN:
        if key in schema:
            schema[key] = _cleaned_value(schema[key])
    return schema


def _cleaned_value(value: Any) -> Any:
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, list):
        return [_cleaned_value(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): _cleaned_value(item) for key, item in value.items()}
    return value


def hidden_value(schema: dict[str, Any]) -> str | None:
    """Return the place of invisible characters in text that can't be cleaned: property names, enum,
    const, patterns, and unknown keys. None if there are none.
    """
    waiting: list[tuple[Place, dict[str, Any]]] = [((), schema)]
    while waiting:
        place, current = waiting.pop()
        inner_places = list(subschemas(current))
        inside = {where[0] for where, _ in inner_places}
        for key, value in current.items():
            if has_hidden(key):
                return pointer((*place, ascii(key)))
            if key not in _SHOWN and key not in inside and _hidden_inside(value):
                return pointer((*place, key))
        for where, inner in inner_places:
            if has_hidden(str(where[-1])):
                return pointer((*place, *where[:-1], ascii(where[-1])))
            if isinstance(inner, dict):
                waiting.append(((*place, *where), inner))
    return None


def _hidden_inside(value: Any) -> bool:
    if isinstance(value, str):
        return has_hidden(value)
    if isinstance(value, list):
        return any(map(_hidden_inside, value))
    if isinstance(value, dict):
        return any(map(has_hidden, value)) or any(map(_hidden_inside, value.values()))
    return False


# Look-alike letters and names: to show invisible differences, and names that imitate others.
_WORD: Final = re.compile(r"\w+")
_LATIN_TWINS: Final = str.maketrans(
    "аеорсухіјѕԁһкмтвнАВЕКМНОРСТХІЈЅ" + "αορνυικτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "ɡı",
    "aeopcyxijsdhkmtbhABEKMHOPCTXIJS" + "aopvuiktABEZHIKMNOPTYX" + "gi",
)
_SAME: Final = (("rn", "m"), ("vv", "w"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"))


def is_mixed(word: str) -> bool:
    """Return whether the word mixes ASCII letters with look-alike letters of another script."""
    return re.search(r"[A-Za-z]", word) is not None and any(
        not letter.isascii() and as_latin(letter).isascii() for letter in word
    )


def as_latin(text: str) -> str:
    """Return the text with Cyrillic, Greek, full-width and mathematical letters as the similar
    Latin ones.
    """
    return unicodedata.normalize("NFKC", text).translate(_LATIN_TWINS)


def reveal(text: str) -> str:
    """Return the text with invisible and look-alike characters written out."""
    if text.isascii():
        return visible(text)
    mixed = _WORD.sub(lambda match: _escaped(match[0]) if is_mixed(match[0]) else match[0], text)
    return visible(_PRIVATE.sub(lambda match: _escaped(match[0]), mixed))


def reveal_line(text: str) -> str:
    """Return what `reveal` does, on one line: a name with a line end must not look like a line of
    ours.
    """
    return reveal(text).replace("\n", "\\n")


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


def skeleton(name: str) -> str:
    """Return the name without case, separators and look-alike letters, to compare what names look
    like.
    """
    text = re.sub(r"[^a-z0-9]", "", as_latin(name).lower())
    for letter, replacement in _SAME:
        text = text.replace(letter, replacement)
    return text
