"""Conditions on the arguments of a call, as rows of config write them.

Rules:
1. A condition holds, fails, or is undecidable. Undecidable is what can't be told: the value is
   absent, of another type than the operator compares, redacted, or written in more than one
   readable way. Each use of a condition takes that for the careful answer.
2. `*` in a pointer stands for every item of a list. The condition holds where it holds for all of
   them, fails where it fails for all of them, and is undecidable in between and for an empty list.
3. Several conditions are one: they hold where all hold, fail where one fails, and are else
   undecidable.
4. The operators are a closed list. No expression, pattern or code of config or of a server is
   evaluated.
5. Texts are compared as they are: case counts, and nothing is trimmed or decoded. A path or a host
   that some reader may take for another one is undecidable.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal

from bundle_router.core.catalog.config_tables import Condition, Scalar
from bundle_router.core.values.host_names import spell_host

ConditionOutcome = Literal["holds", "fails", "undecidable"]


@dataclass(frozen=True, slots=True)
class ConditionFinding:
    """What one condition comes to, for the arguments of one call."""

    outcome: ConditionOutcome
    """Whether it holds, fails, or can't be decided."""
    detail: str
    """Why, in words that hold no value of the arguments."""


class _Undecidable(Exception):
    """The value can't be compared; the message says why."""


def evaluate(condition: Condition, arguments: Any) -> ConditionFinding:
    """Return what a condition comes to for the arguments of a call, without their secrets.

    >>> from bundle_router.core.catalog.config_tables import Condition
    >>> evaluate(Condition("/amount", at_most=500), {"amount": 700}).outcome
    'fails'
    >>> evaluate(Condition("/amount", at_most=500), {"amount": "700"}).outcome
    'undecidable'
    """
    comparison = _COMPARISONS[condition.operator]
    try:
        values = values_at(condition.at, arguments)
        results = [comparison(condition.operand, _compared(value)) for value in values]
    except _Undecidable as why:
        return ConditionFinding("undecidable", f"{condition.at} {why}")
    if all(results):
        return ConditionFinding("holds", f"{condition.at} is as {condition.words} asks")
    if not any(results):
        return ConditionFinding("fails", f"{condition.at} is not as {condition.words} asks")
    return ConditionFinding(
        "undecidable", f"{condition.at} is as {condition.words} asks for some items only"
    )


def evaluate_all(conditions: Iterable[Condition], arguments: Any) -> ConditionOutcome:
    """Return what conditions come to together (rule 3). None at all hold."""
    outcomes = {evaluate(condition, arguments).outcome for condition in conditions}
    if "fails" in outcomes:
        return "fails"
    return "undecidable" if "undecidable" in outcomes else "holds"


def condition_fault(condition: Condition) -> str | None:
    """Return what is wrong with a condition as it is written in config; None if nothing is."""
    if not _POINTER.fullmatch(condition.at):
        return (
            f"{condition.at!r} is no JSON Pointer: write '/amount', '/items/0/price', or '*' for"
            " every item of a list"
        )
    operators = condition.operators
    if len(operators) != 1:
        names = " and ".join(operators) or "no operator"
        return f"has {names}: a condition has exactly one of {', '.join(OPERATORS)}"
    operand = condition.operand
    try:
        if condition.operator == "below":
            _path_parts(operand)
        if condition.operator == "host_in":
            for host in operand:
                _listed_host(host)
        if condition.operator == "domain_in":
            for domain in operand:
                spell_host(domain)
    except (_Undecidable, ValueError) as why:
        return f"{condition.operator} can't be compared: {why}"
    return None


# --- where a condition looks ----------------------------------------------------------------------

_POINTER: Final = re.compile(r"(?:/(?:[^/~]|~[01])*)+")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


