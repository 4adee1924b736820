"""Which tool servers a run's step or call has to ask first.

Rules:
1. A run contacts only servers whose tools its current decision holds, and a call only the server of
   a tool that the decision showed. A name that only a glob covers is resolved by asking the glob's
   server first.
2. A new list may change what a name means, so the name is resolved until no server is left to ask:
   the called tool is the verified one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.decide.plans import Plans
from bundle_router.core.values import DRIFT_CODES, Facts
from bundle_router.core.values.patterns import matches
from bundle_router.engine.surface import RunState, exposed_now
from bundle_router.engine.upstreams import Servers


class ServerDiscovery:
    """Contacts the tool servers for all runs over one catalog. `servers=None`: there are none."""

    def __init__(self, catalog: Catalog, servers: Servers | None) -> None:
        self._catalog = catalog
        self._servers = servers
        self._remote = {name for name, server in catalog.servers.items() if server.traits.is_remote}

    def needs_discovery(self, state: RunState) -> bool:
        """Return whether `discover` would ask a server."""
        servers = self._servers
        return servers is not None and servers.is_discoverable(
            self._held_servers(state), state.scope
        )

    async def discover(self, state: RunState) -> None:
        """Ask the servers that show nothing before they are asked."""
        if self._servers is not None:
            await self._servers.discover(self._held_servers(state), state.scope)

    def is_verified(self, name: str, state: RunState) -> bool:
        """Return whether `verify` would contact no server and change nothing."""
        servers = self._servers
        if servers is None:
            return True
        asked_servers = state.asked_of.get(name)
        if asked_servers is None:
            if self._unasked_servers(servers, state, name):
                return False
            asked_servers = self._servers_of(servers, state, name)
        return all(servers.is_verified(server, state.scope) for server in asked_servers)

    async def verify(self, name: str, state: RunState, state_now: Callable[[], RunState]) -> None:
        """Get a list that still holds of the server that a call goes to.

        `state` is the present one.
        """
        if self._servers is None:
            return
        hidden = self._unasked_servers(self._servers, state, name)
        if hidden:
            await self._servers.discover(hidden, state.scope)
            state = state_now()
        verified: set[str] = set()
        todo = self._servers_of(self._servers, state, name)
        while todo:
            availability = self._servers.availability(state.step.principal)
            first = min(todo)
            await self._servers.verify(first, state.scope)
            verified.add(first)
            if self._servers.availability(state.step.principal) is not availability:
                state = state_now()
                todo = self._servers_of(self._servers, state, name)
            todo = todo - verified

    async def verify_servers(self, state: RunState, names: Iterable[str]) -> None:
        """Do as `verify` does, for all these servers at once."""
        if self._servers is not None:
            await asyncio.gather(*(self._servers.verify(name, state.scope) for name in names))

    def has_lost_server(self, state: RunState) -> bool:
        """Return whether a server with tools of the decision has become unusable since."""
        unavailable_then = dict(state.decided.facts.unavailable)
        lost_servers = dict(state.facts.unavailable).keys() - unavailable_then.keys()
        return not lost_servers.isdisjoint(self._held_servers(state))

    def wanted_servers(self, state: RunState) -> set[str]:
        """Return the servers elsewhere with tools of the decision, unusable ones included."""
        codes = ("server_unavailable", *DRIFT_CODES)
        names = self._held_servers(state)
        for row in state.decided.decision.left_out:
            bundle = self._catalog.bundle(row.id) if row.code in codes else None
            if bundle is not None:
                names = names | set(bundle.servers)
        return {name for name in names & self._remote if self._catalog.servers[name].enabled}

    def _held_servers(self, state: RunState) -> set[str]:
        """Return the servers with tools of the decision."""
        return {
            server for bundle in _shown_bundles(self._catalog, state) for server in bundle.servers
        }

    def _servers_of(self, upstreams: Servers, state: RunState, name: str) -> set[str]:
        """Return the servers elsewhere of the tools that the name may mean, now and after a new
        list.
        """
        surface = state.surface
        if (asked_servers := state.asked_of.get(name)) is not None:
            return asked_servers
        is_known = name in surface.canonical or name in surface.catalog.cards
        exact = surface.canonical.get(name, name).partition(".")[0]
        if exact in self._catalog.servers and exact not in self._remote:
            return set()
        best_facts = _hopeful_facts(upstreams, state)
        exposures = [state.exposed()]
        if best_facts is not state.facts:
            exposures.append(exposed_now(state, best_facts, state.plans))
        resolved = (surface.resolve(name, exposed) for exposed in exposures)
        remote = {tool.name.partition(".")[0] for tool in resolved if tool.known} & self._remote
        if is_known:
            state.asked_of[name] = remote
        return remote

    def _unasked_servers(self, upstreams: Servers, state: RunState, name: str) -> set[str]:
        """Return the servers that are still to be asked which tools a glob of the decision covers,
        where the name may be one of them and be permitted. A caller that was never shown tools
        relies on this.
        """
        surface = state.surface
        if name in surface.catalog.cards or name in surface.canonical:
            return set()
        best_facts = _hopeful_facts(upstreams, state)
        names = set()
        for bundle in _shown_bundles(surface.catalog, state):
            for pattern in bundle.patterns:
                server = surface.catalog.servers[pattern.partition(".")[0]]
                short = name.removeprefix(f"{server.name}.").removeprefix(f"{server.name}__")
                tool = f"{server.name}.{short}"
                if (
                    (short == name and server.prefix)
                    or not matches(pattern, tool)
                    or not server.includes(short)
                ):
                    continue
                listed = replace(bundle, tools=(*bundle.tools, tool))
                catalog = replace(
                    surface.catalog, bundles={**surface.catalog.bundles, bundle.id: listed}
                )
                if tool in exposed_now(state, best_facts, Plans(catalog)):
                    names.add(server.name)
        return names


def _hopeful_facts(servers: Servers, state: RunState) -> Facts:
    """Return the facts as if every server answered well when asked again."""
    availability = servers.availability(state.step.principal)
    facts = state.facts
    if (facts.unavailable, facts.drifted) == (availability.closed, availability.unpinned):
        return facts
    return replace(facts, unavailable=availability.closed, drifted=availability.unpinned)


def _shown_bundles(catalog: Catalog, state: RunState) -> Iterator[Bundle]:
    for id_ in state.bundle_ids:
        bundle = catalog.bundle(id_)
        if bundle is not None:
            yield bundle
