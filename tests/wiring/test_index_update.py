"""An index that follows its catalog: what changed is analysed, and the answers are those of one
built anew.
"""

from __future__ import annotations

from dataclasses import replace

from bundle_router.adapters.bm25 import LexicalIndex
from bundle_router.core.search.corpus import Texts, changes_between, corpus_of
from bundle_router.core.search.documents import BundleText, ToolText
from bundle_router.core.search.index import COLLECTIONS
from bundle_router.core.search.request import Request
from bundle_router.wiring.searching import SearchMaker
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.selecting.catalogs import ANALYZER, TEXTS, card, catalog

WORDS = ("read files", "weather of cities", "issue tracker", "commit history", "fetch pages")
IDS = ("s.a", "s.b", "t.a", "t.b")
tools = st.lists(
    st.builds(
        ToolText,
        id=st.sampled_from(IDS),
        server=st.sampled_from(("s", "t")),
        name=st.sampled_from(("a", "b")),
        description=st.sampled_from(WORDS),
        standing=st.sampled_from(("trusted", "pinned", "unread")),
    ),
    unique_by=lambda tool: tool.id,
).map(tuple)
bundles = st.lists(
    st.builds(
        BundleText,
        id=st.sampled_from(("one", "two", "three")),
        description=st.sampled_from(WORDS),
        examples=st.lists(st.sampled_from(WORDS), max_size=3).map(tuple),
        tools=st.lists(st.sampled_from(IDS), unique=True).map(tuple),
    ),
    unique_by=lambda bundle: bundle.id,
).map(tuple)
texts = st.builds(Texts, bundles, tools)


def answers(index: LexicalIndex) -> list[object]:
    terms = sorted({term for words in WORDS for term in ANALYZER.terms(words).stems})
    query = dict.fromkeys(terms, 1.0)
    return [
        (list(index.search(name, [query], k=20)[0].scores.items()), list(index.rarity(name, terms)))
        for name in COLLECTIONS
    ]


@given(texts, texts)
def test_an_index_with_the_changes_answers_as_one_built_anew(before: Texts, after: Texts) -> None:
    changes = changes_between(before, after, ANALYZER)
    old = LexicalIndex.build(corpus_of(before, ANALYZER).documents, revision="1")
    updated = old.updated(add=changes.add, remove=changes.remove, revision="2")
    assert answers(updated) == answers(
        LexicalIndex.build(corpus_of(after, ANALYZER).documents, revision="2")
    )


def test_one_tool_costs_itself_and_the_bundles_that_hold_it() -> None:
    rows = tuple(ToolText(f"s.t{number}", "s", f"t{number}", "Reads.") for number in range(50))
    held = tuple(BundleText(f"b{number}", "Reads.", (), (f"s.t{number}",)) for number in range(50))
    other = (replace(rows[0], description="Forecasts the weather."), *rows[1:])
    changes = changes_between(Texts(held, rows), Texts(held, other), ANALYZER)
    assert {document.id for document in changes.add} == {"s.t0", "b0"}
    assert not changes_between(Texts(held, rows), Texts(held, rows), ANALYZER)


def test_a_search_made_after_another_knows_what_changed_and_forgets_what_went() -> None:
    maker = SearchMaker()
    before = catalog()
    maker(before)
    cards = {**before.cards, "docs.fetch": card("docs.fetch", "Forecast the weather of a city")}
    after = replace(before, cards=cards)
    found, anew = maker(after), SearchMaker()(after)
    permitted = frozenset(TEXTS)
    for query in ("weather in the city", "fetch a page of documentation"):
        assert found.rank_tools(Request(query), permitted) == anew.rank_tools(
            Request(query), permitted
        )
    assert found.rank_tools(Request("weather in the city"), permitted)[0].id == "docs.fetch"
    assert found.index.revision == anew.index.revision
