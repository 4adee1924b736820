"""Finds what is hidden from a reader: invisible characters, encoded payloads, text out of sight,
fake markup.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from bundle_router.core.servers.admission.cleaning import as_latin, is_mixed
from bundle_router.core.values.schema_tree import pointer
from bundle_router.core.values.visible import invisible_in, without_invisible

Seen = tuple[str, str]
"""Rule and words."""

_PRIVATE: Final = re.compile(r"[\ue000-\uf8ff\U000f0000-\U0010ffff]")
_HARMLESS: Final = re.compile("[\ufe00-\ufe0f\xad\ufeff\r\u2028\u2029\x85]")
"""Characters left by editors and word processors. Hiding text takes others."""
_WORD: Final = re.compile(r"\w+")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{16,4096}={0,2}")
_HEX: Final = re.compile(r"(?:0x)?((?:[0-9a-fA-F]{2}){10,2048})")
_ESCAPED_HEX: Final = re.compile(r"(?:\\x[0-9a-fA-F]{2}){6,1024}")
_PERCENT: Final = re.compile(r"(?:%[0-9a-fA-F]{2}){6,1024}")
_CODES: Final = re.compile(r"(?:\b\d{2,3}\b[ ,]{1,2}){11,1024}\d{2,3}\b")
_PARTED: Final = re.compile(r"(?<!\w)(?:[^\W\d_][\s.\-_*·|/]{1,4}){8,200}[^\W\d_](?!\w)")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_GAP: Final = re.compile(r"\n{12,}|[ \t\u00a0\u3000]{80,}|(?:\n[ \t]{0,20}){20,}")
_MARKUP: Final = re.compile(
    r"</?(?:system|assistant|user|human|important|instructions?|secret|hidden|admin|priority|s|critical|internal"
    r"|override|sys|prompt|context|notice|mandatory|urgent)(?:["
    r" _-](?:prompt|message|note|instructions?|reminder))?>"
    r"|<\|[a-z_]{2,30}\|>|\[/?(?:inst|system|sys|admin|assistant)\]|<<sys>>"
    r"|(?:^|\n)\s{0,8}(?:#{1,4}\s{0,4})?(?:system|assistant|human)(?: prompt| message|"
    r" override)?\s?:"
)
_COMMAND: Final = re.compile(
    r"\b(?:curl|wget|fetch|iwr|invoke-webrequest)\b.{0,200}(?:\||&&|\$\()|\b(?:ba|z)?sh\s+-[ci]\b|/dev/tcp/|\bnc(?:at)?\s.{0,60}-e\b|\bmkfifo\b"
    r"|\brm\s+-[a-z]{0,4}r[a-z]{0,4}\s+[~/*$]|\brm\s+-[a-z]{0,4}f[a-z]{0,4}\s+[~/*$]"
    r"|\bchmod\s+(?:\+x|[0-7]{3,4}|u\+s|a\+)|\bdd\s+if=|\bmkfs\b|:\(\)\s?\{|\bpowershell\b.{0,60}-e|\bbase64\s+-d"
    r"|\bos\.system\(|\bsubprocess\.|\beval\(|\bexec\(|\bsocket\.socket\b|\bcrontab\b|authorized_keys"
    r"|\bcurl\s.{0,100}https?://|\bwget\s.{0,100}https?://"
)
_DOWNLOAD_AND_RUN: Final = re.compile(
    r"\b(?:curl|wget)\b.{0,200}\|\s{0,4}(?:sudo\s)?(?:ba|z)?sh\b|\bsh\s+-[ci]\b.{0,80}\b(?:curl|wget)\b|/dev/tcp/"
    r"|\brm\s+-[a-z]{0,4}rf?[a-z]{0,4}\s+(?:~|/(?:\s|$|\*)|\$home|--no-preserve)|\bnc(?:at)?\s.{0,60}-e\b|:\(\)\s?\{"
)


def seen_in_characters(passage: TextPassage) -> Iterator[Seen]:
    """Yield invisible characters, and look-alike letters."""
    hidden = _HARMLESS.sub("", invisible_in(passage.raw)) + "".join(_PRIVATE.findall(passage.raw))
    if hidden:
        yield "hidden-characters", f"{len(hidden)} of them: {spelled_out(hidden)}"
    parted = _PARTED.search(passage.plain)
    if parted and (letters := re.findall(r"[^\W_]", parted[0])) != sorted(
        letters
    ):  # columns and alphabets are sorted
        yield "parted-letters", parted[0][:80]
    if not passage.raw.isascii():
        mixed = [word for word in _WORD.findall(passage.raw) if is_mixed(word)]
        if mixed:
            yield "lookalike-letters", ascii(mixed[0])[1:-1]


def spelled_out(hidden: str) -> str:
    """Return the characters as escapes; tags also as the ASCII text that they spell."""
    tags = "".join(chr(ord(c) - 0xE0000) for c in hidden if "\U000e0020" <= c <= "\U000e007e")
    escapes = hidden[:12].encode("ascii", "backslashreplace").decode("ascii")
    return (
        escapes
        + ("…" if len(hidden) > 12 else "")
        + (f" which reads {tags[:120]!r}" if tags else "")
    )


def seen_in_layout(passage: TextPassage) -> Iterator[Seen]:
    """Yield text placed out of sight, and markup that imitates another author."""
    gap = _GAP.search(passage.raw)
    if (
        gap
        and len(passage.raw[gap.end() :].strip()) > 20
        and len(passage.raw[: gap.start()].strip()) > 0
    ):
        yield "far-away-text", passage.raw[gap.end() :].strip()[:80]
    _, opened, comment = passage.raw.partition("<!--")
    if opened and comment.partition("-->")[0].strip():
        yield "far-away-text", comment.partition("-->")[0].strip()[:80]
    markup = _MARKUP.search(passage.plain)
    if markup and passage.prose:
        yield "fake-markup", markup[0].strip()


def seen_in_commands(passage: TextPassage) -> Iterator[Seen]:
    match = _DOWNLOAD_AND_RUN.search(passage.plain)
    if match:
        yield "command", match[0][:80]


def decoded_texts(passage: TextPassage) -> Iterator[str]:
    """Yield the readable texts that the passage has in base64, hexadecimal, escapes or character
    codes.
    """
    for match in _HEX.finditer(passage.raw):
        yield from _readable_texts(binascii.unhexlify(match[1]))
    for match in _ESCAPED_HEX.finditer(passage.raw):
        yield from _readable_texts(binascii.unhexlify(match[0].replace("\\x", "")))
    for match in _BASE64.finditer(passage.raw):
        body = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        for skip in (0, 1, 2, 3):
            piece = body[skip:]
            piece = piece[: len(piece) - 1] if len(piece) % 4 == 1 else piece
            try:
                yield from _readable_texts(base64.b64decode(piece + "=" * (-len(piece) % 4)))
            except (binascii.Error, ValueError):
                continue
    yield from (unquote(match[0]) for match in _PERCENT.finditer(passage.raw))
    for match in _CODES.finditer(passage.raw):
        numbers = [int(number) for number in re.findall(r"\d+", match[0])]
        yield from _readable_texts(bytes(number for number in numbers if number < 256))


def _readable_texts(data: bytes) -> Iterator[str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return
    if len(text) < 8:
        return
    if all(char.isprintable() or char in "\n\t" for char in text):
        yield text


def is_command(text: str) -> bool:
    """Return whether decoded text is a shell command."""
    return _COMMAND.search(fold_text(text)) is not None


# The texts of a definition, folded so that a phrase can't be disguised, and split into sentences.
MAX_TEXTS: Final = 2_000
MAX_CHARS: Final = 20_000
"""Maximum characters of one text that are read.

