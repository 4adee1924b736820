"""Finds bytes in a result (media blocks, base64, `data:` URIs) and replaces them by artifact
references.

A payload is:
- a `Media` block; the `data` of an MCP image or audio object, of a provider's `source`, and the
  `blob` of an MCP resource, at any length and in every form that `encoded_bytes` reads;
- a base64 `data:` URI whose bytes are media, at any length, or any long one, also over broken
  lines;
- Node's Buffer (in JSON, and written in a text), a list of bytes, and a JSON string of hexadecimal
  digits, whose bytes are media;
- a long run of base64 in text (also broken into lines), and a JSON string that is base64, whose
  bytes are media;
- a very long run of base64 with letters as mixed as those of bytes. `xxxx…` is base64 too, and
  stays. "Media" is decided by `describe` on the decoded bytes. Base64 that was cut off is decoded
  as far as it goes.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any, Final

from bundle_router.core.results.shaping.json_text import is_short, may_be_bytes
from bundle_router.core.results.shaping.shaped import Blob, Role
from bundle_router.core.values import Media
from bundle_router.core.values.artifacts import Describe, MediaFacts
from bundle_router.core.values.encoded_bytes import (
    decode_base64,
    is_base64,
    is_data_uri,
    read_bytes,
    read_data_uri,
    type_said,
    without_blanks,
)

LONG: Final = 256
"""Minimum characters of a base64 run in text.

Shorter ones are not examined; no run of media this long is left.
"""
VERY_LONG: Final = 4096
_SHORTEST: Final = 64
"""Minimum characters of a base64 string, unless its object declares it."""
MAX_BLOBS: Final = 256
"""Maximum artifacts of one result.

