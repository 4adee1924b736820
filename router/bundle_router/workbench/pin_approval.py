"""Approves what a tool server lists now, after a person read the difference on a page.

Rules:
1. A server is asked only on a person's request, never to show a page. Processes are started only
   with `development`, which comes from the caller's code or the command line.
2. Only what was shown is approved: the server is asked again, and its answer must have the digest
   that was shown.
3. The approval is written to `changes.jsonl` of the config folder before the pin file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bundle_router.core.config.config_changes import ConfigChange
from bundle_router.core.values.canonical import digest_of
from bundle_router.errors import RequestError
from bundle_router.wiring.catalogs import LocalServers, open_pins, read_catalog
from bundle_router.workbench.server_reviews import Review, remote_servers, review

if TYPE_CHECKING:
    from bundle_router.core.catalog import Server
    from bundle_router.core.servers.pins.reviewed import Pins


class DefinitionsChanged(RequestError):
    """The server lists something else than was shown; nothing was approved."""


@dataclass(frozen=True, slots=True)
class ShownReview:
    """A server's present list beside its pins.

    `digest` is of both; empty where the server could not be asked.
    """

    review: Review
    digest: str


class PinApproval:
    """Reviews and approves the servers of one config folder.

    Asks them over the network or as processes.
    """

    def __init__(
        self,
        config: str | Path | None,
        *,
        development: bool = False,
        local: LocalServers | None = None,
    ) -> None:
        self._config = config
        self._development = development
        self._local = local

    def servers(self) -> list[Server]:
        """Return the servers that can have pins. Contacts none. Raises ConfigError, CorruptPins."""
        return remote_servers(read_catalog(self._config, self._local)[0], ())

    def pins(self, name: str) -> Pins | None:
        """Return the pins of a server; None where it has none.

        Does not contact it. Raises ConfigError, CorruptPins.
        """
        return read_catalog(self._config, self._local)[1].get(name)

    def review(self, name: str) -> ShownReview:
        """Ask the server, and compare.

        Raises ConfigError, and RequestError where there is no such remote server.
        """
        catalog, pins = read_catalog(self._config, self._local)
        (server_review,) = review(
            catalog, pins, remote_servers(catalog, (name,)), development=self._development
        )
        return ShownReview(server_review, _digest(server_review))

    def approve(
        self,
        name: str,
        digest: str,
        *,
        by: str,
        reason: str = "",
        only: Collection[str] | None = None,
    ) -> Path:
        """Ask again, approve the list (`only`: these tools of it) if it is the one that was shown,
        and return the pin file. Open routers use it from their next step on.

        Raises DefinitionsChanged, RequestError, StorageError.
        """
        from bundle_router.adapters.config_journal import JournaledEdit, make_edit
        from bundle_router.core.servers.pins.reviewed import PinReview, approve

        approval = self.review(name)
        server_review = approval.review
        if server_review.admitted is None:
            raise RequestError(f"server {name!r} could not be asked: {server_review.error}")
        if not digest or digest != approval.digest:
            raise DefinitionsChanged(
                f"server {name!r} lists something else now than was shown",
                advice="read the difference again",
            )
        time = datetime.now(UTC).isoformat(timespec="seconds")
        pins = approve(
            server_review.server,
            server_review.admitted,
            server_review.pins,
            only,
            PinReview(time, by),
        )
        files = open_pins(self._config)

        def judge() -> JournaledEdit[Path]:
            revision = read_catalog(self._config, self._local)[0].revision
            words = _change_words(server_review, only)
            change = ConfigChange(
                "pins.approved", time, by, reason.strip(), revision, revision, words, digest
            )
            return JournaledEdit(change, write=lambda: files.write(pins))

        with files.unchanged(name, server_review.pins):
            if self._config is None:  # the shipped config has no folder of its own, and no journal
                return files.write(pins)
            return make_edit(Path(self._config), judge)


def _change_words(review: Review, only: Collection[str] | None) -> tuple[str, ...]:
    """Return the approved changes (`only`: of these tools) as `changed hub.create_issue`."""
    if review.comparison is None:
        return ()
    words = []
    for row in review.comparison.tools:
        is_approved = only is None or row.tool in only
        if row.kind != "unchanged" and is_approved:
            words.append(f"{row.kind} {review.server.name}.{row.tool}")
    return tuple(words)


def _digest(review: Review) -> str:
    """Return the digest of what was shown: the server's list, how it is reached, and its pins."""
    if review.admitted is None:
        return ""
    tools = [[tool.card.tool, tool.card.sha256, tool.definition] for tool in review.admitted.tools]
    refusals = [[row.name, row.code] for row in review.admitted.refused]
    if review.pins is not None:
        digests = [[pin.tool, pin.sha256] for pin in review.pins.pins]
    else:
        digests = None
    return digest_of(
        [review.server.name, review.command, review.admitted.instructions, tools, refusals, digests]
    )
