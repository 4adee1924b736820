"""The valid form of each keyword of a JSON Schema, for drafts 4 to 2020-12 together.

Also finds patterns that may take a backtracking engine forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.servers.admission.admitted import DefinitionLimits, RefusalCode
from bundle_router.core.values.schema_tree import LISTS, MAPS, ONE, rebuilt

KeywordFault = tuple[RefusalCode, str, str]
"""Code, keyword and explanation."""

_TYPES: Final = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))
_OTHER_NAMES: Final = {
    "bool": "boolean",
    "date": "string",
    "datetime": "string",
    "dict": "object",
    "dictionary": "object",
    "double": "number",
    "float": "number",
    "hashmap": "object",
    "int": "integer",
    "list": "array",
    "long": "integer",
    "map": "object",
    "none": "null",
    "set": "array",
    "str": "string",
    "text": "string",
    "tuple": "array",
}
"""Names of JSON's types in programming languages. Any other name is no constraint on a value."""
_NUMBERS: Final = frozenset(("maximum", "minimum", "multipleOf"))
_COUNTS: Final = frozenset(
    (
        "maxContains",
        "maxItems",
        "maxLength",
        "maxProperties",
        "minContains",
        "minItems",
        "minLength",
        "minProperties",
    )
)
_TEXTS: Final = frozenset(
    ("$anchor", "$dynamicAnchor", "$schema", "description", "format", "title")
)


def with_json_types(schema: Any, renamed: set[str]) -> Any:
    """Return the schema with JSON's type names in place of other languages' ones, and without
    unknown type names. Adds the replacements to `renamed`.
    """

    def with_known_types(inner: dict[str, Any]) -> dict[str, Any]:
        is_list = isinstance(inner.get("type"), list)
        names = [inner.get("type")]
        if is_list:
            names = inner["type"]
        json_types = [_json_type(name) for name in names]
        for name, json_type in zip(names, json_types, strict=True):
            if name != json_type:
                renamed.add(f"{display_value(name)} as {json_type or 'any value'}")
        if json_types == names:
            return inner
        if "" in json_types:
            return {key: value for key, value in inner.items() if key != "type"}
        if is_list:
            return {**inner, "type": list(dict.fromkeys(json_types))}
        return {**inner, "type": json_types[0]}

    return rebuilt(schema, with_known_types)


def _json_type(name: Any) -> Any:
    if not isinstance(name, str):
        return name
    lower = name.lower()
    return lower if lower in _TYPES else _OTHER_NAMES.get(lower, "")


def keyword_fault(schema: Mapping[str, Any], limits: DefinitionLimits) -> KeywordFault | None:
    """Return the first keyword that validators reject, or that would be dangerous to evaluate."""
    for key, value in schema.items():
        wrong = form_fault(key, value)
        if wrong:
            return "bad_schema", key, wrong
        if key == "pattern":
            texts: tuple[Any, ...] = (value,)
        elif key == "patternProperties":
            texts = tuple(value)
        else:
            texts = ()
        for text in texts:
            if len(text) > limits.max_pattern_chars:
                return "bad_pattern", key, f"is longer than {limits.max_pattern_chars:,} characters"
            if explosive(text):
                return (
                    "bad_pattern",
                    key,
                    (
                        "repeats what already repeats, so that matching it may never end:"
                        f" {display_value(text)}"
                    ),
                )
    return None


def form_fault(key: str, value: Any) -> str:
    """Return why the keyword can't have this value; empty if it can."""
    if key == "type":
        return _fault_of_types(value)
    if key in MAPS or key == "dependentRequired":
        return _fault_of_map(key, value)
    for keys, is_valid, wanted in _FORMS:
        if key in keys and not is_valid(value):
            return f"is {display_value(value)}, not {wanted}"
    return ""


def _fault_of_types(value: Any) -> str:
    names = [value]
    if isinstance(value, list):
        names = value
    unknown = [name for name in names if not isinstance(name, str) or name not in _TYPES]
    if unknown:
        return f"is {display_value(unknown[0])}, which is no type"
    if not names:
        return "is empty"
    return ""


def _fault_of_map(key: str, value: Any) -> str:
    if not isinstance(value, dict):
        return f"is {display_value(value)}, not an object"
    if key not in ("dependencies", "dependentRequired"):
        return ""
    for names in value.values():
        if key == "dependencies" and not isinstance(names, list):
            continue  # a schema: checked as one
        if not _is_list_of_names(names):
            return f"has {display_value(names)}, not a list of names"
    return ""


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_filled_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


