"""What site generators write, and what must be read of it.

Each file of `tests/data/docs/constructs` holds HTML as a generator writes it, a line `-----`, and
the text that a reader has to get, judged by hand. To add a case, add a file.
"""

from __future__ import annotations

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


def test_there_are_constructs_of_many_generators() -> None:
    assert len(CONSTRUCTS) >= 40
