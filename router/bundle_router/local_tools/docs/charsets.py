"""Decodes the bytes of a page to clean text, as browsers do.

The web's labels of encodings are those of the WHATWG Encoding Standard, a closed list in which
`iso-8859-1` is windows-1252 and `gb2312` is gb18030 (package `webencodings`). Rules, the first that
applies:

1. A byte order mark.
2. The charset of the header.
3. The page's own words: an XML declaration, or `<meta>` in the first `PRESCAN` bytes.
4. UTF-8 if the bytes are that, else windows-1252, and the result says so.

A label that the standard does not have counts as none.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass
from typing import Final

import webencodings

PRESCAN: Final = 4096
"""Bytes at the start of a page in which it may name its encoding (the standard asks for 1024)."""

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16le"),
    (codecs.BOM_UTF16_BE, "utf-16be"),
)
_FALLBACK: Final = "windows-1252"
_SUPERSETS: Final = {"gbk": "gb18030"}
"""Encodings whose decoder is another one's by the standard, where webencodings takes Python's."""
_META_OVERRIDES: Final = {
    "utf-16le": "utf-8",
    "utf-16be": "utf-8",
    "x-user-defined": "windows-1252",
}
"""A page whose `<meta>` could be read is not in UTF-16, whatever it says."""

_COMMENT: Final = re.compile(rb"<!--.*?(?:-->|\Z)", re.S)
_META: Final = re.compile(
    rb"""<meta[\s/][^<>]{0,400}?charset\s{0,9}=\s{0,9}["']?\s{0,9}([A-Za-z0-9_.:-]{1,40})""", re.I
)
_XML: Final = re.compile(
    rb"""\s{0,99}<\?xml[^<>]{0,200}?encoding\s{0,9}=\s{0,9}["']([A-Za-z0-9_.:-]{1,40})["']"""
)
_CONTROLS: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # C0 and C1, but newline and tab
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks and overrides of writing direction
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"  # byte order marks, annotations, lone surrogates
    "\U000e0000-\U000e007f]"  # tag characters
)


@dataclass(frozen=True, slots=True)
class Decoded:
    """The text of a page."""

    text: str
    """Without controls, and with `\\n` line ends."""
    problem: str
    """A sentence about what may be wrong with the text; "" if it is surely right."""


def decode_page(body: bytes, charset: str, *, cut: bool = False) -> Decoded:
    """Return the text of a body whose header names `charset` ("" for none).

    Never raises: undecodable bytes become U+FFFD, and `problem` counts them. `cut`: the body is the
    start of a longer one, so that half a character at its end is none.

    Example: `decode_page(b"5 \\x80", "iso-8859-1").text` is "5 €".
    """
    name = _mark_of(body) or encoding_name(charset) or _declared_name(body)
    if name:
        text, undecodable = _decode(body, name, cut)
        problem = f"{undecodable} characters could not be decoded as {name}" if undecodable else ""
        return Decoded(clean_text(text), problem)
    text, undecodable = _decode(body, "utf-8", cut)
    if not undecodable:
        return Decoded(clean_text(text), "")
    text, _ = _decode(body, _FALLBACK, cut)
    problem = f"none is named, and it is not UTF-8; decoded as {_FALLBACK}, which may be wrong"
    return Decoded(clean_text(text), problem)


def decode_text(body: bytes, charset: str) -> str:
    """Return the text of a body, as `decode_page` does, where nobody reads about problems."""
    return decode_page(body, charset).text


def encoding_name(label: str) -> str:
    """Return the standard's name for a label of any case; "" for a label that it does not have."""
    if not label.isascii():
        return ""
    encoding = webencodings.lookup(label)
    return str(encoding.name) if encoding is not None else ""


def clean_text(text: str) -> str:
    """Return the text without controls (but newline and tab), direction overrides and tags, and
    with `\\n` line ends.
    """
    text = (
        text.replace("\r\n", "\n")
        .replace("\r", "\n")
        .replace("\u2028", "\n")
        .replace("\u2029", "\n")
    )
    return _CONTROLS.sub("", text)


def _mark_of(body: bytes) -> str:
    for mark, name in _MARKS:
        if body.startswith(mark):
            return name
    return ""


def _declared_name(body: bytes) -> str:
    start = body[:PRESCAN]
    match = _XML.match(start) or _META.search(_COMMENT.sub(b"", start))
    if match is None:
        return ""
    name = encoding_name(match.group(1).decode("ascii"))
    return _META_OVERRIDES.get(name, name)


def _decode(body: bytes, name: str, cut: bool) -> tuple[str, int]:
    """Return the text, and how many characters of it stand for bytes that could not be decoded."""
    codec = webencodings.lookup(name).codec_info
    if name in _SUPERSETS:
        codec = codecs.lookup(_SUPERSETS[name])
    try:
        return codec.incrementaldecoder("strict").decode(body, final=not cut), 0
    except UnicodeDecodeError:
        text = codec.incrementaldecoder("replace").decode(body, final=not cut)
        return text, text.count("\ufffd")
