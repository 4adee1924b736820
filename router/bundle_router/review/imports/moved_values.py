"""Values of imported headers, variables, arguments and addresses: what is secret in them, and the
variables that they are moved into.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from bundle_router.core.config.secrets import (
    is_credential_name,
    literal_secret,
    looks_secret,
    malformed_reference,
)
from bundle_router.review.imports.variable_syntax import (
    REFERENCE,
    Reference,
    meaning_of,
    placeholders,
    read_references,
    with_known_texts,
)

_OURS: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_SCHEME: Final = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(.+)", re.DOTALL)
_USER_INFO: Final = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^/\s:@]{0,200}:[^/\s@]{1,200}@")
_OPTION: Final = re.compile(r"--?([A-Za-z][\w-]{0,60})(?:=(.*))?", re.DOTALL)
_DENSE: Final = re.compile(r"(?=[^a-zA-Z]{0,200}[a-zA-Z])(?=[^0-9]{0,200}[0-9])[\w+=.~-]{20,}")
"""A long value of letters and digits without spaces or slashes.

Replacing one that is no secret does no harm.
"""


@dataclass(slots=True)
class MovedValues:
    """The variables of one import, and the values moved into them.

    One variable never holds two values.
    """

    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    referred: set[str] = field(default_factory=set)
    """Variables that are already referred to."""

    def reference_secrets(self, server: str, name: str, value: str, path: str) -> str | None:
        """Return the value for a header or variable: with references in place of secrets.

        None, with a note, if it refers to what is not known here.
        """
        value = with_known_texts(value)
        references = list(read_references(value))
        for row in references:
            if row.reason:
                self.notes.append(
                    f"{server}: {path} refers to {row.syntax}, {row.reason}: left out"
                )
                return None
        if any(row.default is not None for row in references):
            self.notes.append(f"{server}: what {path} falls back to was left out: set its variable")
        for text in placeholders(value):
            self.notes.append(f"{server}: {text!a} at {path} was taken over as it stands")

        text = REFERENCE.sub(lambda match: self._variable_of(meaning_of(match), name, path), value)
        if not _is_secret(name, text):
            return text
        scheme = _SCHEME.fullmatch(text)
        secret = scheme[2] if scheme else text
        is_variable = re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        variable = self._variable(name if is_variable else f"{server}_{name}", server, secret)
        self.notes.append(f"set {variable} to the value that stands at {path}")
        return f"{scheme[1] if scheme else ''}${{{variable}}}"

    def _variable_of(self, meaning: Reference, name: str, path: str) -> str:
        """Return a reference to the variable that a reference names, or that a person sets."""
        if meaning.variable:
            self.referred.add(meaning.variable)
            return f"${{{meaning.variable}}}"
        if meaning.is_file:
            variable = self._variable(name, "file", meaning.syntax)
            self.notes.append(f"set {variable} to the text of the file {meaning.question!a}")
        else:
            variable = self._variable(meaning.question, "input", meaning.syntax)
            self.notes.append(f"set {variable}: {path} asks for it when it starts")
        return f"${{{variable}}}"

    def _variable(self, wish: str, server: str, value: str) -> str:
        base = re.sub(r"[^A-Z0-9]+", "_", wish.upper()).strip("_") or "SECRET"
        if base[0].isdigit():
            base = f"_{base}"
        prefix = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_")
        numbered = [f"{prefix}_{base}_{number}" for number in range(2, 1000)]
        for name in (base, f"{prefix}_{base}", *numbered):
            if self.values.setdefault(name, value) == value:
                return name
        return base


def _is_secret(name: str, text: str) -> bool:
    rest = _OURS.sub("", text)
    return (
        literal_secret(name, text)
        or _USER_INFO.search(rest) is not None
        or malformed_reference(text)
        or (_DENSE.fullmatch(rest) is not None and not is_path(rest))
    )


def is_path(text: str) -> bool:
    return "/" in text or "\\" in text or re.search(r"\.[a-z]{2,4}$", text) is not None


def secret_arguments(args: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of arguments with a secret."""
    positions = []
    previous = ""
    for index, arg in enumerate(args):
        if _is_credential(arg, previous) or _holds_secret(arg):
            positions.append(index)
        previous = arg
    return tuple(positions)


def _is_credential(arg: str, previous: str) -> bool:
    """Return whether an argument is the value of an option with a credential's name, by itself
    (`--token=x`) or after the option (`--token x`).
    """
    option = _OPTION.fullmatch(arg)
    if option is not None:
        return bool(option[2]) and is_credential_name(option[1])
    option_before = _OPTION.fullmatch(previous)
    if option_before is None or option_before[2] is not None:
        return False
    return is_credential_name(option_before[1])


def _holds_secret(arg: str) -> bool:
    if "\0" in arg:
        return True
    return looks_secret(arg) or _USER_INFO.search(arg) is not None


@dataclass(frozen=True, slots=True)
class CleanAddress:
    """An address that config may hold, and what was taken out of it."""

    url: str
    """The address."""
    without_credential: bool
    """Whether a user, a password or a credential's parameter was taken out."""
    without_reference: bool
    """Whether a parameter that refers to a variable was taken out."""
    without_fragment: bool
    """Whether a fragment was taken out, which is never sent."""


def _is_plain(url: str) -> bool:
    return url.isascii() and url.isprintable() and " " not in url


def _is_of_web(parts: SplitResult) -> bool:
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def clean_address(url: str) -> CleanAddress:
    """Return the address without user, password, fragment, and parameters that are credentials or
    refer to something.

    Raises ValueError, with the end of a sentence, if what is left is no address that config takes.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("is not an http or https address") from None
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    refers_to = next(read_references(origin), None)
    if refers_to is not None:
        raise ValueError(f"refers to {refers_to.syntax[:80]}, and an address can't do so here")
    if not _is_plain(url) or not _is_of_web(parts):
        raise ValueError("is not an http or https address")

    pairs = [pair for pair in parts.query.split("&") if pair]
    literal = [pair for pair in pairs if "$" not in pair]
    plain = [pair for pair in literal if not _holds_credential(pair)]
    host = parts.netloc.rpartition("@")[2]
    clean = urlunsplit((parts.scheme, host, parts.path, "&".join(plain), ""))

    is_dense = any(_DENSE.fullmatch(part) for part in parts.path.split("/"))
    if is_dense or looks_secret(clean):
        raise ValueError("holds what looks like a credential in its path")
    if "$" in clean:
        raise ValueError("holds a '$', which an address can't here")
    return CleanAddress(
        url=clean,
        without_credential=host != parts.netloc or len(plain) < len(literal),
        without_reference=len(literal) < len(pairs),
        without_fragment="#" in url,
    )


def _holds_credential(pair: str) -> bool:
    """Return whether a pair of a query has a credential's name."""
    return any(is_credential_name(name) for name, _ in parse_qsl(pair, keep_blank_values=True))
