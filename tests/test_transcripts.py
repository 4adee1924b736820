"""A page that is not true fails: the reader of `tests.transcripts` sees what a page says and does
not.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts import Reader, matches


def page(*blocks: str) -> str:
    """Return a page of fenced blocks, each with its info string as the first line."""
    return "".join(f"```{block}```\n" for block in blocks)


def test_a_page_writes_files_adds_to_them_edits_them_and_types_commands(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.follow(
        page(
            'text title="a/b.txt"\none\n',
            'text title="a/b.txt" append\ntwo\n',
            'diff title="a/b.txt"\n-two\n+three\n',
            "console\n$ cat a/b.txt\none\nthree\n$ NAME=$(head -1 a/b.txt)\n$ echo $NAME\none\n",
        )
    )
    assert reader.variables == {"NAME": "one"}


@pytest.mark.parametrize(
    "wrong",
    [
        "console\n$ echo one\ntwo\n",
        "console\n$ echo one\n",
        "console\n$ true\none\n",
        "console\n$ false\n",
        "console\n$ false\n$ true\n",
        "console\n$ false\n$ echo $?\n2\n",
        "console\n$ bundle-router no-such-verb\n…\n",
        "console\none\n$ true\n",
        'diff title="b.txt"\n-nowhere\n+somewhere\n',
    ],
)
def test_a_page_that_says_what_is_not_so_fails(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("one\n", "utf-8")
    with pytest.raises(AssertionError):
        Reader(tmp_path).follow(page(wrong))


def test_an_ellipsis_stands_for_text_of_a_line_and_alone_for_lines() -> None:
    assert matches("a … c\n…\nd\n", "a b c\n1\n2\nd\n")
    assert matches("a\n…\nd\n", "a\nd\n")
    assert not matches("a … c\n", "a b\nc\n")
    assert not matches("…\nd\n", "a\nd\ne\n")
    assert not matches("a.c\n", "abc\n")
