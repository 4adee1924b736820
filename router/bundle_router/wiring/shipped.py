"""The first-party tool servers, which stand on the router: the one place that reaches up to them.

`Router.open("config")` has to find `repo.read_file`. Config names a server, and this table says
which package it is; nothing else of the router imports `bundle_router.local_tools`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from typing import Final

from bundle_router.core.catalog import Card
from bundle_router.core.values import BinaryRule, LocalTool

PACKAGES: Final = {
    "docs": "bundle_router.local_tools.docs",
    "repo": "bundle_router.local_tools.repo",
    "workspace": "bundle_router.local_tools.workspace",
}
"""By server. Each declares its tools as `TOOLS`."""


def shipped_tools(server: str) -> Sequence[LocalTool]:
    """Load one first-party server's package and return its tools. Raises KeyError for another."""
    return tuple(import_module(PACKAGES[server]).TOOLS)


def shipped_cards() -> dict[str, Card]:
    """Return the cards of the first-party tools by canonical name, as `.ci/generate` wrote them,
    without loading the tools' modules.
    """
    text = files("bundle_router.local_tools").joinpath("cards.json").read_text(encoding="utf-8")
    return {f"{row['server']}.{row['tool']}": Card(**row) for row in json.loads(text)["tools"]}


def binary_problems(rule: BinaryRule) -> Sequence[str]:
    """Return the errors in the patterns of a `[[binaries]]` rule, one sentence each."""
    from bundle_router.local_tools.workspace.grammar import problems

    return problems(rule)
