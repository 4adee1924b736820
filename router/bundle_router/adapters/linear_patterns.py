"""Regular expressions of agents and servers over untrusted text: RE2, in linear time for every
pattern.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bundle_router.local_tools.expressions import MAX_BYTES, compile_expression

SCHEMA_PROGRAM_BYTES: Final = 256 * 1024
"""Maximum bytes of a schema pattern's program. A schema may have thousands of patterns."""


class LinearPattern:
    """A compiled pattern.

    `instructions` is the length of its program: RE2's worst time is proportional to it times the
    bytes of the text.
    """

    __slots__ = ("_expression", "instructions")

    def __init__(self, pattern: str, max_bytes: int) -> None:
        # Over bytes: over text the library also counts characters, at three times the cost of the
        # match.
        self._expression = compile_expression(
            _encoded(pattern), max_bytes=max_bytes, captures=False
        )
        self.instructions: int = self._expression.programsize

    def find(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the first match in the text, or None."""
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
    """Compile a schema's pattern. Raises ValueError if RE2 rejects it."""
    return LinearPattern(pattern, SCHEMA_PROGRAM_BYTES)


def compile_pattern(pattern: str) -> Callable[[str], tuple[int, int] | None]:
    """Return a function that finds the first match in a line (start, end).

    Raises ValueError if RE2 rejects the pattern.
    """
    return LinearPattern(pattern, MAX_BYTES).find