def pointer_parts(pointer: str) -> list[str]:
    """Return the parts of a JSON Pointer, unescaped."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def values_at(pointer: str, arguments: Any) -> Sequence[Any]:
    """Return the values that a pointer reaches, at least one; `*` reaches every item of a list.

    Raises an exception that `evaluate` answers where one is absent.
    """
    values = [arguments]
    for part in pointer_parts(pointer):
        values = [inner for value in values for inner in _inside(value, part)]
    return values


def _inside(value: Any, part: str) -> Sequence[Any]:
    if isinstance(value, Mapping):
        if part not in value:
            raise _Undecidable("is absent")
        return [value[part]]
    if not isinstance(value, list | tuple):
        raise _Undecidable("is absent")
    if part == "*":
        if not value:
            raise _Undecidable("is an empty list")
        return value
    if not _INDEX.fullmatch(part) or int(part) >= len(value):
        raise _Undecidable("is absent")
    return [value[int(part)]]


_REDACTED: Final = re.compile(r"\[redacted:[A-Za-z0-9:_.-]{1,200}\]")
"""What stands in place of a secret (see `adapters.redaction`)."""


def _compared(value: Any) -> Any:
    if isinstance(value, str) and _REDACTED.search(value):
        raise _Undecidable("is redacted")
    return value


# --- the operators --------------------------------------------------------------------------------


def _is(operand: Scalar, value: Any) -> bool:
    return _in((operand,), value)


def _in(operand: Sequence[Scalar], value: Any) -> bool:
    if _kind(value) not in map(_kind, operand):
        raise _Undecidable("is of another type")
    return any(_kind(value) == _kind(item) and value == item for item in operand)


def _kind(value: Any) -> str:
    """Return the type of a value in JSON's words, in which `true` is no number."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def _at_most(operand: float, value: Any) -> bool:
    return bool(_number(value) <= operand)


def _at_least(operand: float, value: Any) -> bool:
    return bool(_number(value) >= operand)


def _number(value: Any) -> float:
    if _kind(value) != "number":
        raise _Undecidable("is no number")
    if isinstance(value, float) and not isfinite(value):
        raise _Undecidable("is no number")
    number: float = value
    return number


def _below(operand: str, value: Any) -> bool:
    folder = _path_parts(operand)
    path = _path_parts(value)
    if len(path) <= len(folder):
        return False
    start = path[: len(folder)]
    if start == folder:
        return True
    if [part.casefold() for part in start] == [part.casefold() for part in folder]:
        raise _Undecidable("differs in case, which some file systems ignore")
    return False


_NOT_BELOW: Final = re.compile(r"\A/|\A[A-Za-z]:|\\|%(?:2e|2f|5c|00)", re.IGNORECASE)
"""A path from the top, a drive, a backslash, and what some readers decode to a dot or a slash."""


def _path_parts(text: Any) -> list[str]:
    """Return the names of a relative path, without `.`. Links are not followed."""
    if not isinstance(text, str):
        raise _Undecidable("is no text")
    if unicodedata.normalize("NFKC", text) != text or not text.isprintable():
        raise _Undecidable("holds characters that can be read as others")
    unclear = _NOT_BELOW.search(text)
    if unclear is not None:
        raise _Undecidable("is no plain relative path with '/' between its names")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    upwards = [part for part in parts if not part.strip(". ")]
    if upwards:
        raise _Undecidable("leads out of its folder, or may")
    return parts


_HTTPS: Final = re.compile(r"https://([^/?#]*)(?:[/?#].*)?", re.IGNORECASE)
_UNCLEAR: Final = re.compile(r"[\\\s]")


def _host_in(operand: Sequence[str], value: Any) -> bool:
    if not isinstance(value, str) or not value.isprintable() or _UNCLEAR.search(value):
        raise _Undecidable("is no URL that all readers read in one way")
    url = _HTTPS.fullmatch(value)
    if url is None:
        raise _Undecidable("is no https URL")
    listed = map(_listed_host, operand)
    return _host(url[1]) in listed


def _host(authority: str) -> tuple[str, str]:
    """Return the host and the port of the authority of a URL."""
    if "@" in authority:
        raise _Undecidable("has user info before its host")
    name, colon, port = authority.partition(":")
    if colon and not _INDEX.fullmatch(port):
        raise _Undecidable("has a port that is no number")
    try:
        return spell_host(name), port or "443"
    except ValueError:
        raise _Undecidable("has a host that can't be compared") from None


def _listed_host(text: str) -> tuple[str, str]:
    """Return a host of config, with its port where it has one."""
    spell_host(text.partition(":")[0])  # says more of what is wrong
    return _host(text)


_LOCAL_PART: Final = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
)


def _domain_in(operand: Sequence[str], value: Any) -> bool:
    if not isinstance(value, str):
        raise _Undecidable("is no text")
    local_part, _, domain = value.partition("@")
    if not _LOCAL_PART.fullmatch(local_part):
        raise _Undecidable("is no bare mail address")
    try:
        return spell_host(domain) in [spell_host(listed) for listed in operand]
    except ValueError:
        raise _Undecidable("has a domain that can't be compared") from None


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "is": _is,
    "in": _in,
    "at_most": _at_most,
    "at_least": _at_least,
    "below": _below,
    "host_in": _host_in,
    "domain_in": _domain_in,
}
OPERATORS: Final = tuple(_COMPARISONS)
"""The names of all operators: one is a function above, a row of `_COMPARISONS`, and a key of
`Condition`.
"""
