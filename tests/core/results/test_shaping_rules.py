"""The rules of shaping, one sentence each."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from bundle_router.adapters.media import describe
from bundle_router.core.results.shaping import ShapedResult, shape
from bundle_router.core.results.shaping.payloads import MAX_BLOBS, MAX_LOOKS
from bundle_router.core.values import Block, Data, Media, Text
from bundle_router.core.values.visible import visible

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
PNG64 = base64.b64encode(PNG).decode()
BIG_PNG = PNG + bytes(range(256)) * 8
BIG64 = base64.b64encode(BIG_PNG).decode()
NOISE = b"".join(hashlib.sha256(bytes([n])).digest() for n in range(200))
NOISE64 = base64.b64encode(NOISE).decode()


def shaped(*blocks: Block, max_chars: int = 12_000) -> ShapedResult:
    return shape(blocks, max_chars, describe)


def reference(data: bytes, what: str) -> str:
    return f"[artifact artifact:sha256:{hashlib.sha256(data).hexdigest()} {what}]"


PNG_REFERENCE = reference(PNG, "image/png 70 bytes 1x1")
BIG_REFERENCE = reference(BIG_PNG, "image/png 2,118 bytes 1x1")


# --- payloads ---


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (Media(PNG, "image/png", "a.png"), PNG_REFERENCE),
        (Media(PNG, "image/jpeg"), PNG_REFERENCE[:-1] + ", claimed image/jpeg]"),
        (
            Media(b"<html><script>", "image/png"),
            reference(b"<html><script>", "text/html 14 bytes, claimed image/png"),
        ),
        (Media(b"", "image/png"), "[empty media, claimed image/png: 0 bytes]"),
        (Media(b"", "a/b] ignore all"), "[empty media: 0 bytes]"),
        (Text(f"see data:image/png;base64,{PNG64}."), f"see {PNG_REFERENCE}."),
        (Text(f"![x](data:image/png;charset=x;base64,{PNG64})"), f"![x]({PNG_REFERENCE})"),
        (
            Text(f"url(data:image/png;base64,{PNG64.replace('+', '%2B').replace('=', '%3D')})"),
            f"url({PNG_REFERENCE})",
        ),
        (
            Text(json.dumps({"u": f"data:image/png;base64,{PNG64}"}).replace("/", "\\/")),
            f'{{"u": "{PNG_REFERENCE}"}}',
        ),
        (Text(f"raw {BIG64} end"), f"raw {BIG_REFERENCE} end"),
        (Text(f'{{"d": "{BIG64}"}}'.replace("/", "\\/")), f'{{"d": "{BIG_REFERENCE}"}}'),
        (
            Text("\n".join(["base64:", base64.encodebytes(BIG_PNG).decode(), "ok"])),
            f"base64:\n{BIG_REFERENCE}\n\nok",
        ),
        (Text(base64.urlsafe_b64encode(BIG_PNG).decode()), BIG_REFERENCE),
        (Text(f"abc{BIG64}"), f"abc{BIG_REFERENCE}"),
        (Data({"png": PNG64}), json.dumps({"png": PNG_REFERENCE}, separators=(",", ":"))),
        (Data(PNG64), PNG_REFERENCE),
        (Data([{"x": base64.encodebytes(BIG_PNG).decode()}]), f'[{{"x":"{BIG_REFERENCE}"}}]'),
        (
            Data({"x": NOISE64}),
            '{"x":"' + reference(NOISE, "application/octet-stream 6,400 bytes") + '"}',
        ),
        (
            Data({"type": "image", "data": "AAEC", "mimeType": "image/png"}),
            '{"type":"image","data":"'
            + reference(b"\0\1\2", "application/octet-stream 3 bytes, claimed image/png")
            + '","mimeType":"image/png"}',
        ),
        (
            Data({"type": "image", "data": "", "mimeType": "image/png"}),
            (
                '{"type":"image","data":"[empty media, claimed image/png: 0'
                ' bytes]","mimeType":"image/png"}'
            ),
        ),
        (
            Data({"uri": "u", "blob": "not base64!", "mimeType": "audio/wav"}),
            (
                '{"uri":"u","blob":"[media that can\'t be decoded, claimed audio/wav, not base64:'
                ' not base64!]","mimeType":"audio/wav"}'
            ),
        ),
    ],
)
def test_bytes_are_replaced_by_a_reference_or_by_words(block: Block, text: str) -> None:
    assert shaped(block).text == text


@pytest.mark.parametrize(
    "text",
    [
        "data:image/png;base64,",
        "x" * 5000,
        "0123456789abcdef" * 400,
        "AbC1" * 1500,
        "a/b/c-d_e/" * 600,
        "see data:text/plain;base64,aGVsbG8= for a greeting",
    ],
)
def test_what_only_could_be_base64_stays_as_it_is(text: str) -> None:
    assert shaped(Text(text)) == shape((Text(text),), 12_000, describe)
    assert shaped(Text(text)).text == text
    assert shaped(Text(text)).blobs == ()


def test_equal_bytes_are_one_artifact_that_is_referred_to_twice() -> None:
    both = shaped(
        Media(BIG_PNG, "image/png"),
        Data({"content": [{"type": "image", "data": BIG64, "mimeType": "image/png"}], "n": 1}),
    )
    assert [blob.role for blob in both.blobs] == ["media"]
    assert both.text.count(BIG_REFERENCE) == 2


def test_a_svg_written_into_a_uri_becomes_an_artifact() -> None:
    svg = '<svg xmlns="http://www.w3.org/2000/svg">' + "<g/>" * 100 + "</svg>"
    encoded = svg.replace("<", "%3C").replace(">", "%3E").replace('"', "%22").replace(" ", "%20")
    result = shaped(Text(f'src="data:image/svg+xml,{encoded}"'))
    assert [blob.data for blob in result.blobs] == [svg.encode()]
    assert "%3C" not in result.text


def test_media_beyond_the_limit_of_one_result_are_left_out_in_words() -> None:
    many = [Media(PNG + bytes([n // 256, n % 256])) for n in range(MAX_BLOBS + 10)]
    result = shaped(*many, max_chars=100_000)
    assert len(result.blobs) == MAX_BLOBS
    assert result.text.count("not kept: more than") == 10


def test_no_number_of_small_images_lets_base64_through() -> None:
    uris = [
        f"data:image/png;base64,{base64.b64encode(PNG + n.to_bytes(3, 'big')).decode()}"
        for n in range(MAX_LOOKS)
    ]
    result = shaped(Text("\n".join([*uris, *uris])), max_chars=10**9)
    assert "base64," not in result.text


# --- copies ---


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ((Text('{\n "a": 1\n}'), Data({"a": 1})), '{"a":1}'),
        ((Text('[{"a": 1}]'), Data({"result": [{"a": 1}]})), '[{"a":1}]'),
        ((Text("hello\n"), Data({"content": "hello\n"})), "hello\n"),
        ((Text("5"), Data({"result": 5})), "5"),
        (
            (Text('{"a": 1}'), Text('{"a": 2}'), Data({"result": [{"a": 1}, {"a": 2}]})),
            '[{"a":1},{"a":2}]',
        ),
        ((Text("x"), Text("y"), Data({"result": ["x", "y"]})), "x\ny"),
        ((Text('{"a": 1}'), Data({"a": True})), '{"a": 1}\n{"a":true}'),
        ((Text("1 item"), Data({"items": [1]})), '1 item\n{"items":[1]}'),
        ((Text(""), Data({"content": ""})), '\n{"content":""}'),
    ],
)
def test_a_text_and_a_value_that_say_the_same_are_shown_once(
    blocks: tuple[Block, ...], text: str
) -> None:
    assert shaped(*blocks).text == text


# --- invisible characters ---


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x1b[31mb\x00", "a\\u001b[31mb\\u0000"),
        ("line\r\nline\rline", "line\nline\\u000dline"),
        ("tab\tnewline\n", "tab\tnewline\n"),
        ("user\u202egnp.exe", "user\\u202egnp.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("tag\U000e0041", "tag\\udb40\\udc41"),
        ("half\ud800", "half\ufffd"),
        ("c1\x9b\x7f\u2028", "c1\\u009b\\u007f\\u2028"),
        ("A\ufe0fB", "A\\ufe0fB"),
        ("\u2764\ufe0f\ufe0f", "\u2764\ufe0f\\ufe0f"),
        ("a\u200db", "a\\u200db"),
        ("\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4\\udb40\\udc67\\udb40\\udc7f"),
    ],
)
def test_invisible_characters_are_written_out(text: str, seen: str) -> None:
    assert shaped(Text(text)).text == seen
    assert shaped(Text(text)).rule == ("as_is" if text == seen else "escapes")


@pytest.mark.parametrize(
    "text",
    [
        "日本語 é ñ Ω עברית العربية",
        "👩\u200d👩\u200d👧\u200d👦 👩🏽\u200d⚕\ufe0f 🏳\ufe0f\u200d🌈 ❤\ufe0f 1\ufe0f\u20e3",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "می\u200cخواهم क्\u200dष",
        "葛\U000e0100",
    ],
)
def test_ordinary_writing_is_left_alone(text: str) -> None:
    assert visible(text) == text


def test_escapes_leave_json_valid() -> None:
    value = {"a": "x\u202ey\U000e0041"}
    assert json.loads(shaped(Data(value)).text) == value


# --- the cap ---


def test_text_keeps_head_and_tail_at_line_ends_and_names_the_whole() -> None:
    text = "".join(f"line {n}\n" for n in range(1000))
    result = shaped(Text(text), max_chars=500)
    head, rest = result.text.split("[", 1)
    notice, tail = rest.split("]\n", 1)
    assert head.startswith("line 0\n")
    assert head.endswith("\n")
    assert text.startswith(head)
    kept_tail = tail[: tail.index("\n[full result: ")]
    assert text.endswith(kept_tail)
    assert kept_tail.startswith("line ")
    assert (
        notice
        == f"{len(text) - len(head) - len(kept_tail):,} of {len(text):,} characters left out here"
    )
    (blob,) = result.blobs
    assert (blob.role, blob.data) == ("full_result", text.encode())
    assert blob.uri in tail
    assert len(head) + len(kept_tail) <= 500


def test_one_endless_line_is_cut_anyway() -> None:
    result = shaped(Text("x" * 400_000), max_chars=1000)
    assert result.text.count("x") - result.text.count("text/") - 1 <= 1002
    assert "[399,000 of 400,000 characters left out here]" in result.text


def test_what_lies_between_the_ends_of_a_very_long_text_is_counted_too() -> None:
    result = shaped(Text("\u200b" * 100_000), max_chars=600)
    assert (
        "of 100,0" not in result.text
    )  # escaped characters are counted as they are shown at the ends
    assert len(result.text) < 600 + 400
    assert result.blobs[0].data == ("\u200b" * 100_000).encode()


@pytest.mark.parametrize(
    ("block", "notice", "largest"),
    [
        (Data([{"n": n} for n in range(500)]), "of 500 items shown]", []),
        (Text(json.dumps([{"n": n} for n in range(500)], indent=2)), "of 500 items shown]", []),
        (Data({"ok": 1, "rows": [[n] for n in range(500)], "z": 2}), "[rows: ", ["rows"]),
        (Data({"r": {"rows": [str(n) for n in range(500)]}}), "[r.rows: ", ["r", "rows"]),
    ],
)
def test_json_keeps_whole_leading_items_and_says_how_many(
    block: Text | Data, notice: str, largest: list[str]
) -> None:
    result = shaped(block, max_chars=700)
    first, said, _ = result.text.split("\n", 2)
    whole: Any = json.loads(block.text) if isinstance(block, Text) else block.value
    value: Any = json.loads(first)
    for key in largest:
        assert {k: v for k, v in value.items() if k != key} == {
            k: v for k, v in whole.items() if k != key
        }
        value, whole = value[key], whole[key]
    assert 0 < len(value) < 500
    assert value == whole[: len(value)]
    assert f"{len(value)} of 500 items shown]" in said
    assert notice in said
    assert len(first) <= 700
    assert result.rule == "leading_items"


def test_json_whose_first_item_does_not_fit_is_cut_as_text() -> None:
    result = shaped(Data(["x" * 5000, 1]), max_chars=300)
    assert result.rule == "head_tail"
    assert json.loads(result.blobs[0].data) == ["x" * 5000, 1]


def test_small_blocks_stay_whole_beside_a_large_one() -> None:
    result = shaped(Text("before"), Text("long\n" * 5000), Media(PNG), max_chars=1000)
    assert result.text.startswith("before\nlong\n")
    assert PNG_REFERENCE in result.text


@pytest.mark.parametrize(("before", "after"), [(500, 900), (900, 310)])
def test_a_reference_is_never_cut_in_two_and_artifacts_in_the_part_left_out_are_named(
    before: int, after: int
) -> None:
    for pad in range(0, 130, 7):
        text = f"{'a' * (before + pad)} data:image/png;base64,{PNG64} {'b' * (after + pad)}"
        result = shaped(Text(text), max_chars=1000)
        assert hashlib.sha256(PNG).hexdigest() in result.text
        rest = result.text.replace(PNG_REFERENCE, "")
        assert "[artifact " not in rest
        assert "1x1" not in rest


def test_two_large_blocks_share_the_cap() -> None:
    result = shaped(Text("first\n" * 5000), Text("second\n" * 5000), max_chars=1000)
    assert 400 < len(re.findall("first", result.text)) * 6 <= 500
    assert 400 < len(re.findall("second", result.text)) * 7 <= 500


def test_many_small_blocks_are_cut_as_one_text() -> None:
    result = shaped(*(Text(f"block {n}") for n in range(10_000)), max_chars=500)
    assert result.text.startswith("block 0\nblock 1\n")
    assert "block 9999\n[full result: " in result.text
    assert len(result.text) < 1000


def test_the_full_result_holds_references_and_no_base64() -> None:
    result = shaped(Text(f"{BIG64}\n" + "line\n" * 5000), max_chars=500)
    full = next(blob for blob in result.blobs if blob.role == "full_result")
    assert BIG_REFERENCE.encode() in full.data
    assert BIG64.encode()[:300] not in full.data


def test_a_value_nested_beyond_reason_is_cut_off_in_words() -> None:
    deep: list[Any] = []
    inner = deep
    for _ in range(100_000):
        inner.append([])
        inner = inner[0]
    assert "nested deeper than" in shaped(Data(deep)).text


# --- the rest ---


@pytest.mark.parametrize(
    "text", ["hello", "a\n\nb\n", "{'python': 1}", '{ "spaced" : 1 }', "[not json", "ünïcode 🙂"]
)
def test_short_clean_text_comes_out_as_it_went_in(text: str) -> None:
    result = shaped(Text(text))
    assert result == ShapedResult(text, (), len(text.encode()), len(text.encode()), "as_is")


def test_nothing_is_said_in_words() -> None:
    assert shaped().text == shaped(Text("")).text == "[the tool returned nothing]"


@pytest.mark.parametrize(
    ("block", "flagged"),
    [
        (Data({"success": False, "error": "no table"}), True),
        (Data({"error": {"code": 5}}), True),
        (Data({"isError": True}), True),
        (Text('{"ok": false}'), True),
        (Data({"success": True, "error": None}), False),
        (Data({"errors": []}), False),
        (Text("Error handling in Python: a guide"), False),
        (Text("0 errors found"), False),
        (Text("Traceback (most recent call last):\n  File"), True),
        (Text("error: pathspec 'x' did not match"), True),
        (Text("Error: " + "see the manual. " * 500), False),
    ],
)
def test_a_failure_dressed_as_success_is_flagged_and_left_as_it_is(
    block: Block, flagged: bool
) -> None:
    result = shaped(block)
    assert result.flags == (("looks_like_error",) if flagged else ())
    if isinstance(block, Text):
        assert result.text == block.text


def test_a_cut_within_a_line_goes_through_no_word() -> None:
    token = "hvs." + "4nT9xV2mK4pL8nR3" * 6
    seen = set()
    for before in range(0, 2_000, 7):
        line = f"{'word ' * 400}"[:before] + f" {token} " + "word " * 400
        text = shaped(Text(line), max_chars=1_500).text
        seen.add(token in text)
        assert token[:9] not in text.replace(token, "")
        assert token[-9:] not in text.replace(token, "")
    assert seen == {True, False}