A longer one is a document, which admission cuts anyway.
"""
MAX_SENTENCE: Final = 1_000
_SPLIT: Final = re.compile(r"(?<=[.!?;:])\s+|\n+|</?[A-Za-z_|]{2,40}>")
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[_\-.\s]+")


@dataclass(frozen=True, slots=True)
class TextPassage:
    """One text with its place.

    `raw` is the original, `plain` is folded: no invisible characters, look-alikes as Latin, lower
    case. `prose` is false for names and values.
    """

    where: str
    raw: str
    plain: str
    prose: bool

    def sentences(self) -> list[str]:
        """Return the sentences; one longer than `MAX_SENTENCE` is split."""
        parts = (part.strip() for part in _SPLIT.split(self.plain))
        return [
            part[at : at + MAX_SENTENCE]
            for part in parts
            for at in range(0, len(part), MAX_SENTENCE)
        ]


def passages(definition: Mapping[str, Any]) -> list[TextPassage]:
    """Return every text of the definition, at most `MAX_TEXTS`.

    Names of properties are read as words.
    """
    result = []
    for place, text, prose in _texts(definition):
        raw = text[:MAX_CHARS]
        result.append(
            TextPassage(
                pointer(place), raw, fold_text(raw if prose else " ".join(_WORDS.split(raw))), prose
            )
        )
        if len(result) == MAX_TEXTS:
            break
    return result


def fold_text(text: str) -> str:
    """Return the text as it would be read aloud: without hidden characters, look-alikes replaced,
    in lower case.
    """
    if not text.isascii():
        text = (
            fold_letters(without_invisible(text))
            .replace("’", "'")
            .replace("“", '"')
            .replace("”", '"')
        )
    return text.lower()


def fold_letters(text: str) -> str:
    """Return the text with look-alikes as Latin letters, and without accents."""
    return unicodedata.normalize(
        "NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", as_latin(text)))
    )


def _texts(definition: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str, bool]]:
    """Yield (place, text, whether it is prose).

    Iterative, because a caller may not have bounded the depth.
    """
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), definition)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            yield place, value, " " in value.strip() or len(value) > 60
        elif isinstance(value, dict):
            keys = list(value)
            if place and place[-1] in ("properties", "$defs", "definitions"):
                yield from (((*place, key), key, False) for key in keys if isinstance(key, str))
            waiting.extend(((*place, key), value[key]) for key in reversed(keys))
        elif isinstance(value, list):
            indexes = reversed(range(len(value)))
            waiting.extend(((*place, index), value[index]) for index in indexes)
