"""Regular expressions by google-re2, which only this module imports: linear time for any pattern,
bounded memory.

Loading the library takes 10 ms, so it is loaded when the first expression is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bundle_router.core.values import shorten

MAX_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one expression, re2's own default."""
_SHOWN: Final = 300


class ExpressionError(ValueError):
    """A pattern that re2 rejects, with its message: unsupported syntax, or too much memory."""


def compile_expression(
    pattern: str | bytes,
    *,
    max_bytes: int = MAX_BYTES,
    ignore_case: bool = False,
    one_line: bool = False,
    latin1: bool = False,
    captures: bool = True,
) -> Any:
    """Compile a pattern.

    With `one_line` nothing matches across lines. With `latin1` (bytes only) a byte is a letter.
    Without `captures` groups only group.

    Raises ExpressionError.
    """
    import re2

    options = _options(max_bytes, latin1=latin1)
    options.case_sensitive = not ignore_case
    options.never_nl = one_line
    options.never_capture = not captures
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ExpressionError(_words(error)) from None


def compile_set(patterns: Sequence[bytes], *, max_bytes: int) -> Any:
    """Compile patterns over bytes as one automaton, whose `Match(data)` returns the indexes of
    those that occur, or None. Text that needs more than `max_bytes` of it is only processed more
    slowly.
    """
    import re2

    options = _options(max_bytes, latin1=True)
    options.never_capture = True
    together = re2.Set.SearchSet(options)
    for pattern in patterns:
        together.Add(pattern)
    together.Compile()
    return together


def escape(text: str) -> str:
    """Return a pattern that matches only this text."""
    import re2

    return str(re2.escape(text))


def _options(max_bytes: int, *, latin1: bool) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = (
        False  # a pattern may be anybody's: its errors go to its author, not to our log
    )
    options.max_mem = max_bytes
    if latin1:
        options.encoding = re2.Options.Encoding.LATIN1
    return options


def _words(error: Exception) -> str:
    reason = error.args[0] if error.args else "invalid"
    words = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return shorten(words, _SHOWN)


def compile_pattern(pattern: str) -> Callable[[str], tuple[int, int] | None]:
    """Return a function that finds the first match of an agent's pattern in a line (start, end).

    Raises ValueError if RE2 rejects the pattern.
    """
    # Over bytes: over text the library also counts characters, at three times the cost of the
    # match.
    expression = compile_expression(_encoded(pattern), max_bytes=MAX_BYTES, captures=False)

    def find(text: str) -> tuple[int, int] | None:
        data = _encoded(text)
        match = expression.search(data)
        if match is None:
            return None
        start = len(data[: match.start()].decode())
        return start, start + len(match.group().decode())

    return find


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
