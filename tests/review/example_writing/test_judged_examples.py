"""What of a model's examples is taken, and why the rest is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundle_router.adapters.redaction import SecretRedactor
from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.review.example_writing.judging import MAX_EXAMPLE, AnswerJudge, JudgedAnswer

from tests.engine.selecting.catalogs import ANALYZER, BUNDLES, catalog

GOOD = (
    "open a ticket about the broken login",
    "close the ticket that Maria filed",
    "report the crash in the tracker",
)


def judge(of: Catalog | None = None) -> AnswerJudge:
    return AnswerJudge(of or catalog(), ANALYZER, SecretRedactor().redact)


def judged(*examples: str, bundle: str = "issues.write", **words: list[str]) -> JudgedAnswer:
    one = judge()
    return one.judge(one.catalog.bundles[bundle], examples, words)


def test_usable_examples_are_taken_in_their_order() -> None:
    assert judged(*GOOD) == JudgedAnswer(GOOD, (), ())


def test_more_than_were_asked_for_are_not_taken() -> None:
    more = tuple(f"open a ticket about {thing}" for thing in ("cats", "dogs", "birds", "mice"))
    made = judged(*GOOD, *more)
    assert made.examples == (*GOOD, *more[:3])
    assert made.refusals == ((more[3], "more than 6"),)


@pytest.mark.parametrize(
    ("example", "why"),
    [
        ("", "empty"),
        ("open a ticket " * 20, f"longer than {MAX_EXAMPLE} characters"),
        ("open a ticket\nabout the login", "holds a control or an invisible character"),
        ("open a ticket\u202e about the login", "holds a control or an invisible character"),
        (
            "open a ticket with ghp_0123456789abcdefghijABCDEFGHIJ012345",
            "looks as if it held a secret",
        ),
        ("open a ticket with issues.open", "names the tool issues.open"),
        ("please show me the latest", "would fit any bundle"),
        ("open tickets about the broken logins", "said already"),
        ("find where the retry limit is set", "stands at repo.readonly already"),
        ("compile the project and run the tests", "more about shell.run"),
        ("issues: compile the project and run the tests", "more about shell.run"),
    ],
)
def test_an_example_that_can_not_be_used_is_left_out_with_the_reason(
    example: str, why: str
) -> None:
    made = judged(*GOOD, example)
    assert made.examples == GOOD
    assert made.refusals == ((example.strip(), why),)


def test_a_tool_whose_name_is_one_plain_word_is_a_word_like_any_other() -> None:
    assert judged("close this ticket", "open another ticket").refusals == ()


def test_two_in_three_examples_may_be_in_words_that_nobody_wrote() -> None:
    new_words = ("my screen stays black", "the printer smokes")
    assert judged(GOOD[0], *new_words).examples == (GOOD[0], *new_words)


def test_an_answer_that_is_mostly_about_something_else_is_refused_as_a_whole() -> None:
    made = judged("book a flight", "order a pizza", "buy milk", "open a ticket", ours=["Ticket"])
    assert (made.examples, made.words, made.off_subject) == ((), (), True)


def test_naming_the_bundle_everywhere_is_no_subject() -> None:
    made = judged("book a flight with issues", "order a pizza by issues", "write issues a poem")
    assert made.off_subject


def test_what_a_bundle_is_called_and_described_by_is_its_subject() -> None:
    calendar = Bundle("calendar", "Read and change a calendar", ("gcal.list",), effects=("read",))
    of = catalog(bundles=(*BUNDLES, calendar))
    wishes = ("what is in my calendar today", "am I free on Friday", "meet Bob at three")
    assert judge(of).judge(calendar, wishes, {}).examples == wishes


def test_an_example_that_was_taken_can_not_be_anothers() -> None:
    one = judge()
    issues, shell = one.catalog.bundles["issues.write"], one.catalog.bundles["shell.run"]
    one.take(issues, one.judge(issues, ["my screen stays black", *GOOD], {}))
    made = one.judge(shell, ["my screen stays black", "run the tests again"], {})
    assert made.refusals == (("my screen stays black", "stands at issues.write already"),)


def test_words_are_taken_once_and_bounded_a_language() -> None:
    many = [f"Wort{letter}" for letter in "abcdefghij"]
    made = judged(*GOOD, de=["Fehler", *many], fr=["Fehler", "billet\u202e", "ticket d'incident"])
    assert made.words == ("Fehler", *many[:7], "ticket d'incident")
    assert made.refusals == (("billet\u202e", "holds a control or an invisible character"),)


def test_a_bundle_keeps_the_words_that_it_has() -> None:
    of = catalog()
    with_word = replace(of.bundles["issues.write"], words=("Fehler",))
    of = replace(of, bundles={**of.bundles, "issues.write": with_word})
    assert judge(of).judge(with_word, GOOD, {"de": ["Fehler", "Meldung"]}).words == ("Meldung",)
