"""The pages of the library of bundles: values for templates, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.errors import RequestError
from bundle_router.review.library import KINDS, Kind, LibraryServer, LibraryTool
from bundle_router.service.pages.queries import Query, first
from bundle_router.service.pages.rendering import PageContent
from bundle_router.workbench.library_reader import read_library

MAX_HITS: Final = 100
"""Maximum tools that a search shows."""


@dataclass(frozen=True, slots=True)
class LibraryHit:
    """A tool that a search found."""

    server: str
    """The server's name in the library."""
    kind: Kind
    """The kind of its bundle."""
    tool: LibraryTool
    """What was read of it."""


def library_page(query: Query, where: str) -> PageContent:
    """Return the servers of the library, or the tools that have all words of `q`."""
    text = first(query, "q")[:200]
    words = text.lower().split()
    servers = read_library()
    hits = list(_hits(servers, words)) if words else []
    rows = [(server, _counts(server)) for server in servers]
    json_: dict[str, Any] = {
        "servers": [
            {
                "server": server.server,
                "package": server.package,
                "registry": server.registry,
                "versions": server.versions,
                "read_on": server.read_on.isoformat(),
                "revision": server.revision,
                "tools": counts,
            }
            for server, counts in rows
        ],
        "hits": [
            {"server": hit.server, "bundle": hit.kind, **hit.tool.model_dump(mode="json")}
            for hit in hits
        ],
    }
    values = {
        "rows": rows,
        "kinds": KINDS,
        "q": text,
        "hits": hits[:MAX_HITS],
        "hit_count": len(hits),
        "tool_count": sum(sum(counts.values()) for _, counts in rows),
    }
    return _page("library.html", "Library", where, json_, values)


def library_server_page(name: str, where: str) -> PageContent:
    """Return one server: its bundles, and each tool with its effects, clause and digest.

    Raises RequestError if the library has no such server.
    """
    for server in read_library():
        if server.server == name:
            json_ = server.model_dump(mode="json", by_alias=True)
            return _page("library_server.html", name, where, json_, {"server": server})
    raise RequestError(f"the library of bundles has no server {name[:200]!r}")


def _page(
    template: str, title: str, where: str, json_: dict[str, Any], values: dict[str, Any]
) -> PageContent:
    return PageContent(
        template, {"title": title, "here": "/catalog", "where": where, **values}, json_
    )


def _counts(server: LibraryServer) -> dict[Kind, int]:
    """Return how many tools each kind has, those without tools included."""
    counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
    for kind, _ in server.tools():
        counts[kind] += 1
    return counts


def _hits(servers: Sequence[LibraryServer], words: Sequence[str]) -> Iterator[LibraryHit]:
    """Yield the tools in whose texts all words are."""
    for server in servers:
        for kind, tool in server.tools():
            text = _searched_text(server, kind, tool)
            if all(word in text for word in words):
                yield LibraryHit(server.server, kind, tool)


def _searched_text(server: LibraryServer, kind: Kind, tool: LibraryTool) -> str:
    """Return a tool's server, package, bundle, name, effects, clauses and digest, in lower case."""
    clauses = f"{tool.clause}\n{tool.milder_clause or ''}"
    parts = (server.server, server.package, kind, tool.name, *tool.effects, clauses, tool.sha256)
    return "\n".join(parts).lower()
