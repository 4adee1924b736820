"""The `ToolSearch` port over the search that routes bundles: one index for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.engine.selecting.search import SearchSelector
from bundle_router.ports import Diagnostics

NOISE: Final = 0.15
"""Of the best tool's own match, what a tool behind it needs to be told to an agent. This leaves out one in eight of all
tools, and of those that are needed 0 to 1.7 points on five labelled sets (see tests/benchmarks/RESULTS.md)."""


class RankedTools:
    """Ranks tools inside what is permitted, those that nobody has read apart and with a quota for each server. A tool
    gains from its bundle as that is ranked with what was learned, and by what was learned of itself. An agent's query
    is understood by the embedder too, where one is configured and heard in time."""

    def __init__(self, search: SearchSelector, diagnostics: Diagnostics) -> None:
        self._search = search
        self._diagnostics = diagnostics

    def rank_tools(
        self, catalog: Catalog, query: str, permitted: frozenset[str], k: int, *, answering: bool = False
    ) -> Sequence[str] | None:
        """See `ToolSearch`."""
        from bundle_router.core.search.ranking import NO_MEMORIES
        from bundle_router.core.search.request import Request

        try:
            if answering:
                search, vector = self._search.understand(catalog, query)
            else:  # an array must not depend on who can be asked at the moment
                search, vector = self._search.search_for(catalog), None
            if search is None:
                return None
            memories = self._search.memories or NO_MEMORIES
            known = permitted & frozenset(search.corpus.servers)
            ranked = search.rank_tools(Request(query, vector=vector), known, memories, k=k)
            return [row.id for row in ranked if not answering or row.own >= NOISE]
        except Exception as error:  # noqa: BLE001 - as in `SearchSelector`: an agent's step goes on, whatever is wrong here
            self._diagnostics.event("error", "search.broke", error=error)
            return None
