"""The pure part: lines, tails, and the walk that names the first bad record."""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.records import chain
from bundle_router.core.records.chain import (
    FILES,
    BadLine,
    ChainCheck,
    File,
    Head,
    boundary,
    check,
    encode_record,
    genesis,
    lines_forward,
    link,
    parse,
    seal,
    seal_text,
    unseal,
    with_opening,
)
from bundle_router.core.values.canonical import digest
from hypothesis import given
from hypothesis import strategies as st

NAUGHTY = Path(__file__).parents[2] / "data" / "blns" / "blns.json"
texts = st.text(
    st.characters(codec="utf-8", categories=None)
    | st.sampled_from("\u2028\u2029\x85\x1b\r\n\ud800\u202e")
)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = texts.filter(lambda name: name not in ("seq", "prev", "hash"))
records = st.dictionaries(names, values, min_size=1, max_size=5)
Layout = list[list[bytes]]


@given(records, st.integers(0, 10**9))
def test_any_record_becomes_one_ascii_line_and_comes_back_whole(
    record: dict[str, Any], seq: int
) -> None:
    line, hash_ = seal(record, seq, genesis("r"))
    assert line.isascii()
    assert len(line.decode("ascii").splitlines()) == 1
    assert min(line[:-1]) >= 0x20
    sealed = unseal(line)
    assert (sealed.seq, sealed.prev, sealed.hash) == (seq, genesis("r"), hash_)
    assert sealed.record == json.loads(json.dumps(record)) | {
        "seq": seq,
        "prev": genesis("r"),
        "hash": hash_,
    }


@pytest.mark.skipif(
    not NAUGHTY.exists(), reason="the list of naughty strings is not in this checkout"
)
def test_every_naughty_string_as_key_and_value_stays_on_its_line() -> None:
    for text in json.loads(NAUGHTY.read_text("utf-8")):
        line, _ = seal({f"k{text}": text, "nested": [{text: [text]}]}, 0, "")
        assert line.count(b"\n") == 1
        assert unseal(line).record[f"k{text}"] == text


@given(records, st.data())
def test_a_line_with_one_byte_changed_is_not_accepted(
    record: dict[str, Any], data: st.DataObject
) -> None:
    line, _ = seal(record, 0, genesis("r"))
    at = data.draw(st.integers(0, len(line) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != line[at]))
    with pytest.raises(BadLine):
        unseal(line[:at] + bytes([other]) + line[at + 1 :])


@pytest.mark.parametrize(
    "record", [{}, {"seq": 1}, {"prev": ""}, {"hash": ""}, {"x": float("nan")}]
)
def test_what_can_not_be_a_record_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        seal(record, 0, "")


@given(
    st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=9),
    st.integers(1, 12),
    st.binary(),
)
def test_the_end_of_the_last_line_is_found_for_any_block_size(
    lines: list[bytes], block: int, rest: bytes
) -> None:
    torn = rest.replace(b"\n", b"")
    whole = b"".join(line + b"\n" for line in lines)

    def read(offset: int, length: int) -> bytes:
        return (whole + torn)[offset : offset + length]

    end = boundary(read, len(whole + torn), block=block)
    assert end == len(whole)


# --- the walk -------------------------------------------------------------------------------------


def layout(sides: Sequence[int]) -> tuple[Layout, Head]:
    """A run whose record i is in file `sides[i]`."""
    files: Layout = [[], []]
    prev = genesis("r")
    for seq, side in enumerate(sides):
        line, prev = seal({"type": "x", "text": string.ascii_letters}, seq, prev)
        files[side].append(line)
    return files, Head(len(sides), prev)


def walk(files: Layout, head: Head | None) -> ChainCheck:
    names: list[File] = ["routing", "calls"]
    return check(dict(zip(names, files, strict=True)), "r", head)


sides = st.lists(st.integers(0, 1), min_size=2, max_size=8)


@given(sides)
def test_an_untouched_run_is_good_to_its_end(sides: list[int]) -> None:
    files, head = layout(sides)
    assert walk(files, head) == ChainCheck(head.count, head.hash, None)


