"""Bytes in each form that servers send them in, at each place: an artifact, and no letter left."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import struct
import zlib
from typing import Any

import pytest
from bundle_router.adapters.media import describe
from bundle_router.core.results.shaping import shape
from bundle_router.core.servers.transport.blocks import blocks_of
from bundle_router.core.values import Data, Media, Text
from bundle_router.core.values.encoded_bytes import decode_base64, read_bytes, read_media


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    noise = random.Random(1).randbytes(24 * 25)
    rows = b"".join(b"\0" + noise[24 * row : 24 * row + 24] for row in range(24))
    head = struct.pack(">IIBBBBB", 24, 24, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg() -> bytes:
    scan = random.Random(2).randbytes(700).replace(b"\xff", b"\xfe")
    frame = b"\xff\xc0\0\x0b\x08\0\x14\0\x14\1\1\x11\0" + b"\xff\xda\0\x08\1\1\0\0\x3f\0"
    return b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0" + frame + scan + b"\xff\xd9"


def lines(text: str, end: str = "\n", width: int = 76) -> str:
    return end.join(text[start : start + width] for start in range(0, len(text), width))


PICTURES = {"image/png": png(), "image/jpeg": jpeg()}
MIME_TYPES = list(PICTURES)
LETTERS = re.compile(r"[A-Za-z0-9+/_=-]{30,}")

IN_TEXT = {
    "a URI": "see data:{type};base64,{base64} end",
    "in broken lines": "see data:{type};base64,{lines}\nend",
    "with the ends of lines of Windows": "see data:{type};base64,{crlf}\r\nend",
    "that begin after the comma": "see data:{type};base64,\n{lines}\nend",
    "indented, as a page has it": '<img src="data:{type};base64,\n    {indented}"/>',
    "with blanks in its head": "data:{type}; base64, {base64}",
    "with a character set": "data:{type};charset=utf-8;base64,{base64}",
    "without a whole type": "data:image;base64,{base64}",
    "URL-safe, unpadded": "data:{type};base64,{url_safe}",
    "with percent signs": "data:{type};base64,{percent}",
    "with ends of lines as percent signs": "data:{type};base64,{percent_lines}",
    "with the two letters of JSON": "data:{type};base64,{json_lines}",
    "bare lines": "image:\n{lines}\nend",
    "bare lines, unpadded": "image:\n{url_safe_lines}\n",
    "bare lines after a word": "image: {lines}\nend",
    "bare lines with the two letters of JSON": '{{"image": "{json_lines}"}}',
    "bare lines with the four of Windows": '{{"image": "{json_crlf}"}}',
    "JSON with a URI in lines": '{{"image": "data:{type};base64,{json_lines}"}}',
    "a literal of Python": "{{'image': b'{base64}'}}",
    "a Buffer written in JSON": '{{"image": {buffer}}}',
    "an indented Buffer": "here: {indented_buffer}",
    "a Buffer in JSON in JSON": "{quoted_buffer}",
}


@pytest.mark.parametrize("mime_type", MIME_TYPES)
@pytest.mark.parametrize("form", IN_TEXT)
def test_a_picture_in_a_text_is_taken_out_whole(form: str, mime_type: str) -> None:
    data = PICTURES[mime_type]
    plain = base64.b64encode(data).decode()
    url_safe = base64.urlsafe_b64encode(data).decode().rstrip("=")
    percent = plain.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")
    buffer = {"type": "Buffer", "data": list(data)}
    text = IN_TEXT[form].format(
        type=mime_type,
        base64=plain,
        lines=lines(plain),
        crlf=lines(plain, "\r\n"),
        indented=lines(plain, "\n    "),
        url_safe=url_safe,
        url_safe_lines=lines(url_safe),
        percent=percent,
        percent_lines=lines(plain, "%0A"),
        json_lines=lines(plain, "\\n"),
        json_crlf=lines(plain, "\\r\\n"),
        buffer=json.dumps(buffer, separators=(",", ":")),
        indented_buffer=json.dumps(buffer, indent=2),
        quoted_buffer=json.dumps({"x": json.dumps(buffer)}),
    )
    shaped = shape([Text(text)], 12_000, describe)
    assert [blob.data for blob in shaped.blobs] == [data]
    assert not LETTERS.findall(re.sub(r"\[artifact[^\]]*\]", "", shaped.text))
    assert "[artifact" in shaped.text
    assert ("end" in text) == ("end" in shaped.text)


def test_what_follows_lines_of_base64_stays_in_the_text() -> None:
    data = png()
    encoded = base64.b64encode(data).decode()
    reference = f"artifact:sha256:{hashlib.sha256(data).hexdigest()}"
    shaped = shape([Text(f"{lines(encoded)}\nThis chart is of May.")], 12_000, describe)
    assert shaped.text == (
        f"[artifact {reference} image/png {len(data):,} bytes 24x24]\nThis chart is of May."
    )


def test_a_buffer_in_json_in_a_text_leaves_json() -> None:
    sent = {"ok": True, "image": {"type": "Buffer", "data": list(png())}, "n": 1}
    for indent in (None, 2):
        shown = shape([Text(json.dumps(sent, indent=indent))], 12_000, describe).text
        read = json.loads(shown)
        assert read["image"].startswith("[artifact artifact:sha256:")
        assert (read["ok"], read["n"]) == (True, 1)


SMALL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FORMS: dict[str, Any] = {
    "base64": base64.b64encode(SMALL).decode(),
    "base64 with an end of line": base64.b64encode(SMALL).decode() + "\n",
    "base64 after a blank": " " + base64.b64encode(SMALL).decode(),
    "base64 with a tab inside": lines(base64.b64encode(SMALL).decode(), "\n\t", 40),
    "base64 with the two letters of JSON": lines(base64.b64encode(SMALL).decode(), "\\n", 40),
    "URL-safe, unpadded": base64.urlsafe_b64encode(SMALL).decode().rstrip("="),
    "a URI": "data:image/png;base64," + base64.b64encode(SMALL).decode(),
    "a URI in lines": "data:image/png;base64,\n"
    + lines(base64.b64encode(SMALL).decode(), "\n", 40),
    "a URI in capitals": "DATA:IMAGE/PNG;BASE64," + base64.b64encode(SMALL).decode(),
    "a Buffer": {"type": "Buffer", "data": list(SMALL)},
    "a Buffer of base64": {"type": "Buffer", "data": base64.b64encode(SMALL).decode()},
    "a list of bytes": list(SMALL),
    "a Uint8Array": {str(place): byte for place, byte in enumerate(SMALL)},
}
PLACES: dict[str, Any] = {
    "data": lambda value: {"type": "image", "data": value},
    "blob": lambda value: {"type": "image", "blob": value},
    "source": lambda value: {"type": "image", "source": {"type": "base64", "data": value}},
    "bytes": lambda value: {"type": "image", "source": {"bytes": value}},
    "image": lambda value: {"type": "image", "image": {"data": value}},
    "audio": lambda value: {"type": "audio", "data": value},
    "resource": lambda value: {"type": "resource", "resource": {"uri": "file:///a", "blob": value}},
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", FORMS)
def test_a_block_of_media_is_read_in_every_form_at_every_place(form: str, place: str) -> None:
    (block,) = blocks_of({"content": [PLACES[place](FORMS[form])]}, 10)
    assert isinstance(block, Media)
    assert block.data == SMALL


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "holder",
    [
        lambda value: {"image": value},
        lambda value: {"rows": [{"n": 1, "picture": value}]},
        lambda value: {"image": {"format": "png", "source": {"bytes": value}}},
        lambda value: {"type": "image", "source": {"type": "base64", "data": value}},
        lambda value: {"type": "image_url", "image_url": {"url": value}},
        lambda value: {"inlineData": {"mimeType": "image/png", "data": value}},
        lambda value: {"data": [{"b64_json": value}]},
        lambda value: {"type": "image", "mimeType": "image/png", "data": value},
    ],
)
def test_the_same_forms_in_json_become_the_same_artifact(form: str, holder: Any) -> None:
    shaped = shape([Data(holder(FORMS[form]))], 12_000, describe)
    assert [blob.data for blob in shaped.blobs] == [SMALL]
    assert not re.search(r"137,|iVBOR", shaped.text)


def test_the_type_said_beside_the_bytes_goes_before_that_of_the_uri() -> None:
    uri = FORMS["a URI"]
    said = read_media({"type": "image", "source": {"media_type": "image/webp", "data": uri}})
    assert said is not None
    assert said.mime_type == "image/webp"
    only_the_uri = read_media({"type": "image", "data": uri})
    assert only_the_uri is not None
    assert only_the_uri.mime_type == "image/png"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "url": "https://charts.example.com/c/17.png"},
        {"type": "image", "data": "https://charts.example.com/c/17.png"},
        {"type": "image", "source": {"type": "url", "url": "https://charts.example.com/c/17.png"}},
        {"type": "image", "data": [300, 1]},
        {"type": "audio", "data": "!!!", "mimeType": "audio/wav"},
    ],
)
def test_what_holds_no_bytes_is_kept_as_it_was_sent(block: dict[str, Any]) -> None:
    assert blocks_of({"content": [block]}, 10) == (Data(block),)


def test_a_resource_that_holds_no_bytes_keeps_its_address() -> None:
    resource = {"uri": "file:///a.png", "blob": "not base64!"}
    blocks = blocks_of({"content": [{"type": "resource", "resource": resource}]}, 10)
    assert blocks == (Data(resource),)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "mimeType": "image/png"},
        {"type": "image", "data": "", "mimeType": "image/png", "annotations": {"priority": 1}},
        {"type": "image", "data": None, "mimeType": "image/png"},
    ],
)
def test_media_without_content_is_a_note(block: dict[str, Any]) -> None:
    note = Text("[image block (image/png): empty, the server sent no data]")
    assert blocks_of({"content": [block]}, 10) == (note,)


@pytest.mark.parametrize(
    "value",
    [
        {"counts": list(range(100))},
        {"counts": [137, 80] * 50},
        {"counts": [255, 216, 300] * 40},
        {"0": 137, "1": 80},
        {"0": "first", "1": "second"},
        {"type": "Buffer", "data": [1, 2, 3]},
        {"type": "Buffer", "size": 3},
    ],
)
def test_numbers_that_are_no_media_stay(value: dict[str, Any]) -> None:
    shaped = shape([Data(value)], 12_000, describe)
    assert shaped.blobs == ()
    assert json.loads(shaped.text) == value


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], {}, [True], ["a"], [256], "é", "a b!"])
def test_what_is_in_no_form_of_bytes_is_none(value: object) -> None:
    assert read_bytes(value) is None


def test_a_letter_too_many_is_left_out() -> None:
    assert decode_base64("QUJDR") == b"ABC"