Further ones are described in words: 8 MB can hold 85,000 one-pixel images.
"""
MAX_LOOKS: Final = 2_000
"""Maximum payloads of one result that are examined, so that no result can keep the router busy for
seconds.
"""
MAX_DEPTH: Final = 100

_MEDIA: Final = (
    *(
        "image/",
        "audio/",
        "video/",
        "font/",
        "application/pdf",
        "application/zip",
        "application/gzip",
    ),
    *(
        "application/vnd.",
        "application/x-7z",
        "application/epub",
        "application/zstd",
        "application/wasm",
    ),
)
_UNIT: Final = r"(?:[A-Za-z0-9+/_-]|\\/)"
_STEP: Final = 64
"""Runs are searched for at every 64th character only: a run of 256 has a whole block of 64 after
one of them.
"""
_BLOCK: Final = re.compile(rf"{_UNIT}{{{_STEP}}}")
_ALPHABET: Final = string.ascii_letters + string.digits + "+/_-"
_WINDOW: Final = 64 * 1024
"""Maximum characters per regular expression match, which holds the GIL until it has finished."""
# The loops below are not possessive: before Python 3.11.5 those fail if their body may fail
# half-way.
_MORE: Final = re.compile(rf"{_UNIT}*")
_BREAK: Final = r"(?:\r?\n|(?:\\r)?\\n)"
"""The end of a line; in JSON that stands in a text, it is written as two letters."""
_LINE: Final = rf"[A-Za-z0-9+/_-]{{60,80}}{_BREAK}"
_WRAPPED: Final = re.compile(rf"(?:(?<![A-Za-z0-9+/_=-])|(?<=\\n)){_LINE}")
_MORE_WRAPPED: Final = re.compile(rf"(?:[ \t]{{0,16}}{_LINE})*")
_LAST_WRAPPED: Final = re.compile(r"[ \t]{0,16}[A-Za-z0-9+/_-]{0,80}={0,2}")
_LINE_BREAK: Final = re.compile(_BREAK)
_LEAST_LINES: Final = 3
_GAP: Final = re.compile(rf"(?:{_BREAK}[ \t]{{0,32}})+")
"""What stands between the lines of a URI that was broken into lines."""
_FIRST_LINE: Final = 32
"""Minimum characters of the first of such lines."""
_AFTER_LINE: Final = re.compile(r"\Z|[\r\n\"'`)<>\]}\\]")
"""What may follow a line of base64; after a word of text there is a blank or a full stop."""
_HEX: Final = re.compile(
    r"(?:\\x|0x)?((?:89504e47|ffd8ff|474946383|52494646|25504446|504b0304)[0-9a-f]{56,})",
    re.IGNORECASE,
)
"""Hexadecimal digits that begin as media do, as databases print them."""
_QUOTE: Final = r"\\{0,3}\""
_BUFFER: Final = re.compile(
    rf"\{{\s{{0,20}}{_QUOTE}type{_QUOTE}: ?{_QUOTE}Buffer{_QUOTE},"
    rf"\s{{0,20}}{_QUOTE}data{_QUOTE}: ?\["
)
_NUMBERS: Final = re.compile(r"[0-9,\s]*")
_BUFFER_END: Final = re.compile(r"\]\s{0,20}\}")
_DATA: Final = re.compile(r"data:", re.IGNORECASE)
_DATA_URI: Final = re.compile(
    r"data:(?P<type>[a-z]{1,20}\\?/[a-z0-9.+-]{1,80})?"
    r"(?:; ?[a-z0-9_.-]{1,40}=[^;,\s\"']{0,80}){0,4}"
    rf"; ?base64,(?:{_BREAK}|[ \t])*(?=[A-Za-z0-9+/_%-])",
    re.IGNORECASE,
)
_PAYLOAD: Final = re.compile(r"(?:[A-Za-z0-9+/_%-]|\\/)*")
_PLAIN_URI: Final = re.compile(
    r"data:(?P<type>image/svg\+xml)(?:;[a-z0-9_.=-]{1,40}){0,4},", re.IGNORECASE
)
_PLAIN: Final = re.compile(r"[^\s\"'<>`]*+")
_STARTS: Final = re.compile(
    r"iVBORw0KGgo|/9j/[24]|R0lGODdh|R0lGODlh|UklGR|JVBERi0|T2dnUw|ZkxhQ|SUQz|GkXfow|UEsDB|H4sIA|AAAA.GZ0eX"
)
"""Base64 prefixes of common media: where a payload may start inside a run. `describe` decides."""
_MAX_STARTS: Final = 8
_STANDARD: Final = re.compile(r"[+/]")
_URL_SAFE: Final = re.compile(r"[-_]")
_MIME: Final = re.compile(r"[a-z0-9]{1,30}/[a-z0-9.+-]{1,80}")
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_ENDS: Final = (b"IEND\xaeB`\x82", b"\xff\xd9", b"\x00;")
"""The last bytes of whole pictures: PNG, JPEG, GIF."""
_SAME: Final = {"image/jpg": "image/jpeg", "audio/x-wav": "audio/wav", "audio/wave": "audio/wav"}


class References:
    """The payloads of one result: replaces them, and collects their bytes without duplicates."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._blobs: dict[str, Blob] = {}
        self._looks = 0

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The blobs, in the order of their first occurrence."""
        return tuple(self._blobs.values())

    def keep_full(self, data: bytes) -> Blob:
        """Return the blob of the whole result; it is kept however many other blobs there are."""
        return self._keep(
            data, hashlib.sha256(data).hexdigest(), "full_result", self._describe(data)
        )

    def media(self, block: Media) -> str:
        """Return the reference to a media block."""
        return self._refer_to(block.data, "media", claimed=block.mime_type, name=block.name)

    def text(self, text: str) -> str:
        """Return the text with its payloads replaced."""
        if "data:" in text or "DATA:" in text:
            text = _replace_spans(text, _uris(text), self._of_uri)
        if "Buffer" in text:
            text = _replace_spans(text, _buffers(text), self._of_buffer)
        if len(text) < LONG:
            return text
        if "\n" in text or "\\n" in text:
            text = _replace_spans(text, _line_blocks(text), self._of_lines)
        return _replace_spans(text, _runs(text), self._of_run)

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return the JSON value with its payloads replaced; the same object if it has none."""
        if isinstance(value, str):
            return self._string(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= MAX_DEPTH:
            return f"[nested deeper than {MAX_DEPTH} levels: left out]"
        if may_be_bytes(value):
            found = read_bytes(value)
            is_declared = isinstance(value, dict) and value.get("type") == "Buffer"
            if found is not None and self._is_payload(found.data, is_declared):
                return self._refer_to(found.data, "embedded")
        if isinstance(value, list):
            items = [item if _is_plain(item) else self.value(item, depth + 1) for item in value]
            return value if all(map(is_, items, value)) else items
        payload = _payload_key(value)
        replaced = {}
        for key, item in value.items():
            name = key if _is_plain(key) else self.text(key)
            if key == payload:
                item = self._declared_payload(item, value)
            elif not _is_plain(item):
                item = self.value(item, depth + 1)
            replaced[name] = item
        is_same = (
            all(map(is_, replaced.values(), value.values())) and replaced.keys() == value.keys()
        )
        return value if is_same else replaced

    # --- where payloads stand ---

    def _string(self, text: str) -> str:
        stripped = text.strip()
        if is_data_uri(stripped):
            uri = read_data_uri(stripped)
            if uri is not None and (len(stripped) >= LONG or self._is_media(uri.data)):
                return self._refer_to(uri.data, "embedded", claimed=uri.mime_type)
        digits = _HEX.fullmatch(stripped)
        if digits is not None and len(digits[1]) % 2 == 0:
            digit_bytes = bytes.fromhex(digits[1])
            if self._is_media(digit_bytes):
                return self._refer_to(digit_bytes, "embedded")
        if is_base64(stripped, _SHORTEST) and (len(stripped) >= LONG or _STARTS.match(stripped)):
            data = decode_base64(stripped)
            if data and self._is_media(data):
                return self._refer_to(data, "embedded")
            return self.text(text)

        may_be_broken = len(stripped) >= LONG and "\n" in stripped
        if not may_be_broken and not _STARTS.match(stripped):
            return self.text(text)
        joined = without_blanks(stripped)
        if is_base64(joined, _SHORTEST):
            data = decode_base64(joined)
            if data and (self._is_media(data) or _looks_like_bytes(joined)):
                return self._refer_to(data, "embedded")
        return self.text(text)

    def _declared_payload(self, payload: Any, holder: dict[str, Any]) -> str:
        """Return the replacement for the payload of an MCP image, audio or blob resource object."""
        claimed = type_said(holder)
        found = read_bytes(payload)
        if found is not None:
            return self._refer_to(found.data, "embedded", claimed=claimed or found.mime_type)
        if isinstance(payload, str) and len(payload) < LONG:
            description = payload
        else:
            text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
            description = self._refer_to(text.encode("utf-8", "replace"), "embedded")
        return f"[media that can't be decoded{_as_claimed(claimed)}, not base64: {description}]"

    def _of_uri(self, uri: str) -> str:
        head = _DATA_URI.match(uri)
        if head is None:
            plain = _PLAIN_URI.match(uri)
            assert plain is not None  # noqa: S101 - `_uris` gives nothing else
            picture = read_data_uri(uri)
            assert picture is not None  # noqa: S101 - its head was matched
            return self._refer_to(picture.data, "embedded", claimed=plain["type"])
        claimed = (head["type"] or "").replace("\\", "")
        lines = _GAP.split(uri[head.end() :])
        for count in (len(lines), len(lines) - 1):
            payload = _unescaped("".join(lines[:count]))
            end = _segment_end(payload, 0)
            data = decode_base64(payload[:end])
            if not data or (count == len(lines) > 1 and _is_whole(lines[:-1])):
                continue  # the last line is text that follows: a word is base64 too
            if len(payload) >= LONG or self._is_media(data) or self._looks > MAX_LOOKS:
                after = uri[-len(lines[-1]) :] if count < len(lines) else ""
                gap = _GAP.findall(uri)[-1] if after else ""
                reference = self._refer_to(data, "embedded", claimed=claimed)
                return reference + payload[end:] + gap + after
            break
        return uri

    def _of_lines(self, block: str) -> str:
        *lines, last = _LINE_BREAK.split(block)
        above = "".join(line.strip() for line in lines)
        gap: str = _LINE_BREAK.findall(block)[-1]
        whole = above + last.strip()
        is_padded = len(whole) % 4 == 0
        choices = [(above, gap + last)]
        if is_padded or (len(whole) % 4 != 1 and not _is_whole([above]) and _is_whole([whole])):
            choices.insert(0, (whole, ""))
        for joined, rest in choices:
            if not joined.rstrip("="):
                continue
            data = decode_base64(joined)
            if data and (self._is_media(data) or _looks_like_bytes(joined)):
                return self._refer_to(data, "embedded") + rest
        return block

    def _of_run(self, run_as_written: str) -> str:
        run = run_as_written.replace("\\/", "/")
        parts = []
        changed = False
        start = 0
        while start < len(run):
            end = _segment_end(run, start) if self._looks <= MAX_LOOKS else len(run)
            reference = self._of_segment(run[start:end])
            self._looks += 1
            changed = changed or reference is not None
            parts.append(run[start:end] if reference is None else reference)
            start = end
        return "".join(parts) if changed else run_as_written

    def _of_segment(self, segment: str) -> str | None:
        if len(segment) < LONG:
            return None
        starts = list(_starts_in(segment))
        if _STARTS.match(segment) or len(set(segment[:LONG])) >= 16:
            starts.insert(0, 0)
        for start in starts[:_MAX_STARTS]:
            data = decode_base64(segment[start:])
            if data and self._is_media(data):
                return segment[:start] + self._refer_to(data, "embedded")

        if not _looks_like_bytes(segment):
            return None
        data = decode_base64(segment)
        return self._refer_to(data, "embedded") if data else None

    def _of_buffer(self, written: str) -> str:
        numbers = written[written.index("[") + 1 : written.rindex("]")]
        try:
            data = bytes(map(int, numbers.split(",")))
        except ValueError:
            return written
        if not self._is_payload(data, is_declared=True):
            return written
        quote = written[1:].lstrip().partition("type")[0]
        return f"{quote}{self._refer_to(data, 'embedded')}{quote}"

    def _is_payload(self, data: bytes, is_declared: bool) -> bool:
        """Return whether bytes that JSON holds as numbers are replaced: media, or a long Buffer."""
        return (is_declared and len(data) >= LONG) or self._is_media(data)

    def _is_media(self, data: bytes) -> bool:
        if hashlib.sha256(data).hexdigest() in self._blobs:
            return True
        self._looks += 1
        return self._looks <= MAX_LOOKS and self._describe(data).mime_type.startswith(_MEDIA)

    # --- what stands in their place ---

    def _refer_to(self, data: bytes, role: Role, *, claimed: str = "", name: str = "") -> str:
        if not data:
            return f"[empty media{_as_claimed(claimed)}: 0 bytes]"
        sha256 = hashlib.sha256(data).hexdigest()
        known = self._blobs.get(sha256)
        if known is None and len(self._blobs) >= MAX_BLOBS:
            return (
                f"[{len(data):,} bytes{_as_claimed(claimed)}, not kept: more than {MAX_BLOBS} media"
                " in one result]"
            )
        blob = known or self._keep(data, sha256, role, self._describe(data), claimed, name)
        facts = blob.facts
        description = (
            f"{facts.mime_type} {len(data):,}"
            f" bytes{_measures(facts)}{_unless_same(claimed, facts.mime_type)}"
        )
        return f"[artifact {blob.uri} {description}]"

    def _keep(
        self,
        data: bytes,
        sha256: str,
        role: Role,
        facts: MediaFacts,
        claimed: str = "",
        name: str = "",
    ) -> Blob:
        return self._blobs.setdefault(sha256, Blob(data, sha256, role, facts, claimed, name))


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list) and is_short(value)


