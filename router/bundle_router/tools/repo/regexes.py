"""The expressions of `repo.search` and of globs, and the words for those that can't be had."""

from __future__ import annotations

from typing import Any, Final

from bundle_router.errors import ToolFailure
from bundle_router.tools.expressions import ExpressionError, compile_expression, escape

MAX_PROGRAM_BYTES: Final = 64 * 1024 * 1024
"""re2's memory for one expression. A pattern that needs more is refused when it is compiled."""

UNSUPPORTED: Final = (
    "back-references and look-around are not supported; for plain text set literal=true",
    "simplify the pattern, or search for a literal part of it",
)


def compile_lines(pattern: str, *, ignore_case: bool, literal: bool) -> Any:
    """Return an expression over bytes in which `^` and `$` are line ends and nothing matches across lines.

    Raises ToolFailure `bad_pattern` for syntax re2 does not have and for patterns too large for it.
    """
    lines = f"(?m:{escape(pattern) if literal else pattern})".encode()
    try:
        return compile_expression(lines, max_bytes=MAX_PROGRAM_BYTES, ignore_case=ignore_case, one_line=True)
    except ExpressionError as error:
        raise bad_pattern(str(error)) from error


def compile_ascii(pattern: str, code: str, message: str) -> Any:
    """Return an expression over text, for globs. Raises ToolFailure with `code`."""
    try:
        return compile_expression(pattern, max_bytes=MAX_PROGRAM_BYTES)
    except ExpressionError as error:
        raise ToolFailure(f"{message}: {error}", code=code) from error


def bad_pattern(why: str) -> ToolFailure:
    """Return the same words from both engines: what is wrong, and what is possible instead."""
    return ToolFailure(f"the pattern can't be searched for: {why}", code="bad_pattern", advice="; ".join(UNSUPPORTED))
