"""How long the library may need to check a value, found before it begins: it can't be stopped, and
holds the GIL until it has finished.

Rules:
1. A schema is described by one `LevelWork` for each depth of a value: an upper bound of what one
   value at that depth costs. All keywords and references that may reach the same depth are added.
2. A value is described by one `LevelSize` for each depth. Their products are the bound.
3. A schema whose work has no bound has none of these: `work_of` raises Unchecked. So does a value
   with parts that the library handles in quadratic time.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from bundle_router.core.values.schema_tree import (
    SAME_VALUE,
    all_schemas,
    anchor_names,
    anchors_in,
    subschemas,
    target_of,
)

MAX_VALUE_DEPTH: Final = 128
MAX_SCHEMAS: Final = 5_000
"""Maximum schemas with every reference written out: compiling them takes up to 60 ms."""
MAX_SCHEMA_VALUES: Final = 10_000
"""Maximum values in a schema, those included that are never applied: they are compiled too."""
MAX_PATTERN_PIECES: Final = 5_000
"""Maximum size of all patterns together: compiling them takes up to 60 ms."""
MAX_BITS: Final = 256
"""Integers beyond it are handled as decimal text: 280 comparisons of 4,000 digits take a second."""
MAX_EXACT: Final = 2**53
"""The library hashes numbers as floats: beyond this, different integers have one hash."""

# Steps of about 25 ns, rounded up from what the slowest values took on a machine of 2026.
_KEYWORD: Final = 4
_NAME: Final = 4
_LIMIT: Final = 50
_COMPARED_VALUE: Final = 12
_COMPARED_NUMBER: Final = 100
_MULTIPLE: Final = 1_000
_PAIR: Final = 4
"""Two items whose hashes are equal, if they hold no numbers."""
_FEW_ITEMS: Final = 20
"""Up to 15 items are compared pair by pair, more by their hashes."""
_PIECES_PER_STEP: Final = 5
"""Characters times pieces of a pattern that the slowest pattern handles in one step."""
_UNEVALUATED: Final = 4
"""`unevaluated*` evaluates all schemas beside it again; measured: 2.8 times the work."""

# Steps of about 1 µs, for the errors.
_ERROR: Final = 14
_CHARACTERS_PER_COPY: Final = 256
_PARTS_PER_ERROR: Final = 20
"""Parts of an `enum`, `const` or `not`, which their errors copy, that take as long as one error."""

_LIMITS: Final = frozenset(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"))
_KEYWORDS: Final = frozenset(
    (
        "additionalItems",
        "additionalProperties",
        "allOf",
        "anyOf",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "if",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minItems",
        "minLength",
        "minProperties",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "$ref",
        "required",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    )
)
_DEPENDENT: Final = frozenset(("dependencies", "dependentRequired", "dependentSchemas"))
_ONE_OF_MANY: Final = frozenset(("prefixItems", "properties"))
"""Only one of these inner schemas is applied to each part of a value."""
_NEVER_APPLIED: Final = frozenset(("$defs", "contentSchema", "definitions"))


class Unchecked(Exception):
    """The value is not checked: the text says why, and ends a sentence that begins with "its
    arguments are left to the server to check: ".
    """


class LevelWork(NamedTuple):
    """The most that one value at one depth costs."""

    steps: int = 0
    """Steps, apart from those for its characters and for its items' uniqueness."""
    errors: int = 0
    """Errors that may be found in it."""
    pieces: int = 0
    """Pieces of patterns that each of its characters is compared with."""
    unique: int = 0
    """How often its items are compared with each other."""

    def plus(self, other: LevelWork) -> LevelWork:
        return LevelWork(
            self.steps + other.steps,
            self.errors + other.errors,
            self.pieces + other.pieces,
            self.unique + other.unique,
        )

    def at_most(self, other: LevelWork) -> LevelWork:
        return LevelWork(
            max(self.steps, other.steps),
            max(self.errors, other.errors),
            max(self.pieces, other.pieces),
            max(self.unique, other.unique),
        )

    def times(self, count: int) -> LevelWork:
        return LevelWork(
            self.steps * count, self.errors * count, self.pieces * count, self.unique * count
        )


