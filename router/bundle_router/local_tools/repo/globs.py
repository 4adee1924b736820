"""Globs of a search, relative to the workspace, made relative to the folder that is searched."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Final

from bundle_router.errors import ToolFailure

_MAX_ALTERNATIVES: Final = 256
_BRACES: Final = re.compile(r"(?<!\\)\{([^{}]*)\}")
"""Innermost braces: `{a,b}`."""
_UNPAIRED: Final = re.compile(r"(?<!\\)[{}]|(?<!\\)\[[^\]]*$")


def globs_beneath(glob: str, folder: str) -> list[str]:
    """Return the globs that match in `folder` (relative to the workspace) what `glob` matches in
    the workspace: none, one, or several of which any may match.

    A glob without a folder in it matches at any depth, and is its own answer. Raises ToolFailure
    `bad_glob`.
    """
    if "/" not in glob.rstrip("/"):
        return [glob]
    globs: dict[str, None] = {}
    for alternative in _alternatives(glob):
        for rest in _rests(alternative.lstrip("/").split("/"), folder.split("/")):
            globs["/" + "/".join(rest)] = None
    return list(globs)


def _alternatives(glob: str) -> list[str]:
    """Return the globs without braces that together say what `glob` says."""
    ready: list[str] = []
    pending = [glob]
    while pending:
        if len(pending) + len(ready) > _MAX_ALTERNATIVES:
            raise ToolFailure(
                f"{glob!r} is not a usable glob here: it has over {_MAX_ALTERNATIVES} alternatives",
                code="bad_glob",
                advice="search the whole workspace with it, or simplify it",
            )
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None:
            ready.append(text)
            continue
        prefix = text[: braces.start()]
        suffix = text[braces.end() :]
        pending += [prefix + choice + suffix for choice in braces[1].split(",")]
    for text in ready:
        if _UNPAIRED.search(text):
            raise ToolFailure(
                f"{glob!r} is not a usable glob: a bracket has no partner", code="bad_glob"
            )
    return ready


def _rests(pattern: list[str], folders: list[str]) -> list[list[str]]:
    """Return what may be left of a pattern once its beginning has matched the folders, one part a
    name; `**` matches any number of them.
    """
    positions = {0}
    for name in folders:
        reached: set[int] = set()
        for position in _past_stars(pattern, positions):
            if pattern[position] == "**":
                reached.add(position)
            elif _matches(pattern[position], name):
                reached.add(position + 1)
        positions = reached
    rests = [pattern[position:] for position in sorted(positions)]
    return [rest for rest in rests if rest not in ([], [""])]


def _past_stars(pattern: list[str], positions: set[int]) -> set[int]:
    """Return these positions, and those behind a `**` that matches nothing."""
    last = len(pattern) - 1
    reachable = {position for position in positions if position <= last}
    for position in sorted(reachable):
        while position < last and pattern[position] == "**":
            position += 1
            reachable.add(position)
    return reachable


def _matches(part: str, name: str) -> bool:
    """Return whether a name matches one part of a glob."""
    spelled = re.sub(r"\\(.)", r"[\1]", part).replace("[^", "[!")
    return fnmatchcase(name, spelled)
