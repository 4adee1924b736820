"""What the body of an HTTP error says, in the server's own words."""

from __future__ import annotations

import html
import json
import re
from contextlib import suppress
from typing import Any, Final

MAX_WORDS: Final = 500
"""Maximum characters of a server's words that are passed on."""
_NAMES: Final = ("message", "error_description", "detail", "title", "error", "errors", "reason")
"""The members by which JSON errors are said (RFC 9457, OAuth, and what frameworks send)."""
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_MAX_LEVELS: Final = 4


def error_words(body: bytes) -> str:
    """Return the words of an error's body on one line, at most `MAX_WORDS` characters of them;
    nothing where it says nothing to people. Of a page, the title. Never raises.
    """
    text = body.decode("utf-8", "replace").strip()
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):  # else its first characters say something
            text = _words_in(json.loads(text), _MAX_LEVELS) or text
    elif text[:1] == "<":
        title = _TITLE.search(text)
        text = html.unescape(title[1]) if title is not None else ""
    words = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + " […]"


def _words_in(value: Any, levels: int) -> str:
    """Return the first text under a name that stands for an error's words."""
    if isinstance(value, str):
        return value
    if levels == 0:
        return ""
    if isinstance(value, list):
        found = (_words_in(item, levels - 1) for item in value[:20])
        return "; ".join(words for words in found if words)
    if not isinstance(value, dict):
        return ""
    for name in _NAMES:
        if words := _words_in(value.get(name), levels - 1):
            return words
    return ""