Work = Sequence[LevelWork]


class LevelSize(NamedTuple):
    """The values at one depth of a value."""

    values: int
    """Values of all kinds."""
    characters: int
    """Characters of texts and of the names of properties."""
    longest: int
    """Items of the longest list."""
    numbers: int
    """Integers and floats."""


def work_of(root: Mapping[str, Any]) -> Work:
    """Return the work of checking a value against the schema. Raises Unchecked."""
    try:
        sizes_of(root, MAX_SCHEMA_VALUES)
    except Unchecked:
        raise Unchecked("its schema is too large") from None
    try:
        return _Works(root).of(root)
    except RecursionError:
        raise Unchecked("its schema is nested too deep") from None


def sizes_of(value: Any, most: int) -> Sequence[LevelSize]:
    """Return the sizes of a value's levels. Raises Unchecked for a value of more than `most` parts,
    one that is nested too deep, or one with a number that is none or has too many digits.
    """
    sizes: list[LevelSize] = []
    level: list[Any] = [value]
    names = 0
    room = most
    while level:
        room -= len(level)
        if room < 0:
            raise Unchecked("they hold too many values")
        if len(sizes) == MAX_VALUE_DEPTH:
            raise Unchecked("they are nested too deep")
        below: list[Any] = []
        characters = names
        longest = 0
        numbers = 0
        next_names = 0
        for part in level:
            if isinstance(part, str):
                characters += len(part)
            elif isinstance(part, int):
                numbers += 1
                if part.bit_length() > MAX_BITS:
                    raise Unchecked("they hold a number of too many digits")
            elif isinstance(part, float):
                numbers += 1
                if not math.isfinite(part):
                    raise Unchecked("they hold a number that is none")
            elif isinstance(part, dict):
                below.extend(part.values())
                next_names += _characters(part)
            elif isinstance(part, list | tuple):
                below.extend(part)
                longest = max(longest, len(part))
            if len(below) > room:
                raise Unchecked("they hold too many values")
        sizes.append(LevelSize(len(level), characters, longest, numbers))
        level, names = below, next_names
    return sizes


def _characters(names: Iterable[Any]) -> int:
    try:
        return sum(map(len, names))
    except TypeError:
        raise Unchecked("they hold a name that is no text") from None


def steps_for(work: Work, sizes: Sequence[LevelSize]) -> int:
    """Return the most steps that the verdict on a value takes."""
    total = 0
    below = sum(size.values for size in sizes)
    numbers = sum(size.numbers for size in sizes)
    for level, size in zip(work, sizes, strict=False):
        below -= size.values
        numbers -= size.numbers
        total += level.steps * size.values
        total += level.pieces * size.characters // _PIECES_PER_STEP
        pairs = size.longest * below * _PAIR
        pairs_of_numbers = min(size.longest, _FEW_ITEMS) * numbers * _COMPARED_NUMBER
        total += level.unique * (pairs + pairs_of_numbers)
    return total


