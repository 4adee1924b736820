"""What bytes are: a table of ordinary and tricky ones."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
import wave
import zipfile
import zlib
from pathlib import Path

import pytest
from bundle_router.adapters.media import INLINE, describe, dimensions, duration, sniff
from bundle_router.core.values.artifacts import MediaFacts
from hypothesis import example, given
from hypothesis import strategies as st

from tests.profiles import examples


def png(width: int, height: int, *extra: tuple[bytes, bytes], tail: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = b"".join(
        chunk(kind, data)
        for kind, data in (*extra, (b"IDAT", zlib.compress(b"\0" * 10)), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + header + body + tail


def archive(*names: str, first: tuple[str, str] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        if first:
            file.writestr(*first)
        for name in names:
            file.writestr(name, "x")
    return out.getvalue()


def wav(seconds: float, rate: int = 8000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(int(seconds * rate) * 2))
    return out.getvalue()


def riff(kind: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    body = kind + b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


JPEG = (
    bytes.fromhex("ffd8ffe000104a46494600010100000100010000")
    + bytes.fromhex("ffc0000b080014001e01011100")
    + b"\xff\xda"
)
GIF = b"GIF89a\x02\0\x03\0\x80\0\0\0\0\0\xff\xff\xff!\xf9\4\1\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0;"
BMP = (
    b"BM"
    + struct.pack("<IHHI", 70, 0, 0, 54)
    + struct.pack("<IiiHHIIiiII", 40, 4, -5, 1, 24, 0, 0, 0, 0, 0, 0)
    + bytes(16)
)
WEBP = riff(
    b"WEBP", (b"VP8X", b"\0\0\0\0" + (639).to_bytes(3, "little") + (479).to_bytes(3, "little"))
)
LOSSLESS = riff(b"WEBP", (b"VP8L", b"\x2f" + (9 | 19 << 14).to_bytes(4, "little") + bytes(9)))
LOSSY = riff(b"WEBP", (b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 20, 10) + bytes(8)))
MP3 = (b"\xff\xfb\x90\x44" + bytes(413)) * 2
OFFICE = ("[Content_Types].xml", "<x/>")
ODT = "application/vnd.oasis.opendocument.text"
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
UNKNOWN = "application/octet-stream"
PLAIN = "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (png(3, 4), "image/png"),
        (JPEG, "image/jpeg"),
        (GIF, "image/gif"),
        (WEBP, "image/webp"),
        (LOSSLESS, "image/webp"),
        (LOSSY, "image/webp"),
        (BMP, "image/bmp"),
        (b"II*\0\x08\0\0\0" + bytes(20), "image/tiff"),
        (b"\0\0\0\x18ftypavif\0\0\0\0avifmif1", "image/avif"),
        (b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0\x68\4\0\0\x16\0\0\0", "image/x-icon"),
        (wav(0.1), "audio/wav"),
        (b"ID3\x03\0\0\0\0\0\0" + bytes(20), "audio/mpeg"),
        (MP3, "audio/mpeg"),
        (b"OggS\0\x02" + bytes(22) + b"\x01\x1e\x01vorbis", "audio/ogg"),
        (b"OggS\0\x02" + bytes(22) + b"\x01\x2a\x80theora", "video/ogg"),
        (b"fLaC\0\0\0\x22" + bytes(34), "audio/flac"),
        (b"\0\0\0\x18ftypM4A \0\0\2\0isom", "audio/mp4"),
        (b"\0\0\0\x18ftypisom\0\0\2\0isomiso2", "video/mp4"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm", "video/webm"),
        (b"%PDF-1.7\n", "application/pdf"),
        (archive("a.txt"), "application/zip"),
        (archive("word/document.xml", first=OFFICE), WORD),
        (archive("a", first=("mimetype", ODT)), ODT),
        (archive("a", first=("mimetype", "application/pdf\r\nx")), "application/zip"),
        (gzip.compress(b"hi", mtime=0), "application/gzip"),
        (b"SQLite format 3\0" + bytes(100), "application/vnd.sqlite3"),
        (b"wOF2\0\1\0\0" + bytes(40), "font/woff2"),
        (b'{"a": 1}\n', "application/json"),
        (b"[1, 2]", "application/json"),
        (b"{not json}", PLAIN),
        (b"[" * 100_000 + b"]" * 100_000, PLAIN),
        (b"[" + b"1," * 600_000 + b"1]", "application/json"),
        (b"<!DOCTYPE html><html>", "text/html"),
        (b"\n\n  <!-- c --> <html>", "text/html"),
        (b"<script>alert(1)</script>", "text/html"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
        (b'\xef\xbb\xbf<?xml version="1.0"?><!-- c -->\n<svg/>', "image/svg+xml"),
        (b'<?xml version="1.0"?><html xmlns="x"/>', "text/html"),
        (b'<?xml version="1.0"?><a/>', "application/xml"),
        (b"hello", PLAIN),
        ("日本語 \x1b[31m".encode(), PLAIN),
        ("hi".encode("utf-16"), "text/plain; charset=utf-16"),
        (b"see %PDF-1.4 for it", PLAIN),
        (b"BMW makes cars", PLAIN),
        (b"PKZIP is a program", PLAIN),
        ("café".encode("latin-1"), UNKNOWN),
        (b"a\0b", UNKNOWN),
        (b"text " * 20_000 + b"\0", UNKNOWN),
        (b"", UNKNOWN),
        (bytes(range(256)), UNKNOWN),
    ],
)
def test_bytes_are_what_their_own_header_says(data: bytes, mime_type: str) -> None:
    assert sniff(data) == mime_type


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n",
        b"\x89PNG\r\n\x1a\n<html><script>alert(1)</script>",
        png(1, 1)[:29] + b"\0\0\0\0" + png(1, 1)[33:],
        png(0, 5),
        png(1, 1, (b"tEXt", b"c\0<script>alert(1)</script>")),
        png(1, 1, tail=b"<!DOCTYPE html><script>1</script>"),
        png(1, 1, tail=b"%PDF-1.4 ..."),
        png(1, 1, (b"tEXt", bytes(5000)), tail=b"<svg onload=alert(1)>"),
        png(1, 1, tail=archive("a")),
        b"\xff\xd8\xff<html>",
        JPEG + b"<svg onload=alert(1)>",
        b"GIF89a/*\0*/=1;alert(1)",
        b"GIF89a=1;alert(1)//",
        GIF + b"<?php system(1)",
        b"RIFF\0\0\0\0WEBP<script>alert(1)</script>     ",
        b"<svg><script/></svg>\x89PNG\r\n\x1a\n",
        b"%PDF-1.4\n" + png(1, 1),
    ],
)
def test_a_file_that_is_two_things_is_never_an_image_to_show(data: bytes) -> None:
    assert sniff(data) not in INLINE


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(30_000, 30_000), (30_000, 30_000)),
        (JPEG, (30, 20)),
        (GIF, (2, 3)),
        (BMP, (4, 5)),
        (WEBP, (640, 480)),
        (LOSSLESS, (10, 20)),
        (LOSSY, (20, 10)),
        (b"\xff\xd8" + (b"\xff\xe1\xff\xff" + bytes(65_533)) * 20 + JPEG[20:], (30, 20)),
        (wav(0.1), None),
        (b"", None),
    ],
)
def test_images_say_their_size_in_the_header(data: bytes, size: tuple[int, int] | None) -> None:
    assert dimensions(data) == size


def test_sound_says_how_long_it_is_by_the_bytes_that_are_there() -> None:
    assert describe(wav(1.5)) == MediaFacts("audio/wav", duration_s=1.5)
    lying = riff(
        b"WAVE", (b"fmt ", struct.pack("<HHIIHH", 1, 1, 8000, 8000, 1, 8)), (b"data", b"")
    )[:-4]
    assert duration(lying + b"\xff\xff\xff\xff" + bytes(4000)) == 0.5
    assert duration(riff(b"WAVE", (b"data", bytes(10)))) is None
    assert duration(riff(b"WAVE", *[(b"junk", b"")] * 1000)) is None


SOUNDS = Path(__file__).parents[1] / "data" / "sounds"


@pytest.mark.parametrize("name", ["silence.flac", "silence.ogg", "silence.opus"])
def test_compressed_sound_says_how_long_it_is_and_a_torn_one_nothing_wrong(name: str) -> None:
    data = (SOUNDS / name).read_bytes()
    assert describe(data).duration_s == 1.25
    for end in range(0, len(data), 7):
        found = duration(data[:end])
        assert found is None or 0 < found <= 1.25


def test_a_bomb_costs_no_more_than_its_header() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    picture = png(30_000, 30_000, (b"zTXt", zlib.compress(bytes(20_000_000))))
    describe(b"warm the imports up \0")
    tracemalloc.start()
    assert describe(bomb).mime_type == "application/gzip"
    assert describe(archive(first=("zeros", "0" * 1_000_000))).mime_type == "application/zip"
    assert describe(picture) == MediaFacts("image/png", 30_000, 30_000)
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


@examples(300, derandomize=True)
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda head, tail: head + tail,
        st.sampled_from(
            [
                png(1, 1)[:33],
                JPEG[:20],
                GIF[:13],
                WEBP[:16],
                wav(0)[:12],
                b"PK\x03\x04",
                MP3[:4],
                b"BM",
                b"{",
            ]
        ),
        st.binary(max_size=100),
    )
)
@example(b"\xff\xfe\x00\xd8")
def test_any_bytes_have_some_type_and_no_error(data: bytes) -> None:
    facts = describe(data)
    assert "/" in facts.mime_type
    assert facts.width is None or facts.width > 0
