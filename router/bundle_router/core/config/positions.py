"""Finds the place of each key of a TOML text: key path → line.

Rules:
1. The standard parser has accepted the text. This is no second parser: it reads only as much of
   TOML as shows where keys and array elements begin, and is wrong nowhere the parser is right (a
   property test compares the set of paths with the parser's result).
2. It runs only when there is something to report, so valid config does not pay for it.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from bundle_router.core.config.config_text import multiline_end

Path = tuple[str | int, ...]
"""`("routes", 3, "bundles", 0)`. A table of an array of tables is an element like any other."""

_GAP: Final = re.compile(r"(?:[ \t\n\r]++|\#[^\n]*+)*+")
_KEY: Final = re.compile(
    r'[ \t]*+([A-Za-z0-9_-]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|\'[^\'\n]*+\')[ \t]*+'
)
_STRING: Final = re.compile(r'"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|\'[^\'\n]*+\'')
_SCALAR: Final = re.compile(r"[^,\]}#\n]++")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def show(path: Sequence[str | int]) -> str:
    """Return the path as people write it: `routes[3].bundles[0]`,
    `bundles."repo.readonly".tools`.
    """
    path_text = ""
    for part in path:
        if isinstance(part, int):
            path_text += f"[{part}]"
        else:
            if _PLAIN_KEY.fullmatch(part):
                quoted = part
            else:
                quoted = '"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"'
            path_text += f".{quoted}" if path_text else quoted
    return path_text


class Positions:
    """The places of every key and element of one text, and of their values."""

    def __init__(
        self, text: str, offsets: dict[Path, int], spans: dict[Path, tuple[int, int]]
    ) -> None:
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._offsets = offsets
        self._spans = spans

    def __contains__(self, path: Path) -> bool:
        return path in self._offsets

    def line(self, path: Path) -> int:
        """Return the line of the key or element, or of its nearest parent in the text (0: none
        is).
        """
        return self.place(path)[0]

    def place(self, path: Path) -> tuple[int, int]:
        """Return the line and column, both from 1, of the key or element."""
        while path and path not in self._offsets:
            path = path[:-1]
        if path not in self._offsets:
            return 0, 0
        line = bisect_right(self._starts, self._offsets[path])
        return line, self._offsets[path] - self._starts[line - 1] + 1

    def span(self, path: Path) -> tuple[int, int] | None:
        """Return where the value of the key or element begins and ends in the text."""
        return self._spans.get(path)

    def items(self) -> list[tuple[Path, int]]:
        """Return all paths, each with its line."""
        return [(path, self.line(path)) for path in self._offsets]


def locate(text: str) -> Positions:
    """Return the positions in a text that the standard parser accepts.

    `\\r\\n` counts as one line end.
    """
    scanner = _Scanner(text)
    scanner.scan()
    return Positions(text, scanner.offsets, scanner.spans)


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.offsets: dict[Path, int] = {}
        self.spans: dict[Path, tuple[int, int]] = {}
        self._counts: dict[Path, int] = {}

    def scan(self) -> None:
        table: Path = ()
        self._skip_gap()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            self._skip_gap()

    def _skip_gap(self) -> None:
        gap = _GAP.match(self._text, self._at)
        if gap is not None:
            self._at = gap.end()

    def _note(self, path: Path, offset: int) -> None:
        self.offsets.setdefault(path, offset)

    def _header(self) -> Path:
        """Read `[a.b]` or `[[a.b]]`: record its parents where they are new, and return the path of
        the table.
        """
        is_element = self._text.startswith("[[", self._at)
        self._at += 2 if is_element else 1
        keys = self._keys()
        self._at = self._text.index("]", self._at) + (2 if is_element else 1)
        path: Path = ()
        for depth, (key, offset) in enumerate(keys):
            path = (*path, key)
            self._note(path, offset)
            if path in self._counts and (depth < len(keys) - 1 or not is_element):
                path = (*path, self._counts[path] - 1)
        if is_element:
            index = self._counts.get(path, 0)
            self._counts[path] = index + 1
            path = (*path, index)
            self._note(path, keys[-1][1])
        return path

    def _keys(self) -> list[tuple[str, int]]:
        """Read a key's parts, each with where it begins."""
        keys = []
        while (match := _KEY.match(self._text, self._at)) is not None:
            keys.append((_unquote(match[1]), match.start(1)))
            self._at = match.end()
            if self._text[self._at] != ".":
                break
            self._at += 1
        return keys

    def _assignment(self, table: Path) -> None:
        path = table
        for key, offset in self._keys():
            path = (*path, key)
            self._note(path, offset)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip_gap()
        start = self._at
        first = self._text[self._at]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif self._text.startswith(("'''", '"""'), start):
            self._at = multiline_end(self._text, start) or len(self._text)
        else:
            match = (_STRING if first in "\"'" else _SCALAR).match(self._text, self._at)
            self._at = match.end() if match is not None else len(self._text)
        self.spans.setdefault(path, (start, self._at))

    def _array(self, path: Path) -> None:
        for index in self._items("]"):
            self._note((*path, index), self._at)
            self._value((*path, index))

    def _inline_table(self, path: Path) -> None:
        for _ in self._items("}"):
            self._assignment(path)

    def _items(self, closing: str) -> Iterator[int]:
        """Yield the index of each item at its start; then go on behind the closing bracket."""
        index = 0
        while True:
            self._at += 1  # the opening bracket, or a comma
            self._skip_gap()
            if self._text[self._at] not in (closing, ","):
                yield index
                index += 1
                self._skip_gap()
            if self._text[self._at] == closing:
                break
        self._at += 1


def _unquote(key: str) -> str:
    if key[0] == "'" or (key[0] == '"' and "\\" not in key):
        return key[1:-1]
    if key[0] == '"':
        value: str = tomllib.loads(f"key = {key}")["key"]
        return value
    return key
