"""What search may read of a catalog and of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Server
from bundle_router.core.search.corpus import (
    INDEX_RULES,
    corpus_of,
    outline_of,
    request_of,
    texts_of,
)
from bundle_router.core.search.documents import Corpus
from bundle_router.core.values import RecentStep, Step
from bundle_router.core.values.canonical import digest_of
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.selecting.catalogs import ANALYZER, BUNDLES, card, catalog, step


def corpus(of: Catalog, *reviewed: str) -> Corpus:
    return corpus_of(texts_of(of, reviewed), ANALYZER)


def terms(of: Corpus, collection: str) -> set[str]:
    return {
        term
        for document in of.documents
        if document.collection == collection
        for term in document.terms
    }


def with_canary(of: Catalog, name: str = "strangers.mail") -> Catalog:
    return replace(of, cards={**of.cards, name: card(name, "xcanaryx capture the ranking")})


def test_a_strangers_definition_ranks_no_bundle_and_no_reviewed_tool() -> None:
    made = corpus(with_canary(catalog()))
    assert "xcanaryx" in terms(made, "unread")
    assert "xcanaryx" not in terms(made, "bundles") | terms(made, "tools")
    assert made.unread == {"strangers.mail"}
    assert made.members["strangers.mail"] == ()


def test_a_definition_of_a_trusted_server_that_a_person_pinned_counts_towards_its_bundle() -> None:
    of = with_canary(catalog())
    of = replace(
        of, servers={**of.servers, "strangers": Server("strangers", "streamable-http", "trusted")}
    )
    made = corpus(of, "strangers.mail")
    assert "xcanaryx" in terms(made, "bundles") & terms(made, "tools")
    assert made.members["strangers.mail"] == ("strangers.mail",)


def test_declared_effects_say_which_bundles_may_change_something() -> None:
    of = catalog()
    silent = replace(of.bundles["shell.run"], id="shell.silent", effects=())
    made = corpus(replace(of, bundles={**of.bundles, silent.id: silent}))
    assert "shell.run" in made.changing
    assert "strangers.mail" in made.unchanging
    assert "shell.silent" not in made.changing | made.unchanging


@pytest.mark.parametrize(
    ("transport", "trust"), [("local", "untrusted"), ("streamable-http", "trusted")]
)
def test_trust_alone_or_being_local_alone_is_not_a_review(transport: str, trust: str) -> None:
    of = with_canary(catalog())
    server = Server("strangers", transport, trust)  # type: ignore[arg-type]  # literals from the table above
    made = corpus(replace(of, servers={**of.servers, "strangers": server}))
    assert "xcanaryx" not in terms(made, "bundles") | terms(made, "tools")


def test_the_operators_words_count_what_a_bundle_is_not_for_does_not() -> None:
    bundle = Bundle("notes.keep", "Jot downxx", ("strangers.write_memo",), avoid="avoidxx",
                    examples=("examplexx",), effects=("read",))  # fmt: skip
    found = terms(corpus(catalog(bundles=(bundle, *BUNDLES))), "bundles")
    assert {
        "note",
        "keep",
        "downxx",
        "examplexx",
        "memo",
    } <= found, "its id, words, examples, and listed tools"
    assert "avoidxx" not in found


def test_further_words_of_a_bundle_rank_it_as_its_examples_do() -> None:
    bundle = Bundle("notes.keep", "Jot down", (), words=("Rechnungxx", "facturexx"),
                    effects=("read",))  # fmt: skip
    made = corpus(catalog(bundles=(bundle, *BUNDLES)))
    assert {"rechnungxx", "facturexx"} <= terms(made, "bundles")


def test_what_is_out_of_use_is_not_searched() -> None:
    of = catalog(bundles=(replace(BUNDLES[0], enabled=False), *BUNDLES[1:]))
    of = replace(of, servers={**of.servers, "docs": replace(of.servers["docs"], enabled=False)})
    made = corpus(of)
    assert "repo.readonly" not in made.members
    assert "docs.fetch" not in made.servers


def test_a_pinned_definition_of_a_server_that_is_not_trusted_ranks_tools_and_no_bundle() -> None:
    texts = texts_of(with_canary(catalog()), reviewed=frozenset(("strangers.mail",)))
    for made in (corpus_of(texts, ANALYZER), outline_of(texts)):
        assert made.unread == frozenset()
        assert made.pinned == {"strangers.mail"}
        assert made.members["strangers.mail"] == ("strangers.mail",)
    made = corpus_of(texts, ANALYZER)
    assert "xcanaryx" not in terms(made, "bundles") | terms(made, "tools")
    assert {"xcanaryx", "pattern"} <= terms(made, "reviewed"), "beside the tools of trusted servers"


def test_the_outline_is_the_corpus_without_its_documents() -> None:
    texts = texts_of(with_canary(catalog()))
    made, outline = corpus_of(texts, ANALYZER), outline_of(texts)
    assert outline.documents == ()
    assert replace(made, documents=()) == outline


def test_an_index_is_of_its_texts_and_of_what_made_it_and_of_nothing_else() -> None:
    of = catalog()
    first = texts_of(of).revision("lib 1")
    assert texts_of(replace(of, policies=(), routes=())).revision("lib 1") == first
    assert texts_of(of).revision("lib 2") != first
    assert texts_of(with_canary(of)).revision("lib 1") != first


def test_the_rules_version_changes_with_the_terms() -> None:
    """Indexes are kept on disk.

    Other terms under the same name would be found by old indexes: give them a new one.
    """
    tricky = (
        "createPullRequest HTTPServer2 git_log can't Straße 東京へ the listing of files, ｆｕｌｌ"
        " width"
    )
    bundles = (*BUNDLES, Bundle("tricky", tricky, (), examples=(tricky,), effects=("read",)))
    documents = [(d.collection, d.id, d.terms) for d in corpus(catalog(bundles=bundles)).documents]
    assert (INDEX_RULES, digest_of(documents)) == (
        "search-index/5",
        "sha256:ace5501b0bac190aa25832d236e02d50ab9163916220f68126086936ae88ca04",
    )


def test_a_step_is_bounded_before_it_is_searched() -> None:
    long = "a" * 32_768
    huge = step(long, constraints=(long,) * 100)
    request = request_of(huge, (RecentStep("r", "s", long, ("repo.readonly",)),))
    assert len(request.text) == 8_000
    assert len(request.context) < 30 * 501 + 100
    assert len(request.recent[0].goal) == 300


def test_runs_of_white_space_are_one_and_lines_stay_apart() -> None:
    request = request_of(step("  open \t the" + " " * 5_000 + "door\n\n then   leave "), ())
    assert request.text == "open the door\n\nthen leave"


def test_the_latest_step_comes_first() -> None:
    before = tuple(RecentStep("r", str(n), f"goal {n}", ()) for n in range(3))
    assert [item.step for item in request_of(step("x"), before).recent] == ["2", "1", "0"]


@given(st.text(max_size=300), st.lists(st.text(max_size=100), max_size=5))
def test_any_step_becomes_a_request(goal: str, constraints: list[str]) -> None:
    asked = Step(
        run_id="r", workflow="w", role="x", step="y", goal=goal, constraints=tuple(constraints)
    )
    assert request_of(asked, ()) == request_of(asked, ())
