"""One config file as text, and the checks before any parser sees it.

The standard TOML parser is correct but not cheap: a 40 KB line of dotted keys costs it 1.5 GB, a
deep array its stack, a long run of hexadecimal digits quadratic time. Rules:

1. Nothing is parsed before `guard` has passed it. What `guard` passes is parsed within 1 s and 200
   MB.
2. `guard` is one pass of one regular expression without backtracking. It reads strings and comments
   as TOML does, so that their contents count as length and not as structure. At an unterminated
   string it stops and says so: the parser would fail at the same place.
3. Costs are counted in units of about 0.1 µs of the parser's time on a slow core, not in bytes: 8
   MiB of comments are cheap, 8 MiB of table headers are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from bundle_router.errors import Problem

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_KEY_DOTS: Final = 32
"""Dots on one line, outside strings and comments."""
MAX_NESTING: Final = 32
MAX_BARE: Final = 4096
"""Characters of a bare key, number or run of white space."""
MAX_COST: Final = 4_500_000

Layer = Literal["shipped", "project"]

FILE_NAMES: Final = ("servers.toml", "bundles.toml", "routes.toml", "policy.toml", "router.toml")
"""The files of a config, in the order in which problems are reported."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config file as it was read. `display_path` is how the user would type it.

    `fault` is set, and `text` empty, where the file could not be read as text. `has_lines` is false
    for declarations in code, which have no lines to look up.
    """

    name: str
    display_path: str
    text: str
    layer: Layer = "project"
    fault: Problem | None = None
    has_lines: bool = True


def from_bytes(name: str, display_path: str, data: bytes, layer: Layer) -> ConfigFile:
    """Decode UTF-8 (with or without a byte order mark).

    If that fails, the reason becomes the file's `fault`.
    """

    def broken(line: int, message: str, suggestion: str = "") -> ConfigFile:
        return ConfigFile(
            name, display_path, "", layer, Problem(display_path, line, "", message, suggestion)
        )

    if len(data) > MAX_BYTES:
        return broken(
            0,
            f"is larger than {MAX_BYTES // 1024 // 1024} MiB",
            "config files are written by people",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return broken(1, "is UTF-16", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return broken(line, f"byte 0x{data[error.start]:02x} is not UTF-8", "save it as UTF-8")
    if not text.strip():
        return broken(
            0,
            "is empty: it may be half written",
            "write a comment in it, or delete it before a start to use the shipped one",
        )
    return ConfigFile(name, display_path, text.replace("\r\n", "\n"), layer)


_TOKEN: Final = re.compile(
    r'''
      (?P<multi>   """ | \'\'\' )
    | (?P<string>  (?!""") " [^"\\\n]*+ (?: \\. [^"\\\n]*+ )*+ "
                 | (?!\'\'\') ' [^'\n]*+ ' )
    | (?P<comment> \# [^\n]*+ )
    | (?P<lines>   \n (?: [ \t]*+ \n )*+ )
    | (?P<bare>    [^"'\#\n\[\]{}.,=]++ )
    | (?P<mark>    [\[\]{}.,=] )
    ''',
    re.VERBOSE,
)
_COST: Final = {"[": 60, "]": 0, "{": 40, "}": 0, ".": 60, "=": 30, ",": 15}


_MULTI_END: Final = {
    '"': re.compile(r'(?:\\[\s\S])++|(?P<end>"{3,5})'),
    "'": re.compile(r"(?P<end>'{3,5})"),
}


def multiline_end(text: str, at: int) -> int:
    """Return where the string ends that begins with three quotes at `at`; 0 when it does not end.

    Not one expression: before Python 3.11.5 a possessive loop is wrong if its body may fail half
    way.
    """
    return next(
        (found.end() for found in _MULTI_END[text[at]].finditer(text, at + 3) if found["end"]), 0
    )


def guard(file: ConfigFile) -> Problem | None:
    """Return the reason not to parse this file, or None. Takes time linear in the text."""
    text = file.text
    line = 1
    dots = 0
    depth = 0
    cost = 0
    position = 0

    def refused(message: str, suggestion: str = "") -> Problem:
        return Problem(file.display_path, line, "", message, suggestion)

    while position < len(text):
        token = _TOKEN.match(text, position)
        if token and token["multi"]:
            end = multiline_end(text, position)
        elif token:
            end = token.end()
        else:
            end = 0
        if token is None or not end:
            return refused(
                "a string that starts on this line does not end",
                "close it with the quote it began with",
            )
        start = position
        position = end
        kind = token.lastgroup
        cost += 5
        if kind == "mark":
            mark = text[start]
            cost += _COST[mark]
            dots += mark == "."
            depth = max(0, depth + (mark in "[{") - (mark in "]}"))
            if dots > MAX_KEY_DOTS:
                return refused(f"more than {MAX_KEY_DOTS} dots in the keys of one line")
            if depth > MAX_NESTING:
                return refused(f"arrays and tables are nested more than {MAX_NESTING} deep")
        elif kind == "lines":
            line += text.count("\n", start, position)
            cost += 2 * (position - start)
            dots = 0
        elif kind == "bare":
            if position - start > MAX_BARE:
                return refused(f"a key, number or gap of more than {MAX_BARE} characters")
        else:
            cost += (position - start) // 10 + 3 * text.count("\\", start, position)
            line += text.count("\n", start, position) if kind == "multi" else 0
        if cost > MAX_COST:
            return refused(
                "the file holds more than can be read in a second, up to this line",
                "split or shorten it",
            )
    return None
