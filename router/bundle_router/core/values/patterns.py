"""Names and globs, and what they match: only this module knows what `repo.*` means.

`*` matches any characters (dots included), `?` one. Nothing else is special, and case counts.
Matching is linear in the name: `fnmatch` translates to atomic groups, so `a*a*a*b` can't be made to
backtrack.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


def is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


@lru_cache(maxsize=8192)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


def matches(pattern: str, name: str) -> bool:
    """Return whether the name, or glob, `pattern` covers all of `name`."""
    if not is_glob(pattern):
        return pattern == name
    return pattern == "*" or _compile_pattern(pattern).match(name) is not None


def first_match(patterns: Iterable[str], name: str) -> str | None:
    """Return the first of the patterns that covers `name`."""
    for pattern in patterns:
        if matches(pattern, name):
            return pattern
    return None


def covers(pattern: str, glob: str) -> bool:
    """Return whether `pattern` covers every name that `glob` does.

    A plain name is a glob that covers itself.

    True only when certain: a `*` of the glob has to be matched by a `*` of the pattern, and a `?`
    is taken literally.
    """
    if not is_glob(glob):
        return matches(pattern, glob)
    return pattern == glob or ("?" not in pattern and matches(pattern, glob))


def first_cover(patterns: Iterable[str], glob: str) -> str | None:
    """Return the first of the patterns that covers every name that `glob` does."""
    return next((pattern for pattern in patterns if covers(pattern, glob)), None)


def is_selected(name: str, include: Iterable[str] | None, exclude: Iterable[str]) -> bool:
    """Return whether two lists select the name: it is in `include`, where there is one, and not in
    `exclude`.
    """
    if include is not None and first_match(include, name) is None:
        return False
    return first_match(exclude, name) is None


@dataclass(frozen=True, slots=True)
class Targets:
    """The bundles and tools that lists like `["bundle:docs.*", "tool:docs.fetch"]` name; a bare
    glob is a bundle's. `sinks`: those of `sends:outside`, which means every tool that sends there.
    """

    bundles: tuple[str, ...]
    tools: tuple[str, ...]
    sinks: tuple[str, ...] = ()

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> Targets:
        bundles = []
        tools = []
        sinks = []
        for pattern in patterns:
            kind, colon, rest = pattern.partition(":")
            if colon and kind == "tool":
                tools.append(rest)
            elif colon and kind == "sends":
                sinks.append(rest)
            else:
                bundles.append(rest if colon else pattern)
        return cls(tuple(bundles), tuple(tools), tuple(sinks))

    def bundle(self, id_: str) -> str | None:
        """Return the pattern that covers the bundle, if any."""
        return first_match(self.bundles, id_)

    def tool(self, name: str) -> str | None:
        """Return the pattern that covers the tool (`server.tool`), or all tools of a glob, if
        any.
        """
        return first_cover(self.tools, name)

    def sink(self, names: Iterable[str]) -> str | None:
        """Return the pattern that covers one of these sinks, if any."""
        return next((hit for name in names if (hit := first_match(self.sinks, name))), None)
