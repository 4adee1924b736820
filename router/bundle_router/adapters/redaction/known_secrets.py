"""Values that are known to be secret, those of environment variables among them, in the spellings a record may carry.

Plain, in hex, as part of a form, and in base64 at each of the three places a value can begin within a group of three
bytes; `encodings` shows what stands beneath escapes. Values under 8 characters are left alone: redacting `true` or
`8080` would eat the text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote_plus

from bundle_router.adapters.redaction.automata import literal, pattern

MIN_CHARACTERS: Final = 8
_LABEL_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


def _base64_cores(value: bytes) -> Iterator[bytes]:
    """For each of the three alignments, the characters that depend on the value alone."""
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
    """Return what stands in place of a value: `env:GITHUB_TOKEN`, `token:endpoint`."""
    return f"{kind}:{_LABEL_UNSAFE.sub('_', name)[:100]}"


class Values:
    """One alternation over every spelling of every value, the longest first. `labels_of`: label by value."""

    def __init__(self, labels_of: Mapping[str, str]) -> None:
        self._labels: dict[bytes, str] = {}
        for value, label in labels_of.items():
            for form in {value, value.strip()}:
                if len(form) >= MIN_CHARACTERS:
                    for spelling in _spellings(form):
                        self._labels.setdefault(spelling, label)
        spellings = sorted(self._labels, key=lambda spelling: (-len(spelling), spelling))
        self.regex = "|".join(literal(spelling) for spelling in spellings)

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self._labels.values())

    def found(self, data: bytes) -> Iterator[tuple[int, int, str]]:
        for spans in pattern(self.regex).spans(data):
            start, end = spans[0]
            yield start, end, self._labels[data[start:end]]
