"""Identifiers for servers' names, and literals for their texts."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from typing import Final

from pydantic import BaseModel

LONGEST: Final = 40
"""Maximum characters of an identifier.

Longer ones are cut, so that no line has to be broken inside a type.
"""
WIDTH: Final = 110
"""Maximum characters of a docstring's line."""
_IN_USE: Final = frozenset(dir(BaseModel)) | frozenset(
    (
        "Any",
        "Awaitable",
        "BaseModel",
        "Callable",
        "ConfigDict",
        "Field",
        "Final",
        "Literal",
        "PINS",
        "R",
        "TypeAlias",
        "TypeVar",
        "Union",
        "arguments",
        "bool",
        "bytes",
        "call",
        "dict",
        "float",
        "int",
        "list",
        "object",
        "set",
        "str",
        "tuple",
        "type",
    )
)


class Names:
    """Unique names of one scope."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def claim(self, wish: str) -> str:
        """Return an unused identifier, as similar to the wish as possible."""
        name = wish if is_name(wish) else re.sub(r"\W+", "_", wish, flags=re.ASCII).strip("_")
        name = name[:LONGEST].rstrip("_") or "unnamed"
        name = f"n_{name}"[:LONGEST] if name[0].isdigit() else name
        name = name if is_name(name) else f"{name}_"
        found = name
        count = 2
        while found.lower() in self._used:
            found = f"{name[: LONGEST - 4].rstrip('_')}_{count}"
            count = count + 1
        self._used.add(found.lower())
        return found


def is_name(text: str) -> bool:
    """Return whether the text can be a public name: ASCII, no keyword, no name that models or
    annotations use.
    """
    if not text.isascii() or not text.isidentifier():
        return False
    if text.startswith("_") or text in _IN_USE or len(text) > LONGEST:
        return False
    try:
        ast.parse(f"{text} = 0")
    except SyntaxError:
        return False
    return True


def pascal(text: str) -> str:
    """Convert a name: `get_file-contents` → `GetFileContents`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", text) if part)


def literal(text: str) -> str:
    """Return a string literal with the quotes that the formatter would choose: those that need
    fewer escapes.
    """
    double = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")
    if text.count('"') <= text.count("'"):
        return double
    return "'" + double[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


def docstring(text: str, indent: str) -> list[str]:
    """Return a docstring's lines. The text is re-wrapped, and can't end the docstring."""
    words = " ".join(text.replace("\\", "/").replace('"', "'").split()) or "No description."
    lines = textwrap.wrap(
        words, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False
    )
    if len(lines) == 1:
        return [f'{indent}"""{lines[0]}"""']
    return [f'{indent}"""{lines[0]}', *(f"{indent}{line}" for line in lines[1:]), f'{indent}"""']
