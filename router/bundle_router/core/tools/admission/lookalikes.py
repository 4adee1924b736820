"""Letters and names that look like others. Used to show differences nobody could see, and to find names that are meant
to be taken for others."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from bundle_router.core.tools.shaping.visible import visible

_WORD: Final = re.compile(r"\w+")
_PRIVATE: Final = re.compile(r"[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_LATIN_TWINS: Final = str.maketrans(
    "аеорсухіјѕԁһкмтвнАВЕКМНОРСТХІЈЅ" + "αορνυικτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ" + "ɡı",
    "aeopcyxijsdhkmtbhABEKMHOPCTXIJS" + "aopvuiktABEZHIKMNOPTYX" + "gi",
)
_SAME: Final = (("rn", "m"), ("vv", "w"), ("0", "o"), ("1", "l"), ("i", "l"), ("5", "s"))


def is_mixed(word: str) -> bool:
    """Return whether ASCII letters stand beside letters of another script that look like ASCII ones."""
    return re.search(r"[A-Za-z]", word) is not None and any(
        not letter.isascii() and as_latin(letter).isascii() for letter in word
    )


def as_latin(text: str) -> str:
    """Return the text with Cyrillic, Greek, full-width and mathematical letters as the Latin ones they resemble."""
    return unicodedata.normalize("NFKC", text).translate(_LATIN_TWINS)


def revealed(text: str) -> str:
    """Return the text with everything written out that a reader can't see, or would take for something else."""
    if text.isascii():
        return visible(text)
    mixed = _WORD.sub(lambda match: _escaped(match[0]) if is_mixed(match[0]) else match[0], text)
    return visible(_PRIVATE.sub(lambda match: _escaped(match[0]), mixed))


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


def skeleton(name: str) -> str:
    """Return what a name looks like at a glance: without case, separators and look-alike letters."""
    text = re.sub(r"[^a-z0-9]", "", as_latin(name).lower())
    for one, other in _SAME:
        text = text.replace(one, other)
    return text
