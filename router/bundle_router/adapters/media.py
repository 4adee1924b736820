"""Detects the type of bytes from their first few kilobytes; the only module that imports puremagic.

Rules:
1. Nothing that others claim is trusted: neither a server's MIME type nor a file name.
2. Only headers are read. No pixel is decoded and no archive is opened, so a 30,000 x 30,000 image
   and a zip bomb cost the same as an icon.
3. The types that a page may show inline (png, jpeg, gif, webp) are given only by the checks below,
   and only to bytes with a valid structure and no markup at either end. A file of two types is
   `application/octet-stream`.
4. Text is UTF-8 (or UTF-16 with a byte order mark) without binary control characters, to the last
   byte.

Why our own table: on the bytes recorded from real servers and a table of tricky ones, puremagic
1.30 called `BMW makes cars` a bitmap, a GIF/JavaScript polyglot a GIF and every zip a Word
document; filetype 1.2 made the first two mistakes, knows no text format, and has had no release
since 2022. So the types that must be certain are decided here, and puremagic names the rest (fonts,
icons, archives, discs) if it is sure enough.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
import zlib
from collections.abc import Callable
from typing import Final

from bundle_router.core.values.artifacts import MediaFacts

UNKNOWN: Final = "application/octet-stream"
PLAIN: Final = "text/plain; charset=utf-8"
INLINE: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The types that a browser may show; everything else is an attachment."""

_HEAD: Final = 1024
_CHUNK: Final = 64 * 1024
_PARSED_JSON: Final = 1024 * 1024
_SURE: Final = 0.4
"""Minimum confidence of puremagic. It grows with the length of the signature: 0.4 is four bytes."""

_ACTIVE: Final = re.compile(
    rb"(?i)<(?:!doctype|html|script|svg|iframe|body|head|\?php)|%PDF-|PK\x05\x06"
)
_BINARY: Final = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b")) + b"\x7f"
_PROLOG: Final = re.compile(
    r"(?is)(?:\s+|<\?xml\b.{0,512}?\?>|<!--.{0,2048}?-->|<!doctype\s+(?!html)[^>\[]{0,512}>)*"
)
_HTML: Final = re.compile(
    r"(?i)<(?:!doctype\s+html|html|head|body|script|iframe|title|style|meta|table|div|h1|p|br|a)[\s/>]"
)


def describe(data: bytes) -> MediaFacts:
    """Return the MIME type, and pixel size or duration if the header has it."""
    mime_type = sniff(data)
    size = dimensions(data, mime_type)
    width, height = size if size else (None, None)
    return MediaFacts(mime_type, width, height, duration(data) if mime_type in _TIMED else None)


def sniff(data: bytes) -> str:
    """Return the MIME type of the bytes, `application/octet-stream` if none matches."""
    signature = _signature(data)
    if signature in INLINE and (_ACTIVE.search(data[:_HEAD]) or _ACTIVE.search(data[-_HEAD:])):
        return UNKNOWN
    return signature or _text(data) or _long_tail(data)


def dimensions(data: bytes, mime_type: str | None = None) -> tuple[int, int] | None:
    """Return width and height in pixels by the header; None if it is no png, jpeg, gif, webp or
    bmp.
    """
    measure = _MEASURES.get(mime_type or sniff(data))
    return measure(data) if measure else None


def duration(data: bytes) -> float | None:
    """Return the seconds of a WAV, FLAC or Ogg (Vorbis, Opus) file by its header or last page, or
    None.
    """
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return _wav_seconds(data)
    if data.startswith(b"fLaC") and len(data) >= 26:
        rate = int.from_bytes(data[18:21], "big") >> 4
        samples = int.from_bytes(data[21:26], "big") & (1 << 36) - 1
        return _seconds(samples, rate)
    return _ogg_seconds(data) if data.startswith(b"OggS") else None


def _seconds(samples: int, rate: int) -> float | None:
    if samples and rate:
        return round(samples / rate, 3)
    return None


def _wav_seconds(data: bytes) -> float | None:
    """Return the seconds by the bytes that are present, not by those that the header claims."""
    rate = 0
    offset = 12
    for _ in range(64):
        head = data[offset : offset + 8]
        if len(head) < 8:
            return None
        kind = head[:4]
        size = int.from_bytes(head[4:], "little")
        if kind == b"fmt " and len(data) >= offset + 20:
            rate = int.from_bytes(data[offset + 16 : offset + 20], "little")
        if kind == b"data":
            if not rate:
                return None
            return round(min(size, len(data) - offset - 8) / rate, 3)
        offset += 8 + size + size % 2
    return None


def _ogg_seconds(data: bytes) -> float | None:
    """Return the end position of the last page.

    Pages are at most 64 KiB, so it begins near the end.
    """
    last = data.rfind(b"OggS", max(0, len(data) - _CHUNK - 512))
    position = int.from_bytes(data[last + 6 : last + 14], "little")
    if last < 0 or len(data) < last + 14 or position >> 63:
        return None
    head = data[:96]
    if (offset := head.find(b"OpusHead")) >= 0:
        return _seconds(
            max(0, position - int.from_bytes(head[offset + 10 : offset + 12], "little")), 48_000
        )
    offset = head.find(b"\x01vorbis")
    if offset >= 0:
        return _seconds(position, int.from_bytes(head[offset + 12 : offset + 16], "little"))
    return None


