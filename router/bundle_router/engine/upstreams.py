"""Where the tool servers stand: what may be used of each, and why not the rest, between their lists and their pins.

Rules:
1. One set for all: what `availability` calls unavailable or drifted is neither shown, nor found, nor callable.
2. Routing contacts nobody. It goes by what was learnt before; before a server was contacted, by its pins.
3. A call rests on a list that the server has not called outdated since: `verify` reads it anew where it has. A list
   that is only old is good for a call while a new one is read.
4. A server that needs no pins (development only) shows nothing before it has been asked: `discover` asks all at once,
   waits for none of them longer than `wait_s`, and for those that are still silent when others have answered no longer
   than those took again.
5. What one principal was listed says nothing about another.
6. That a list could not be had is remembered for `AGAIN_S`, twice as long each time it still can't be, and never longer
   than any look-up (`[cache] capabilities_ttl_s`): a server that comes back is offered again within 5 s. It stops
   decisions only: a call tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bundle_router.core.catalog import Catalog, Server
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.admission import Admitted
from bundle_router.core.tools.pins import Pins, PinSetting, Usable, compare, drifted_among, narrowed, usable, with_cards
from bundle_router.core.tools.transport.tool_servers import Listing, Scope, ServerStatus
from bundle_router.errors import ToolFailure
from bundle_router.ports import Clock, Diagnostics, ToolServers

DISCOVERY_S: Final = 5.0
"""How long showing tools waits for servers that are asked for the first time. What comes later is shown next time."""
PATIENCE_S: Final = 1.0
"""The least that those get who are silent when others have answered."""
MAX_INSPECTED: Final = 100
"""Tools of one list that the warning light looks at before it goes to the log."""
AGAIN_S: Final = (1.0, 2.0, 4.0, 5.0)
_MAX_PRINCIPALS: Final = 1_024
_MAX_REPORTED: Final = 4_096
"""Lights that are remembered as told of: text that keeps changing is told of again rather than kept for ever."""
_NEVER: Final = 1 << 63

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Availability:
    """What decisions and calls go by. `unavailable` and `drifted` are as in `Facts`; `closed` and `unpinned` are those
    of them that asking the server anew would not change. `catalog` has the cards of servers that need no pins and have
    answered; it is the router's own where there are none."""

    catalog: Catalog
    unavailable: Pairs = ()
    drifted: Pairs = ()
    closed: Pairs = ()
    unpinned: Pairs = ()


@dataclass(frozen=True, slots=True)
class _KnownAvailability:
    availability: Availability
    changes: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class _NoListing:
    reason: str
    at_ns: int
    until_ns: int
    times: int