def _payload_key(value: dict[str, Any]) -> str | None:
    """Return the key whose value the object's other keys declare to be bytes."""
    is_declared = value.get("type") in ("image", "audio", "video", "base64")
    if is_declared and _may_be_bytes(value.get("data")):
        return "data"
    is_resource = is_declared or "mimeType" in value or "uri" in value
    if is_resource and _may_be_bytes(value.get("blob")):
        return "blob"
    return None


def _may_be_bytes(value: object) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, dict | list) and read_bytes(value) is not None


Span = tuple[int, int]


def _replace_spans(text: str, spans: Iterable[Span], replace: Callable[[str], str]) -> str:
    """Return the text with each span replaced."""
    parts: list[str] = []
    offset = 0
    for start, end in spans:
        parts += (text[offset:start], replace(text[start:end]))
        offset = end
    return "".join((*parts, text[offset:])) if parts else text


def _end(unit: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the units that begin at `start`, found window by window."""
    while (match := unit.match(text, start, start + _WINDOW)) is not None and match.end() > start:
        start = match.end()
    return start


def _padded_end(text: str, end: int) -> int:
    if text.startswith("==", end):
        return end + 2
    return end + 1 if text.startswith("=", end) else end


def _uris(text: str) -> Iterator[Span]:
    """Yield the `data:` URIs: all with base64, and long ones of plain SVG."""
    offset = 0
    while (match := _search(_DATA, text, offset)) is not None:
        offset = start = match.start()
        if head := _DATA_URI.match(text, start):
            offset = _payload_end(text, head.end())
            yield start, offset
        elif head := _PLAIN_URI.match(text, start):
            offset = _end(_PLAIN, text, head.end())
            if offset - head.end() >= LONG:
                yield start, offset
        offset = max(offset, start + 1)


def _buffers(text: str) -> Iterator[Span]:
    """Yield what JSON in a text says is a Buffer."""
    offset = 0
    while (match := _search(_BUFFER, text, offset)) is not None:
        offset = _end(_NUMBERS, text, match.end())
        if closed := _BUFFER_END.match(text, offset):
            offset = closed.end()
            yield match.start(), offset


def _payload_end(text: str, start: int) -> int:
    """Return the end of the base64 of a URI, which may be broken into lines of one length."""
    end = _end(_PAYLOAD, text, start)
    width = end - start
    is_first = True
    while width >= _FIRST_LINE and (gap := _GAP.match(text, end)) is not None:
        line_end = _end(_PAYLOAD, text, gap.end())
        length = line_end - gap.end()
        is_too_long = length > width and not is_first  # the first has the head of the URI in it
        if not length or is_too_long or not _AFTER_LINE.match(text, _padded_end(text, line_end)):
            break
        end = line_end
        if length < width:
            break
        width = length
        is_first = False
    return _padded_end(text, end)


def _unescaped(payload: str) -> str:
    payload = payload.replace("\\/", "/")
    if "%" not in payload:
        return payload
    unescaped = _PERCENT.sub(lambda sign: bytes([int(sign[1], 16)]), payload.encode())
    return "".join(unescaped.decode("latin-1").split())


def _is_whole(lines: list[str]) -> bool:
    """Return whether lines of base64 are a picture that needs no further line."""
    data = decode_base64(_unescaped("".join(lines))) or b""
    return data.endswith(_ENDS)


def _search(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str] | None:
    """Return the next match of a short pattern, searched window by window."""
    while at < len(text):
        if match := pattern.search(text, at, at + _WINDOW):
            return match
        at += _WINDOW - LONG
    return None


def _line_blocks(text: str) -> Iterator[Span]:
    """Yield blocks of at least three equally long lines of base64, with the shorter last line."""
    offset = 0
    while (match := _search(_WRAPPED, text, offset)) is not None:
        offset = _end(_MORE_WRAPPED, text, match.start())
        if _count_lines(text[match.start() : offset]) >= _LEAST_LINES:
            last = _LAST_WRAPPED.match(text, offset)
            offset = last.end() if last else offset
            yield match.start(), offset


def _count_lines(block: str) -> int:
    return block.count("\n") + block.count("\\n")


def _runs(text: str) -> Iterator[Span]:
    """Yield the runs of at least `LONG` characters of base64, where `\\/` counts as one."""
    offset = end_before = 0
    while offset < len(text):
        block = _BLOCK.match(text, offset)
        if block is None:
            offset += _STEP
            continue
        start = _start(text, max(end_before, offset - 2 * _STEP), offset)
        end = _end(_MORE, text, block.end())
        if end - start - text.count("\\/", start, end) >= LONG:
            end_before = end = _padded_end(text, end)
            yield start, end
        offset = end + -end % _STEP


def _start(text: str, least: int, start: int) -> int:
    """Return the start of the run that contains `at`, not before `least`."""
    while True:
        start = least + len(text[least:start].rstrip(_ALPHABET))
        if start <= least or text[start - 1] != "\\" or text[start : start + 1] != "/":
            return start
        start -= 1


def _starts_in(segment: str) -> list[int]:
    """Return the first few positions in a base64 segment where media may begin."""
    starts: list[int] = []
    offset = 1
    while len(starts) < _MAX_STARTS and (start := _search(_STARTS, segment, offset)) is not None:
        starts.append(start.start())
        offset = start.start() + 1
    return starts


def _segment_end(run: str, start: int) -> int:
    """Return the end of the longest piece in one alphabet, `+/` or `-_`: no encoder mixes them."""
    standard = _STANDARD.search(run, start)
    url_safe = _URL_SAFE.search(run, start)
    if standard is None or url_safe is None:
        return len(run)
    return max(standard.start(), url_safe.start())


def _looks_like_bytes(run: str) -> bool:
    """Return whether the run is very long and uses most of the alphabet, as compressed or random
    bytes do.
    """
    if len(run) < VERY_LONG:
        return False
    letters = set(run[:VERY_LONG])
    kinds = (str.isupper, str.islower, str.isdigit)
    return len(letters) >= 32 and all(any(kind(letter) for letter in letters) for kind in kinds)


def _measures(facts: MediaFacts) -> str:
    size = f" {facts.width}x{facts.height}" if facts.width and facts.height else ""
    return size + (f" {facts.duration_s:g} s" if facts.duration_s is not None else "")


def _as_claimed(claimed: str) -> str:
    essence = claimed.partition(";")[0].strip().lower()
    return f", claimed {essence}" if _MIME.fullmatch(essence) else ""


def _unless_same(claimed: str, sniffed: str) -> str:
    """Return the claimed type if it differs from the sniffed one."""
    essence = claimed.partition(";")[0].strip().lower()
    is_same = (
        _SAME.get(essence, essence) == sniffed.partition(";")[0]
        or essence == "application/octet-stream"
    )
    return "" if is_same else _as_claimed(claimed)
