"""Regular expressions from agents and servers, over text from anywhere: RE2, in linear time whatever the pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bundle_router.tools.expressions import MAX_BYTES, compile_expression

SCHEMA_PROGRAM_BYTES: Final = 256 * 1024
"""For a pattern of a schema: there may be thousands of them, and each takes this much at most to be made."""


class LinearPattern:
    """A pattern made ready. `instructions` is how long its program is: what RE2 needs at its slowest is proportional
    to the bytes of a text times that."""

    __slots__ = ("_expression", "instructions")

    def __init__(self, pattern: str, max_bytes: int) -> None:
        # Of bytes: for texts the library counts characters, at three times the cost of the match.
        self._expression = compile_expression(_encoded(pattern), max_bytes=max_bytes, captures=False)
        self.instructions: int = self._expression.programsize

    def find(self, text: str) -> tuple[int, int] | None:
        """Return where in the text the pattern is first found."""
        data = _encoded(text)
        found = self._expression.search(data)
        if found is None:
            return None
        start = len(data[: found.start()].decode())
        return start, start + len(found.group().decode())

    def is_in(self, text: str) -> bool:
        return self._expression.search(_encoded(text)) is not None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def compile_linear(pattern: str) -> LinearPattern:
    """Return a pattern of a schema. Raises ValueError for one that RE2 does not take."""
    return LinearPattern(pattern, SCHEMA_PROGRAM_BYTES)


def compile_pattern(pattern: str) -> Callable[[str], tuple[int, int] | None]:
    """Return where in a line the pattern is first found. Raises ValueError for one that RE2 does not take."""
    return LinearPattern(pattern, MAX_BYTES).find
