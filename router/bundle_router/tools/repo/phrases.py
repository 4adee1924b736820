"""How counts and names are written for a model: short, plain, one line each."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 line`, `1,200 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def show_name(name: str) -> str:
    """Return a file name on one line: control characters, and bytes that are not UTF-8, as escapes."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else _escape(char) for char in name)


def _escape(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # how Python spells a byte that did not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
