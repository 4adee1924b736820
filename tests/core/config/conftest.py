"""Local tools' cards for config tests: the names are real, texts and schemas short."""

from __future__ import annotations

import pytest
from bundle_router.adapters.local import cards_of
from bundle_router.core.catalog import Card

from tests.definitions import shipped_servers

_TEXTS = {
    "repo.git_log": "History. For one commit's changes call git_diff; `search` is another server's."
}
_SCHEMAS = {"docs.fetch": '{"properties":{"format":{},"url":{}},"type":"object"}'}


@pytest.fixture(scope="session")
def cards() -> dict[str, Card]:
    return {
        name: Card(
            card.server,
            card.tool,
            _TEXTS.get(name, "Does it."),
            _SCHEMAS.get(name, "{}"),
            "sha256:0",
            100,
        )
        for name, card in cards_of(shipped_servers()).items()
    }