@given(sides, st.data())
def test_a_changed_record_is_named(sides: list[int], data: st.DataObject) -> None:
    files, head = layout(sides)
    seq = data.draw(st.integers(0, len(sides) - 1))
    lines = files[sides[seq]]
    index = sides[:seq].count(sides[seq])
    at = data.draw(st.integers(0, len(lines[index]) - 2))
    lines[index] = lines[index][:at] + bytes([lines[index][at] ^ 1]) + lines[index][at + 1 :]
    broken = walk(files, data.draw(st.sampled_from([head, None]))).broken
    assert broken is not None
    assert (broken.kind, broken.seq, broken.line) == ("changed", seq, index + 1)


@given(sides, st.data())
def test_a_dropped_record_is_named_and_at_the_end_it_is_cut_off(
    sides: list[int], data: st.DataObject
) -> None:
    files, head = layout(sides)
    seq = data.draw(st.integers(0, len(sides) - 1))
    del files[sides[seq]][sides[:seq].count(sides[seq])]
    broken = walk(files, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq) == ("cut_off" if seq == len(sides) - 1 else "dropped", seq)


@given(sides, st.data())
def test_a_cut_off_end_is_named_when_the_run_was_closed_and_not_knowable_otherwise(
    sides: list[int], data: st.DataObject
) -> None:
    _, head = layout(sides)
    keep = data.draw(st.integers(0, len(sides) - 1))
    shorter, _ = layout(sides[:keep])
    broken = walk(shorter, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq) == ("cut_off", keep)
    assert walk(shorter, None).broken is None


@given(sides, st.data())
def test_two_records_that_changed_places_are_named(sides: list[int], data: st.DataObject) -> None:
    files, head = layout(sides)
    lines = files[0] if len(files[0]) > 1 else files[1]
    if len(lines) < 2:
        return
    first = data.draw(st.integers(0, len(lines) - 2))
    second = data.draw(st.integers(first + 1, len(lines) - 1))
    seq = unseal(lines[first]).seq
    lines[first], lines[second] = lines[second], lines[first]
    broken = walk(files, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq, broken.line) == ("reordered", seq, second + 1)


@given(sides, st.data())
def test_a_record_that_stands_twice_is_named(sides: list[int], data: st.DataObject) -> None:
    files, _ = layout(sides)
    side = sides[0]
    index = data.draw(st.integers(0, len(files[side]) - 1))
    files[side].insert(index, files[side][index])
    broken = walk(files, None).broken
    assert broken is not None
    assert (broken.kind, broken.seq, broken.line) == (
        "repeated",
        unseal(files[side][index]).seq,
        index + 2,
    )


def test_a_record_added_after_the_run_was_closed_is_named() -> None:
    _, head = layout([0, 0, 1])
    longer, _ = layout([0, 0, 1, 1])
    broken = walk(longer, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq, broken.file, broken.line) == ("added", 3, "calls", 2)


def test_a_record_rewritten_together_with_its_hash_breaks_the_chain_behind_it() -> None:
    files, head = layout([0, 0, 0])
    files[0][1], _ = seal({"type": "forged"}, 1, unseal(files[0][0]).hash)
    broken = walk(files, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq) == ("changed", 2)


def test_a_last_record_rewritten_together_with_its_hash_does_not_fit_the_closed_run() -> None:
    files, head = layout([0, 0, 0])
    files[0][2], _ = seal({"type": "forged"}, 2, unseal(files[0][1]).hash)
    broken = walk(files, head).broken
    assert broken is not None
    assert (broken.kind, broken.seq) == ("changed", 2)


def test_the_records_of_one_run_do_not_pass_for_anothers() -> None:
    files, _ = layout([0])
    assert check({"routing": files[0]}, "another", None).broken is not None


# --- bounds ---------------------------------------------------------------------------------------


def test_a_line_has_at_most_its_bound_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    text = encode_record({"x": "y" * 100})
    whole = len(seal_text(text, 0, genesis("r"))[0])
    monkeypatch.setattr(chain, "MAX_LINE", whole)
    assert len(seal_text(text, 0, genesis("r"))[0]) == whole
    monkeypatch.setattr(chain, "MAX_LINE", whole - 1)
    with pytest.raises(ValueError, match=rf"over the {whole - 1} a line may have"):
        seal_text(text, 0, genesis("r"))


