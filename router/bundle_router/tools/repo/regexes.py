"""The one place that knows google-re2: linear time whatever the pattern, and a memory bound instead of a blow-up."""

from __future__ import annotations

from typing import Any, Final

from bundle_router.errors import ToolFailure

MAX_PROGRAM_BYTES: Final = 64 * 1024 * 1024
"""re2's memory for one expression. A pattern that needs more is refused when it is compiled."""

UNSUPPORTED: Final = (
    "back-references and look-around are not supported; for plain text set literal=true",
    "simplify the pattern, or search for a literal part of it",
)


def _options() -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PROGRAM_BYTES
    return options


def compile_lines(pattern: str, *, ignore_case: bool, literal: bool) -> Any:
    """An expression over bytes in which `^` and `$` are line ends and nothing matches across lines.

    Raises ToolFailure `bad_pattern` for syntax re2 does not have and for patterns too large for it.
    """
    import re2

    options = _options()
    options.case_sensitive = not ignore_case
    options.never_nl = True
    text = re2.escape(pattern) if literal else pattern
    try:
        return re2.compile(f"(?m:{text})".encode(), options)
    except re2.error as error:
        raise bad_pattern(_words(error)) from error


def compile_ascii(pattern: str, code: str, message: str) -> Any:
    """An expression over text, for globs. Raises ToolFailure with `code`."""
    import re2

    try:
        return re2.compile(pattern, _options())
    except re2.error as error:
        raise ToolFailure(f"{message}: {_words(error)}", code=code) from error


def bad_pattern(why: str) -> ToolFailure:
    """The same words from both engines: what is wrong, and what is possible instead."""
    return ToolFailure(f"the pattern can't be searched for: {why}", code="bad_pattern", advice="; ".join(UNSUPPORTED))


def _words(error: Exception) -> str:
    text = error.args[0] if error.args else "invalid"
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return words if len(words) <= 300 else words[:300] + "…"
