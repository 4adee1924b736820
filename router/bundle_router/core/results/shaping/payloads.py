"""Finds bytes in a result (media blocks, base64, `data:` URIs) and replaces them by artifact
references.

A payload is:
- a `Media` block; the `data` of an MCP image or audio object and the `blob` of an MCP resource, at
  any length;
- a base64 `data:` URI whose bytes are media, at any length, or any long one;
- a long run of base64 in text (also broken into lines), and a JSON string that is base64, whose
  bytes are media;
- a very long run of base64 with letters as mixed as those of bytes. `xxxx…` is base64 too, and
  stays. "Media" is decided by `describe` on the decoded bytes. Base64 that was cut off is decoded
  as far as it goes.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import string
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any, Final

from bundle_router.core.results.shaping.json_text import is_short
from bundle_router.core.results.shaping.shaped import Blob, Describe, MediaFacts, Role
from bundle_router.core.values import Media

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
_WRAPPED: Final = re.compile(r"(?m)^[ \t]{0,16}[A-Za-z0-9+/]{60,80}\r?\n")
_MORE_WRAPPED: Final = re.compile(r"(?:[ \t]{0,16}[A-Za-z0-9+/]{60,80}\r?\n)*")
_LAST_WRAPPED: Final = re.compile(r"[ \t]{0,16}[A-Za-z0-9+/]{0,80}={0,2}")
_DATA: Final = re.compile(r"data:", re.IGNORECASE)
_DATA_URI: Final = re.compile(
    r"data:(?P<type>[a-z]{1,20}\\?/[a-z0-9.+-]{1,80})?(?:;[a-z0-9_.-]{1,40}=[^;,\s\"']{0,80}){0,4};base64,"
    r"(?=[A-Za-z0-9+/_%-])",
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
_LETTERS: Final = re.compile(r"[A-Za-z0-9+/_-]*+")
_MIME: Final = re.compile(r"[a-z0-9]{1,30}/[a-z0-9.+-]{1,80}")
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
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
        if len(text) < LONG:
            return text
        if "\n" in text:
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
        if _is_base64(stripped, _SHORTEST) and (len(stripped) >= LONG or _STARTS.match(stripped)):
            data = _decode(stripped)
            if data and self._is_media(data):
                return self._refer_to(data, "embedded")
            return self.text(text)

        if len(stripped) < LONG or "\n" not in stripped:
            return self.text(text)
        joined = "".join(stripped.split())
        if _is_base64(joined, _SHORTEST):
            data = _decode(joined)
            if data and (self._is_media(data) or _looks_like_bytes(joined)):
                return self._refer_to(data, "embedded")
        return self.text(text)

    def _declared_payload(self, payload: str, holder: dict[str, Any]) -> str:
        """Return the replacement for the payload of an MCP image, audio or blob resource object."""
        words = (holder.get(key) for key in ("mimeType", "mime_type", "media_type"))
        claimed = next((word for word in words if isinstance(word, str)), "")
        joined = "".join(payload.split())
        data = _decode(joined) if _is_base64(joined, 0) else None
        if data is None:
            description = f"{len(payload):,} characters" if len(payload) >= LONG else payload
            return f"[media that can't be decoded{_as_claimed(claimed)}, not base64: {description}]"
        return self._refer_to(data, "embedded", claimed=claimed)

    def _of_uri(self, uri: str) -> str:
        head = _DATA_URI.match(uri)
        if head is None:
            plain = _PLAIN_URI.match(uri)
            assert plain is not None  # noqa: S101 - `_uris` gives nothing else
            data = _PERCENT.sub(
                lambda m: bytes([int(m[1], 16)]), uri[plain.end() :].encode("utf-8", "replace")
            )
            return self._refer_to(data, "embedded", claimed=plain["type"])
        payload = uri[head.end() :].replace("\\/", "/")
        if "%" in payload:
            payload = _PERCENT.sub(lambda m: bytes([int(m[1], 16)]), payload.encode()).decode(
                "latin-1"
            )
        end = _segment_end(payload, 0)
        data_or_none = _decode(payload[:end])
        if not data_or_none or not (
            len(payload) >= LONG or self._is_media(data_or_none) or self._looks > MAX_LOOKS
        ):
            return uri
        return (
            self._refer_to(data_or_none, "embedded", claimed=(head["type"] or "").replace("\\", ""))
            + payload[end:]
        )

    def _of_lines(self, block: str) -> str:
        *lines, last = block.split("\n")
        above = "".join(line.strip() for line in lines)
        for joined, rest in ((above + last.strip(), ""), (above, "\n" + last)):
            if not joined.rstrip("=") or len(joined) % 4:
                continue
            data = _decode(joined)
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
            data = _decode(segment[start:])
            if data and self._is_media(data):
                return segment[:start] + self._refer_to(data, "embedded")

        if not _looks_like_bytes(segment):
            return None
        data = _decode(segment)
        return self._refer_to(data, "embedded") if data else None

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
    """Return the key whose string the object's other keys declare to be base64."""
    if value.get("type") in ("image", "audio") and isinstance(value.get("data"), str):
        return "data"
    is_blob = isinstance(value.get("blob"), str) and ("mimeType" in value or "uri" in value)
    return "blob" if is_blob else None


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


def _is_base64(text: str, least: int) -> bool:
    """Return whether the whole text is base64 of at least `least` characters, padded or not."""
    end = _end(_LETTERS, text, 0)
    return end >= least and text[end : end + 3] in ("", "=", "==")


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
            offset = _padded_end(text, _end(_PAYLOAD, text, head.end()))
            yield start, offset
        elif head := _PLAIN_URI.match(text, start):
            offset = _end(_PLAIN, text, head.end())
            if offset - head.end() >= LONG:
                yield start, offset
        offset = max(offset, start + 1)


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
        if text.count("\n", match.start(), offset) >= 3:
            last = _LAST_WRAPPED.match(text, offset)
            offset = last.end() if last else offset
            yield match.start(), offset


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


def _decode(payload: str) -> bytes | None:
    """Decode base64 of either alphabet, padded or not; a single last character is ignored."""
    body = payload.rstrip("=")
    if len(body) % 4 == 1:
        body = body[:-1]
    if "-" in body or "_" in body:
        body = body.replace("-", "+").replace("_", "/")
    try:
        return binascii.a2b_base64(body + "=" * (-len(body) % 4))
    except (binascii.Error, ValueError):
        return None


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
