"""The input and output of lint rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.config.entries import WrittenEntry
from bundle_router.core.config.positions import Path
from bundle_router.core.config.resolve import ResolvedConfig
from bundle_router.core.decide.reach import Reach

ReadContent = Callable[[str], str | None]
"""Whether a file of reviewed content (`repo/SKILL.md`) exists.

The core reads no disk: the caller provides it.
"""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One finding, at `path` inside the entry."""

    entry: WrittenEntry[Any]
    message: str
    suggestion: str = ""
    path: Path = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """The input of the rules. `shipped` resolves the shipped files alone. `read_content` returns a
    file of `bundles/`, None if there is none; it is None itself if content was not checked."""

    resolved: ResolvedConfig
    reach: Reach
    shipped: Callable[[], ResolvedConfig]
    read_content: ReadContent | None = None

    @property
    def catalog(self) -> Catalog:
        return self.resolved.catalog

    def bundles(self) -> Iterator[tuple[WrittenEntry[Any], Bundle]]:
        yield from (
            (entry, self.catalog.bundles[id_])
            for id_, entry in self.resolved.written.bundles.items()
        )

    def is_never_permitted(self, bundle: Bundle) -> bool:
        """Return whether `never-permitted` reports the project's own bundle, so that other rules
        need not.
        """
        is_own = self.resolved.written.bundles[bundle.id].file.layer == "project"
        return is_own and not self.reach.permitted_anywhere(bundle)

    def is_off(self, bundle: Bundle) -> str:
        """Return why nothing of the bundle can ever be shown: it, or all of its servers, are
        disabled.
        """
        if not bundle.enabled:
            return f"bundle {bundle.id!r} is disabled"
        servers = [self.catalog.servers[name] for name in bundle.servers]
        if not servers or any(server.enabled for server in servers):
            return ""
        name = servers[0].name
        return f"bundle {bundle.id!r} has only tools of server {name!r}, which is disabled"
