"""Removes secrets from text and JSON values: the `Redactor` port.

1. Clean text is returned as the same object after one pass of one automaton (about a microsecond
   for 200 characters).
2. A secret becomes `[redacted:<rule>]`, `[redacted:env:<NAME>]` or `[redacted:token:<name>]`; all
   other text is kept.
3. A placeholder of this redactor is never changed. So redacting twice gives the same text.
4. Time is linear in the text, decoding included. No text makes the redactor raise.
5. JSON is walked without recursion. The value of a secret's name is redacted whole if it is a
   string, a number, or a list of these, and no reference, version or path. An object there is
   walked as usual: it may be the field's schema.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import filterfalse
from typing import Any, Final, TypeVar

from bundle_router.adapters.redaction.detection import RuleBook, SecretHit
from bundle_router.adapters.redaction.encodings import label_of, unescape_quickly
from bundle_router.adapters.redaction.field_names import HARMLESS, is_header_name, is_secret_name
from bundle_router.core.values.words import shown_run_id

T = TypeVar("T")
__all__ = ["SecretRedactor", "quoted_run_id"]

MAX_PASSES: Final = 6
"""Passes after which a text that still contains secrets is withheld.

Usually two: one finds, one confirms.
"""

MAX_KEPT: Final = 64
MAX_KEPT_CHARACTERS: Final = 256
MAX_CLEAN: Final = 1_024
MAX_CLEAN_CHARACTERS: Final = 1_024
LONG_CHARACTERS: Final = 32_768
MAX_LONG_CHARACTERS: Final = 8 * 1024 * 1024
"""Characters of long texts that are remembered as redacted: an event loop writes arguments into
records that a thread has redacted. Not of one that is a fourth of this.
"""

NAMED: Final = "named-secret"
WITHHELD: Final = "withheld"
_PLACEHOLDER = re.compile(rb"\[redacted:([A-Za-z0-9:_.-]{1,200})\]")


class SecretRedactor:
    """Redacts known token shapes, headers, URL credentials, named values, and the given environment
    values.

    `env_values` maps names of environment variables to their values; values under 8 characters are
    not searched for. Building one costs a few milliseconds; share it. Thread-safe.
    """

    def __init__(self, env_values: Mapping[str, str] | None = None) -> None:
        self._configured: dict[str, str] = {}
        for name, value in (env_values or {}).items():
            self._configured.setdefault(value, label_of("env", name))
        self._kept: dict[str, str] = {}
        self._keeping = threading.Lock()
        self._rules = self._first_rules = RuleBook.of(frozenset(self._configured.items()))
        self._labels = {label.encode() for label in self._rules.labels | {WITHHELD, TOO_DEEP}}
        self._clean: dict[str, None] = {}
        """Short texts without a secret by these rules: names and ids recur in every record."""
        self._settled: dict[str, None] = {}
        """Long texts, oldest first, in which `redact` finds nothing by these rules; in their value
        as JSON it may.
        """

    def keep(self, name: str, value: str) -> None:
        """Redact this value too from now on, as `[redacted:token:<name>]`.

        For tokens that arise while the program runs. Of a very long value only the head is searched
        for, because the rest alone is useless; beyond 64 values the oldest is forgotten.
        """
        head = value[:MAX_KEPT_CHARACTERS]
        with self._keeping:
            if head in self._configured or head in self._kept:
                return
            tokens = dict([*self._kept.items(), (head, label_of("token", name))][-MAX_KEPT:])
            rules = self._first_rules.keeping(tokens)
            self._labels = self._labels | {
                label.encode() for label in rules.labels
            }  # before the rules that use them
            self._rules = rules
            self._kept = tokens
            self._clean = {}
            self._settled = {}

    def redact(self, text: str) -> str:
        """Return the text without its secrets; the same object if it has none."""
        # read before the rules, as below
        clean = self._clean
        settled = self._settled
        is_short = len(text) <= MAX_CLEAN_CHARACTERS
        is_long = LONG_CHARACTERS <= len(text) < MAX_LONG_CHARACTERS // 4
        if (is_short and text in clean) or text in settled:
            return text
        data = text.encode("utf-8", "surrogatepass")
        if is_clean := not _is_suspicious(self._rules, data):
            redacted = data
        else:
            redacted = self._redact_until_clean(data)
        text = text if redacted == data else redacted.decode("utf-8", "surrogatepass")
        if is_short and is_clean and len(clean) < MAX_CLEAN:
            clean[text] = None
        if is_long:
            with self._keeping:
                settled[text] = None
                while sum(map(len, settled)) > MAX_LONG_CHARACTERS:
                    del settled[next(iter(settled))]
        return text

    def rules_in(self, text: str) -> list[str]:
        """Return the sorted names of the rules that would redact something in the text."""
        head, tail = (
            _PLACEHOLDER.findall(side.encode("utf-8", "surrogatepass"))
            for side in (text, self.redact(text))
        )
        return sorted({label.decode() for label in tail if tail.count(label) > head.count(label)})

    def are_clean(self, texts: Sequence[str]) -> bool:
        """Return True only if it is certain that no text, nor its value if it is JSON, holds a
        secret.

        One pass over those that were not checked before, without walking over values.
        """
        clean = (
            self._clean
        )  # read before the rules: texts that old rules let pass go into the old, unused cache
        unknown = list(filterfalse(clean.__contains__, texts))
        if not unknown:
            return True
        # Joined by two newlines, which end anything that a text began and don't look like folded
        # base64.
        if _is_suspicious(self._rules, "\n\n".join(unknown).encode("utf-8", "surrogatepass")):
            return False
        if len(clean) >= MAX_CLEAN:
            clean.clear()
        clean.update((text, None) for text in unknown if len(text) <= MAX_CLEAN_CHARACTERS)
        return True

    def redact_many(self, texts: Sequence[str]) -> Sequence[str]:
        """Return each text redacted.

        If all are clean, this takes one pass and returns the same sequence.
        """
        unsettled = [text for text in texts if text not in self._settled]
        if self.are_clean(unsettled):
            return texts

        redacted = [self.redact(text) for text in texts]
        if all(new is old for new, old in zip(redacted, texts, strict=True)):
            return texts
        return redacted

    def redact_value(self, value: T) -> T:
        """Return a JSON value without its secrets, keys included; the same object if it has none.

        The value of a field with a secret's name (`password`, `authorization`) is redacted whole,
        unless it refers to one (`$TOKEN`) or is a version or a path. Values of non-JSON types are
        kept.
        """
        redacted: T = self._redacted(value)
        return redacted

    def _redacted(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact(value)
        strings = plain_strings(value)
        if strings is not None and self.redact_many(strings) is strings:
            return value
        redacted = redact_copy(value, self.redact, f"[redacted:{NAMED}]", self._is_placeholder)
        return value if redacted == value else redacted

    def _redact_until_clean(self, data: bytes) -> bytes:
        for _ in range(MAX_PASSES):
            placeholders = [
                found.span() for found in _PLACEHOLDER.finditer(data) if found[1] in self._labels
            ]
            spans = _hits_outside(_merge_hits(self._rules.hits(data), data), placeholders)
            if not spans:
                return data
            data = _cut(data, spans)
        return f"[redacted:{WITHHELD}]".encode()

    def _is_placeholder(self, text: str) -> bool:
        match = _PLACEHOLDER.fullmatch(text.encode("utf-8", "surrogatepass"))
        return match is not None and match[1] in self._labels


def _is_suspicious(rules: RuleBook, data: bytes) -> bool:
    """Return whether any probe matches the text, or its unescaped form.

    False: there is nothing to redact.
    """
    if rules.may_match(data) and rules.matching(data):
        return True
    return b"\\" in data and bool(
        rules.may_match(bare := unescape_quickly(data)) and rules.matching(bare)
    )


def _merge_hits(hits: list[SecretHit], data: bytes) -> list[SecretHit]:
    """Merge overlapping hits into one, named by the lowest rank.

    Each is widened to whole characters, because the rules work on bytes, and half a character could
    not be decoded.
    """
    merged: list[SecretHit] = []
    for hit in sorted(hits):
        start = hit.start
        end = hit.end
        while data[start] & 0xC0 == 0x80:  # a continuation byte, with which no text begins
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
    """Return the parts of the hits that no placeholder covers.

    Both lists are ordered and free of overlaps.
    """
    parts: list[SecretHit] = []
    index = 0
    for hit in hits:
        start = hit.start
        while index < len(placeholders) and placeholders[index][1] <= start:
            index += 1
        position = index
        while position < len(placeholders) and placeholders[position][0] < hit.end:
            if start < placeholders[position][0]:
                parts.append(SecretHit(start, placeholders[position][0], hit.rank, hit.label))
            start = placeholders[position][1]
            position += 1
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


# --- values of JSON -------------------------------------------------------------------------------

MAX_DEPTH: Final = 500
"""Maximum depth. Deeper values are replaced, because they were not checked."""
TOO_DEEP: Final = "too-deep"

_LEAVES: Final = (list, tuple, int, float, type(None))
_REFERENCE = re.compile(rf"(?:\w+ )?\$\{{?\w+\}}?|{HARMLESS}")
"""`${GITHUB_TOKEN}`, `Bearer $TOKEN`: a reference to a secret, which is no secret itself; or no
secret at all.
"""


def quoted_run_id(run_id: str) -> str:
    """Return the id of a run that is not there, for a message (see `shown_run_id`)."""
    return shown_run_id(run_id, _plain_redactor().redact)


@cache
def _plain_redactor() -> SecretRedactor:
    return SecretRedactor()


def plain_strings(value: Any) -> list[str] | None:
    """Return every string of the value, keys included; None if one of its names marks a secret, or
    if it is nested too deeply.
    """
    strings: list[str] = []
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                strings.append(node)
            elif _is_object(node):
                for key, item in node.items():
                    if isinstance(key, str):
                        strings.append(key)
                        if item and is_secret_name(key):
                            return None
                    if isinstance(item, str):
                        strings.append(item)
                    elif item is not None:
                        below.append(item)
                if _named_value(node) is not None:
                    return None
            elif isinstance(node, (list, tuple)):
                if _is_header_pair(node):
                    return None
                below.extend(node)
        if not below:
            return strings
        level = below
    return None


def redact_copy(
    value: Any, redact: Callable[[str], str], named: str, is_placeholder: Callable[[str], bool]
) -> Any:
    """Return a copy with `redact` applied to every string, and `named` in place of every named
    secret.
    """
    root: list[Any] = [None]
    tuples: list[tuple[list[Any] | dict[Any, Any], Any, list[Any]]] = []
    work: list[tuple[Any, list[Any] | dict[Any, Any], Any, bool, int]] = [
        (value, root, 0, False, 0)
    ]
    while work:
        node, into, at, secret, depth = work.pop()
        if depth > MAX_DEPTH:
            into[at] = f"[redacted:{TOO_DEEP}]"
        elif isinstance(node, str):
            is_harmless = (
                not secret or not node or is_placeholder(node) or _REFERENCE.fullmatch(node)
            )
            into[at] = redact(node) if is_harmless else named
        elif _is_object(node):
            into[at] = _opened_object(node, redact, work, depth, secret)
        elif isinstance(node, (list, tuple)):
            items: list[Any] = [None] * len(node)
            into[at] = items
            if isinstance(node, tuple):
                tuples.append((into, at, items))
            pair = _is_header_pair(node)
            work.extend(
                (item, items, i, secret or (pair and i == 1), depth + 1)
                for i, item in enumerate(node)
            )
        else:
            if secret and isinstance(node, (int, float)) and not isinstance(node, bool):
                into[at] = named
            else:
                into[at] = node
    for into, at, items in reversed(tuples):
        into[at] = tuple(items)
    return root[0]


def _opened_object(
    node: Mapping[Any, Any],
    redact: Callable[[str], str],
    work: list[tuple[Any, list[Any] | dict[Any, Any], Any, bool, int]],
    depth: int,
    secret: bool,
) -> dict[Any, Any]:
    """Return the object with redacted keys, and queue its values.

    Keys that became equal are made distinct.
    """
    opened: dict[Any, Any] = {}
    name = "value" if secret else _named_value(node)
    for key, item in node.items():
        new = redact(key) if isinstance(key, str) else key
        base = new
        count = 1
        while new in opened:
            count += 1
            new = f"{base}#{count}"
        opened[new] = None
        is_secret = (isinstance(key, str) and is_secret_name(key)) or key == name
        work.append((item, opened, new, is_secret and not isinstance(item, Mapping), depth + 1))
    return opened


def _is_object(node: Any) -> bool:
    # An isinstance check of a number against an abstract class costs more than the rest of the
    # walk.
    return isinstance(node, dict) or (not isinstance(node, _LEAVES) and isinstance(node, Mapping))


def _named_value(node: Mapping[Any, Any]) -> str | None:
    """Return "value" if the object has the form `{"name": "Authorization", "value": "…"}`."""
    if "value" not in node:
        return None
    names = map(node.get, ("name", "key", "header"))
    if any(isinstance(name, str) and is_secret_name(name) for name in names):
        return "value"
    return None


def _is_header_pair(node: list[Any] | tuple[Any, ...]) -> bool:
    """Return whether the list is `["Authorization", "Bearer …"]`, the form of header lists."""
    return (
        len(node) == 2
        and isinstance(node[0], str)
        and isinstance(node[1], str)
        and is_header_name(node[0])
    )
