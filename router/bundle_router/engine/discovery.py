"""What this machine and its tool servers can do now, and when the servers of a run are contacted: before what needs no
pins is shown, before a call, and at the run's end.

Rules:
1. Only servers that the run's current decision holds tools of, and a call's only where the decision showed its tool.
2. A name that only a glob covers means a tool once its server was asked, which a call then does before all else.
3. A name may mean another tool once a list was read, so it is looked up until nothing is left to ask: what is called
   is what was verified.
4. What a server does or does not answer is in `Servers.availability`; nothing here raises it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.config.servers import included
from bundle_router.core.models import Facts
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.meta_tools import resolve
from bundle_router.core.tools.pins import Pins
from bundle_router.core.tools.transport.tool_servers import Scope
from bundle_router.engine.surface import RunState, exposed_now
from bundle_router.engine.upstreams import Availability, Servers
from bundle_router.ports import Capabilities, Redactor

StateNow = Callable[[], RunState]
"""The run as it stands when it is called."""


class ServerDiscovery:
    """The contacts of all runs over one catalog with their tool servers. `servers=None`: there is nobody to contact."""

    def __init__(self, catalog: Catalog, servers: Servers | None) -> None:
        self._catalog = catalog
        self._servers = servers

    def needs_discovery(self, state: RunState) -> bool:
        """Return whether `discover` would ask anybody."""
        servers = self._servers
        return servers is not None and servers.is_discoverable(self._held(state), state.scope)

    async def discover(self, state: RunState) -> None:
        """Before tools are shown: asks the servers that show nothing before."""
        if self._servers is not None:
            await self._servers.discover(self._held(state), state.scope)

    async def verify(self, name: str, state: RunState, state_now: StateNow) -> None:
        """Before a call: has a list that still holds of the server that it would go to. `state` is that of now."""
        if self._servers is None:
            return
        hidden = self._hidden(self._servers, state, name)
        if hidden:
            await self._servers.discover(hidden, state.scope)
            state = state_now()
        verified: set[str] = set()
        while todo := self._servers_of(self._servers, state, name) - verified:
            first = min(todo)
            await self._verified(self._servers, first, state.scope)
            verified.add(first)
            state = state_now()

    async def verify_servers(self, state: RunState, names: Iterable[str]) -> None:
        """Before anything else is asked of these servers: as `verify`, of all at once."""
        if self._servers is not None:
            await asyncio.gather(*(self._verified(self._servers, name, state.scope) for name in names))

    async def _verified(self, servers: Servers, name: str, scope: Scope) -> None:
        timeout_s = self._catalog.servers[name].timeout_s or self._catalog.settings.limits.call_timeout_s
        await servers.verify(name, scope, timeout_s)

    def narrow(self, pins: Mapping[str, Pins]) -> None:
        """Takes back what these pins do not hold, or hold in another form."""
        if self._servers is not None:
            self._servers.narrow(pins)

    async def close_run(self, run_id: str) -> None:
        if self._servers is not None:
            await self._servers.close_run(run_id)

    @property
    def were_made(self) -> bool:
        """Whether there may be anything to end."""
        return self._servers is not None and self._servers.were_contacted

    def _held(self, state: RunState) -> set[str]:
        """Return the servers that the decision holds tools of."""
        return {server for bundle in _shown(self._catalog, state) for server in bundle.servers}

    def _servers_of(self, upstreams: Servers, state: RunState, name: str) -> set[str]:
        """Return the servers elsewhere of the tools that the name means: as things are known, and as a new list may
        say."""
        surface, servers = state.surface, self._catalog.servers
        exact = servers.get(surface.canonical.get(name, name).partition(".")[0])
        if exact is not None and not exact.traits.is_remote:
            return set()
        resolved = (
            resolve(name, exposed_now(state, facts, surface.catalog), surface.canonical)
            for facts in (state.facts, _hopeful(upstreams, state))
        )
        found = {one.name.partition(".")[0] for one in resolved if one.known}
        return {server for server in found if servers[server].traits.is_remote}

    def _hidden(self, upstreams: Servers, state: RunState, name: str) -> set[str]:
        """Return the servers that have yet to be asked what a glob of the decision covers, where the name may be among
        that and would be permitted: who calls without having been shown tools has nobody else to ask them."""
        surface = state.surface
        if name in surface.catalog.cards or name in surface.canonical:
            return set()
        hopeful, found = _hopeful(upstreams, state), set()
        for bundle in _shown(surface.catalog, state):
            for pattern in bundle.patterns:
                server = surface.catalog.servers[pattern.partition(".")[0]]
                short = name.removeprefix(f"{server.name}.").removeprefix(f"{server.name}__")
                tool = f"{server.name}.{short}"
                if (short == name and server.prefix) or not matches(pattern, tool) or not included(server, short):
                    continue
                listed = replace(bundle, tools=(*bundle.tools, tool))
                catalog = replace(surface.catalog, bundles={**surface.catalog.bundles, bundle.id: listed})
                if tool in exposed_now(state, hopeful, catalog):
                    found.add(server.name)
        return found


def _hopeful(servers: Servers, state: RunState) -> Facts:
    """Return the facts, if asking every server anew came out well."""
    now = servers.availability(state.step.principal)
    return replace(state.facts, unavailable=now.closed, drifted=now.unpinned)


def _shown(catalog: Catalog, state: RunState) -> Iterator[Bundle]:
    for id_ in state.bundle_ids:
        bundle = catalog.bundle(id_)
        if bundle is not None:
            yield bundle


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
