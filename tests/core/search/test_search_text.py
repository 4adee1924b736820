from __future__ import annotations

import pytest
from bundle_router.adapters.bm25 import english_stemmer
from bundle_router.core.search.text import (
    MAX_CLAUSES,
    MAX_WORDS,
    Analyzer,
    Scale,
    split_quotes,
    words,
)
from hypothesis import given
from hypothesis import strategies as st

ANALYZER = Analyzer(english_stemmer())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("create_pull_request", ["create", "pull", "request"]),
        ("create-pull-request", ["create", "pull", "request"]),
        ("createPullRequest", ["createpullrequest", "create", "pull", "request"]),
        ("HTTPServer2", ["httpserver2", "http", "server"]),
        ("7c9f of Müller GmbH on 2026-11-03", ["7c9f", "of", "müller", "gmbh", "on"]),
        ("x and y, 17 times", ["and", "times"]),
        ("the user's file", ["the", "user", "file"]),
        ("ＦＵＬＬ width", ["full", "width"]),
        ("搜索 web", ["搜索", "搜", "索", "web"]),
        ("Naïve CAFÉ", ["naïve", "café"]),
        ("", []),
    ],
)
def test_words_are_split_where_a_reader_would(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.parametrize(
    ("british", "american"),
    [
        ("organisations optimised analyses", "organizations optimized analyzes"),
        ("colour neighbourhood favourites", "color neighborhood favorites"),
        ("centre catalogue licence", "center catalog license"),
        ("cancelled travelling modelled", "canceled traveling modeled"),
    ],
)
def test_british_spelling_is_the_american_one(british: str, american: str) -> None:
    assert ANALYZER.stems(british) == ANALYZER.stems(american)


@pytest.mark.parametrize("pair", [("revise", "revision"), ("precise", "precision"), ("advertise", "advertisement"),
                                  ("hours", "hourly")])  # fmt: skip
def test_what_only_looks_british_keeps_its_stem(pair: tuple[str, str]) -> None:
    assert len({*ANALYZER.stems(" ".join(pair))}) == 1


@pytest.mark.parametrize(
    ("request_text", "action"),
    [
        ("Please list the open issues", "read"),
        ("I want to delete the branch", "delete"),
        ("Resizing the disk is next", "update"),
        ("the disk, create it", ""),
        ("", ""),
    ],
)
def test_a_request_asks_for_what_its_first_word_says(request_text: str, action: str) -> None:
    assert ANALYZER.action_asked(request_text) == action


@pytest.mark.parametrize(
    ("request_text", "for_change"),
    [
        ("When was the invoices file last changed?", False),
        ("Could you please find out who deleted it", False),
        ("Put the minutes into a new file", True),
        ("I want to delete the branch", True),
        ("Can you restart the pods?", True),
        ("the disk, create it", None),
        ("minutes of the meeting", None),
        ("", None),
    ],
)
def test_a_request_asks_to_be_told_or_for_a_change_by_its_first_word(
    request_text: str, for_change: bool | None
) -> None:
    assert ANALYZER.asks_for_change(request_text) is for_change


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Turn the flag new-checkout-ui off", {"new", "checkout", "ui"}),
        ("open an issue in acme/billing-api", {"acm", "bill", "api"}),
        ("read https://example.com/shop", {"https", "exampl", "com", "shop"}),
        ("add a read-only user", set()),
        ("a shop for billing-shop/x and a bill", set()),
    ],
)
def test_words_inside_names_weigh_less(text: str, named: set[str]) -> None:
    scale = Scale(0.5, 0.5, 0.3, 0.2, named=0.1)
    terms = ANALYZER.terms(text)
    weights = ANALYZER.query_weights(terms, scale)
    assert terms.named == named
    assert all(weights[stem] <= 0.1 for stem in named)


def test_the_ending_of_a_file_says_its_application() -> None:
    assert {"word", "document"} <= {*ANALYZER.terms("turn a .docx into text").stems}
    assert {"web", "page"} <= {*ANALYZER.terms("get the page at https://example.org/a").stems}
    assert not {"word", "web"} & {*ANALYZER.terms("look at the .NET code. Then go on").stems}
    terms = ANALYZER.terms("convert report.docx, please")
    assert {"word", "document"} <= {*terms.stems} - terms.named
    assert {"report", "docx"} <= terms.named


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("make an xlsx of it", "spreadsheet", True),
        ("a PDF, please", "document", True),
        ("go through the log and the tar", "archive", False),
        ("ask the doc", "word", False),
    ],
)
def test_the_kind_of_a_file_is_known_without_the_dot_unless_it_is_a_word(
    text: str, kind: str, named: bool
) -> None:
    assert (ANALYZER.stem(kind) in ANALYZER.terms(text).stems) is named


