"""The arguments of a call, value by value, so that a person sees what they are and what they are
not.

Rules:
1. Every character is there, in order: nothing is folded, shortened or left out. What does not fit
   one page stands on the next.
2. What a reader can't see is spelled out: control and invisible characters, line ends, tabs, and
   runs of blanks.
3. What can be taken for something else is marked with its code point: letters of another script
   in a Latin word, words that are made of such letters alone, and characters for private use.
4. Of a URL it says the host that is asked, where its text may mislead.
5. Nothing here judges: a mark is no finding, and a text without one is no safe text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from bundle_router.core.servers.admission.cleaning import as_latin, is_mixed
from bundle_router.core.values.host_names import spell_host
from bundle_router.core.values.schema_tree import pointer
from bundle_router.core.values.visible import visible

PAGE_CHARACTERS: Final = 64 * 1024
"""Characters of arguments on one page."""
MAX_ROWS: Final = 2_000
"""Values on one page."""
_BLANKS: Final = 3
"""Blanks in a row from which on they are counted."""

Mark = Literal["", "unseen", "look-alike", "hidden"]

_SPECIAL: Final = re.compile(
    rf"(?P<line>\r\n|\n)|(?P<tab>\t)|(?P<blanks> {{{_BLANKS},}})"
    r"|(?P<hidden>\[redacted:[A-Za-z0-9:_.-]{1,200}\])"
    r"|(?P<word>\w+)|(?P<other>[\x00-\x1f\x7f]|[^\x00-\x7f\w])"
)
"""Linear in the text: a word is taken whole, and its letters are looked at afterwards."""
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s\"'<>]+")
_PRIVATE_USE: Final = "Co"
_SPACES: Final = ("Zs", "Zl", "Zp")


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of a value."""

    text: str
    """What is shown; as it is where there is no mark."""
    mark: Mark = ""
    """`unseen`: spelled out, or counted; `look-alike`: can be taken for `note`'s; `hidden`: taken
    out by redaction.
    """
    note: str = ""
    """What is marked, e.g. `U+043E CYRILLIC SMALL LETTER O`."""


@dataclass(frozen=True, slots=True)
class ArgumentRow:
    """One value of the arguments, or the rest of one that a page before began."""

    pointer: str
    """Its place as a JSON Pointer; empty for the arguments as a whole."""
    kind: str
    """`text`, `number`, `boolean`, `null`, an empty `object` or `list`; `unread` for no JSON."""
    parts: tuple[TextPart, ...]
    hosts: tuple[str, ...] = ()
    """What is to be known of hosts of its URLs, a sentence each."""
    is_rest: bool = False


@dataclass(frozen=True, slots=True)
class ArgumentPage:
    """One page of the arguments, which are shown whole over all pages."""

    rows: tuple[ArgumentRow, ...]
    number: int
    """The number of the page, from 1."""
    pages: int
    characters: int
    """Characters of all values."""
    marks: int
    """Marked places of all values."""
    hidden: int
    """Values that redaction took out."""


def argument_page(arguments: str, number: int = 1) -> ArgumentPage:
    """Return a page of the arguments of a call, from their JSON.

    A number that no page has gives the nearest.

    >>> argument_page('{"to": "b\\u043eb"}').rows[0].parts[1].note
    'U+043E CYRILLIC SMALL LETTER O'
    """
    pages = [*_pages(arguments)] or [()]
    place = min(max(number, 1), len(pages))
    marks: Counter[Mark] = Counter()
    for page in pages:
        for row in page:
            marks.update(part.mark for part in row.parts)

    return ArgumentPage(
        pages[place - 1],
        place,
        len(pages),
        characters=sum(len(text) for _, _, text in _values(arguments)),
        marks=marks["unseen"] + marks["look-alike"],
        hidden=marks["hidden"],
    )


def _pages(arguments: str) -> Iterator[tuple[ArgumentRow, ...]]:
    rows: list[ArgumentRow] = []
    room = PAGE_CHARACTERS
    for place, kind, text in _values(arguments):
        hosts = tuple(host_sentences(text)) if kind == "text" else ()
        start = 0
        while True:
            piece = text[start : start + room]
            rows.append(ArgumentRow(place, kind, tuple(text_parts(piece)), hosts, start > 0))
            start += len(piece)
            room -= len(piece)
            if room > 0 and len(rows) < MAX_ROWS and start == len(text):
                break
            yield tuple(rows)
            rows = []
            room = PAGE_CHARACTERS
            if start == len(text):
                break
    if rows:
        yield tuple(rows)


