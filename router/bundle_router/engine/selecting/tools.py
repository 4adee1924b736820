"""The `ToolSearch` port over the search that routes bundles: one index for both."""

from __future__ import annotations

from collections.abc import Sequence

from bundle_router.core.catalog import Catalog
from bundle_router.engine.selecting.search import SearchSelector
from bundle_router.ports import Diagnostics


class RankedTools:
    """Ranks tools inside what is permitted, those that nobody has read apart and with a quota for each server. A tool
    gains from its bundle as that is ranked with what was learned."""

    def __init__(self, search: SearchSelector, diagnostics: Diagnostics) -> None:
        self._search = search
        self._diagnostics = diagnostics

    def rank_tools(self, catalog: Catalog, query: str, permitted: frozenset[str], k: int) -> Sequence[str] | None:
        """See `ToolSearch`."""
        from bundle_router.core.search.ranking import Memories
        from bundle_router.core.search.request import Request

        try:
            search = self._search.search_for(catalog)
            if search is None:
                return None
            memories = Memories(bundles=self._search.memory)
            known = permitted & frozenset(search.corpus.servers)
            return [row.id for row in search.rank_tools(Request(query), known, memories, k=k)]
        except Exception as error:  # noqa: BLE001 - as in `SearchSelector`: an agent's step goes on, whatever is wrong here
            self._diagnostics.event("error", "search.broke", error=error)
            return None
