"""How names of files are shown, and read back.

    `tab\\x09.txt`    a tab          `caf\\xe9.txt`    a byte that is not UTF-8
    `a\\x5cb`         a backslash    `a\\u0085b`       another character that can't be shown

Rules:
1. A name is one line of printable characters, the same in every tool's answer.
2. What is shown can be given as an argument. An escape that no shown name has is a part of the
   name: paths with plain backslashes mean what they say.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from bundle_router.core.values import Frozen

A = TypeVar("A", bound=Frozen)

_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_UNDECODABLE: Final = 0xDC00
"""What Python adds to a byte that is not UTF-8 (`surrogateescape`)."""


def show_name(name: str) -> str:
    """Return a file name as it is shown (rule 1)."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(
        _escape(char) if char == "\\" or not char.isprintable() else char for char in name
    )


def read_name(shown: str) -> str:
    """Return the name that was shown so (rule 2)."""
    return _ESCAPE.sub(_unescape, shown)


def with_path_read(arguments: A) -> A:
    """Return a tool's arguments with the `path` that was meant: as it is, or as it was shown."""
    path = getattr(arguments, "path", None)
    if path is None or "\\" not in path:
        return arguments
    return arguments.model_copy(update={"path": read_name(path)})


def _escape(char: str) -> str:
    code = ord(char)
    if 0x80 <= code - _UNDECODABLE < 0x100:
        return f"\\x{code - _UNDECODABLE:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def _unescape(escape: re.Match[str]) -> str:
    byte, *others = escape.groups()
    if byte is not None:
        code = int(byte, 16)
        char = chr(code if code < 0x80 else _UNDECODABLE + code)
    else:
        code = int(next(digits for digits in others if digits is not None), 16)
        if code > 0x10FFFF:
            return escape[0]
        char = chr(code)
    return char if _escape(char) == escape[0] and _is_escaped(char) else escape[0]


def _is_escaped(char: str) -> bool:
    return char == "\\" or not char.isprintable()