def _values(arguments: str) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the kind and the text of each value that holds no other."""
    try:
        value = json.loads(
            arguments,
            parse_int=_NumberText,
            parse_float=_NumberText,
            parse_constant=_NumberText,
        )
    except (ValueError, RecursionError):
        yield "", "unread", arguments
        return
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, dict) and value:
            waiting += [((*place, key), value[key]) for key in reversed(value)]
        elif isinstance(value, list) and value:
            waiting += [((*place, at), value[at]) for at in reversed(range(len(value)))]
        else:
            yield pointer(place), _kind_of(value), _text_of(value)


class _NumberText(str):
    """A number as it is written, which is not always how Python would write it."""

    __slots__ = ()


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, _NumberText):
        return "number"
    if isinstance(value, str):
        return "text"
    return "object" if isinstance(value, dict) else "list"


def _text_of(value: Any) -> str:
    return str(value) if isinstance(value, str) else json.dumps(value)


def text_parts(text: str) -> Iterator[TextPart]:
    """Yield the pieces of a text, in order, with what is to be marked apart."""
    plain = 0
    for match in _SPECIAL.finditer(text):
        if match["word"] is not None and match[0].isascii():
            continue
        parts = [*_parts_of(match)]
        if not any(part.mark for part in parts):
            continue
        if match.start() > plain:
            yield TextPart(text[plain : match.start()])
        yield from parts
        plain = match.end()
    if plain < len(text):
        yield TextPart(text[plain:])


def _parts_of(match: re.Match[str]) -> Iterator[TextPart]:
    text = match[0]
    if match["line"] is not None:
        yield TextPart("⏎\n" if text == "\n" else "␍⏎\n", "unseen", "line end")
    elif match["tab"] is not None:
        yield TextPart("⇥", "unseen", "tab")
    elif match["blanks"] is not None:
        yield TextPart(f"␠×{len(text):,}", "unseen", f"{len(text):,} blanks")
    elif match["hidden"] is not None:
        yield TextPart(text, "hidden", "taken out by redaction")
    elif match["word"] is not None:
        yield from _word_parts(text)
    else:
        yield _character_part(text)


def _word_parts(word: str) -> Iterator[TextPart]:
    is_imitation = is_mixed(word) or as_latin(word).isascii()
    for run in re.findall(r"[\x00-\x7f]+|[^\x00-\x7f]", word):
        if run.isascii():
            yield TextPart(run)
        elif is_imitation and as_latin(run).isascii():
            yield TextPart(run, "look-alike", _code_point(run))
        else:
            yield _character_part(run)


def _character_part(character: str) -> TextPart:
    category = unicodedata.category(character)
    if visible(character) != character or category in _SPACES:
        return TextPart(f"\\u{ord(character):04x}", "unseen", _code_point(character))
    if category == _PRIVATE_USE or unicodedata.normalize("NFKC", character).isascii():
        return TextPart(character, "look-alike", _code_point(character))
    return TextPart(character)


def _code_point(character: str) -> str:
    name = unicodedata.name(character, "without a name")
    return f"U+{ord(character):04X} {name}"


def host_sentences(text: str) -> Iterator[str]:
    """Yield what is to be known of the hosts of a text's URLs: where a name is not ASCII, and where
    something before `@` looks like a host.
    """
    for match in _URL.finditer(text):
        try:
            authority = urlsplit(match[0]).netloc
        except ValueError:
            yield f"{visible(match[0][:200])} is no URL that all programs read in one way"
            continue
        user, at, name = authority.rpartition("@")
        host = name.partition(":")[0]
        try:
            spelled = host if host.isascii() else spell_host(host)
        except ValueError as error:
            yield visible(str(error))
            continue
        if at:
            yield f"it goes to {spelled}: {visible(user[:200])} before the @ is a user name"
        elif spelled != host:
            yield f"{visible(host)} is {spelled}"
