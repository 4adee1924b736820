"""Replaces secrets in values by references, with a note of where the value is now."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from bundle_router.core.config.secrets import is_credential_name, literal_secret, looks_secret, malformed_reference

_FOREIGN: Final = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-[^{}]*)?\}")
_HERE: Final = re.compile(r"\$\{(?:workspaceFolder|cwd)(?::[^{}]{0,100})?\}")
_INPUT: Final = re.compile(r"\$\{input:([^{}]{1,100})\}")
_SCHEME: Final = re.compile(r"(?i)((?:bearer|basic|token|apikey)\s+)(.+)", re.DOTALL)
_USER_INFO: Final = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^/\s:@]{0,200}:[^/\s@]{1,200}@")
_OPTION: Final = re.compile(r"--?([A-Za-z][\w-]{0,60})(?:=(.*))?", re.DOTALL)
_DENSE: Final = re.compile(r"(?=[^a-zA-Z]{0,200}[a-zA-Z])(?=[^0-9]{0,200}[0-9])[\w+=.~-]{20,}")
"""A long value of letters and digits without spaces or slashes. Replacing one that is no secret does no harm."""


@dataclass(slots=True)
class MovedValues:
    """The variables of one import, and the values moved into them. One variable never holds two values."""

    values: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    referred: set[str] = field(default_factory=set)
    """Variables that are already referred to."""

    def reference_secrets(self, server: str, name: str, value: str, path: str) -> str:
        """Return the value for a header or variable: with references in place of secrets."""
        value = at_home(value)
        text = _FOREIGN.sub(r"${\1}", value)
        self.referred.update(_FOREIGN.findall(value))
        if ":-" in value and text != value:
            self.notes.append(f"{server}: what {path} falls back to was left out: set its variable")
        text = _INPUT.sub(lambda match: self._ask_for_variable(match[1], path), text)
        if not _is_secret(name, text):
            return text
        scheme = _SCHEME.fullmatch(text)
        secret = scheme[2] if scheme else text
        own = re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        variable = self._variable(name if own else f"{server}_{name}", server, secret)
        self.notes.append(f"set {variable} to the value that stands at {path}")
        return f"{scheme[1] if scheme else ''}${{{variable}}}"

    def _ask_for_variable(self, input_id: str, path: str) -> str:
        variable = self._variable(input_id, "input", f"${{input:{input_id}}}")
        self.notes.append(f"set {variable}: {path} asks for it when it starts")
        return f"${{{variable}}}"

    def _variable(self, wish: str, server: str, value: str) -> str:
        base = re.sub(r"[^A-Z0-9]+", "_", wish.upper()).strip("_") or "SECRET"
        base = base if not base[0].isdigit() else f"_{base}"
        prefix = re.sub(r"[^A-Z0-9]+", "_", server.upper()).strip("_")
        for name in (base, f"{prefix}_{base}", *(f"{prefix}_{base}_{i}" for i in range(2, 1000))):
            if self.values.setdefault(name, value) == value:
                return name
        return base


def at_home(text: str) -> str:
    """Return the text with an editor's variable for the project folder replaced by the folder that servers start in."""
    return _HERE.sub(".", text).replace("${userHome}", "${HOME}")


def _is_secret(name: str, text: str) -> bool:
    rest = _FOREIGN.sub("", text)
    return (
        literal_secret(name, text)
        or _USER_INFO.search(rest) is not None
        or malformed_reference(text)
        or (_DENSE.fullmatch(rest) is not None and not is_path(rest))
    )


def is_path(text: str) -> bool:
    return "/" in text or "\\" in text or re.search(r"\.[a-z]{2,4}$", text) is not None


def secret_arguments(args: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of arguments with a secret, or with a reference, which arguments can't have."""
    found = []
    for index, arg in enumerate(args):
        option = _OPTION.fullmatch(arg)
        named = option is not None and option[2] and is_credential_name(option[1])
        before = _OPTION.fullmatch(args[index - 1]) if index else None
        follows = before is not None and before[2] is None and is_credential_name(before[1]) and not option
        if named or follows or looks_secret(arg) or _USER_INFO.search(arg) or "${" in arg or "\0" in arg:
            found.append(index)
    return tuple(found)


def without_credentials(url: str) -> tuple[str, bool]:
    """Return the address without user, password, fragment and credential parameters; and whether it had any.

    Raises ValueError if it is no http or https address.
    """
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not url.isascii()
        or not url.isprintable()
        or " " in url
    ):
        raise ValueError("is not an http or https address")
    kept = "&".join(
        pair
        for pair in parts.query.split("&")
        if pair
        and not any(is_credential_name(name) for name, _ in parse_qsl(pair, keep_blank_values=True))
        and "$" not in pair
    )
    host = parts.netloc.rpartition("@")[2]
    clean = urlunsplit((parts.scheme, host, parts.path, kept, ""))
    if looks_secret(clean) or "$" in clean or any(_DENSE.fullmatch(part) for part in parts.path.split("/")):
        raise ValueError("holds a credential in its path")
    return clean, clean != url
