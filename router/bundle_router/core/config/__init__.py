"""Config: text in, a catalog or problems out.

Pure: `bundle_router.adapters.config_files` reads the files.

There are two stages. `entries` reads each file by itself (`written_forms` has the forms,
`config_text` the limits before parsing, `positions` the line of every key). `resolve` lays the
project's files over the shipped ones and checks them against each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bundle_router.core.catalog import Card, Catalog
from bundle_router.core.config.config_text import FILE_NAMES, ConfigFile, from_bytes
from bundle_router.core.config.resolve import resolve
from bundle_router.core.config.router_settings import CheckBinary, no_check
from bundle_router.errors import ConfigError

__all__ = ["FILE_NAMES", "CheckBinary", "ConfigFile", "from_bytes", "load"]


def load(
    files: Sequence[ConfigFile], *, cards: Mapping[str, Card], check_binary: CheckBinary = no_check
) -> Catalog:
    """Return the catalog that the files describe.

    `cards` are the local tools' by canonical name; `check_binary` returns what is wrong with a
    `[[binaries]]` rule, a sentence each (another engine compiles its patterns, which core doesn't
    know).

    Raises ConfigError with every error of both stages, in file order.
    """
    resolved = resolve(files, cards, check_binary)
    if resolved.report.has_errors:
        raise ConfigError(
            [problem for problem in resolved.report.problems() if problem.level == "error"]
        )
    return resolved.catalog