def steps_for_errors(work: Work, sizes: Sequence[LevelSize]) -> int:
    """Return the most steps of about 1 µs that all errors take: each copies the value it is about.

    An error costs 14, a value that it copies 1, and so do 256 characters.
    """
    total = 0
    below = sum(size.values + size.characters // _CHARACTERS_PER_COPY for size in sizes)
    for level, size in zip(work, sizes, strict=False):
        total += level.errors * (_ERROR * size.values + below)
        below -= size.values + size.characters // _CHARACTERS_PER_COPY
    return total


def holds_inexact(value: Any) -> bool:
    """Return whether some number in it is so large that others have the same hash."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, int | float) and abs(part) > MAX_EXACT:
            return True
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return False


class _Works:
    """The work of all schemas in one schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        names = Counter(name for schema in all_schemas(root) for name in anchor_names(schema))
        # The library may follow another one of several than is measured here.
        self._ambiguous = {name for name, count in names.items() if count > 1}
        self._anchors = anchors_in(root)
        self._done: dict[int, tuple[Work, int]] = {}
        self._open: set[int] = set()
        self._pieces_left = MAX_PATTERN_PIECES

    def of(self, root: Mapping[str, Any]) -> Work:
        work, schemas = self._of(root)
        if schemas > MAX_SCHEMAS:
            raise Unchecked("its schema is too large")
        return work

    def _of(self, schema: Any) -> tuple[Work, int]:
        """Return a schema's work, and how many schemas it is, with references written out."""
        if not isinstance(schema, Mapping):
            return (LevelWork(_KEYWORD, 1),), 1
        key = id(schema)
        if key in self._open:
            raise Unchecked("its schema contains itself")
        if key not in self._done:
            self._open.add(key)
            self._done[key] = self._sum(schema)
            self._open.remove(key)
        return self._done[key]

    def _sum(self, schema: Mapping[str, Any]) -> tuple[Work, int]:
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            raise Unchecked("its schema has a dynamic reference")
        schemas = 1
        total: Work = (self._own(schema),)
        parts: Work = self._for_names(schema)
        choices: dict[str, Work] = {}
        for key, inner in self._inner(schema):
            if key in _NEVER_APPLIED:
                continue
            work, count = self._of(inner)
            schemas += count
            if key in SAME_VALUE or key == "$ref":
                total = _added(total, work)
            elif key in _ONE_OF_MANY:
                choices[key] = _highest(choices.get(key, ()), work)
            else:
                parts = _added(parts, work)
        for work in choices.values():
            parts = _added(parts, work)
        if "unevaluatedItems" in schema or "unevaluatedProperties" in schema:
            total = [level.times(_UNEVALUATED) for level in total]
        return _added(total, (LevelWork(), *parts)), schemas

    def _inner(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for place, inner in subschemas(schema):
            yield str(place[0]), inner
        if "$ref" in schema:
            reference = str(schema["$ref"])
            target = target_of(self._root, self._anchors, reference)
            if target is None:
                raise Unchecked("its schema refers to nothing")
            if unquote(reference[1:]) in self._ambiguous:
                raise Unchecked("its schema has two anchors of one name")
            yield "$ref", target

    def _own(self, schema: Mapping[str, Any]) -> LevelWork:
        """Return the work of a schema's own keywords on one value."""
        steps = _KEYWORD
        errors = 0
        for key, argument in schema.items():
            keyword_steps, keyword_errors = _keyword_work(key, argument)
            steps += keyword_steps
            errors += keyword_errors
        pieces = 0
        if isinstance(schema.get("pattern"), str):
            pieces = self._pieces(schema["pattern"])
        return LevelWork(steps, errors, pieces, int(schema.get("uniqueItems") is True))

    def _for_names(self, schema: Mapping[str, Any]) -> Work:
        """Return the work of finding the schemas of each property by the patterns for names."""
        patterns = schema.get("patternProperties")
        if not isinstance(patterns, Mapping):
            return ()
        # `additionalProperties` compares the names a second time, and so does `unevaluated…`.
        pieces = 3 * sum(self._pieces(pattern) for pattern in patterns)
        return (LevelWork(_LIMIT * len(patterns), 0, pieces),)

    def _pieces(self, pattern: str) -> int:
        pieces = pattern_pieces(pattern)
        self._pieces_left -= pieces
        if self._pieces_left < 0:
            raise Unchecked("the patterns of its schema are too large")
        return pieces


def _keyword_work(key: str, argument: Any) -> tuple[int, int]:
    """Return the steps of one keyword on one value, and the errors that it may find."""
    if key in _LIMITS:
        return _LIMIT, 1
    if key == "multipleOf":
        _refuse_extreme(argument)
        return _MULTIPLE, 1
    if key in ("const", "enum"):
        return _KEYWORD + _compared(argument), 1 + _parts(argument) // _PARTS_PER_ERROR
    if key == "not":
        return _KEYWORD, 1 + _parts(argument) // _PARTS_PER_ERROR
    if key == "properties" and isinstance(argument, Mapping):
        return _KEYWORD + _NAME * len(argument), 1
    if key in ("required", "type") and isinstance(argument, list):
        return _KEYWORD + _NAME * len(argument), 1 + len(argument)
    if key in _DEPENDENT and isinstance(argument, Mapping):
        needed = sum(len(names) for names in argument.values() if isinstance(names, list))
        return _KEYWORD + _NAME * (len(argument) + needed), 1 + needed
    if key in _KEYWORDS:
        return _KEYWORD, 1
    return 0, 0


def _added(first: Work, second: Work) -> Work:
    pairs = zip_longest(first, second, fillvalue=LevelWork())
    return [one.plus(other) for one, other in pairs]


def _highest(first: Work, second: Work) -> Work:
    pairs = zip_longest(first, second, fillvalue=LevelWork())
    return [one.at_most(other) for one, other in pairs]


def _refuse_extreme(divisor: Any) -> None:
    size = abs(divisor) if isinstance(divisor, int | float) else 0
    if size and not 1e-20 < size < 1e20:
        raise Unchecked("its schema divides by a number of too many digits")


def _parts(value: Any) -> int:
    """Return the number of values in a value."""
    parts = 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        parts += 1
        if isinstance(part, dict):
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return parts


def _compared(value: Any) -> int:
    """Return the steps of comparing a value with this one."""
    steps = 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            steps += _COMPARED_VALUE * (1 + len(part))
            waiting.extend(part.values())
        elif isinstance(part, list):
            steps += _COMPARED_VALUE
            waiting.extend(part)
        elif isinstance(part, int | float) and not isinstance(part, bool):
            steps += _COMPARED_NUMBER
    return steps


_PIECE: Final = re.compile(
    r"\((?:\?(?:[:=!>]|<[=!]|P?<\w{1,60}>|[a-zA-Z-]{1,10}:))?|\)|\\[pP](?:\{[^}]*\})?|\\.?"
    r"|\[[\]^]?(?:\\.|[^\]\\])*\]?|.",
    re.DOTALL,
)
"""An opening or closing parenthesis, a class or a character."""
_QUANTIFIER: Final = re.compile(r"[*+?]|\{\s*(\d{0,9})\s*(?:,\s*(\d{0,9})\s*)?\}")
_VERBOSE: Final = re.compile(r"\(\?[a-zA-Z-]*x")
"""Where spaces mean nothing: a quantifier may then be far from what it repeats."""
_UNICODE_CLASS: Final = 50


def pattern_pieces(pattern: str) -> int:
    """Return the size of a pattern with its counted repetitions written out. Raises Unchecked."""
    if _VERBOSE.search(pattern):
        raise Unchecked("a pattern of its schema is in verbose notation")
    sizes = [0]
    offset = 0
    while offset < len(pattern):
        piece = _PIECE.match(pattern, offset)
        assert piece is not None  # noqa: S101 - it matches any character
        offset = piece.end()
        text = piece[0]
        if text.startswith("("):
            sizes.append(0)
            continue
        size = _UNICODE_CLASS if "\\p" in text.lower() else 1
        if text == ")" and len(sizes) > 1:
            size = sizes.pop() + 1
        while (quantifier := _QUANTIFIER.match(pattern, offset)) is not None:
            offset = quantifier.end()
            size *= max(1, int(quantifier[1] or 0), int(quantifier[2] or 0))
        sizes[-1] += size
    return sum(sizes)