@pytest.mark.parametrize(
    ("word", "other"),
    [("production", "product"), ("severity", "several"), ("authorization", "author")],
)
def test_words_of_different_meaning_have_different_stems(word: str, other: str) -> None:
    assert ANALYZER.stem(word) != ANALYZER.stem(other)
    assert ANALYZER.stem("authorised") == ANALYZER.stem("authorization")


@pytest.mark.parametrize(
    ("word", "shops"), [("production", "item"), ("post", "social"), ("key", "summary"), ("checkout", "shop")]
)  # fmt: skip
def test_a_word_of_engineers_does_not_stand_for_one_of_shops(word: str, shops: str) -> None:
    assert ANALYZER.stem(shops) not in ANALYZER.synonyms.get(ANALYZER.stem(word), ())


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("Welche Pods laufen im Namespace staging und wie lange?", {"im", "und", "wie", "welch"}),
        ("Envoie un message dans le canal Slack", {"un", "dan", "le"}),
        ("die cast parts for the press", set()),
    ],
)
def test_another_languages_stop_words_say_nothing(text: str, gone: set[str]) -> None:
    stems = {*ANALYZER.terms(text).stems}
    assert not gone & stems
    assert stems & {"pod", "messag", "die"}


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("rename the flag", []),
        (
            "Read the log file, and then open a new issue.",
            [("read", "log", "file"), ("open", "new", "issu")],
        ),
        (
            "Convert the amount. Also book two flights!",
            [("convert", "amount"), ("also", "book", "two", "flight")],
        ),
        ("one", []),
    ],
)
def test_a_long_request_falls_into_its_wishes(text: str, clauses: list[tuple[str, ...]]) -> None:
    assert [clause.stems for clause in ANALYZER.clauses(text)] == clauses


@pytest.mark.parametrize(
    ("text", "outside", "inside"),
    [
        ("send 'the stock rose by 5%' to Ann", "send   to Ann", "the stock rose by 5%"),
        ('post "what a fine day" now', "post   now", "what a fine day"),
        ("say 'it's raining cats again' aloud", "say   aloud", "it's raining cats again"),
        ("open 'log.txt' and 'my notes'", "open 'log.txt' and 'my notes'", ""),
        ("the user's file isn't the users' own", "the user's file isn't the users' own", ""),
        ("'all of it is quoted'", "'all of it is quoted'", ""),
        ("an 'unclosed quotation of words", "an 'unclosed quotation of words", ""),
    ],
)
def test_what_is_quoted_is_content_and_not_the_wish(text: str, outside: str, inside: str) -> None:
    assert split_quotes(text) == (outside, inside)


def test_words_every_request_uses_weigh_less_and_synonyms_least() -> None:
    scale = Scale(generic=0.5, conversation=0.6, synonym=0.35, pair=0.2)
    weights = ANALYZER.query_weights(ANALYZER.terms("find apartments"), scale)
    assert weights["apart"] == 1.0
    assert weights["find"] == 0.5
    assert weights["rent"] == pytest.approx(0.35)
    assert weights["find apart"] == pytest.approx(0.2 * 0.5)


def test_a_narrow_word_stands_for_the_broader_one_and_not_the_reverse() -> None:
    assert "sport" in ANALYZER.synonyms["nba"]
    assert "nba" not in ANALYZER.synonyms.get("sport", ())


def test_when_something_is_wanted_says_nothing_of_what_is_wanted() -> None:
    assert ANALYZER.stems("what do I still have to do now, yet again") == []


@given(st.text(max_size=400))
def test_any_text_is_just_text(text: str) -> None:
    terms = ANALYZER.terms(text)
    assert terms == ANALYZER.terms(text)
    assert len(set(terms.stems)) == len(terms.stems)
    assert all(stem and " " not in stem for stem in terms.stems)
    assert len(ANALYZER.clauses(text)) <= MAX_CLAUSES


@pytest.mark.parametrize(
    "text",
    [
        "\ud800 lone",
        "a" * 32_768,
        "and then " * 4_000,
        "a.b! " * 6_000,
        "((((" * 8_000,
        "''" * 16_000,
        "a'b" * 10_000,
        '"' * 32_000,
    ],
)
def test_texts_made_to_hurt_are_bounded(text: str) -> None:
    split_quotes(text)
    assert len(ANALYZER.terms(text).stems) <= MAX_WORDS
    assert len(ANALYZER.clauses(text)) <= MAX_CLAUSES
