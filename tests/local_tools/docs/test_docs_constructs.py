"""What site generators write, and what must be read of it.

Each file of `tests/data/docs/constructs` holds HTML as a generator writes it, a line `-----`, and
the text that a reader has to get, judged by hand. To add a case, add a file.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from bundle_router.local_tools.docs.deadline import Deadline
from bundle_router.local_tools.docs.markdown import to_markdown

CONSTRUCTS = sorted((Path(__file__).parents[2] / "data" / "docs" / "constructs").glob("*.txt"))
BASE = "https://docs.example.org/en/latest/guide/page.html"


@pytest.mark.parametrize("case", CONSTRUCTS, ids=lambda path: str(path.stem))
def test_a_construct_reads_as_judged(case: Path) -> None:
    html, _, expected = case.read_text(encoding="utf-8").partition("\n-----\n")
    made = to_markdown(
        html,
        base=BASE,
        keeps_image=lambda url: url.startswith("https://docs.example.org/"),
        deadline=Deadline(60),
    )
    parts = [part for part in (made.markdown, made.left_out) if part]
    assert "\n\n".join(parts) + "\n" == expected


TAGS = [
    "div",
    "p",
    "ul",
    "ol",
    "li",
    "table",
    "tr",
    "td",
    "th",
    "tbody",
    "thead",
    "tfoot",
    "caption",
    "dl",
    "dt",
    "dd",
    "pre",
    "blockquote",
    "aside",
    "form",
    "section",
    "details",
    "summary",
    "figure",
    "figcaption",
    "fieldset",
    "legend",
    "h2",
    "article",
    "header",
    "footer",
    "textarea",
    "a",
    "b",
    "i",
    "code",
    "sup",
    "sub",
    "kbd",
    "del",
    "q",
    "span",
    "em",
    "label",
    "ruby",
    "x-tabs",
]
ATTRIBUTES = (
    "",
    "rowspan=2",
    "colspan=2",
    'role="tabpanel" hidden',
    "role=tablist",
    "role=tab",
    "role=presentation",
    *(
        f'class="{name}"'
        for name in [
            "admonition warning",
            "admonition-title",
            "admonitionblock",
            "content",
            "alert",
            "tabbed-set",
            "tab-pane",
            "blocks",
            "CodeTabs-inner",
            "highlight",
            "line",
            "fragment",
            "memproto",
            "three-column-summary",
            "inline-task-list",
        ]
    ),
)


def random_page(chance: random.Random, numbers: list[int], depth: int) -> str:
    parts = []
    for _ in range(chance.randint(1, 3)):
        if depth == 0 or chance.random() < 0.35:
            numbers.append(len(numbers))
            parts.append(f"w{numbers[-1]}q ")
        else:
            tag = chance.choice(TAGS)
            attribute = chance.choice(ATTRIBUTES) if chance.random() < 0.5 else ""
            parts.append(f"<{tag} {attribute}>{random_page(chance, numbers, depth - 1)}</{tag}>")
    return "".join(parts)


@pytest.mark.parametrize("seed", range(8))
def test_no_word_of_the_main_part_is_lost_whatever_it_stands_in(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        numbers: list[int] = []
        page = f"<main>{random_page(chance, numbers, chance.randint(2, 6))}</main>"
        made = to_markdown(page, base=BASE, keeps_image=lambda url: True, deadline=Deadline(60))
        written = set(re.findall(r"w\d+q", made.markdown.lower()))
        lost = {f"w{number}q" for number in numbers} - written
        assert not lost or made.left_out, page


def test_there_are_constructs_of_many_generators() -> None:
    assert len(CONSTRUCTS) >= 40
