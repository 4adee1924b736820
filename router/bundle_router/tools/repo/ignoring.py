"""`.gitignore` rules and globs, for the search engine without ripgrep.

Patterns come from the repository and from the model, so they run on re2: a pattern of twenty stars is linear too.
Reference: gitignore(5), "PATTERN FORMAT". Only `.gitignore` files count; `.ignore`, `.git/info/exclude` and the user's
global list do not.

The library pathspec was tried instead. It applies a folder's rule to everything beneath, even if the search names that
folder, and has no `{a,b}` for globs. `rg` does the opposite of both, and the two engines have to agree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.errors import ToolFailure
from bundle_router.tools.repo.hits import compile_ascii

MAX_IGNORE_BYTES: Final = 256 * 1024
MAX_RULES: Final = 2000


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: `regex` matches the whole path relative to the folder of the rule."""

    regex: Any
    negated: bool
    only_dirs: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one `.gitignore`, in the folder `base` (empty for the root)."""

    base: str
    rules: tuple[Rule, ...]

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """Return whether the path (relative to the root) is ignored; None if no rule matches. The last match wins."""
        name = path[len(self.base) + 1 :] if self.base else path
        for rule in reversed(self.rules):
            if (is_dir or not rule.only_dirs) and rule.regex.fullmatch(name):
                return not rule.negated
        return None


def is_ignored(chain: Sequence[Rules], path: str, is_dir: bool) -> bool:
    """Return whether the `.gitignore` files above a path ignore it. The nearest one with a match wins."""
    for rules in reversed(chain):
        verdict = rules.verdict(path, is_dir)
        if verdict is not None:
            return verdict
    return False


def parse(base: str, text: str) -> Rules:
    """Return the rules of a `.gitignore` file. Invalid lines are skipped, as git does."""
    rules = []
    for line in text.splitlines()[:MAX_RULES]:
        pattern = re.sub(r"(?<!\\)((?:\\\\)*) +$", r"\1", line)
        if not pattern or pattern.startswith("#"):
            continue
        negated = pattern.startswith("!")
        pattern = pattern[1:] if negated else pattern
        only_dirs = pattern.endswith("/")
        try:
            regex = glob_regex(pattern.rstrip("/") if only_dirs else pattern)
        except ToolFailure:
            continue
        rules.append(Rule(regex, negated, only_dirs))
    return Rules(base, tuple(rules))


@dataclass(frozen=True, slots=True)
class Glob:
    """The `glob` argument of a search: files to include or, with a leading `!`, to exclude."""

    regex: Any
    excludes: bool

    def verdict(self, path: str, is_dir: bool) -> bool | None:
        """Return True to search it, even if ignored; False to skip it; None to leave it to the ignore rules."""
        if self.regex.fullmatch(path):
            return not self.excludes
        return None if is_dir or self.excludes else False


def parse_glob(text: str) -> Glob:
    """Parse a glob; `!` before it excludes. Raises ToolFailure `bad_glob`."""
    excludes = text.startswith("!")
    return Glob(glob_regex(text[1:] if excludes else text, braces=True), excludes)


def glob_regex(pattern: str, *, braces: bool = False) -> Any:
    """Return a gitignore pattern as an re2 expression over a relative path; `{a,b}` is an alternative if `braces`."""
    anchored = "/" in pattern.rstrip("/")
    body = pattern.lstrip("/") if pattern.startswith("/") else pattern
    prefix = "" if anchored else "(?:.*/)?"
    return compile_ascii(prefix + _translate(body, braces), "bad_glob", f"{pattern!r} is not a usable glob")


_TOKEN: Final = re.compile(r"(?P<deep>(?<![^/])\*\*/)|(?P<rest>(?<=/)\*\*$)|\*+|\?|\[|\\(.)|[{},]|[^*?\[\\{},]+|\\")


def _translate(pattern: str, braces: bool) -> str:
    out, at, depth = [], 0, 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise ToolFailure(f"{pattern!r} is not a usable glob", code="bad_glob")
        part, at = found.group(), found.end()
        if found["deep"]:
            out.append("(?:.*/)?")
        elif found["rest"]:
            out.append(".+")
        elif part.startswith("*"):
            out.append("[^/]*")
        elif part == "?":
            out.append("[^/]")
        elif part == "[":
            piece, at = _char_class(pattern, at)
            out.append(piece)
        elif braces and part in "{},":
            depth += {"{": 1, "}": -1, ",": 0}[part]
            if depth < 0:
                raise ToolFailure(f"{pattern!r} is not a usable glob: unbalanced braces", code="bad_glob")
            out.append({"{": "(?:", "}": ")", ",": "|" if depth else ","}[part])
        else:
            out.append(re.escape(found[3] or part))
    if depth:
        raise ToolFailure(f"{pattern!r} is not a usable glob: unbalanced braces", code="bad_glob")
    return "".join(out)


def _char_class(pattern: str, at: int) -> tuple[str, int]:
    """Return a `[...]` class in re2's syntax, and the position after it; `at` is after the bracket."""
    negated = pattern[at : at + 1] in ("!", "^")
    start = at + negated
    end = pattern.find("]", start + 1)
    if end < 0:
        raise ToolFailure(f"{pattern!r} is not a usable glob: unclosed character class", code="bad_glob")
    body = re.sub(r"([\\\[\]^&~|])", r"\\\1", pattern[start:end])
    return f"[{'^/' if negated else ''}{body}]", end + 1
