"""Pictures that no provider takes are told, not sent."""

from __future__ import annotations

import struct
import zlib

import pytest
from bundle_router.adapters.media import describe
from bundle_router.core.results.shaping.media_forms import media_form
from bundle_router.core.results.shaping.picture_faults import picture_fault

URI = "artifact:sha256:" + "ab" * 32


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int = 300, height: int = 300, depth: int = 8, more: bytes = b"") -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, 0, 0, 0, 0)
    rows = (b"\0" + b"\xaa" * (width * depth // 8)) * height
    body = chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def jpeg(components: int = 3, thumbnail: bytes = b"") -> bytes:
    app = b"\xff\xe1" + struct.pack(">H", 2 + len(thumbnail)) + thumbnail
    frame = struct.pack(">HBHHB", 8 + 3 * components, 8, 32, 32, components)
    frame = b"\xff\xc0" + frame + b"\1\x11\0" * components
    return (
        b"\xff\xd8" + app + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0" + b"pixels" * 20 + b"\xff\xd9"
    )


def gif(pictures: int) -> bytes:
    control = b"!\xf9\x04\0\0\0\0\0"
    picture = b",\0\0\0\0\x10\0\x10\0\0\2\3abc\0"
    head = b"GIF89a\x10\0\x10\0\x80\0\0" + b"\0\0\0\xff\xff\xff"
    return head + (control + picture) * pictures + (b"" if pictures else control) + b";"


def webp(flags: int) -> bytes:
    body = b"WEBPVP8X\x0a\0\0\0" + bytes([flags]) + b"\0" * 9 + b"VP8 \x04\0\0\0abcd"
    return b"RIFF" + struct.pack("<I", len(body)) + body


NOT_WHOLE = "it is not whole"
ONLY_HEAD = "it holds no picture"
FAULTY = {
    "a PNG that is too wide": (png(9_000, 20), "it has 9,000 x 20 pixels"),
    "a PNG that is too high": (png(20, 9_000), "it has 20 x 9,000 pixels"),
    "the head of a PNG": (png()[:33], ONLY_HEAD),
    "a PNG cut in half": (png()[: len(png()) // 2], NOT_WHOLE),
    "a PNG without its end": (png()[:-12], NOT_WHOLE),
    "a PNG of 16 bits": (png(depth=16), "it has 16 bits a channel"),
    "a PNG that moves": (png(more=chunk(b"acTL", b"\0" * 8)), "it is animated"),
    "the head of a JPEG": (jpeg()[:25], ONLY_HEAD),
    "a JPEG cut in half": (jpeg()[:-60], NOT_WHOLE),
    "a JPEG cut behind its thumbnail": (jpeg(thumbnail=jpeg())[:-60], NOT_WHOLE),
    "a JPEG for print": (jpeg(4), "it has the four inks of print"),
    "a GIF without a picture": (gif(0), ONLY_HEAD),
    "a GIF cut in half": (gif(1)[:-4], NOT_WHOLE),
    "a GIF that moves": (gif(2), "it is animated"),
    "the head of a WebP": (b"RIFF\x16\0\0\0" + webp(0)[8:30], ONLY_HEAD),
    "a WebP cut in half": (webp(0)[:-4], NOT_WHOLE),
    "a WebP that moves": (webp(2), "it is animated"),
}
FINE = {
    "a PNG": png(),
    "a PNG of 8,000 pixels": png(8_000, 1),
    "a PNG with more behind it": png() + b"more",
    "a JPEG": jpeg(),
    "a JPEG with a thumbnail": jpeg(thumbnail=jpeg()),
    "a grey JPEG": jpeg(1),
    "a GIF": gif(1),
    "a WebP": webp(0),
    "the smallest WebP": bytes.fromhex(
        "524946461a000000574542505650384c0d0000002f0000001007101111888808fe07"
    ),
}


@pytest.mark.parametrize("what", FAULTY)
def test_a_picture_that_no_provider_takes_is_a_sentence(what: str) -> None:
    data, reason = FAULTY[what]
    facts = describe(data)
    assert picture_fault(data, facts.width, facts.height).startswith(reason)


@pytest.mark.parametrize("what", FINE)
def test_a_whole_picture_has_no_fault(what: str) -> None:
    facts = describe(FINE[what])
    assert picture_fault(FINE[what], facts.width, facts.height) == ""


def test_what_is_in_place_of_the_picture_in_each_form() -> None:
    data = png(9_000, 20)
    sentence = (
        f"[{URI} is image/png, {len(data):,} bytes, and can't be shown: it has 9,000 x 20 pixels,"
        " and at most 8,000 a side are taken]"
    )
    for form in ("openai", "anthropic"):
        assert media_form(URI, data, describe(data), form) == {"type": "text", "text": sentence}
    assert media_form(URI, data, describe(data), "mcp")["type"] == "resource_link"


def test_no_bytes_behind_a_signature_can_raise() -> None:
    for whole in (png(), jpeg(), gif(2), webp(2)):
        for end in range(len(whole[:400])):
            picture_fault(whole[:end], None, None)


@pytest.mark.parametrize("brand", [b"heic", b"avif"])
def test_heic_and_avif_are_said_to_be_no_such_content(brand: bytes) -> None:
    data = b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0mif1" + brand + b"\0" * 200
    for form in ("openai", "anthropic"):
        part = media_form(URI, data, describe(data), form)
        assert f"{form} takes no such content" in part["text"]
