"""Approving what a tool server lists now, by somebody who read the difference on a page.

Rules:
1. A server is asked when somebody asks for it, never while a page is only read. Processes are started with
   `development` alone, which comes from the caller's code or the command line.
2. What is approved is what was shown: the server is asked again, and its answer must have the digest that was read.
3. The approval is kept in `changes.jsonl` of the config folder, before the pin file is written.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.core.models.canonical import digest_of
from bundle_router.errors import RequestError
from bundle_router.review.config_changes import ConfigChange
from bundle_router.wiring.catalogs import LocalServers, open_pins, read_catalog
from bundle_router.wiring.server_reviews import Review, remote_servers, review

if TYPE_CHECKING:
    from bundle_router.core.catalog import Server
    from bundle_router.core.tools.pins.reviewed import Pins


class DefinitionsChanged(RequestError):
    """The server lists something else than was read; nothing was approved."""


@dataclass(frozen=True, slots=True)
class ShownReview:
    """What a server lists now beside its pins. `digest`: of both; empty where the server could not be asked."""

    review: Review
    digest: str


class PinApproval:
    """Reviews and approves the servers of one config folder. Asks them over the network or as processes."""

    def __init__(
        self, config: str | Path | None, *, development: bool = False, local: LocalServers | None = None
    ) -> None:
        self._config = config
        self._development = development
        self._local = local

    def servers(self) -> list[Server]:
        """Return the servers that have pins, or could. Contacts nobody. Raises ConfigError, CorruptPins."""
        return remote_servers(read_catalog(self._config, self._local)[0], ())

    def pins(self, name: str) -> Pins | None:
        """Return what was reviewed of a server; None for nothing. Contacts nobody. Raises ConfigError, CorruptPins."""
        return read_catalog(self._config, self._local)[1].get(name)

    def review(self, name: str) -> ShownReview:
        """Ask the server, and compare. Raises RequestError where there is no such server elsewhere, ConfigError."""
        catalog, pins = read_catalog(self._config, self._local)
        (found,) = review(catalog, pins, remote_servers(catalog, (name,)), development=self._development)
        return ShownReview(found, _digest(found))

    def approve(
        self, name: str, digest: str, *, by: str, reason: str = "", only: Collection[str] | None = None
    ) -> Path:
        """Ask again, approve it (`only`: these tools of it) where it is what was read, and return the pin file. Takes
        effect in routers that are open, at their next step.

        Raises DefinitionsChanged, RequestError, StorageError.
        """
        from bundle_router.adapters.config_journal import append_change
        from bundle_router.core.tools.pins.reviewed import approve

        shown = self.review(name)
        found = shown.review
        if found.admitted is None:
            raise RequestError(f"server {name!r} could not be asked: {found.error}")
        if not digest or digest != shown.digest:
            raise DefinitionsChanged(
                f"server {name!r} lists something else now than was shown", advice="read the difference again"
            )
        pins = approve(found.server, found.admitted, found.pins, only)
        if self._config is not None:
            changed = found.comparison.tools if found.comparison else ()
            words = tuple(
                f"{c.kind} {name}.{c.tool}"
                for c in changed
                if c.kind != "unchanged" and (only is None or c.tool in only)
            )
            revision = read_catalog(self._config, self._local)[0].revision
            now = datetime.now(UTC).isoformat(timespec="seconds")
            append_change(
                Path(self._config),
                ConfigChange("pins.approved", now, by, reason.strip(), revision, revision, words, digest),
            )
        return open_pins(self._config).write(pins)


def _digest(found: Review) -> str:
    """Return the digest of what was read: what the server lists, how it is reached, and what it was compared with."""
    if found.admitted is None:
        return ""
    tools = [[tool.card.tool, tool.card.sha256, tool.definition] for tool in found.admitted.tools]
    refused = [[row.name, row.code] for row in found.admitted.refused]
    before = [[pin.tool, pin.sha256] for pin in found.pins.pins] if found.pins is not None else None
    return digest_of([found.server.name, found.command, found.admitted.instructions, tools, refused, before])
