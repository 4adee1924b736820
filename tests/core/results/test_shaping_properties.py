"""What holds of every shaped result, whatever the blocks."""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from bundle_router.adapters.media import describe
from bundle_router.core.results.shaping import json_text, shape
from bundle_router.core.results.shaping import payloads as payload_rules
from bundle_router.core.results.shaping.shape import _SHORT_PLAIN
from bundle_router.core.servers.transport.blocks import blocks_of
from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.visible import slices, visible
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from tests.profiles import examples

SETTINGS = examples(60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\x01\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\0\1\0\0"
NOTICE = re.compile(
    r"\n?\[[\d,]+ of [\d,]+ characters left out here\]\n|\n\[[^\[\]\n]*[\d,]+ of [\d,]+ items"
    r" shown\]"
    r"|\n\[full result: [^\n]*\]|\n\[artifacts in the part left out: [^\n]*\]"
)

# repeated short noise stands in for large media: what matters is the header, the length and the
# alphabet
media = st.builds(
    lambda head, tail, times: head + tail * times,
    st.sampled_from([PNG, WAV]),
    st.binary(min_size=1, max_size=64),
    st.integers(1, 40),
)
words = st.text(max_size=60) | st.text(alphabet='abc \n[]{}":,\\/+-_=%dt;', max_size=200)


def carried(data: bytes, how: int) -> Block:
    """The bytes in one of the ways that servers send them."""
    encoded = base64.b64encode(data).decode()
    ways: list[Block] = [
        Media(data, "image/png"),
        Text(f"before data:image/png;base64,{encoded} after"),
        Text(f"raw: {encoded}\nafter"),
        Text(json.dumps({"image": encoded}, indent=2)),
        Text(json.dumps({"image": f"data:a/b;base64,{encoded}"}).replace("/", "\\/")),
        Text(base64.urlsafe_b64encode(data).decode().rstrip("=")),
        Data({"type": "image", "data": encoded, "mimeType": "image/png"}),
        Data([[{"x": encoded}], f"see data:audio/wav;base64,{encoded}"]),
        Data({encoded: base64.encodebytes(data).decode()}),
    ]
    return ways[how]


blocks = st.lists(
    st.builds(carried, media, st.integers(0, 8))
    | st.builds(Text, words)
    | st.builds(Text, st.builds(lambda text, times: text * times, words, st.integers(1, 200)))
    | st.builds(
        Data,
        st.lists(
            st.dictionaries(st.text(max_size=8), st.integers() | words, max_size=4), max_size=40
        ),
    ),
    max_size=6,
)


def payloads(found: list[Block]) -> list[str]:
    """The base64 of every media that `carried` could have put there, in both alphabets."""
    datas = [block.data for block in found if isinstance(block, Media)]
    texts = [
        json.dumps(b.value) if isinstance(b, Data) else b.text
        for b in found
        if not isinstance(b, Media)
    ]
    runs = [
        run
        for text in texts
        for run in re.findall(r"[A-Za-z0-9+/_-]{256,}", text.replace("\\/", "/"))
    ]
    return [
        *(base64.b64encode(data).decode() for data in datas),
        *(run for run in runs if "iVBOR" in run[:300]),
    ]


@SETTINGS
@given(blocks, st.integers(200, 3000))
@example([carried(PNG * 20, 4)], 200)
def test_no_long_run_of_a_medias_base64_survives(found: list[Block], max_chars: int) -> None:
    text = shape(found, max_chars, describe).text.replace("\\/", "/")
    for run in re.findall(r"[A-Za-z0-9+/_-]{256,}", text):
        assert not any(run[:256] in payload for payload in payloads(found))


@SETTINGS
@given(blocks, st.integers(1, 3000))
def test_what_is_kept_never_exceeds_the_cap(found: list[Block], max_chars: int) -> None:
    shaped = shape(found, max_chars, describe)
    if shaped.text != "[the tool returned nothing]":
        assert len(NOTICE.sub("", shaped.text)) <= max_chars
    assert len(shaped.text) <= max(max_chars, 27) + 3000


@SETTINGS
@given(blocks, st.integers(1, 3000))
def test_every_artifact_is_named_in_the_text(found: list[Block], max_chars: int) -> None:
    shaped = shape(found, max_chars, describe)
    assert len({blob.sha256 for blob in shaped.blobs}) == len(shaped.blobs)
    assert all(blob.sha256 in shaped.text for blob in shaped.blobs)


@SETTINGS
@given(blocks, st.integers(1, 3000))
def test_the_same_blocks_give_the_same_result(found: list[Block], max_chars: int) -> None:
    assert shape(found, max_chars, describe) == shape(list(found), max_chars, describe)


@SETTINGS
@given(st.text(max_size=300))
def test_shaping_short_text_a_second_time_changes_nothing(text: str) -> None:
    once = shape([Text(text)], 12_000, describe).text
    assert shape([Text(once)], 12_000, describe).text == once


@SETTINGS
@given(
    st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=200)
)
def test_printable_ascii_is_never_changed(text: str) -> None:
    assert shape([Text(text)], 12_000, describe).text == text