_FORMS: Final[Sequence[tuple[Container[str], Callable[[object], bool], str]]] = (
    (LISTS - ONE, _is_filled_list, "a list of schemas"),
    (("enum",), _is_list, "a list"),
    (("required",), _is_list_of_names, "a list of names"),
    ({*_TEXTS, "pattern"}, _is_text, "text"),
    (_NUMBERS, _is_number, "a number that fits"),
    (_COUNTS, _is_count, "a number that fits"),
)
"""Keywords, the test of their value, and what it has to be."""


def display_value(value: object) -> str:
    """Return a value for a message: short, on one line, printable."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


# A repetition inside a repetition is dangerous if the inner one can match what the outer one would:
# `(a+)+`, `(a|aa)*`, `(\w*\s?)*`, `(\d+.)+`. It is safe if each round must match something that the
# inner one can't: `(,[^,]+)*`, `(?:[a-z-]+\.)*`. The test: a round has a required piece that is not
# also repeated in it. This refuses the classical bombs but is no proof, so patterns are only ever
# evaluated by an engine that is linear by construction.
_TOKEN: Final = re.compile(r"\\.?|\[[\]^]?(?:\\.|[^\]\\])*\]?|.", re.DOTALL)
"""One character, escape or class."""
_QUANTIFIER: Final = re.compile(r"(?:([*+?])|\{(?!,?\})(\d{0,9})(,?)(\d{0,9})\})[?+]?")
_OPENING: Final = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|P?<\w{1,60}>|[a-zA-Z-]{1,10}:))?")
_TAKES_ALL: Final = frozenset((".", "\\S", "\\W", "\\D", "[\\s\\S]"))
_MANY: Final = 10
"""Count from which a bounded repetition is treated like an endless one: `(a{1,30}){1,30}`."""


@dataclass(slots=True)
class _Round:
    """The tokens that one round of a group may match: the present alternative, and a verdict on
    earlier ones.
    """

    once: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    pieces: set[str] = field(default_factory=set)
    openings: set[str] = field(default_factory=set)
    begun: bool = False
    loose: bool = False
    """Whether rounds are ambiguous: an alternative repeats without a fixed piece, or two begin
    alike.
    """

    def end_alternative(self) -> None:
        self.loose = self.loose or (
            bool(self.repeated) and not self.once - self.repeated - _TAKES_ALL
        )
        self.once = set()
        self.repeated = set()
        self.begun = False

    def note(self, pieces: set[str], opening: str, least: int, endless: bool) -> None:
        if not self.begun:
            self.begun = True
            self.loose = self.loose or opening in self.openings
            self.openings.add(opening)
        self.pieces |= pieces
        if endless:
            self.repeated |= pieces
        elif least > 0:
            self.once |= pieces


def explosive(pattern: str) -> bool:
    """Return whether the pattern has a repetition that can match a text in exponentially many
    ways.
    """
    groups = [_Round()]
    begins = list[int]()
    offset = 0
    while offset < len(pattern):
        if opening := _OPENING.match(pattern, offset):
            groups.append(_Round())
            begins.append(offset)
            offset = opening.end()
            continue
        token = _TOKEN.match(pattern, offset)[0]  # type: ignore[index] # it matches any character
        offset += len(token)
        if token == "|":  # noqa: S105 - a piece of a pattern, not a password
            groups[-1].end_alternative()
        elif token == ")" and begins:  # noqa: S105 - a piece of a pattern, not a password
            inner = groups.pop()
            text = pattern[begins.pop() : offset]
            inner.end_alternative()
            minimum, endless, offset = _quantifier(pattern, offset)
            if endless and inner.loose:
                return True
            groups[-1].note(inner.pieces, text, minimum, endless or inner.loose)
        elif token not in ("^", "$"):
            minimum, endless, offset = _quantifier(pattern, offset)
            groups[-1].note({token}, token, minimum, endless)
    return False


def _quantifier(pattern: str, at: int) -> tuple[int, bool, int]:
    """Return the quantifier's minimum, whether it has no (small) maximum, and the position of the
    next token.
    """
    match = _QUANTIFIER.match(pattern, at)
    if match is None:
        return 1, False, at
    sign, low, comma, high = match.groups()
    if sign:
        return int(sign == "+"), sign != "?", match.end()
    minimum = int(low or 0)
    return minimum, bool(comma) and (not high or minimum != int(high) >= _MANY), match.end()
