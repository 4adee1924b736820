"""What this machine and its tool servers can do now, as the value that decisions are taken with."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bundle_router.core.catalog import Catalog
from bundle_router.core.models import Facts
from bundle_router.engine.upstreams import Availability, Servers
from bundle_router.ports import Capabilities, Redactor

MAX_PRINCIPALS: Final = 1_024


class MachineFacts:
    """Looks at the machine (`capabilities`) and at what is known of the servers (None: the catalog has no others than
    local ones). `transports` are those that can be spoken."""

    def __init__(
        self,
        catalog: Catalog,
        servers: Servers | None,
        capabilities: Capabilities,
        redactor: Redactor,
        transports: Collection[str],
    ) -> None:
        self._catalog = catalog
        self._servers = servers
        self._everything = Availability(catalog)
        self._capabilities = capabilities
        self._redactor = redactor
        self._transports = transports
        self._facts: dict[str, tuple[Availability, Facts]] = {}
        self._capability_names = tuple(
            sorted(
                {f"env:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_env}
                | {f"binary:{name}" for bundle in catalog.bundles.values() for name in bundle.requires_binary}
                | {f"env:{name}" for server in catalog.servers.values() for name in server.env_names}
            )
        )

    def availability(self, principal: str) -> Availability:
        """Return what may be used of the servers now. The same object while nothing changed."""
        return self._servers.availability(principal) if self._servers is not None else self._everything

    def facts(self, principal: str = "") -> Facts:
        """Return what can be done now. The same object while nothing changed."""
        present = self._capabilities.present(self._capability_names) if self._capability_names else frozenset()
        now = self.availability(principal)
        known = self._facts.get(principal)
        if known is None or known[0] is not now or known[1].capabilities != present:
            if len(self._facts) >= MAX_PRINCIPALS:
                self._facts.clear()
            rows = {**dict(now.unavailable), **dict(self._unavailable(present))}
            # Redacted here and not only in the record: a decision is taken again from what was recorded.
            why = tuple((name, self._redactor.redact(reason)) for name, reason in sorted(rows.items()))
            made = Facts(present, unavailable=why, drifted=now.drifted)
            known = self._facts[principal] = (now, made)
        return known[1]

    def _unavailable(self, present: frozenset[str]) -> tuple[tuple[str, str], ...]:
        rows: list[tuple[str, str]] = []
        for server in self._catalog.servers.values():
            missing = [name for name in server.env_names if f"env:{name}" not in present]
            if not server.enabled:
                continue
            if server.transport not in self._transports:
                rows.append((server.name, f"this version does not speak {server.transport}"))
            elif missing:
                rows.append((server.name, f"its credential {missing[0]} is not set"))
        return tuple(rows)
