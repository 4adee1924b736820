"""Expressions over bytes: patterns and texts are bytes, whatever text they come from.

Latin-1 mode matches bytes one by one: UTF-8 text keeps its ASCII meaning, the automata stay small, and a byte string
that is not UTF-8 (a lone surrogate, a cut character) is as searchable as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from bundle_router.tools.expressions import compile_expression, compile_set

SET_MEMORY: Final = 32 * 1024 * 1024
"""Bytes that the automaton of a set may grow to. Text that needs more only gets slower."""


class Pattern:
    """One compiled pattern."""

    __slots__ = ("_regexp", "groups")

    def __init__(self, regex: bytes) -> None:
        self._regexp = compile_expression(regex, latin1=True)
        self.groups: int = self._regexp.groups

    def spans(self, data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[tuple[int, int], ...]]:
        """Yield the spans of the whole match and of each group, for each match that does not overlap the one before.

        A group that took no part has the span (-1, -1).
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
    """Compiles once per process. Raises ExpressionError on a pattern that RE2 does not take."""
    return Pattern(regex.encode())


def literal(data: str | bytes) -> str:
    """Return a regex that matches just these bytes (of a str: its UTF-8)."""
    raw = data.encode() if isinstance(data, str) else data
    return "".join(f"\\x{byte:02x}" for byte in raw)


class PatternSet:
    """Many patterns as one automaton: which of them occur in a text, in one pass."""

    __slots__ = ("matching",)

    def __init__(self, regexes: list[str]) -> None:
        compiled = compile_set([regex.encode() for regex in regexes], max_bytes=SET_MEMORY)
        self.matching: Callable[[bytes], list[int] | None] = compiled.Match
        """Return the indexes of the patterns that occur, in no order; None when none does."""
