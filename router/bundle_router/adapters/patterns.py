"""Regular expressions from agents, over text from anywhere: google-re2, so in linear time whatever the pattern."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_PROGRAM_BYTES: Final = 8 * 1024 * 1024


def compile_pattern(pattern: str) -> Callable[[str], tuple[int, int] | None]:
    """Where in a line the pattern is first found. Raises ValueError, in words, for one that re2 does not take."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    try:
        expression = re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0] if error.args else "invalid"
        words = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise ValueError(words[:300]) from None

    def find(line: str) -> tuple[int, int] | None:
        found = expression.search(line.encode("utf-8", "replace").decode("utf-8"))
        return (found.start(), found.end()) if found is not None else None

    return find
