"""Config: text in, a catalog or problems out. Pure: `router.adapters.configfiles` reads the files.

Two stages: `reading` takes each file for exactly what it says (`written` has the forms, `source` the caps before
parsing, `positions` the line of every key), `resolve` lays the project's files over the shipped ones and checks them
against each other. `lint` names what is legal but dead or risky. `schema` is the written form for editors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.core.catalog import Card, Catalog
from router.core.config.findings import HasContent
from router.core.config.lint import lint
from router.core.config.resolve import resolve
from router.core.config.settings import CheckBinary, no_check
from router.core.config.source import FILE_NAMES, ConfigFile, from_bytes
from router.errors import ConfigError, Problem

__all__ = ["FILE_NAMES", "CheckBinary", "ConfigFile", "HasContent", "check", "from_bytes", "load"]


def load(files: Sequence[ConfigFile], *, cards: Mapping[str, Card], check_binary: CheckBinary = no_check) -> Catalog:
    """The catalog that the files describe. `cards` are the local tools' by canonical name; `check_binary` says what is
    wrong with one `[[binaries]]` rule, a sentence each (its patterns are another engine's, which core doesn't know).

    Raises ConfigError with every error of both stages, in file order.
    """
    resolved = resolve(files, cards, check_binary)
    if resolved.report.has_errors:
        raise ConfigError([problem for problem in resolved.report.problems() if problem.level == "error"])
    return resolved.catalog


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