class Servers:
    """The tool servers of one catalog. For many threads and tasks at once; `pins` are those that were read for it.

    `approved` names servers whose pins are newer than what was listed of them so far: that is not held against the
    pins, and read anew before a call.
    """

    def __init__(
        self,
        catalog: Catalog,
        sessions: ToolServers,
        pins: Mapping[str, Pins],
        setting: PinSetting,
        clock: Clock,
        diagnostics: Diagnostics,
        approved: Collection[str] = (),
    ) -> None:
        self._catalog = catalog
        self._approved_ns = dict.fromkeys(approved, clock.monotonic_ns())
        self._sessions = sessions
        self._pins = dict(pins)
        self._setting: PinSetting = setting
        self._clock = clock
        self._diagnostics = diagnostics
        self._remote = tuple(s for s in catalog.servers.values() if s.traits.is_remote and s.enabled)
        self._named = frozenset(tool for bundle in catalog.bundles.values() for tool in bundle.tools)
        self._globs: dict[str, set[str]] = {}
        for pattern in (pattern for bundle in catalog.bundles.values() for pattern in bundle.patterns):
            self._globs.setdefault(pattern.partition(".")[0], set()).add(pattern)
        self._review()
        self._held: dict[str, _KnownAvailability] = {}
        self._failed: dict[tuple[str, str], _NoListing] = {}
        self._marks = 0
        self._inspected: dict[tuple[str, str], int] = {}
        self._reported: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def _review(self) -> None:
        """What follows from the pins alone."""
        pins = self._pins
        self._reviewed = {s.name: pins[s.name].reviewed(s) for s in self._remote if s.name in pins}
        self._unpinned = drifted_among(sorted(self._named), {s.name: self._usable(s, None) for s in self._remote})

    def narrow(self, newer: Mapping[str, Pins]) -> None:
        """Takes back what newer pins do not hold, or hold in another form. Nothing of them is added."""
        with self._lock:
            self._pins = {name: narrowed(pins, newer.get(name)) for name, pins in self._pins.items()}
            self._review()
            self._marks += 1

    @property
    def sessions(self) -> ToolServers:
        return self._sessions

    # --- what may be used now ----------------------------------------------------------------------------------------

    def availability(self, principal: str = "") -> Availability:
        """As things are known now; contacts nobody. The same object while nothing changed."""
        held = self._held.get(principal)
        changes = self._sessions.changes + self._marks
        if held is not None and held.changes == changes and self._clock.monotonic_ns() < held.until_ns:
            return held.availability
        with self._lock:
            held = self._made(principal, changes, held)
            if len(self._held) >= _MAX_PRINCIPALS:
                self._held.clear()
            self._held[principal] = held
        return held.availability

    def _made(self, principal: str, changes: int, before: _KnownAvailability | None) -> _KnownAvailability:
        now = self._clock.monotonic_ns()
        scope = Scope(principal=principal)
        status = {row.server: row for row in self._sessions.status(scope=scope)}
        known = {s.name: self._known(s.name, scope) for s in self._remote}
        by_server = {s.name: self._usable(s, known[s.name]) for s in self._remote}
        closed, passing = [], []
        again = [row.again_s for row in status.values() if row.again_s is not None]
        until_ns = now + int(min(again) * 1e9) if again else _NEVER
        for server in self._remote:
            why, ends_ns = self._closed(server, status.get(server.name), now)
            if why:
                closed.append((server.name, why))
            else:
                why, ends_ns = self._empty(server, known[server.name], by_server[server.name], principal, now)
                passing += [(server.name, why)] if why else []
            until_ns = min(until_ns, ends_ns)
        live = [one for name, one in by_server.items() if name not in self._pins]
        availability = Availability(
            catalog=with_cards(self._catalog, live),
            unavailable=tuple(sorted((*closed, *passing))),
            drifted=drifted_among(sorted(self._named), by_server),
            closed=tuple(closed),
            unpinned=self._unpinned,
        )
        self._tell(availability.drifted, before.availability.drifted if before is not None else ())
        if before is not None and _same(before.availability, availability):
            availability = before.availability
        return _KnownAvailability(availability, changes, until_ns)

    def _known(self, name: str, scope: Scope) -> Listing | None:
        """Return what the server listed last, if that can be held against its pins."""
        listing = self._sessions.known(name, scope=scope)
        return None if listing is None or listing.listed_ns < self._approved_ns.get(name, 0) else listing

    def _usable(self, server: Server, listing: Listing | None) -> Usable:
        admitted = listing.admitted if listing is not None else None
        return usable(self._pins.get(server.name), admitted, server, self._setting, self._reviewed.get(server.name))

    @staticmethod
    def _closed(server: Server, status: ServerStatus | None, now: int) -> tuple[str, int]:
        """Return why the server can't be used whatever is tried, and until when."""
        if status is None:
            return f"nothing here speaks {server.transport}", _NEVER
        if status.circuit == "open":
            return "it kept failing and is left alone for a while", now + int(status.retry_in_s * 1e9)
        return status.reason, _NEVER

    def _empty(
        self, server: Server, listing: Listing | None, found: Usable, principal: str, now: int
    ) -> tuple[str, int]:
        """Return why nothing of the server can be shown, as far as is known, and until when."""
        failed = self._failed.get((server.name, principal))
        since = listing is not None and listing.listed_ns > failed.at_ns if failed is not None else False
        if failed is not None and now < failed.until_ns and not since:
            return failed.reason, failed.until_ns
        if found.open or found.drifted or self._is_wanted(server, found.cards):
            return "", _NEVER
        if found.cards:
            return f"none of its {len(found.cards)} tools is one that a bundle names", _NEVER
        count = len(listing.rejected) + len(listing.admitted.refused) if listing is not None else 0
        return f"it lists no tool that can be used ({count} refused)" if count else "it lists no tools", _NEVER

    def _is_wanted(self, server: Server, cards: Iterable[str]) -> bool:
        """Return whether any of the tools is in a bundle: else its globs would make a shown bundle of nothing."""
        globs = self._globs.get(server.name, ())
        return any(name in self._named or any(matches(glob, name) for glob in globs) for name in cards)

    def _tell(self, drifted: Pairs, before: Pairs) -> None:
        """Says what drifted of servers that have pins, when it does. That others have none is said where they are
        shown."""
        for server in sorted(self._pins):
            rows = tuple(pair for pair in drifted if pair[0] == server)
            if rows and rows != tuple(pair for pair in before if pair[0] == server):
                tools = [tool for _, tool in rows[:20]]
                self._diagnostics.event("warning", "server.drifted", server=server, tools=tools, count=len(rows))

    # --- contact -----------------------------------------------------------------------------------------------------

    async def verify(self, name: str, scope: Scope, timeout_s: float) -> None:
        """Before a call: has a list that still holds, so that `availability` judges the server as it is. Why it could
        not be had is in `availability`, never raised."""
        server = self._catalog.servers[name]
        is_older = self._known(name, scope) is None and self._sessions.known(name, scope=scope) is not None
        listing = await self._list(server, scope, timeout_s, fresh=is_older)
        for _ in range(2):  # one may have been under way that was begun before the change
            if listing is None or not listing.changed:
                break
            listing = await self._list(server, scope, timeout_s, fresh=True)
        if listing is not None:
            await self._inspect(server, listing, scope.principal)

    async def discover(self, names: Iterable[str], scope: Scope, wait_s: float = DISCOVERY_S) -> None:
        """Before tools are shown: asks those of the servers that need no pins for their tools, and has lists that grew
        old read anew meanwhile."""
        loop = asyncio.get_running_loop()
        servers = list(self._discoverable(names, scope))
        if servers:
            with contextlib.suppress(ToolFailure):  # then each server's list says why there is none
                await self._sessions.prepare()
        began = loop.time()
        asked = {loop.create_task(self._list(server, scope, wait_s, fresh=False)): server for server in servers}
        silent, patience_s = set(asked), wait_s
        try:
            while silent:
                done, silent = await asyncio.wait(silent, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if any(task.result() is not None for task in done):
                    patience_s = max(loop.time() - began, PATIENCE_S)
        finally:
            for task in silent:
                task.cancel()
        waited_s = loop.time() - began
        for task in silent:  # its list is read on, and shown as soon as it is there
            self._mark(
                (asked[task].name, scope.principal), f"it is still being asked for its tools, after {waited_s:.1f} s"
            )

    def is_discoverable(self, names: Iterable[str], scope: Scope) -> bool:
        """Return whether `discover` would ask anybody, if only for what is in the cache."""
        return next(self._discoverable(names, scope), None) is not None

    def _discoverable(self, names: Iterable[str], scope: Scope) -> Iterator[Server]:
        closed = {name for name, _ in self.availability(scope.principal).unavailable}
        for name in sorted({*names} - closed):
            server = self._catalog.servers.get(name)
            if server is None or server not in self._remote:
                continue
            if self._sessions.known(name, scope=scope) is not None or self._usable(server, None).open:
                yield server

    async def close_run(self, run_id: str) -> None:
        """Ends what was opened for the run."""
        await self._sessions.close_run(run_id)

    @property
    def were_contacted(self) -> bool:
        """Whether there may be anything to end."""
        return self._sessions.changes > 0

    async def _list(self, server: Server, scope: Scope, timeout_s: float, *, fresh: bool) -> Listing | None:
        """Return the list, or None when there was none to be had in time (then it is read on, for whoever asks
        next)."""
        key = (server.name, scope.principal)
        try:
            await self._sessions.prepare()
            async with asyncio.timeout(timeout_s):
                listing = await self._sessions.definitions(server.name, scope=scope, fresh=fresh)
        except ToolFailure as failure:
            # Who it is, is said wherever the reason is.
            self._mark(key, failure.message.replace(f"server {server.name!r} ", "it ", 1))
            return None
        except TimeoutError:
            self._mark(key, f"it gave no list of its tools within {timeout_s:g} s")
            return None
        if self._failed.pop(key, None) is not None:
            self._marks += 1
        return listing

    async def _inspect(self, server: Server, listing: Listing, principal: str) -> None:
        """Before a call, and once for each list: what its texts are like goes to the log. Showing tools does not wait
        for that."""
        key = (server.name, principal)
        if self._inspected.get(key) != listing.listed_ns:
            if len(self._inspected) >= _MAX_PRINCIPALS:
                self._inspected.clear()
            self._inspected[key] = listing.listed_ns
            await asyncio.to_thread(self._inspect_texts, server, listing.admitted)

    def _inspect_texts(self, server: Server, admitted: Admitted) -> None:
        """Says which tools that nobody has reviewed as they are now speak to the model, each once. It takes some
        milliseconds a tool, and decides nothing."""
        from bundle_router.core.tools.pins.lights import lights  # routing loads no warning light
        from bundle_router.core.tools.warning_light import Neighbour, Neighbourhood

        comparison = compare(self._pins.get(server.name), admitted, server)
        if comparison.clean:
            return
        there = [*self._catalog.cards.values(), *admitted.cards.values()]
        everyone = Neighbourhood(Neighbour(card.server, card.tool, card.description) for card in there)
        for light in lights(replace(admitted, tools=admitted.tools[:MAX_INSPECTED]), comparison, everyone):
            seen = [f"{finding.rule} at {finding.where}: {finding.seen}" for finding in light.verdict.findings[:3]]
            if (report := (server.name, light.tool, *seen)) not in self._reported:
                if len(self._reported) >= _MAX_REPORTED:
                    self._reported.clear()
                self._reported.add(report)
                self._diagnostics.event("warning", "tool.suspicious", server=server.name, tool=light.tool, said=seen)

    def _mark(self, key: tuple[str, str], reason: str) -> None:
        now = self._clock.monotonic_ns()
        if len(self._failed) >= _MAX_PRINCIPALS:
            self._failed = {known: mark for known, mark in self._failed.items() if now < mark.until_ns}
        before = self._failed.get(key)
        times = before.times + (now >= before.until_ns) if before is not None else 1
        again_s = min(AGAIN_S[min(times, len(AGAIN_S)) - 1], self._catalog.settings.cache.capabilities_ttl_s)
        self._failed[key] = _NoListing(reason, now, now + int(again_s * 1e9), times)
        self._marks += 1


def _same(one: Availability, other: Availability) -> bool:
    """Return whether they say the same. Catalogs are compared by their cards: all else in them is the same."""
    if (one.unavailable, one.drifted, one.closed) != (other.unavailable, other.drifted, other.closed):
        return False
    return one.catalog is other.catalog or one.catalog.cards == other.catalog.cards
