"""Search over the shipped config: four bundles and ten tools, where hardly a word is rarer than
another.
"""

from __future__ import annotations

import pytest
from bundle_router.core.search.ranking import Search
from bundle_router.core.search.request import Request
from bundle_router.wiring import load_catalog
from bundle_router.wiring.searching import make_search


@pytest.fixture(scope="module")
def search() -> Search:
    return make_search(load_catalog(None))


@pytest.mark.parametrize(
    ("goal", "first"),
    [
        ("find where the retry limit is set", "repo.readonly"),
        ("how does asyncio.timeout behave when nested", "docs.fetch"),
        ("look up the documentation of this library", "docs.fetch"),
        ("run the tests of this module", "workspace.exec"),
        ("rename the flag", "workspace.exec"),
    ],
)
def test_the_bundle_that_is_meant_stands_first(search: Search, goal: str, first: str) -> None:
    ranked = search.rank_bundles(Request(goal), frozenset(search.corpus.members)).scored
    assert ranked[0].id == first


def test_a_parameter_that_matches_half_a_request_does_not_outweigh_a_text_that_matches_all(
    search: Search,
) -> None:
    ranked = search.rank_bundles(
        Request("find where the retry limit is set"), frozenset(search.corpus.members)
    ).scored
    scores = {row.id: row.score for row in ranked}
    assert scores["repo.readonly"] > 1.25 * scores["docs.fetch"]
