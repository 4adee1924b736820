"""Takes secrets out of text and JSON values: the `Redactor` port.

1. Clean text comes back as the same object after one pass of one automaton (about a microsecond for 200 characters).
2. A secret becomes `[redacted:<rule>]`, `[redacted:env:<NAME>]` or `[redacted:token:<name>]`; everything else stays.
3. A placeholder of this redactor is opaque: nothing is ever cut from it. So redacting twice gives the same text.
4. Time is linear in the text, decoding included; nothing here raises on any text.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bundle_router.adapters.redaction import json_walk as values
from bundle_router.adapters.redaction.detection import RuleBook, SecretHit
from bundle_router.adapters.redaction.encodings import label_of

__all__ = ["SecretRedactor"]

MAX_PASSES: Final = 6
"""Passes after which a text that keeps giving hits is withheld. Two is usual: one that finds, one that confirms."""

MAX_KEPT: Final = 64
MAX_KEPT_CHARACTERS: Final = 256
MAX_CLEAN: Final = 1_024
MAX_CLEAN_CHARACTERS: Final = 1_024

NAMED: Final = "named-secret"
WITHHELD: Final = "withheld"
_PLACEHOLDER = re.compile(rb"\[redacted:([A-Za-z0-9:_.-]{1,200})\]")


class SecretRedactor:
    """Redacts known token shapes, headers, URL credentials, named values, and the given environment values.

    `env_values` maps names of environment variables to their values; values under 8 characters are not looked for.
    Building one costs a few milliseconds; share it. Safe to use from many threads.
    """

    def __init__(self, env_values: Mapping[str, str] | None = None) -> None:
        self._configured: dict[str, str] = {}
        for name, value in (env_values or {}).items():
            self._configured.setdefault(value, label_of("env", name))
        self._kept: dict[str, str] = {}
        self._keeping = threading.Lock()
        self._rules = RuleBook(self._configured) if self._configured else RuleBook.without_values()
        self._labels = {label.encode() for label in self._rules.labels | {WITHHELD, values.TOO_DEEP}}
        self._clean: dict[str, None] = {}
        """Short texts in which these rules found nothing: names and ids stand in one record after the other."""

    def keep(self, name: str, value: str) -> None:
        """Look for this value, too, from now on: `[redacted:token:<name>]`.

        For tokens that are made while the program runs. A new one takes some 20 ms. Of a very long value the head
        is looked for, as the rest opens nothing; of more than 64 values the oldest is forgotten.
        """
        head = value[:MAX_KEPT_CHARACTERS]
        with self._keeping:
            if head in self._configured or head in self._kept:
                return
            kept = dict([*self._kept.items(), (head, label_of("token", name))][-MAX_KEPT:])
            rules = RuleBook({**self._configured, **kept})
            self._labels = self._labels | {label.encode() for label in rules.labels}  # before what may leave them
            self._rules, self._kept = rules, kept
            self._clean = {}

    def redact(self, text: str) -> str:
        """Return the text without its secrets; the same object when there is none."""
        data = text.encode("utf-8", "surrogatepass")
        if not self._rules.suspicious(data):
            return text
        redacted = self._redact_until_clean(data)
        return text if redacted == data else redacted.decode("utf-8", "surrogatepass")

    def is_clean(self, text: str) -> bool:
        """Return whether neither the text nor, if it is JSON, the value it encodes holds a secret. True only when sure.

        Meant for a record that was just encoded: one pass, and no walk over its values, for nearly all of them.
        """
        return not self._rules.suspicious(text.encode("utf-8", "surrogatepass"))

    def rules_in(self, text: str) -> list[str]:
        """Return the names of the rules that would take something out of the text, each once, sorted."""
        before, after = (
            _PLACEHOLDER.findall(side.encode("utf-8", "surrogatepass")) for side in (text, self.redact(text))
        )
        return sorted({label.decode() for label in after if after.count(label) > before.count(label)})

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        """Return each text redacted, in one pass when all are clean: the same sequence then."""
        clean = self._clean  # taken before the rules: what older ones let pass is noted where nobody looks any more
        unknown = [text for text in texts if text not in clean]
        # Two newlines: they end whatever one text began, and don't look like a fold in base64.
        if not unknown or not self._rules.suspicious("\n\n".join(unknown).encode("utf-8", "surrogatepass")):
            if len(clean) >= MAX_CLEAN:
                clean.clear()
            clean.update((text, None) for text in unknown if len(text) <= MAX_CLEAN_CHARACTERS)
            return texts
        redacted = [self.redact(text) for text in texts]
        return texts if all(new is old for new, old in zip(redacted, texts, strict=True)) else redacted

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value without its secrets, keys included; the same object when there is none.

        What stands under the name of a secret (`password`, `authorization`) goes whole, whatever it looks like.
        Values of other types than JSON's are left as they are.
        """
        if isinstance(value, str):
            return self.redact(value)
        strings = values.plain_strings(value)
        if strings is not None and self.redact_many(strings) is strings:
            return value
        redacted = values.redact_copy(value, self.redact, f"[redacted:{NAMED}]", self._is_placeholder)
        return value if redacted == value else redacted

    def _redact_until_clean(self, data: bytes) -> bytes:
        for _ in range(MAX_PASSES):
            placeholders = [found.span() for found in _PLACEHOLDER.finditer(data) if found[1] in self._labels]
            spans = _hits_outside(_merge_hits(self._rules.hits(data), data), placeholders)
            if not spans:
                return data
            data = _cut(data, spans)
        return f"[redacted:{WITHHELD}]".encode()

    def _is_placeholder(self, text: str) -> bool:
        match = _PLACEHOLDER.fullmatch(text.encode("utf-8", "surrogatepass"))
        return match is not None and match[1] in self._labels


def _merge_hits(hits: list[SecretHit], data: bytes) -> list[SecretHit]:
    """Overlapping hits as one, named by the one of the lowest rank.

    Widened to whole characters: the rules work on bytes, and half a character could not be decoded again.
    """
    merged: list[SecretHit] = []
    for hit in sorted(hits):
        start, end = hit.start, hit.end
        while data[start] & 0xC0 == 0x80:  # which no text begins with
            start -= 1
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        if merged and start < merged[-1].end:
            last = merged[-1]
            rank, label = min((last.rank, last.label), (hit.rank, hit.label))
            merged[-1] = SecretHit(last.start, max(last.end, end), rank, label)
        else:
            merged.append(SecretHit(start, end, hit.rank, hit.label))
    return merged


def _hits_outside(hits: list[SecretHit], placeholders: list[tuple[int, int]]) -> list[SecretHit]:
    """Return the parts of the hits that no placeholder covers. Both lists are ordered and free of overlaps."""
    if not placeholders:
        return hits
    parts: list[SecretHit] = []
    index = 0
    for hit in hits:
        start = hit.start
        while index < len(placeholders) and placeholders[index][1] <= start:
            index += 1
        at = index
        while at < len(placeholders) and placeholders[at][0] < hit.end:
            if start < placeholders[at][0]:
                parts.append(SecretHit(start, placeholders[at][0], hit.rank, hit.label))
            start = placeholders[at][1]
            at += 1
        if start < hit.end:
            parts.append(SecretHit(start, hit.end, hit.rank, hit.label))
    return parts


def _cut(data: bytes, hits: list[SecretHit]) -> bytes:
    pieces: list[bytes] = []
    last = 0
    for hit in hits:
        pieces += (data[last : hit.start], b"[redacted:", hit.label.encode(), b"]")
        last = hit.end
    pieces.append(data[last:])
    return b"".join(pieces)
