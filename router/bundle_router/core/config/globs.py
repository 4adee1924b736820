"""Glob syntax of other programs, which here would match nothing, silently.

A pattern knows `*` and `?` (see `core.models.patterns`). `{a,b}`, `[ab]`, `!a` and `a|b` would be taken for the
characters they are written with; in a denial that protects nothing. So they are refused wherever a pattern may stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bundle_router.core.config.reading import Entry
from bundle_router.core.config.report import Report

_ADVICE: Final = {
    "{": "write each out: ['a', 'b']",
    "}": "write each out: ['a', 'b']",
    "[": "write each out: ['a', 'b'], or '?' for one character",
    "]": "write each out: ['a', 'b'], or '?' for one character",
    "|": "write each out: ['a', 'b']",
    "!": "there is no negation: say it with deny, or with an earlier row",
}


def check_globs(entry: Entry[Any], key: str, patterns: Sequence[str], report: Report, *beneath: str | int) -> None:
    """Reports each pattern that means something elsewhere and nothing here. They stand under `key`, `beneath` it."""
    for index, pattern in enumerate(patterns):
        mark = "!" if pattern.startswith("!") else next((char for char in pattern if char in "{}[]|"), "")
        if mark:
            message = f"{pattern[:80]!r} uses {mark!r}, and patterns know only '*' and '?'"
            report.add(entry.file, (*entry.path, key, *beneath, index), message, _ADVICE[mark])
