"""The promises of `Index`, kept by the adapter over bm25s."""

from __future__ import annotations

from bundle_router.adapters.bm25 import LexicalIndex
from bundle_router.core.search.index import COLLECTIONS, Document, Hits
from hypothesis import given
from hypothesis import strategies as st

WORDS = ("read", "file", "weather", "issue", "commit", "fetch")
documents = st.lists(
    st.builds(
        Document,
        id=st.sampled_from(["a", "b", "c", "d", "e", "f"]),
        collection=st.sampled_from(COLLECTIONS),
        terms=st.lists(st.sampled_from(WORDS), max_size=6).map(tuple),
        part=st.integers(0, 2),
    ),
    max_size=12,
    unique_by=lambda document: (document.collection, document.id, document.part),
)
queries = st.dictionaries(st.sampled_from((*WORDS, "unheard")), st.floats(0.1, 2.0), max_size=4)


def ranked(hits: Hits) -> list[tuple[str, float, float]]:
    """The hits in their order, each with its score and what it matched."""
    return [(id_, score, hits.matched[id_]) for id_, score in hits.scores.items()]


def answers(index: LexicalIndex, query: dict[str, float]) -> list[object]:
    return [
        (
            ranked(index.search(name, [query], k=10)[0]),
            list(index.rarity(name, WORDS)),
            list(index.known(name, WORDS)),
        )
        for name in COLLECTIONS
    ]


@given(documents, st.randoms(use_true_random=False), queries)
def test_the_order_documents_come_in_does_not_matter(
    found: list[Document], chance: object, query: dict[str, float]
) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]  # a random.Random made by Hypothesis
    one, other = LexicalIndex.build(found, revision="r"), LexicalIndex.build(shuffled, revision="r")
    assert answers(one, query) == answers(other, query)


@given(documents, documents, queries)
def test_an_updated_index_answers_as_one_built_anew(
    before: list[Document], change: list[Document], query: dict[str, float]
) -> None:
    gone = [(document.collection, document.id) for document in before[::2]]
    replaced = {*gone, *((d.collection, d.id) for d in change)}
    left = [d for d in before if (d.collection, d.id) not in replaced]
    updated = LexicalIndex.build(before, revision="1").updated(
        add=change, remove=gone, revision="2"
    )
    assert updated.revision == "2"
    assert answers(updated, query) == answers(
        LexicalIndex.build([*left, *change], revision="2"), query
    )


@given(documents, queries, st.frozensets(st.sampled_from("abcdefz")))
def test_narrowing_keeps_scores_and_only_permitted_ids(
    found: list[Document], query: dict[str, float], within: frozenset[str]
) -> None:
    index = LexicalIndex.build(found, revision="r")
    for name in COLLECTIONS:
        whole = index.search(name, [query], k=20)[0]
        narrowed = index.search(name, [query], k=20, within=within)[0]
        assert ranked(narrowed) == [row for row in ranked(whole) if row[0] in within]


@given(
    documents,
    st.lists(queries, min_size=1, max_size=5),
    st.frozensets(st.sampled_from("abcdefz")),
    st.integers(1, 9),
)
def test_several_queries_at_once_are_answered_as_one_after_the_other(
    found: list[Document], several: list[dict[str, float]], within: frozenset[str], k: int
) -> None:
    index = LexicalIndex.build(found, revision="r")
    for name in COLLECTIONS:
        for among in (None, within):
            at_once = index.search(name, several, k=k, within=among)
            assert [ranked(hits) for hits in at_once] == [
                ranked(index.search(name, [query], k=k, within=among)[0]) for query in several
            ]


def test_the_best_of_many_documents_are_the_same_for_one_query_and_for_several() -> None:
    rows = [
        Document(f"{i:05}", "tools", (f"w{i % 7}", *["read"] * (i % 5 + 1))) for i in range(3_000)
    ]
    index = LexicalIndex.build(rows, revision="r")
    several: list[dict[str, float]] = [{"read": 1.0, f"w{i}": 0.5} for i in range(7)]
    for k in (1, 3, 40):
        every = [ranked(index.search("tools", [query], k=3_000)[0])[:k] for query in several]
        assert [ranked(hits) for hits in index.search("tools", several, k=k)] == every


def alike(*ids: str) -> list[Document]:
    return [Document(id_, "tools", ("read", "file")) for id_ in ids]


def test_equal_scores_are_ordered_by_id_also_at_the_cut() -> None:
    index = LexicalIndex.build(
        [*alike("d", "b", "c", "a"), Document("z", "tools", ("weather",))], revision="r"
    )
    assert list(index.search("tools", [{"read": 1.0}], k=2)[0].scores) == ["a", "b"]


def test_a_weight_of_the_query_counts() -> None:
    index = LexicalIndex.build(
        [Document("a", "tools", ("read",)), Document("b", "tools", ("file",))], revision="r"
    )
    assert list(index.search("tools", [{"read": 1.0, "file": 2.0}], k=2)[0].scores) == ["b", "a"]


FILES = [f"{name}/{file}" for name in COLLECTIONS for file in (
    "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "ids.json", "params.index.json",
    "vocab.index.json")]  # fmt: skip


def test_an_empty_index_finds_nothing() -> None:
    index = LexicalIndex.build([], revision="r")
    assert not index.search("bundles", [{"read": 1.0}], k=3)[0].scores
    assert not index.known("bundles", ["read"])
