"""Local tools' cards for config tests: the names are real, the texts short."""

from __future__ import annotations

import pytest
from bundle_router.core.catalog import Card

_TOOLS = {
    "repo": ("read_file", "list_dir", "ripgrep", "git_log", "git_diff"),
    "docs": ("fetch", "search"),
    "workspace": ("exec", "binaries", "write_file"),
}
_TEXTS = {"repo.git_log": "History. For one commit's changes call git_diff; `search` is another server's."}


@pytest.fixture(scope="session")
def cards() -> dict[str, Card]:
    return {
        f"{server}.{tool}": Card(server, tool, _TEXTS.get(f"{server}.{tool}", "Does it."), "{}", "sha256:0", 100)
        for server, tools in _TOOLS.items()
        for tool in tools
    }