# --- signatures -----------------------------------------------------------------------------------


def _signature(data: bytes) -> str | None:
    measure = _IMAGES.get(data[:2])
    if measure:
        mime_type, size = measure
        if size(data):
            return mime_type

    for magic, name in _MAGIC:
        if data.startswith(magic):
            return name
    return _container(data)


def _container(data: bytes) -> str | None:
    """Return the type of a format whose first bytes name a family, and a later word the member."""
    if data.startswith(b"RIFF"):
        if data[8:12] == b"WEBP" and _webp(data):
            return "image/webp"
        return {b"WAVE": "audio/wav", b"AVI ": "video/x-msvideo"}.get(data[8:12])
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12].rstrip(b" \0"), "video/mp4")
    if data.startswith(b"OggS"):
        page = data[:96]
        if b"theora" in page:
            return "video/ogg"
        if any(word in page for word in (b"vorbis", b"OpusHead", b"Speex", b"FLAC")):
            return "audio/ogg"
        return _OGG
    if data.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"webm" in data[:64] else "video/x-matroska"
    if data.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _archive(data)
    if data[:4] in (b"II*\0", b"MM\0*"):
        offset = int.from_bytes(data[4:8], "little" if data.startswith(b"I") else "big")
        return "image/tiff" if 8 <= offset < len(data) else None
    return "audio/mpeg" if _mpeg_audio(data) else None


def _archive(data: bytes) -> str:
    """Return the type of an archive: Office and OpenDocument files by the names in it.

    Nothing is unpacked.
    """
    if data[30:38] == b"mimetype":
        size = int.from_bytes(data[18:22], "little")
        declared = data[38 : 38 + min(size, 100)]
        if re.fullmatch(rb"application/(?:epub\+zip|vnd\.oasis\.opendocument\.[a-z-]+)", declared):
            return declared.decode("ascii")
    if b"[Content_Types].xml" in data[:_CHUNK]:
        tail = data[-_CHUNK:]
        return next((_OOXML + kind for part, kind in _OFFICE if part in tail), "application/zip")
    return "application/zip"


def _mpeg_audio(data: bytes) -> bool:
    """Return whether two frames of MPEG audio layer III follow each other.

    A single one is eleven bits, which any file may begin with.
    """
    offset = 0
    for _ in range(2):
        head = data[offset : offset + 4]
        if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2 or head[1] & 0x18 == 0x08:
            return False
        newest = head[1] & 0x18 == 0x18
        bit_rate = (_MPEG1_KBPS if newest else _MPEG2_KBPS)[head[2] >> 4] * 1000
        rate_index = head[2] >> 2 & 3
        if not bit_rate or rate_index == 3:
            return False
        rate = (44_100, 48_000, 32_000)[rate_index] // {0x18: 1, 0x10: 2, 0x00: 4}[head[1] & 0x18]
        offset += (144 if newest else 72) * bit_rate // rate + (head[2] >> 1 & 1)
    return True


# --- images: a size when the header holds together, else None -------------------------------------


def _png(data: bytes) -> tuple[int, int] | None:
    if data[:16] != b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" or len(data) < 33:
        return None
    if zlib.crc32(data[12:29]) != int.from_bytes(data[29:33], "big"):
        return None
    return _positive_size(*struct.unpack(">II", data[16:24]))


def _gif(data: bytes) -> tuple[int, int] | None:
    if data[:6] not in (b"GIF87a", b"GIF89a") or len(data) < 14:
        return None
    flags = data[10]
    first = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    if data[first : first + 1] not in (
        b"!",
        b",",
    ):  # no extension or image follows; a trailer alone is no picture
        return None
    return _positive_size(*struct.unpack("<HH", data[6:10]))


