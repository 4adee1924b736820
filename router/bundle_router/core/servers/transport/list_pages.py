"""Turns the raw pages of a `tools/list` into tool definitions. One bad definition costs one tool.

Only what calling a tool by name needs is checked here; admission cleans, hashes and admits the
text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bundle_router.core.servers.transport.bounds import Bounds
from bundle_router.core.values.canonical import encode

MAX_NAME: Final = 512
MAX_SHOWN_NAME: Final = 80
_CONTESTED: Final = "tools that differ are listed under this name"


@dataclass(slots=True)
class Pages:
    """Collects the pages of one listing. `cut` says why there may be further tools, or is empty."""

    bounds: Bounds
    tools: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    pages: int = 0
    ttl_ms: float | None = None
    cut: str = ""
    _cursors: set[str] = field(default_factory=set)
    _contested: set[str] = field(default_factory=set)

    def add(self, page: Mapping[str, Any]) -> str | None:
        """Add a page; return the cursor of the next, or None after the last one to read."""
        self.pages += 1
        ttl = page.get("ttlMs")
        if isinstance(ttl, int | float) and not isinstance(ttl, bool) and ttl > 0:
            self.ttl_ms = float(
                min(ttl, self.ttl_ms or ttl, 1e12)
            )  # `float` takes no whole number of 400 digits
        tools = page.get("tools")
        if not isinstance(tools, list):
            self.rejected.append(("", "a page whose 'tools' is not a list"))
            tools = []
        for item in tools:
            if len(self.tools) >= self.bounds.max_tools:
                self.cut = f"only the first {self.bounds.max_tools:,} tools were read"
                return None
            self._admit(item)
        return self._next_cursor(page.get("nextCursor"))

    def _admit(self, item: Any) -> None:
        if len(self.rejected) > self.bounds.max_tools:
            return
        name = item.get("name") if isinstance(item, Mapping) else None
        refusal = self._refusal(item, name)
        if refusal:
            self.rejected.append((name[:MAX_SHOWN_NAME] if isinstance(name, str) else "", refusal))
        elif isinstance(name, str):
            self.tools[name] = item

    def _refusal(self, item: Any, name: Any) -> str:
        if not isinstance(item, Mapping):
            return "it is no object"
        if not isinstance(name, str) or not name:
            return "it has no name"
        if len(name) > MAX_NAME:
            return f"its name has {len(name):,} characters"
        if name in self._contested:
            return _CONTESTED
        try:
            size = len(encode(item))
        except (ValueError, RecursionError):
            return "it is no finite JSON"
        if size > self.bounds.max_definition_bytes:
            return f"its definition has {size:,} bytes"
        return self._repetition(item, name)

    def _repetition(self, item: Mapping[str, Any], name: str) -> str:
        """Return why a name is rejected: of two tools with one name, only the server knows which is
        called.
        """
        earlier = self.tools.get(name)
        if earlier is None:
            return ""
        if encode(earlier) == encode(item):
            return "the name is taken by an earlier tool"
        self._contested.add(name)
        del self.tools[name]
        self.rejected.append((name[:MAX_SHOWN_NAME], _CONTESTED))
        return _CONTESTED

    def _next_cursor(self, cursor: Any) -> str | None:
        if not isinstance(cursor, str) or not cursor:
            return None
        if cursor in self._cursors:
            self.cut = "the server's pages go round in a circle"
        elif self.pages >= self.bounds.max_pages:
            self.cut = f"only the first {self.bounds.max_pages} pages were read"
        else:
            self._cursors.add(cursor)
            return cursor
        return None