@SETTINGS
@given(st.text())
def test_visible_text_has_a_utf8_form_and_is_stable(text: str) -> None:
    seen = visible(text)
    seen.encode("utf-8")
    assert visible(seen) == seen


@SETTINGS
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        ),
        max_leaves=30,
    ).filter(lambda value: isinstance(value, list | dict))
)
def test_a_value_and_its_text_are_shown_once(value: Any) -> None:
    alone = shape([Data(value)], 12_000, describe).text
    assert shape([Text(json.dumps(value, indent=2)), Data(value)], 12_000, describe).text == alone


# What was one regular expression each, before they were looked for piece by piece. A run that is
# too short is not tried again from each of its characters: none of them has more to come than the
# first.
RUNS = re.compile(r"(?<![A-Za-z0-9+/_-])(?:[A-Za-z0-9+_-]|\\?/){256,}+={0,2}")
BLOCKS = re.compile(
    r"(?:(?<![A-Za-z0-9+/_=-])|(?<=\\n))[A-Za-z0-9+/_-]{60,80}(?:\r?\n|(?:\\r)?\\n)"
    r"(?:[ \t]{0,16}[A-Za-z0-9+/_-]{60,80}(?:\r?\n|(?:\\r)?\\n)){2,}+"
    r"[ \t]{0,16}[A-Za-z0-9+/_-]{0,80}={0,2}"
)
pieces = st.builds(
    lambda piece, times: piece * times,
    st.sampled_from(
        [
            "A",
            "b/",
            "\\/",
            "\\",
            "=",
            "-",
            " ",
            "\n",
            "é",
            "QUJD" * 19 + "\n",
            " " + "x" * 60 + "\r\n",
            "QUJD" * 19 + "\\n",
            "x" * 60 + "\\r\\n",
        ]
    ),
    st.sampled_from([1, 2, 3, 63, 64, 127, 128, 200, 255, 256, 257, 70_000]),
)


@SETTINGS
@given(st.lists(pieces, max_size=8).map("".join))
@example("A" * 255 + "\\/")
@example("\\/" * 256 + "==")
@example("x " + "\\" + "/" * 256)
def test_payloads_are_found_piece_by_piece_as_they_were_in_one_go(text: str) -> None:
    assert list(payload_rules._runs(text)) == [found.span() for found in RUNS.finditer(text)]
    assert list(payload_rules._line_blocks(text)) == [
        found.span() for found in BLOCKS.finditer(text)
    ]
    assert "".join(slices(text)) == text


HIDDEN = [
    "a",
    "é",
    " ",
    "\r",
    "\n",
    "\u202e",
    "\u200d",
    "\ufe0f",
    "#",
    "\U0001f3f4",
    "\U000e0067",
    "\U0001f469",
    "中",
]


