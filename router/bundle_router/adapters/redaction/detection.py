"""Finds secrets: gitleaks' rules, our own shapes, and the values of named environment variables.

1. One pass of one automaton (every rule's *probe*) tells which rules could match. Nearly every text
   ends there. It takes 10 ms to make, so values that are kept later have a probe of their own: the
   beginnings of their spellings.
2. Only those rules run, if one of their keywords is in the text. Each is compiled on first use.
3. A hit must then pass the rule's entropy, allowlists and check, so that harmless text is kept.
4. The result is a span of bytes and a label; this module changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from math import log2
from pathlib import Path
from typing import Any, Final, NamedTuple

from bundle_router.adapters.redaction import encodings
from bundle_router.adapters.redaction.encodings import PatternSet, literal, pattern
from bundle_router.adapters.redaction.field_names import NAME_ENDS, is_secret_name
from bundle_router.adapters.redaction.shapes import (
    SHAPES,
    STRUCTURE,
    STRUCTURES,
    SecretShape,
    is_long_token,
)

_QUOTED: Final = re.compile(rb"""(?s)(?P<quote>["'`])(?P<text>.+)(?P=quote)""")
PROOF: Final = b'"token": "ghp_%b\n0aB1=+"' % (b"0aB1" * 12)
"""A text in which every automaton must find something: RE2 reports no match when it runs out of
memory.
"""
MAX_LAYERS: Final = 3
"""Maximum nested encodings in which a secret is searched for."""
NAMED_STRUCTURE: Final = rf"""(?i)(?:{NAME_ENDS})[\s_.-]*"\s*(?::\s*["\[0-9-]|[,}}])"""
"""Matches JSON text in which a secret's name is followed by a value that `redact_value` may
redact.
"""


class SecretHit(NamedTuple):
    """A secret: its span in bytes, the rank of its rule (the lowest names it where hits overlap),
    and its label.
    """

    start: int
    end: int
    rank: int
    label: str


class ProbedText:
    """One text that matched some probe, and which of the rules' keywords occur in it, ignoring
    case.
    """

    def __init__(self, data: bytes, words: PatternSet) -> None:
        self.data = data
        self._words = words

    @cached_property
    def keywords(self) -> frozenset[str]:
        return frozenset(self._words.matching(self.data.lower()))


@dataclass(frozen=True, slots=True)
class SecretAllowance:
    """A rule's exceptions: a secret or match that fits a regex, a secret with a stop word."""

    target: str
    regexes: tuple[str, ...]
    stopwords: tuple[str, ...]

    def covers(self, secret: bytes, match: bytes) -> bool:
        patterns = map(pattern, self.regexes)
        if any(
            one.fullmatch(secret) if self.target == "secret" else one.search(match)
            for one in patterns
        ):
            return True
        return bool(self.stopwords) and pattern(_any_of(self.stopwords)).search(secret.lower())


@dataclass(frozen=True, slots=True)
class GitleaksRule:
    id: str
    regex: str
    group: int | None
    entropy: float
    keywords: frozenset[str]
    allow: tuple[SecretAllowance, ...]
    rank: int

    def hits(self, text: ProbedText) -> Iterator[SecretHit]:
        if self.keywords.isdisjoint(text.keywords):
            return
        data = text.data
        for spans in pattern(self.regex).spans(data):
            start, end = self._secret(spans)
            if quoted := _QUOTED.fullmatch(data, start, end):
                start, end = quoted.span("text")
            if self._is_secret(data[start:end], data[slice(*spans[0])]):
                yield SecretHit(start, end, self.rank, self.id)

    def _secret(self, spans: tuple[tuple[int, int], ...]) -> tuple[int, int]:
        if self.group is not None:
            return spans[self.group]
        return next((span for span in spans[1:] if span[0] < span[1]), spans[0])

    def _is_secret(self, secret: bytes, match: bytes) -> bool:
        # gitleaks demands a digit of what its generic rule finds, in its code and not in its rules
        if entropy(secret) <= self.entropy or (
            self.id == "generic-api-key" and not is_long_token(secret)
        ):
            return False
        return not any(allowance.covers(secret, match) for allowance in self.allow)


@dataclass(frozen=True, slots=True)
class ShapeRule:
    shape: SecretShape
    rank: int

    def hits(self, text: ProbedText) -> Iterator[SecretHit]:
        shape = self.shape
        data = text.data
        for spans in pattern(shape.regex).spans(data):
            name = spans[shape.name]
            if shape.name and not is_secret_name(data[name[0] : name[1]].decode("latin-1")):
                continue
            for group, (start, end) in enumerate(spans):
                if group in (0, shape.name) or start < 0:
                    continue
                for first, last in self._secrets(data, start, end):
                    if shape.check(data[first:last]):
                        yield SecretHit(first, last, self.rank, shape.id)

    def _secrets(self, data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        if not self.shape.inner:
            yield start, end
            return
        for spans in pattern(self.shape.inner).spans(data[start:end]):
            first, last = spans[1]
            if first >= 0:
                yield start + first, start + last


def entropy(secret: bytes) -> float:
    """Shannon entropy in bits per byte."""
    size = len(secret)
    return -sum(n / size * log2(n / size) for n in map(secret.count, set(secret)))


def _allowances(entries: list[dict[str, Any]]) -> tuple[SecretAllowance, ...]:
    return tuple(
        SecretAllowance(row["target"], tuple(row["regexes"]), tuple(row["stopwords"]))
        for row in entries
    )


@cache
def _any_of(words: tuple[str, ...]) -> str:
    return "|".join(map(literal, words))


Finder = Callable[[ProbedText], Iterator[SecretHit]]


@dataclass(frozen=True)
class _SharedRules:
    """The rules that do not depend on known values: created once per process."""

    probes: tuple[str, ...]
    behind: Mapping[str, PatternSet]
    finders: Mapping[str, list[Finder]]
    words: PatternSet
    labels: frozenset[str]


@cache
def _shared_rules() -> _SharedRules:
    loaded: dict[str, Any] = json.loads(
        Path(__file__).with_name("gitleaks.json").read_text(encoding="utf-8")
    )
    finders: dict[str, list[Finder]] = {}
    shared = _allowances(loaded["allow"])
    for rank, entry in enumerate(loaded["rules"], start=1):
        rule = GitleaksRule(
            id=entry["id"],
            regex=entry["regex"],
            group=entry["group"],
            entropy=entry["entropy"],
            keywords=frozenset(map(literal, entry["keywords"])),
            allow=_allowances(entry["allow"]) + (shared if entry["assignment"] else ()),
            # Generic rules rank last: their names say least about the secret.
            rank=rank if entry["id"] != "generic-api-key" else 10_000,
        )
        for probe in entry["probes"]:
            finders.setdefault(loaded["probes"][probe], []).append(rule.hits)
    for rank, shape in enumerate(SHAPES, start=1_000):
        finders.setdefault(shape.probe or shape.regex, []).append(ShapeRule(shape, rank).hits)
    structures = [shape.probe or shape.regex for shape in STRUCTURES]
    behind = {
        loaded["names"]: PatternSet(loaded["probes"][:1]),
        STRUCTURE: PatternSet(structures),
        encodings.LINE_END: PatternSet([encodings.FOLDED]),
        encodings.PLUS: PatternSet([encodings.FORM]),
    }
    words = PatternSet({literal(word) for entry in loaded["rules"] for word in entry["keywords"]})
    labels = frozenset([rule["id"] for rule in loaded["rules"]] + [shape.id for shape in SHAPES])
    apart = {loaded["probes"][0], *structures}
    probes = {*finders, NAMED_STRUCTURE, encodings.ESCAPED, encodings.BASE64_TEXT} - apart
    return _SharedRules(tuple(sorted(probes)), behind, finders, words, labels)


def _known_values(values: encodings.Values, text: ProbedText) -> Iterator[SecretHit]:
    return (SecretHit(at, end, 0, by) for at, end, by in values.found(text.data))


@dataclass(frozen=True, slots=True)
class RuleBook:
    """All rules and known values, by their probes. Threads may share it.

    The states of an automaton are combinations of what its patterns are in the middle of, and each
    new one costs time. So those that stay there long have others, `behind` a gate: a shorter
    pattern that matches wherever they do.
    """

    may_match: Callable[[bytes], object]
    """Returns nothing that is true if no probe matches, by the automaton alone, without any
    Python.
    """
    labels: frozenset[str]
    _finders: Mapping[str, list[Finder]]
    _words: PatternSet
    _together: tuple[PatternSet, ...]
    _behind: Mapping[str, PatternSet]

    @staticmethod
    @lru_cache(8)
    def of(known: frozenset[tuple[str, str]]) -> RuleBook:
        """Return the book of these values with their labels, behind one probe: one for the whole
        process.
        """
        shared = _shared_rules()
        values = encodings.Values(dict(known))
        probes = [*shared.probes, *shared.behind]
        finders = shared.finders
        behind = shared.behind
        if values.labels:  # known values rank before any rule
            probes = [*probes, values.regex]
            finders = {**finders, values.regex: [partial(_known_values, values)]}
        together = PatternSet(probes)
        if not all(automaton.matching(PROOF) for automaton in (together, *behind.values())):
            raise RuntimeError(
                "a redaction automaton does not find a known token; it may lack memory"
            )
        labels = shared.labels | values.labels
        return RuleBook(
            together.automaton.Match, labels, finders, shared.words, (together,), behind
        )

    def keeping(self, kept: Mapping[str, str]) -> RuleBook:
        """Return this book with more known values, over the same automaton."""
        values = encodings.Values(kept)
        if not values.labels:
            return self
        begins = PatternSet([values.beginnings])
        return replace(
            self,
            may_match=lambda data: self.may_match(data) or begins.automaton.Match(data),
            labels=self.labels | values.labels,
            _finders={**self._finders, values.beginnings: [partial(_known_values, values)]},
            _together=(*self._together, begins),
        )

    def matching(self, data: bytes) -> list[str]:
        """Return the probes that match, unordered."""
        probes = [probe for part in self._together for probe in part.matching(data)]
        behind = self._behind
        return [
            one
            for probe in probes
            for one in (behind[probe].matching(data) if probe in behind else (probe,))
        ]

    def hits(self, data: bytes) -> list[SecretHit]:
        """Return every secret in the text, in no order; they may overlap."""
        return list(self._search(data, MAX_LAYERS, _Budget(16 * len(data) + 65_536)))

    def _search(self, data: bytes, layers: int, budget: _Budget) -> Iterator[SecretHit]:
        candidates = self.matching(data)
        text = ProbedText(data, self._words)
        for probe in candidates:
            for finder in self._finders.get(probe, ()):
                yield from finder(text)
        if layers:
            for view in self._views(data, candidates):
                if not budget.spend(len(view.data)):
                    return
                for hit in self._search(view.data, layers - 1, budget):
                    start, end = view.origin(hit.start, hit.end)
                    yield SecretHit(start, end, hit.rank, hit.label)

    def _views(self, data: bytes, candidates: Collection[str]) -> Iterator[encodings.View]:
        if encodings.ESCAPE.search(data):
            yield encodings.unescaped(data)
        if encodings.FORM in candidates:
            yield encodings.unescaped_form(data)
        if encodings.FOLDED in candidates:
            yield encodings.unfolded(data)
        if encodings.BASE64_TEXT in candidates:
            yield from encodings.base64_decoded(data)


class _Budget:
    """The number of decoded bytes one text may cost: nested encodings multiply, and the text may be
    an attacker's.
    """

    __slots__ = ("_left",)

    def __init__(self, size: int) -> None:
        self._left = size

    def spend(self, size: int) -> bool:
        self._left -= size
        return self._left >= 0
