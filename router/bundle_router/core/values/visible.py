"""Makes characters visible that readers can't see and models can.

Invisible: C0 and C1 controls (not newline and tab), bidirectional marks and isolates, zero-width
characters, tags, misplaced variation selectors, line and paragraph separators, lone surrogates,
noncharacters. Kept: joiners inside emoji and between letters of scripts that need them, one
variation selector after a character that can have one, and the three flags that are written with
tags.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_SUSPECT: Final = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff"
)
_FLAGS: Final = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
_SLICE: Final = 64 * 1024
"""Maximum characters per regular expression match, which holds the GIL until it has finished."""
_BETWEEN: Final = re.compile(rf"[^{_SUSPECT}](?=[^{_SUSPECT}])")
"""Places where a text may be cut without separating characters that belong together."""
_PATTERN: Final = re.compile(rf"\r\n|{_FLAGS}|[{_SUSPECT}]")
_IS_SUSPECT: Final = re.compile(rf"[{_SUSPECT}]")
_ASCII_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_ZWNJ = "\u200c"
_ZWJ = "\u200d"
_JOINING: Final = ((0x0600, 0x08FF), (0x0900, 0x0DFF), (0x1000, 0x109F), (0x1780, 0x18AF))
_KEYCAPS: Final = frozenset("#*0123456789\u00a9\u00ae")


def visible(text: str) -> str:
    """Return the text with invisible characters written out as `\\u202e` (JSON's own escapes, so
    JSON stays JSON).
    """
    if len(text) > _SLICE:
        return "".join(_escape_invisible(part) for part in slices(text))
    return _escape_invisible(text)


def _escape_invisible(text: str) -> str:
    if text.isascii() and not _ASCII_CONTROL.search(text):
        return text
    return _PATTERN.sub(_escape, text)


def slices(text: str) -> Iterator[str]:
    """Yield the text in pieces, cut where no invisible character is on either side, if there is
    such a place.
    """
    start = end = 0
    while (start := end) < len(text):
        cut = _BETWEEN.search(text, start + _SLICE, start + 2 * _SLICE)
        end = cut.end() if cut is not None else start + 2 * _SLICE
        end += text[end - 1 : end + 1] == "\r\n"
        yield text[start:end]


def without_invisible(text: str) -> str:
    """Return the text without invisible characters.

    For text whose hidden parts nobody should get.
    """
    if text.isascii() and not _ASCII_CONTROL.search(text):
        return text
    return _PATTERN.sub(
        lambda match: kept if (kept := _escape(match)) in (match[0], "\n") else "", text
    )


def invisible_in(text: str) -> str:
    """Return the invisible characters of the text, in order, without those that ordinary writing
    needs there.
    """
    if text.isascii() and not _ASCII_CONTROL.search(text):
        return ""
    return "".join(m[0] for m in _PATTERN.finditer(text) if _escape(m) not in (m[0], "\n"))


def without_surrogates(text: str) -> str:
    """Return the text with lone surrogates replaced by U+FFFD, so that it has a UTF-8 form."""
    try:
        _ = text.isascii() or text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(re.sub(r"[\ud800-\udfff]", "\ufffd", part) for part in slices(text))
    return text


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\r\n":
        return "\n"
    if len(char) > 1:
        return char
    if "\ud800" <= char <= "\udfff":
        return "\ufffd"
    if _belongs(match.string, match.start()):
        return char
    code = ord(char)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def _belongs(text: str, at: int) -> bool:
    """Return whether ordinary writing needs the joiner or selector at this place."""
    mark = text[at]
    previous = text[at - 1 : at]
    following = text[at + 1 : at + 2]
    if not previous:
        return False
    if "\ufe00" <= mark <= "\ufe0f":
        is_varied = previous in _KEYCAPS or previous >= "\u2000"
        return is_varied and not _IS_SUSPECT.match(previous)
    if "\U000e0100" <= mark <= "\U000e01ef":
        return unicodedata.category(previous) == "Lo"
    if mark not in (_ZWNJ, _ZWJ) or not following:
        return False

    if previous == "\ufe0f":
        previous = text[at - 2 : at - 1]
    if mark == _ZWJ and _is_pictograph(previous) and _is_pictograph(following):
        return True
    return _is_joining(previous) and _is_joining(following)


def _is_pictograph(character: str) -> bool:
    return character != "" and (
        unicodedata.category(character) == "So"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
        or character == "\u2194"
    )


def _is_joining(character: str) -> bool:
    return character != "" and any(low <= ord(character) <= high for low, high in _JOINING)
