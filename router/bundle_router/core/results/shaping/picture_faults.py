"""Finds pictures that no provider takes, by their structure: no pixel is decoded.

A request with such a picture is refused as a whole, and so is every later one that repeats it.
Reports name: more than 8,000 pixels a side, a file that was cut, animations, 16 bits a channel and
the four inks of print.
"""

from __future__ import annotations

from typing import Final

MAX_SIDE: Final = 8_000
"""Maximum pixels of a side."""
_MAX_CHUNKS: Final = 100_000
"""Maximum chunks of a file that are looked at."""
_CUT: Final = "it is not whole: the end of the file is missing"
_EMPTY: Final = "it holds no picture, only the head of one"
_ANIMATED: Final = "it is animated, and providers take still pictures"


def picture_fault(data: bytes, width: int | None, height: int | None) -> str:
    """Return why no provider takes a picture, as the end of a sentence; empty if one may.

    Bytes that are no PNG, JPEG, GIF or WebP are not judged.
    """
    if max(width or 0, height or 0) > MAX_SIDE:
        return f"it has {width:,} x {height:,} pixels, and at most {MAX_SIDE:,} a side are taken"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png_fault(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg_fault(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif_fault(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp_fault(data)
    return ""


def _png_fault(data: bytes) -> str:
    has_pixels = False
    offset = 8
    for _ in range(_MAX_CHUNKS):
        kind = data[offset + 4 : offset + 8]
        end = offset + 12 + int.from_bytes(data[offset : offset + 4], "big")
        if len(kind) < 4 or end > len(data):
            return _CUT if has_pixels or kind == b"IDAT" else _EMPTY
        if kind == b"IHDR" and data[offset + 16] == 16:
            return "it has 16 bits a channel, and providers take 8"
        if kind == b"acTL":
            return _ANIMATED
        if kind == b"IEND":
            return "" if has_pixels else _EMPTY
        has_pixels = has_pixels or kind == b"IDAT"
        offset = end
    return ""


def _jpeg_fault(data: bytes) -> str:
    offset = 2
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        marker = data[offset + 1]
        if marker == 0xFF:  # filled up
            offset += 1
            continue
        if marker == 0xDA:
            return "" if data.find(b"\xff\xd9", offset) > 0 else _CUT
        is_frame = 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)
        if is_frame and data[offset + 9 : offset + 10] == b"\x04":
            return "it has the four inks of print (CMYK), and providers take RGB"
        offset += 2 + int.from_bytes(data[offset + 2 : offset + 4], "big")
    return _EMPTY


def _gif_fault(data: bytes) -> str:
    if len(data) < 13:
        return _EMPTY
    offset = 13 + _colour_table_bytes(data[10])
    pictures = 0
    while offset < len(data):
        kind = data[offset]
        if kind == 0x3B:
            return "" if pictures else _EMPTY
        if kind == 0x2C and offset + 10 <= len(data):
            pictures += 1
            offset += 11 + _colour_table_bytes(data[offset + 9])
        elif kind == 0x21:
            offset += 2
        else:
            return _CUT
        if pictures > 1:
            return _ANIMATED
        while offset < len(data) and data[offset]:
            offset += 1 + data[offset]
        offset += 1
    return _CUT if pictures else _EMPTY


def _colour_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp_fault(data: bytes) -> str:
    end = 8 + int.from_bytes(data[4:8], "little")
    if end > len(data):
        return _CUT
    offset = 12
    for _ in range(_MAX_CHUNKS):
        kind = data[offset : offset + 4]
        if offset + 8 > end:
            return _EMPTY
        if kind == b"VP8X" and data[offset + 8] & 2:
            return _ANIMATED
        if kind in (b"VP8 ", b"VP8L"):
            return ""
        length = int.from_bytes(data[offset + 4 : offset + 8], "little")
        offset += 8 + length + length % 2
    return ""
