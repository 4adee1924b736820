"""One word a concept: the names of public classes keep to router/words.toml, and a page shows
it.
"""

from __future__ import annotations

import inspect

import pytest

from tests.public_names import public_objects, public_values
from tests.words import PAGE, page_with_words, rejected_words, words

CLASSES = sorted(
    {
        value.__name__
        for value in (*public_objects().values(), *public_values().values())
        if inspect.isclass(value)
    }
)


@pytest.mark.parametrize("name", CLASSES)
def test_the_name_of_a_public_class_has_no_second_word_for_a_concept(name: str) -> None:
    assert rejected_words(name) == []


@pytest.mark.parametrize(
    ("name", "rejected"),
    [
        ("ToolManager", ["Manager"]),
        ("UserTask", ["User", "Task"]),
        ("MockMCPServer", ["Mock"]),
        ("ToolServers", []),
    ],
)
def test_a_second_word_is_seen_inside_a_name(name: str, rejected: list[str]) -> None:
    assert rejected_words(name) == rejected


def test_public_classes_are_found() -> None:
    assert {"Router", "Step", "Bundle", "RunStore", "FakeRouter", "ToolServers"} <= set(CLASSES)


def test_each_concept_has_one_word_and_no_word_stands_for_two() -> None:
    nouns = [row.noun for row in words()]
    assert len(set(nouns)) == len(nouns)
    avoided = [word.lower() for row in words() for word in row.avoid]
    assert len(set(avoided)) == len(avoided)
    assert set(avoided) & set(nouns) == set()


def test_a_page_shows_the_words() -> None:
    assert PAGE.read_text("utf-8") == page_with_words(), "run .ci/generate"
