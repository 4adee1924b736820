"""Which results are shaped at once, and which in a thread; how large JSON is written in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.results.shaping import is_small
from bundle_router.core.values import Block, Data, Media, Text


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (Text("x" * 900),),
        (Data({"result": "hi", "n": [1, 2.5, None, True]}),),
        (Text("a"), Data("b"), Data(3)),
    ],
)
def test_short_text_and_short_json_are_little_work(blocks: tuple[Block, ...]) -> None:
    assert is_small(blocks, 1_000)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "block",
    [
        Text("x" * 1_001),
        Data("x" * 1_001),
        Data({"a": {"b": ["x" * 1_001]}}),
        Data({"x" * 1_001: 1}),
        Data({str(number): 1 for number in range(100)}),
        Data([0] * 100),
        Data([[]] * 100),
        Data(nested(100_000)),
        Media(b"x"),
    ],
    ids=lambda block: type(block).__name__,
)
def test_what_is_long_wide_deep_or_no_text_is_not(block: Block) -> None:
    assert not is_small((Text("short"), block), 1_000)


def test_many_blocks_are_judged_together() -> None:
    assert is_small((Text("x" * 300),) * 3, 1_000)
    assert not is_small((Text("x" * 300),) * 4, 1_000)
