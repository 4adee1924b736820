"""The URLs that may be fetched, and the canonical form of each.

Rules:
1. HTTPS on port 443, a host name, no user info. Anything else is refused, never repaired.
2. A host is a DNS name and no address (see `core.values.host_names`), so an address can only come
   from the resolver, where it is checked.
3. Only `spell_host` gives a host its canonical form, for URLs and for the allow-list alike, before
   they are compared.
4. Characters that parsers disagree about (backslash, whitespace, control characters) are refused,
   not stripped: `urllib` drops tabs and newlines, browsers read a backslash as a slash.
5. Dot segments, percent-encoded ones too, are resolved before the path is compared with a base or
   sent.

Sources: RFC 3986 (sections 3 and 5.2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin

from bundle_router.core.values import shorten
from bundle_router.core.values.host_names import spell_host
from bundle_router.errors import ToolFailure

MAX_URL: Final = 2048
"""Maximum characters of a URL, before and after percent-encoding."""

_FORBIDDEN: Final = re.compile(
    r"[\x00-\x20\x7f-\xa0\\\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]"
)
_URL: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)
_LONE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED_DOT: Final = re.compile(r"%2e", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Url:
    """An HTTPS URL in its canonical form.

    `query` is None without a `?`; `fragment` is never sent.
    """

    host: str
    path: str
    query: str | None = None
    fragment: str = ""

    @property
    def target(self) -> str:
        """Path and query for the request line, in ASCII."""
        if self.query is None:
            return self.path
        return f"{self.path}?{self.query}"

    @property
    def folder(self) -> Url:
        """The URL of its folder: the path up to the last slash."""
        return Url(self.host, self.path[: self.path.rindex("/") + 1])

    def holds(self, other: Url) -> bool:
        """Return whether `other` is this folder or is below it, on the same host."""
        return self.host == other.host and other.path.startswith(self.path)

    def __str__(self) -> str:
        return f"https://{self.host}{self.target}"


def parse_url(text: str) -> Url:
    """Parse a URL under the rules above.

    Raises ToolFailure `invalid_url`, which names the broken rule.
    """
    if len(text) > MAX_URL:
        raise _invalid_url(text, f"it is longer than {MAX_URL} characters")
    if match := _FORBIDDEN.search(text):
        raise _invalid_url(
            text, f"it holds {match.group()!r}, which belongs percent-encoded or not at all"
        )
    parts = _URL.fullmatch(text)
    if not parts:
        raise _invalid_url(text, "it is not of the form https://host/path")
    scheme, authority, path, query, fragment = parts.groups()
    if scheme.lower() != "https":
        raise _invalid_url(text, f"its scheme is {scheme!r}; only https is fetched")
    try:
        host = spell_host(_host_of(authority))
    except ValueError as error:
        raise _invalid_url(text, str(error)) from None
    url = Url(
        host,
        _resolve_dots(_encode(path)),
        None if query is None else _encode(query),
        fragment or "",
    )
    if len(str(url)) > MAX_URL:
        raise _invalid_url(text, f"it is longer than {MAX_URL} characters once percent-encoded")
    return url


def join_url(base: Url, reference: str) -> Url:
    """Resolve a reference on the page `base`. Raises ToolFailure `invalid_url` like `parse_url`."""
    if match := _FORBIDDEN.search(reference):
        raise _invalid_url(
            reference, f"it holds {match.group()!r}, which belongs percent-encoded or not at all"
        )
    try:
        joined = urljoin(str(base), reference)
    except ValueError as error:  # unbalanced brackets
        raise _invalid_url(reference, str(error)) from None
    return parse_url(joined)


@dataclass(frozen=True, slots=True)
class HostList:
    """The allow-list: exact names, and `*.example.org` for every name below (not including)
    `example.org`.
    """

    exact: frozenset[str]
    below: tuple[str, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str]) -> HostList:
        """Parse the config's patterns.

        Raises ToolFailure `invalid_settings` for one that is neither form.
        """
        exact = set()
        below = []
        for pattern in patterns:
            try:
                host = spell_host(pattern.removeprefix("*."))
            except ValueError as error:
                raise ToolFailure(
                    f"docs host {pattern!r} in the policy is not usable: {error}",
                    code="invalid_settings",
                    advice=(
                        "write an exact name ('docs.example.org') or '*.example.org' for the names"
                        " below it"
                    ),
                ) from None
            if pattern.startswith("*."):
                below.append(f".{host}")
            else:
                exact.add(host)
        return cls(frozenset(exact), tuple(below))

    def allows(self, host: str) -> bool:
        """Return whether a host, in the form of `spell_host`, is on the list."""
        return host in self.exact or host.endswith(self.below)

    def check(self, url: Url) -> None:
        """Raise ToolFailure `host_not_allowed` unless the URL's host is on the list."""
        if self.allows(url.host):
            return
        names = sorted(self.exact | {f"*{suffix}" for suffix in self.below})
        listed = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
        raise ToolFailure(
            f"host {url.host!r} is not on the list of documentation hosts"
            f" ({listed or 'which is empty'})",
            code="host_not_allowed",
            advice=(
                "use a page of a listed host, or have the operator add this one to the policy's"
                " docs hosts"
            ),
        )


def _invalid_url(text: str, why: str) -> ToolFailure:
    return ToolFailure(f"{shorten(text, 200)!r} can't be fetched: {why}", code="invalid_url")


def _host_of(authority: str) -> str:
    if "@" in authority:
        raise ValueError("it carries user info (something before an '@')")
    if "[" in authority or "]" in authority:
        raise ValueError("its host is an address; only names are fetched")
    host, colon, port = authority.partition(":")
    if colon and port != "443":
        raise ValueError(f"its port is {port!r}; only 443 is used")
    return host


def _encode(part: str) -> str:
    return quote(_LONE_PERCENT.sub("%25", part), safe="%/:@!$&'()*+,;=?~-._")


def _resolve_dots(path: str) -> str:
    kept: list[str] = []
    segments = (path or "/").split("/")[1:]
    for index, segment in enumerate(segments):
        plain = _ENCODED_DOT.sub(".", segment)
        if plain not in (".", ".."):
            kept.append(segment)
            continue
        if plain == ".." and kept:
            kept.pop()
        if index == len(segments) - 1:
            kept.append("")
    return "/" + "/".join(kept)
