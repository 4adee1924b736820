"""Ranking by shared words, for where the search library is not there: enough to find what is asked for by its words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.search.text import Analyzer

_NAME: Final = 3.0
_ANALYZER: Final = Analyzer()


def plain_ranking(catalog: Catalog, query: str, permitted: Iterable[str], k: int) -> tuple[str, ...]:
    """The `k` tools that share most words with the query, a word of the name counting thrice; ties by name.

    Tools of untrusted servers come after all others.
    """
    wanted = set(_ANALYZER.stems(query, limit=100))
    rows: list[tuple[bool, float, str]] = []
    for tool in permitted:
        card = catalog.cards.get(tool)
        about = card.description[:1_000] if card is not None else ""
        score = _NAME * len(wanted & set(_ANALYZER.stems(tool))) + len(wanted & set(_ANALYZER.stems(about)))
        if score > 0:
            server = catalog.servers.get(tool.partition(".")[0])
            rows.append((server is None or server.trust == "untrusted", -score, tool))
    return tuple(tool for _, _, tool in sorted(rows)[:k])