@pytest.mark.parametrize("unit", ["x", "\u200b", "\r\n", "e\u0301 ", "\U0001f468\u200d\U0001f469 "])
def test_no_text_holds_the_interpreter_longer_than_a_slice_takes(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["bundle_router.core.values.visible"]
    real, seen = vars(module)["_escape_invisible"], list[int]()

    def recorded(part: str) -> str:
        seen.append(len(part))
        return str(real(part))

    monkeypatch.setattr(module, "_escape_invisible", recorded)
    long, few = unit * (300_000 // len(unit)), unit * 10
    shown = visible(long)
    assert max(seen) <= 2 * 65_536 + 1
    assert "".join(slices(long)) == long
    assert shown == visible(few)[: len(visible(few)) // 10] * (300_000 // len(unit))


@SETTINGS
@given(
    st.lists(st.sampled_from(HIDDEN), max_size=30).map("".join),
    st.integers(64 * 1024 - 20, 64 * 1024 + 20),
)
def test_where_a_long_text_is_sliced_changes_nothing_of_what_is_made_visible(
    text: str, before: int
) -> None:
    assert visible("x" * before + text) == "x" * before + visible("x" + text)[1:]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


@SETTINGS
@given(
    st.dictionaries(st.text(max_size=4), json_values, max_size=4),
    st.sampled_from([None, 1]),
    st.integers(0, 30),
)
def test_long_json_is_read_and_written_as_short_json_is(
    value: Any, indent: int | None, cut: int
) -> None:
    value = {"filler": ["x" * 500] * 300, **value, "last": 1}
    text = json.dumps(value, indent=indent)
    assert json_text.parse(text) == value
    assert json_text.parse(text[: len(text) - cut - 1]) is None
    assert json_text.parse(text + "x" * cut) == (None if cut else value)
    assert json_text.dump(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize(
    "value",
    [{"a": "\ud800"}, {"a": float("nan")}, {"a": {}, "b": []}, [1 << 70, -1e300], "é\n", []],
)
def test_json_with_indents_is_as_python_writes_it(value: Any) -> None:
    assert json_text.dump(value, indented=True) == json.dumps(value, ensure_ascii=False, indent=1)


def test_a_large_value_is_written_once_and_once_more_for_its_artifact() -> None:
    value = {"rows": [{"id": n, "on": True} for n in range(20_000)]}
    written: list[bool] = []

    def note(frame: Any, event: str, _argument: Any) -> None:
        if (
            event == "call"
            and frame.f_code is json_text.dump.__code__
            and frame.f_locals["value"] is value
        ):
            written.append(frame.f_locals["indented"])

    sys.setprofile(note)
    try:
        shaped = shape((Data(value),), 12_000, describe)
    finally:
        sys.setprofile(None)
    assert written == [False, True]
    assert shaped.original_bytes == len(json.dumps(value, separators=(",", ":")))


def test_a_value_without_payloads_is_shaped_without_being_copied() -> None:
    value = {"rows": [{"id": 1, "text": "x " * 150, "tags": ["a", "b"]}] * 50}
    found = payload_rules.References(describe)
    assert found.value(value) is value
    with_one = {"rows": ["data:image/png;base64," + base64.b64encode(PNG).decode()]}
    assert found.value(with_one)["rows"][0].startswith("[artifact ")


@pytest.mark.parametrize("size", [0, 10, 196_607, 196_608, 196_609, 500_000])
def test_media_are_decoded_slice_by_slice_as_in_one_go(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    encoded = base64.b64encode(data[:size] or b"x").decode()
    (block,) = blocks_of(
        {"content": [{"type": "image", "data": encoded, "mimeType": "image/png"}]}, 10
    )
    assert isinstance(block, Media)
    assert block.data == (data[:size] or b"x")
    if size > 196_608:
        broken = encoded[:262_143] + "=" + encoded[262_144:]
        sent = {"type": "image", "data": broken, "mimeType": "image/png"}
        (block,) = blocks_of({"content": [sent]}, 10)
        assert block == Data(sent), "padding in the middle is no base64: kept as it was sent"


# --- what a large value costs, and what is left of it ---------------------------------------------


def nested(levels: int, width: int) -> Any:
    return (
        {"items": [nested(levels - 1, width) for _ in range(width)]}
        if levels
        else {"id": 1, "name": "short"}
    )


def calls_of_python(work: Callable[[], Any]) -> int:
    """Return how many functions of Python were entered."""
    entered: list[str] = []
    sys.setprofile(
        lambda _frame, event, _argument: entered.append(event) if event == "call" else None
    )
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(entered)


def test_a_deep_value_is_gone_through_a_few_times_however_deep_it_is() -> None:
    value = nested(4, 10)
    objects = sum(10**level for level in range(5))
    assert calls_of_python(lambda: shape([Data(value)], 1_000, describe)) < 8 * objects


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("more", ["", ",1" * 5_000])
def test_what_is_no_number_is_null_in_json(number: str, more: str) -> None:
    assert json_text.parse(f'{{"a": [{number}{more}]}}')["a"][0] is None


plain_or_not = st.recursive(
    st.none()
    | st.integers()
    | st.sampled_from(["short", "a text of words " * 8, "data:,x", "QUJD" * 20, "word " * 60])
    | st.sampled_from(
        ["data:image/png;base64," + base64.b64encode(PNG).decode(), base64.b64encode(PNG).decode()]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["a", "data", "blob", "type", "mimeType", "DATA:,x", "k" * 70]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@SETTINGS
@given(plain_or_not)
@example({"type": "image", "data": "QUJD"})
@example({"uri": "u", "blob": "QUJD"})
def test_a_value_that_is_called_plain_has_no_payload(value: Any) -> None:
    if json_text.is_plain(value):
        found = payload_rules.References(describe)
        assert found.value(value) == value
        assert not found.blobs


@pytest.mark.parametrize("levels", [99, 100, 101, 102])
def test_a_value_is_called_plain_down_to_the_level_where_more_is_left_out(levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    left_out = payload_rules.References(describe).value(value) is not value
    assert not (left_out and json_text.is_plain(value))
    assert left_out == (levels > 100)


def test_a_long_text_is_not_gone_over_to_learn_that_it_is_not_short() -> None:
    """One regex over all of it would hold the interpreter, and with it every event loop."""
    text, began = "some words of a log\n" * 2_000_000, time.thread_time()
    assert _SHORT_PLAIN.fullmatch(text) is None
    assert time.thread_time() - began < 0.05