@pytest.mark.parametrize("seq", ["-1", "true", "1.0", '"1"', "null"])
def test_a_seq_that_is_no_whole_number_from_zero_is_no_record(seq: str) -> None:
    body = f'{{"x":1,"seq":{seq},"prev":"{genesis("r")}"'
    line = f'{body},"hash":"{digest(body + "}")}"}}\n'.encode()
    for read in (unseal, parse, link):
        with pytest.raises(BadLine, match="no whole number 'seq'"):
            read(line)
    broken = check({"routing": [line]}, "r", None).broken
    assert broken is not None
    assert broken.kind == "changed"


def forged(body: str) -> bytes:
    """A line whose hash is right, whatever it holds."""
    return f'{body},"hash":"{digest(body + "}")}"}}'.encode()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (forged('{"x":nonsense,"seq":0,"prev":"p"'), "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"seq":0,"x":"\xff"}', "not JSON"),
    ],
)
def test_what_is_no_object_is_no_record(line: bytes, why: str) -> None:
    with pytest.raises(BadLine, match=why):
        parse(line)


@pytest.mark.parametrize("prev", ["5", "null", "[]"])
def test_a_record_without_a_text_before_it_is_none(prev: str) -> None:
    for read in (unseal, link):
        with pytest.raises(BadLine, match="no text 'prev'"):
            read(forged(f'{{"x":1,"seq":0,"prev":{prev}'))


def test_a_record_that_was_written_in_another_order_is_linked_all_the_same() -> None:
    line = forged(f'{{"seq":3,"prev":"{genesis("r")}","x":1')
    linked = link(line)
    assert (linked.seq, linked.prev, linked.hash) == (3, genesis("r"), unseal(line).hash)


@pytest.mark.parametrize("block", [1, 3, 7, 100])
def test_reading_forward_ends_where_it_is_told_whatever_was_written_since(block: int) -> None:
    data = b"one\ntwo\nthree\n"
    end = len(b"one\ntwo\n")
    assert list(lines_forward(lambda at, length: data[at : at + length], end, block=block)) == [
        b"one\n",
        b"two\n",
    ]


def test_the_last_whole_line_is_looked_for_up_to_the_size_whatever_was_written_since() -> None:
    data = b"one\ntwo\nthree\n"
    for size, end in ((0, 0), (3, 0), (4, 4), (7, 4), (8, 8), (11, 8)):
        for block in (1, 2, 100):
            assert boundary(lambda at, length: data[at : at + length], size, block=block) == end


def test_what_is_broken_is_told_by_the_record_before_it_and_the_line_it_is_on() -> None:
    files, head = layout([0, 0, 0])
    first = files[0][0]
    other = seal({"type": "x"}, 0, genesis("another"))[0]
    assert "does not follow the start of this run" in str(walk([[other], []], None).broken)
    other = seal({"type": "x"}, 1, genesis("r"))[0]
    assert "does not follow record 0:" in str(walk([[first, other], []], None).broken)
    cut = check({"routing": [first]}, "r", None, Head(3, head.hash)).broken
    assert cut is not None
    assert (cut.kind, cut.seq, cut.file, cut.line) == ("cut_off", 1, "", 0)
    for count, (kind, seq) in {
        0: ("changed", 0),
        1: ("changed", 0),
        3: ("changed", 2),
        4: ("cut_off", 3),
    }.items():
        broken = walk([files[0][:count], []], Head(count, "sha256:other")).broken
        assert broken is not None
        assert (broken.kind, broken.seq, broken.file, broken.line) == (kind, seq, "", 0)
    longer, _ = layout([0, 0, 0, 0])
    assert "the last record is not the one" in str(walk(longer, Head(3, "sha256:other")).broken)
    assert "it is missing: record 2" in str(
        walk([[first, files[0][2], b"no record\n"], []], None).broken
    )


def test_the_files_of_a_run_have_the_names_they_have() -> None:
    assert FILES == {"routing": "routing.jsonl", "calls": "tool-calls.jsonl"}


def test_the_first_record_takes_the_digest_of_the_opening_along() -> None:
    assert json.loads(with_opening('{"a":1}', "sha256:0")) == {"a": 1, "run_json": "sha256:0"}
