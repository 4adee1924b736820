"""What is legal in a config but dead or risky, told beside its errors: `bundle-router check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bundle_router.core.catalog import Card
from bundle_router.core.config.resolve import resolve
from bundle_router.core.config.settings import CheckBinary, no_check
from bundle_router.core.config.source import ConfigFile
from bundle_router.errors import Problem
from bundle_router.review.lint.findings import HasContent
from bundle_router.review.lint.rules import lint

__all__ = ["HasContent", "check"]


def check(
    files: Sequence[ConfigFile],
    *,
    cards: Mapping[str, Card],
    check_binary: CheckBinary = no_check,
    has_content: HasContent | None = None,
) -> list[Problem]:
    """Every error, or, where there is none, what is dead (`warning`) or dangerous (`risk`) in the project's own files.

    The shipped files are linted when no project files lie over them. `has_content` says whether a skill's file is there
    (None: nobody looked, and none is missed).
    """
    resolved = resolve(files, cards, check_binary)
    if not resolved.report.has_errors:
        shipped = [file for file in files if file.layer == "shipped"]
        lint(resolved, lambda: resolve(shipped, cards, check_binary), has_content)
    return resolved.report.problems()
