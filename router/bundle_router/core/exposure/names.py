"""The exposed names of tools: short, safe, and unique (rule 2 of the package)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from bundle_router.core.catalog import Catalog

MAX_NAME: Final = 64

_MARK: Final = 8
RESERVED: Final = frozenset(
    (
        "search_tools",
        "list_tools",
        "get_tool_details",
        "call_tool",
        "read_artifact",
        "search_artifact",
        "execute",
    )
)
"""Names of the router's own tools: no server's tool is exposed under one of them."""
_SAFE: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")
_MARKED: Final = re.compile(rf"_[0-9a-f]{{{_MARK}}}(?:[0-9a-f]{{24}})?$")


def _plain_name(canonical: str) -> str:
    server, _, tool = canonical.partition(".")
    return _UNSAFE.sub("_", f"{server}__{tool}")


def _reads_back(canonical: str, plain: str) -> bool:
    """Return whether the plain name can only come from this canonical one: nothing was replaced or
    is too long, its first `__` is the separator, and it does not end like a name with a digest.
    """
    server, _, tool = canonical.partition(".")
    return (
        plain == f"{server}__{tool}"
        and len(plain) <= MAX_NAME
        and "__" not in server
        and not server.endswith("_")
        and not _MARKED.search(plain)
    )


def _suffix(canonical: str, plain: str, digits: int = _MARK) -> str:
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return f"{plain[: MAX_NAME - digits - 1]}_{digest[:digits]}"


def _bare_names(canonical: Iterable[str], bare: str) -> dict[str, str]:
    """Return the tools of the server without a prefix that can use their own names: those that look
    like no name of the router's own tools, or of another server's.
    """
    short_names = {
        name: name.partition(".")[2] for name in canonical if name.partition(".")[0] == bare
    }
    counts = Counter(short.lower() for short in short_names.values())
    return {
        name: short
        for name, short in short_names.items()
        if _SAFE.fullmatch(short)
        and "__" not in short
        and not _MARKED.search(short)
        and short.lower() not in RESERVED
        and counts[short.lower()] == 1
    }


def names_in(catalog: Catalog, canonical: Iterable[str]) -> dict[str, str]:
    """Return exposed names by canonical name (see `exposed_names`), with the catalog's server
    without a prefix.
    """
    return exposed_names(
        canonical, next((s.name for s in catalog.servers.values() if not s.prefix), "")
    )


def exposed_names(canonical: Iterable[str], bare: str = "") -> dict[str, str]:
    """Return exposed names by canonical name, for all tools of a catalog at once.

    `bare`: the server without a prefix.

    Names that differ only in case count as equal, as some providers fold case. That can only happen
    within one server, whose tools are known together, so no name depends on which other servers are
    known.
    """
    canonical = tuple(canonical)
    unprefixed = _bare_names(canonical, bare) if bare else {}
    return {**_prefix_names(name for name in canonical if name not in unprefixed), **unprefixed}


def _prefix_names(canonical: Iterable[str]) -> dict[str, str]:
    plain = {name: _plain_name(name) for name in canonical}
    counts = Counter(short.lower() for short in plain.values())
    names = {}
    for name, short in plain.items():
        is_unique = counts[short.lower()] == 1
        names[name] = short if is_unique and _reads_back(name, short) else _suffix(name, short)

    marked = Counter(name.lower() for name in names.values())
    if len(marked) < len(names):  # two digests have the same prefix: somebody searched for that
        for name, short in list(names.items()):
            if marked[short.lower()] > 1:
                names[name] = _suffix(name, plain[name], 32)
    return names
