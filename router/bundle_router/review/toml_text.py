"""Text of TOML that is written for people to read."""

from __future__ import annotations


def toml_string(text: str) -> str:
    """Return the text as a TOML basic string, ASCII where it is not printable."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c) or (c if c.isprintable() else _code(c)) for c in text) + '"'


def _code(character: str) -> str:
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\\uFFFD"
    if code <= 0xFFFF:
        return f"\\u{code:04X}"
    return f"\\U{code:08X}"
