"""Examples and words in the text of bundles.toml: nothing else of it changes."""

from __future__ import annotations

import pytest
from bundle_router.review.example_writing.bundles_text import (
    Addition,
    addition_lines,
    with_additions,
)

ADDED = Addition("a.b", ("one", 'say "two"'), ("Wört",), "Written by m.")
ITEMS = '  # Written by m.\n  "one",\n  "say \\"two\\"",\n]'
WORDS = 'words = [\n  # Written by m.\n  "Wört",\n]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '# top\n[bundles."a.b"] # hey\ndescription = "d" # why\ntools = ["r.x"]\n',
            '# top\n[bundles."a.b"] # hey\ndescription = "d" # why\nexamples = [\n'
            + ITEMS + "\n" + WORDS + 'tools = ["r.x"]\n',
        ),
        (
            '[bundles."a.b"]\ndescription = "d"\nexamples = ["x", "y"] # so\n',
            '[bundles."a.b"]\ndescription = "d"\nexamples = ["x", "y",\n' + ITEMS + " # so\n" + WORDS,
        ),
        (
            '[bundles."a.b"]\ndescription = "d"\nexamples = [\n  "x", # a, b\n  "y" # c, d\n  # e\n]\n',
            '[bundles."a.b"]\ndescription = "d"\nexamples = [\n  "x", # a, b\n  "y", # c, d\n  # e\n'
            + ITEMS + "\n" + WORDS,
        ),
        (
            '[bundles."a.b"]\nexamples = []\ndescription = """\nd"""',
            '[bundles."a.b"]\nexamples = [\n' + ITEMS + "\n" + WORDS + 'description = """\nd"""',
        ),
    ],
)  # fmt: skip
def test_lists_are_added_to_where_they_stand_and_new_ones_below_the_operators_line(
    before: str, after: str
) -> None:
    assert with_additions(before, [ADDED]) == (after, ())


@pytest.mark.parametrize(
    "text",
    [
        '[bundles]\n"a.b" = { description = "d" }\n',
        'bundles."a.b".description = "d"\n',
        '[bundles.other]\ndescription = "d"\n',
    ],
)
def test_where_no_lines_can_be_added_the_text_stays_and_a_person_adds_them(text: str) -> None:
    assert with_additions(text, [ADDED]) == (text, (ADDED,))
    assert addition_lines(ADDED)[:2] == ['[bundles."a.b"]', "examples = ["]


def test_one_that_can_not_be_added_does_not_keep_others_from_it() -> None:
    text = '[bundles.c]\ndescription = "d"\n'
    made, left = with_additions(text, [ADDED, Addition("c", ("x",), (), "By m.")])
    assert (made, left) == (text + 'examples = [\n  # By m.\n  "x",\n]\n', (ADDED,))
