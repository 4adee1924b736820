"""Which regular expressions may take a backtracking engine forever.

A repetition inside a repetition is a danger when the inner one can take what the outer one would: `(a+)+`, `(a|aa)*`,
`(\\w*\\s?)*`, `(\\d+.)+`. It is none when each round must pass something that the inner one does not take:
`(,[^,]+)*`, `(?:[a-z-]+\\.)*`. Told apart by the pieces of a round: one that has to be there, once, and that is not
also repeated in it. This refuses the classical bombs and is no proof: whoever evaluates a pattern uses an engine
that is linear by construction, or none.
"""

from __future__ import annotations

import re
from typing import Final

from bundle_router.dataclass import dataclass, field

_TOKEN: Final = re.compile(r"\\.?|\[[\]^]?(?:\\.|[^\]\\])*\]?|.", re.DOTALL)
"""One character, escape or class."""
_QUANTIFIER: Final = re.compile(r"(?:([*+?])|\{(?!,?\})(\d{0,9})(,?)(\d{0,9})\})[?+]?")
_OPENING: Final = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|P?<\w{1,60}>|[a-zA-Z-]{1,10}:))?")
_TAKES_ALL: Final = frozenset((".", "\\S", "\\W", "\\D", "[\\s\\S]"))
_MANY: Final = 10
"""A count from which on a repetition multiplies like an endless one: `(a{1,30}){1,30}`."""


@dataclass(slots=True)
class _Round:
    """What one group may take in one round: its present alternative, and a verdict on those before."""

    once: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    pieces: set[str] = field(default_factory=set)
    openings: set[str] = field(default_factory=set)
    begun: bool = False
    loose: bool = False
    """A round may be cut into rounds at will: an alternative repeats and has no fixed piece, or two begin alike."""

    def end_alternative(self) -> None:
        self.loose = self.loose or (bool(self.repeated) and not self.once - self.repeated - _TAKES_ALL)
        self.once, self.repeated, self.begun = set(), set(), False

    def note(self, pieces: set[str], opening: str, least: int, endless: bool) -> None:
        if not self.begun:
            self.begun = True
            self.loose = self.loose or opening in self.openings
            self.openings.add(opening)
        self.pieces |= pieces
        if endless:
            self.repeated |= pieces
        elif least > 0:
            self.once |= pieces


def explosive(pattern: str) -> bool:
    """Return whether the pattern has a repetition that can take the same text in exponentially many ways."""
    groups, begins = [_Round()], list[int]()
    at = 0
    while at < len(pattern):
        if opening := _OPENING.match(pattern, at):
            groups.append(_Round())
            begins.append(at)
            at = opening.end()
            continue
        token = _TOKEN.match(pattern, at)[0]  # type: ignore[index] # it matches any character
        at += len(token)
        if token == "|":  # noqa: S105 - a piece of a pattern, not a password
            groups[-1].end_alternative()
        elif token == ")" and begins:  # noqa: S105 - a piece of a pattern, not a password
            inner, text = groups.pop(), pattern[begins.pop() : at]
            inner.end_alternative()
            least, endless, at = _quantifier(pattern, at)
            if endless and inner.loose:
                return True
            groups[-1].note(inner.pieces, text, least, endless or inner.loose)
        elif token not in ("^", "$"):
            least, endless, at = _quantifier(pattern, at)
            groups[-1].note({token}, token, least, endless)
    return False


def _quantifier(pattern: str, at: int) -> tuple[int, bool, int]:
    """Return how often at least, whether without a (small) end, and where the next token begins."""
    found = _QUANTIFIER.match(pattern, at)
    if found is None:
        return 1, False, at
    sign, low, comma, high = found.groups()
    if sign:
        return int(sign == "+"), sign != "?", found.end()
    least = int(low or 0)
    return least, bool(comma) and (not high or least != int(high) >= _MANY), found.end()