def _bmp(data: bytes) -> tuple[int, int] | None:
    if len(data) < 26 or data[6:10] != b"\0\0\0\0":
        return None
    size = int.from_bytes(data[14:18], "little")
    if size == 12:
        return _positive_size(*struct.unpack("<HH", data[18:22]))
    if size not in (40, 52, 56, 64, 108, 124):
        return None
    width, height = struct.unpack("<ii", data[18:26])
    return _positive_size(width, abs(height))


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if len(data) < 30 and not (kind == b"VP8L" and len(data) >= 25):
        return None
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    if kind == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", data[26:30])
        return _positive_size(width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size in the frame header, after walking at most 1,024 segments (each may hold 64
    KiB of profile).
    """
    offset = 2
    for _ in range(1024):
        head = data[offset : offset + 9]
        if len(head) < 4 or head[0] != 0xFF:
            return None
        marker = head[1]
        if marker == 0xFF:
            offset += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if len(head) == 9:
                return _positive_size(*struct.unpack(">HH", head[5:9])[::-1])
            return None
        elif marker in (0x01, 0x00, 0xD8, 0xD9, 0xDA) or 0xD0 <= marker <= 0xD7:
            return None
        else:
            offset += 2 + int.from_bytes(head[2:4], "big")
    return None


def _positive_size(width: int, height: int) -> tuple[int, int] | None:
    if width > 0 and height > 0:
        return (width, height)
    return None


# --- text -----------------------------------------------------------------------------------------


def _text(data: bytes) -> str | None:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and len(data) % 2 == 0:
        if _can_decode(data, "utf-16"):
            return "text/plain; charset=utf-16"
        return None

    if not data or not _can_decode(data, "utf-8"):
        return None
    if _has_binary(data):
        return None

    head = data[: 8 * _HEAD].decode("utf-8", "ignore").removeprefix("\ufeff")
    markup = _markup(head)
    if markup:
        return markup
    if _is_json(data):
        return "application/json"
    return PLAIN


def _can_decode(data: bytes, encoding: str) -> bool:
    """Check in pieces whether it decodes, so that 10 MB of text does not become 40 MB of
    characters.
    """
    if encoding == "utf-8" and data.isascii():
        return True
    decoder = codecs.getincrementaldecoder(encoding)()
    view = memoryview(data)
    try:
        for offset in range(0, len(data), _CHUNK):
            decoder.decode(view[offset : offset + _CHUNK], final=offset + _CHUNK >= len(data))
    except UnicodeDecodeError:
        return False
    return True


def _has_binary(data: bytes) -> bool:
    view = memoryview(data)
    for offset in range(0, len(data), _CHUNK):
        chunk = bytes(view[offset : offset + _CHUNK])
        if len(chunk.translate(None, _BINARY)) != len(chunk):
            return True
    return False


def _markup(head: str) -> str | None:
    prolog = _PROLOG.match(head)
    root = head[prolog.end() :] if prolog else head
    if re.match(r"(?i)<svg[\s/>]", root):
        return "image/svg+xml"
    if head.lstrip().startswith("<?xml"):
        if re.match(r"(?i)<(?:html|!doctype\s+html)[\s>]", root):
            return "text/html"
        return "application/xml"
    return "text/html" if _HTML.match(root) else None


def _is_json(data: bytes) -> bool:
    """Return whether it is a JSON object or array; above 1 MiB by its first and last character
    only.
    """
    body = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")[:1] + data[-64:].rstrip()[-1:]
    if body not in (b"{}", b"[]"):
        return False
    if len(data) > _PARSED_JSON:
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


# --- the long tail --------------------------------------------------------------------------------


def _long_tail(data: bytes) -> str:
    if len(data) < 4:
        return UNKNOWN
    import puremagic  # 20 ms, and most results never need it

    try:
        guesses = puremagic.magic_string(data[:_CHUNK])
    except (puremagic.PureError, ValueError):
        return UNKNOWN
    for guess in guesses:
        name = guess.mime_type
        is_wrong = name in _DECIDED_HERE or name.startswith(
            ("text/", _OOXML)
        )  # the checks above did not match
        if (
            guess.confidence >= _SURE
            and re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", name)
            and not is_wrong
        ):
            return str(name)
    return UNKNOWN


_Measure = Callable[[bytes], tuple[int, int] | None]

_IMAGES: Final[dict[bytes, tuple[str, _Measure]]] = {
    b"\x89P": ("image/png", _png),
    b"\xff\xd8": ("image/jpeg", _jpeg),
    b"GI": ("image/gif", _gif),
    b"BM": ("image/bmp", _bmp),
}
_MEASURES: Final[dict[str, _Measure]] = dict(_IMAGES.values()) | {"image/webp": _webp}
_OGG: Final = "application/ogg"
_TIMED: Final = frozenset({"audio/wav", "audio/flac", "audio/ogg"})
_MAGIC: Final = (
    (b"%PDF-", "application/pdf"),
    (b"\x1f\x8b\x08", "application/gzip"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\0asm", "application/wasm"),
)
_BRANDS: Final = {
    b"M4A": "audio/mp4",
    b"M4B": "audio/mp4",
    b"qt": "video/quicktime",
    b"avif": "image/avif",
    b"avis": "image/avif",
    b"heic": "image/heic",
    b"heix": "image/heic",
    b"mif1": "image/heif",
    b"3gp4": "video/3gpp",
    b"3gp5": "video/3gpp",
}
_OOXML: Final = "application/vnd.openxmlformats-officedocument."
_OFFICE: Final = (
    (b"word/document.xml", "wordprocessingml.document"),
    (b"xl/workbook.xml", "spreadsheetml.sheet"),
    (b"ppt/presentation.xml", "presentationml.presentation"),
)
_MPEG1_KBPS: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_MPEG2_KBPS: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_DECIDED_HERE: Final = (
    INLINE
    | set(_BRANDS.values())
    | {name for _, name in _MAGIC}
    | {
        "image/bmp",
        "image/x-ms-bmp",
        "image/tiff",
        "image/svg+xml",
        "image/heif",
        "audio/wav",
        "audio/wave",
    }
    | {
        "audio/x-wav",
        "application/zip",
        "application/x-gzip",
        "application/json",
        "application/xml",
        _OGG,
    }
    | {"video/mp4", "video/webm", "application/xhtml+xml"}
)
