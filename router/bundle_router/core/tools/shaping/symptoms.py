"""Failures that come dressed as success: short results whose first words, or whose fields, say that they failed.

Measured on 83 recorded results of 28 real servers: of 116 calls several failed in plain text without `isError`
("Error searching libraries: TypeError: fetch failed", "Failed to retrieve balance"). A flag, never a verdict: the
result is left as it is.
"""

from __future__ import annotations

import re
from typing import Any, Final

LOOKS_LIKE_ERROR: Final = "looks_like_error"

_LONGEST: Final = 2_000
"""Characters. Errors are short; a long text that begins with "Error:" is more likely about errors."""
_FIRST_WORDS: Final = re.compile(
    r"""(?x) [\s"'\[]{0,4} (?:❌\s*|\#{1,6}\s+|\*\*)?
    (?: (?:fatal\s+|internal\s+|unexpected\s+|mcp\s+)? [Ee]rror \s* (?::|$|\n|-?\d|- )
      | ERROR \b | FATAL \b
      | [Ee]rror\s (?!handling) [a-z]+ing \s [^\n:]{1,100} :
      | [A-Za-z_.]{0,60} (?:Error|Exception) : \s
      | (?:MCP|HTTP) \s error \b
      | Traceback\ \(most\ recent\ call\ last\)
      | (?:Failed|Unable|Could\ not|Cannot) \s to? \s? [a-z]+ \s
      | (?:[A-Z][a-z]+\ )?(?:[Vv]alidation|[Aa]uthentication|[Aa]uthorization|[Cc]onnection)\ (?:error|failed|refused)
      | (?:Access|Permission) \s denied | (?:Unauthorized|Forbidden|Not\ [Ff]ound) \b \s* (?:[.:]|$)
      | [Ii]nvalid \s [^\n]{1,60} :
      | [a-z]{2,12} \s (?:failed \b | E[A-Z]{5,} \b)
    )"""
)
_TRUE_FAILS: Final = ("isError", "is_error", "failed")
_FALSE_FAILS: Final = ("success", "ok", "succeeded")


def looks_like_error(text: str) -> bool:
    """Return True when a short text begins the way failures begin."""
    return len(text) <= _LONGEST and _FIRST_WORDS.match(text) is not None


def says_failed(value: Any) -> bool:
    """Return True when a JSON object says so itself: `success: false`, `isError: true`, or a filled `error`."""
    if not isinstance(value, dict):
        return False
    if any(value.get(key) is True for key in _TRUE_FAILS) or any(value.get(key) is False for key in _FALSE_FAILS):
        return True
    error = value.get("error")
    return isinstance(error, str | dict) and bool(error)
