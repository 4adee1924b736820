"""References to environment variables, and values that look like a secret where a reference
belongs.

Rules:
1. `${NAME}` is the only reference. `$NAME`, `${}` and `${a b}` are mistakes, and are refused rather
   than sent.
2. A header or variable with a credential's name must get its value from a reference. So must any
   value that has the shape of a known token, whatever its name, and any that does not look like a
   plain setting.
"""

from __future__ import annotations

import re
from typing import Final

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_STRAY: Final = re.compile(r"\$\{|\$[A-Za-z_]")
_CREDENTIAL_NAME: Final = re.compile(
    r"auth|cookie|token|secret|passw|credential|api[-_]?key|access[-_]?key|private[-_]?key|(?:^|[-_])key$",
    re.IGNORECASE,
)
_BETWEEN: Final = re.compile(r"[^A-Za-z0-9]+")
_SETTING: Final = re.compile(
    r"(?=.{1,30}\Z)(?:[0-9]{1,6}|[a-z]+|[A-Z]{1,20}|(?:[A-Z]?[a-z]+){1,3}|[A-Za-z0-9]{1,6})"
)
"""A run of letters and digits in a value that is no secret: a number, a word, or up to three words
run together.
"""
_SCHEME: Final = re.compile(r"\s*(?:bearer|basic|token|apikey|digest)?\s*", re.IGNORECASE)
_TOKEN_SHAPE: Final = re.compile(
    r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abeoprs]-[\w-]{8,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}"
    r"|hf_[A-Za-z0-9]{20,})|(?i:\b(?:bearer|basic)\s+[\w+/=.~-]{8,})|-----BEGIN"
)


def references(value: str) -> tuple[str, ...]:
    """Return the environment variables the value refers to."""
    return tuple(_REFERENCE.findall(value))


def malformed_reference(value: str) -> bool:
    """Return whether something in the value was meant as a reference and is not one."""
    return _STRAY.search(_REFERENCE.sub("", value)) is not None


def has_reference(value: str) -> bool:
    return _REFERENCE.search(value) is not None


def is_credential_name(name: str) -> bool:
    """Return whether the name is one of a credential: `Authorization`, `X-Api-Key`,
    `GITHUB_TOKEN`.
    """
    return _CREDENTIAL_NAME.search(name) is not None


def looks_secret(text: str) -> bool:
    """Return whether the text has the shape of a well-known kind of token."""
    return _TOKEN_SHAPE.search(text) is not None


def is_plain_setting(value: str) -> bool:
    """Return whether a literal value looks like a setting (`true`, `repos,issues`,
    `application/json`, `C.UTF-8`): words, short numbers, versions, paths, and nothing that could be
    a key.
    """
    return all(_SETTING.fullmatch(part) for part in _BETWEEN.split(value) if part)


def literal_secret(name: str, value: str) -> bool:
    """Return whether a header or variable contains, beside its references, a secret that should
    have been one.
    """
    rest = _REFERENCE.sub("", value)
    if looks_secret(rest):
        return True
    if not is_credential_name(name):
        return False
    is_long = re.search(r"[\w+/-]{12,}", rest) is not None
    if has_reference(value):
        return is_long
    return _SCHEME.fullmatch(rest) is None
