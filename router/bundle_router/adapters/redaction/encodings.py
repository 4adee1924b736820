r"""Decodes a text as its reader would: without escapes (`%3A`, `\x3a`, `\"`, `\u003d`), colours,
line folds, base64.

A view is a decoded text that maps each of its bytes to the original, so that a secret found in the
view can be cut out of the original. The caller bounds the work by counting the bytes of the views
it requests.
"""

from __future__ import annotations

import base64
import binascii
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final
from urllib.parse import quote_plus

from bundle_router.adapters.expressions import compile_expression, compile_set

# Expressions over bytes. Latin-1 mode matches bytes one by one: UTF-8 text keeps its meaning, the
# automata stay small, and bytes that are not UTF-8 (a cut character) can be searched too.

SET_MEMORY: Final = 32 * 1024 * 1024
"""Maximum bytes of a set's automaton, which grows as texts need it.

One that needs more has its states made anew.
"""


class Pattern:
    """One compiled pattern."""

    __slots__ = ("_regexp", "groups")

    def __init__(self, regex: bytes) -> None:
        self._regexp = compile_expression(regex, latin1=True)
        self.groups: int = self._regexp.groups

    def spans(
        self, data: bytes, start: int = 0, end: int | None = None
    ) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield the spans of the whole match and of each group, for each non-overlapping match.

        A group that did not match has the span (-1, -1).
        """
        count = self.groups + 1
        for match in self._regexp.finditer(data, start, end):
            yield tuple(match.span(group) for group in range(count))

    def fullmatch(self, data: bytes) -> bool:
        return self._regexp.fullmatch(data) is not None

    def search(self, data: bytes) -> bool:
        return self._regexp.search(data) is not None


@cache
def pattern(regex: str) -> Pattern:
    """Compile a pattern once per process. Raises ExpressionError if RE2 does not accept it."""
    return Pattern(regex.encode())


def literal(data: str | bytes) -> str:
    """Return a regex that matches exactly these bytes (of a str: its UTF-8)."""
    raw = data.encode() if isinstance(data, str) else data
    return "".join(f"\\x{byte:02x}" for byte in raw)


class PatternSet:
    """Many patterns as one automaton, which tells in one pass which of them occur in a text.

    Made on first use.
    """

    def __init__(self, regexes: Iterable[str]) -> None:
        self._regexes = list(regexes)

    @cached_property
    def automaton(self) -> Any:
        return compile_set([regex.encode() for regex in self._regexes], max_bytes=SET_MEMORY)

    def matching(self, data: bytes) -> list[str]:
        """Return the patterns that occur, unordered."""
        numbers = self.automaton.Match(data)
        return [self._regexes[index] for index in numbers] if numbers else []


ESCAPED: Final = (
    r"""(?:%|\\x)[0-9A-Fa-f]{2}|\\(?:u00[0-7][0-9A-Fa-f]|["\\/])|\x1b\[[0-9;]*[A-Za-z]"""
)
"""Escapes that can hide a secret in any text.

Other escapes matter only if a secret begins right after them.
"""
PLUS: Final = r"[\w.*~%=-]\+"
FORM: Final = r"=[\w.*~%-]*\+"
"""A form parameter, in which `+` means a space. It ends with a `PLUS`."""
_GROUP: Final = r"[CDI-Za-f][AC-HQS-Xgi-nw-z0-3][ABEFIJMNQRUVYZcdghklopstwx014589][A-Za-z0-9+/_-]"
BASE64_TEXT: Final = rf"(?:{_GROUP}){{4}}"
"""Base64 of printable ASCII.

The high bits of ASCII restrict the characters at each place of a group of four. This tells it from
digests, identifiers and pictures, and shows where the groups begin.
"""
BASE64_RUN: Final = r"[A-Za-z0-9+/_-]{16,}"
LINE_END: Final = r"[A-Za-z0-9+/_-]{3}(?:\r?\n|\\n)[ \t]*[A-Za-z0-9+/_-]{4}"
FOLDED: Final = rf"[A-Za-z0-9+/_-]{{45,}}{LINE_END}"
WRITTEN: Final = r"[\t\n\r -~]{12,}"

ESCAPE: Final = re.compile(
    rb'(?:%|\\x)([0-9A-Fa-f]{2})|\\(?:u([0-9A-Fa-f]{4})|(["\\/bfnrt]))|\x1b\[[0-9;]*[A-Za-z]'
)
_SIMPLE: Final = {98: b"\b", 102: b"\f", 110: b"\n", 114: b"\r", 116: b"\t"}
_FOLD: Final = re.compile(rb"(?<=[A-Za-z0-9+/_-]{48})(?:\r?\n|\\n)[ \t]*(?=[A-Za-z0-9+/_-]{4})")
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")


@dataclass(frozen=True, slots=True)
class View:
    """Decoded bytes. `origin` maps a span of them to its span in the original."""

    data: bytes
    origin: Callable[[int, int], tuple[int, int]]


def _replace_matches(
    data: bytes, regex: re.Pattern[bytes], replacement: Callable[[re.Match[bytes]], bytes]
) -> View:
    """Return `data` with each match replaced.

    The origin of a replacement's byte is the whole match.
    """
    pieces: list[bytes] = []
    decoded_at = array("q")
    decoded_end = array("q")
    original_at = array("q")
    original_end = array("q")
    length = last = 0
    for match in regex.finditer(data):
        start, end = match.span()
        new = replacement(match)
        pieces += (data[last:start], new)
        length += start - last
        decoded_at.append(length)
        length += len(new)
        decoded_end.append(length)
        original_at.append(start)
        original_end.append(end)
        last = end
    pieces.append(data[last:])

    def origin_of(position: int) -> tuple[int, int]:
        index = bisect_right(decoded_at, position) - 1
        if index < 0:
            return position, position + 1
        if position < decoded_end[index]:
            return original_at[index], original_end[index]
        origin = original_end[index] + position - decoded_end[index]
        return origin, origin + 1

    return View(b"".join(pieces), lambda start, end: (origin_of(start)[0], origin_of(end - 1)[1]))


def _unescape(match: re.Match[bytes]) -> bytes:
    percent, unicode, simple = match.groups()
    if percent:
        return bytes.fromhex(percent.decode())
    if unicode:
        return chr(int(unicode, 16)).encode("utf-8", "surrogatepass")
    return _SIMPLE.get(simple[0], simple) if simple else b""


def unescaped(data: bytes) -> View:
    """Return the text without one level of URL and JSON escapes, and without terminal colours."""
    return _replace_matches(data, ESCAPE, _unescape)


def unescape_quickly(data: bytes) -> bytes:
    """Return the text unescaped, for a text in which nothing matches `ESCAPED`: quicker than
    `unescaped`.
    """
    if b"\\u" in data:
        return unescaped(data).data
    for letter, character in _SIMPLE.items():
        data = data.replace(b"\\%c" % letter, character)
    return data


def unescaped_form(data: bytes) -> View:
    """Return the unescaped text with `+` read as a space."""
    return unescaped(data.replace(b"+", b" "))


def unfolded(data: bytes) -> View:
    """Return the text with the lines of folded base64 joined."""
    return _replace_matches(data, _FOLD, lambda match: b"")


def base64_decoded(data: bytes) -> Iterator[View]:
    """Yield the readable text in each run of base64, of either alphabet.

    A run may follow a path or a name without a gap, so groups are aligned by what decodes to text,
    not by its start.
    """
    for spans in pattern(BASE64_RUN).spans(data):
        start, end = spans[0]
        run = data[start:end]
        places = {found[0][0] % 4 for found in pattern(BASE64_TEXT).spans(run)}
        run = run.translate(_URL_SAFE)
        for offset in places:
            yield from _decoded_texts(run, offset, start + offset)


def _decoded_texts(run: bytes, offset: int, at: int) -> Iterator[View]:
    """Yield the readable texts in one decoding of a run."""
    length = len(run) - offset
    # A last group of two or three characters still encodes one or two bytes; a single character
    # none.
    decoded = binascii.a2b_base64(run[offset : len(run) - (length % 4 == 1)] + b"==")
    for spans in pattern(WRITTEN).spans(decoded):
        first, last = spans[0]

        def origin(start: int, end: int, first: int = first) -> tuple[int, int]:
            return at + (first + start) * 4 // 3, min(at + length, at + -(-(first + end) * 4 // 3))

        yield View(decoded[first:last], origin)


# --- values that are known to be secret -----------------------------------------------------------
# The values of environment variables, in the spellings a record may carry: plain, hex, as part of a
# form, and in base64 at each of the three offsets within a group of three bytes; the views decode
# other escapes. Values under 8 characters are not searched for: redacting `true` or `8080` would
# destroy the text.


MIN_CHARACTERS: Final = 8
_LABEL_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def _base64_cores(value: bytes) -> Iterator[bytes]:
    """Yield, for each of the three alignments, the base64 characters that depend on the value
    alone.
    """
    for lead in range(3):
        encoded = base64.b64encode(b"\0" * lead + value)
        first = -(-lead * 8 // 6)
        last = (lead + len(value)) * 8 // 6
        core = encoded[first:last]
        yield core
        yield core.translate(bytes.maketrans(b"+/", b"-_"))


def _spellings(value: str) -> Iterator[bytes]:
    plain = value.encode("utf-8", "surrogatepass")
    yield from (plain, plain.hex().encode(), plain.hex().upper().encode())
    yield quote_plus(plain).encode()
    yield from _base64_cores(plain)


def label_of(kind: str, name: str) -> str:
    """Return the placeholder's label of a value: `env:GITHUB_TOKEN`, `token:endpoint`."""
    return f"{kind}:{_LABEL_UNSAFE.sub('_', name)[:100]}"


PROBED: Final = 32
"""Bytes of a kept value's spellings that its probe looks for."""


class Values:
    """One alternation of every spelling of every value, the longest first.

    `labels_of`: label by value.
    """

    def __init__(self, labels_of: Mapping[str, str]) -> None:
        self._labels: dict[bytes, str] = {}
        for value, label in labels_of.items():
            for form in {value, value.strip()}:
                if len(form) >= MIN_CHARACTERS:
                    for spelling in _spellings(form):
                        self._labels.setdefault(spelling, label)
        spellings = sorted(self._labels, key=lambda spelling: (-len(spelling), spelling))
        self.regex = "|".join(map(literal, spellings))
        self.beginnings = "|".join({literal(spelling[:PROBED]) for spelling in spellings})

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self._labels.values())

    def found(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        for spans in pattern(self.regex).spans(data):
            start, end = spans[0]
            yield start, end, self._labels[data[start:end]]
