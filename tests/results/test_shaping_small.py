"""Which results are shaped at once, and which in a thread; how large JSON is written in pieces."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.results.shaping import is_small
from bundle_router.core.results.shaping.json_text import encode_small
from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.canonical import PIECE, encode, encode_large


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


LARGE: dict[str, Any] = {
    "small objects": [{"id": n, "at": [n, -n]} for n in range(9_000)],
    "names": {f"name{n * 7_919 % 30_000}": n for n in range(30_000)},
    "numbers for names": {n: str(n) for n in range(9_000)},
    "lists in lists": [[[n] * 40 for n in range(40)] for _ in range(40)],
    "numbers of many digits": {"v": [10**4_000] * 250},
    "one below the other": {
        "a": {"b": [{"c": list(range(30_000))}, "d"]},
        "e": (1.5, None, "\u2028ü\ud800"),
    },
    "a single text": {"a": "x" * 200_000},
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_value_is_written_as_a_small_one_is_but_in_small_pieces(name: str) -> None:
    value = LARGE[name]
    assert encode_large(value) == encode(value)
    written: list[str] = []

    def write(part: Any) -> str:
        written.append(encode_small(part))
        return written[-1]

    assert encode_large(value, write, list) == encode_small(value)
    if name != "a single text":  # the codec holds the interpreter until it is through
        assert max(map(len, written)) <= 2 * PIECE < len(encode(value))


@pytest.mark.parametrize("fault", [float("nan"), {1}, {(1, 2): 3}, {1: 2, "1": 2}])
def test_what_is_no_json_is_none_in_pieces_either(fault: Any) -> None:
    value = [*range(9_000), fault]
    with pytest.raises((TypeError, ValueError)) as whole:
        encode(value)
    with pytest.raises(whole.type):
        encode_large(value)


def test_a_value_that_holds_itself_is_refused_in_pieces_too() -> None:
    itself: list[Any] = ["x" * 20_000]
    itself += [itself, itself]
    with pytest.raises(ValueError, match="Circular"):
        encode_large(itself)
