"""The state of the tool servers: which of their tools can be used, and why the others can't, by
their lists and pins.

Rules:
1. One set serves all: a tool that `availability` calls unavailable or drifted is not shown, found
   or callable.
2. Routing contacts no server. It uses what earlier contacts learnt; before any contact, the pins.
3. A call needs a list that the server has not called outdated: `verify` reads the list again where
   it has, or where the server was left alone. A list that is merely old serves the call while a new
   one is read.
4. A server that needs no pins (development only) shows nothing before it was asked. `discover` asks
   all such servers at once and waits `wait_s` at most; once some have answered, it gives the others
   as long again. One whose entry sets `connect_s` gets those seconds, however fast the others are.
5. A list that one principal got says nothing about another principal.
6. A failure to list is remembered for `AGAIN_S`, twice as long after each further failure, and
   never longer than `[cache] capabilities_ttl_s`: a server that comes back is offered again within
   5 s. The failure affects decisions only; a call tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bundle_router.core.catalog import Catalog, Server
from bundle_router.core.servers.pins.reviewed import Pins, narrow_pins
from bundle_router.core.servers.pins.usable import (
    PinSetting,
    UsableCards,
    drifted_among,
    usable,
    with_cards,
)
from bundle_router.core.servers.transport.tool_servers import Listing, Scope, ServerStatus
from bundle_router.core.values import WHOLE_SERVER, Drift, Facts
from bundle_router.core.values.patterns import matches
from bundle_router.errors import ToolFailure
from bundle_router.ports import Capabilities, Clock, Diagnostics, Redactor, ToolServers

if TYPE_CHECKING:
    from bundle_router.core.servers.admission.admitted import Admitted

DISCOVERY_S: Final = 5.0
"""Seconds that showing tools waits for servers that are asked for the first time.

Later answers are shown next time.
"""
PATIENCE_S: Final = 1.0
"""The least seconds that silent servers get after others have answered."""
MAX_INSPECTED: Final = 100
"""Tools of one list that the warning light inspects before it reports."""
AGAIN_S: Final = (1.0, 2.0, 4.0, 5.0)
_MAX_PRINCIPALS: Final = 1_024
_MAX_REPORTED: Final = 4_096
"""Reported warnings that are remembered.

Text that keeps changing is reported again rather than remembered for ever.
"""
_NEVER: Final = 1 << 63

Pairs = tuple[tuple[str, str], ...]
Drifts = tuple[Drift, ...]


@dataclass(frozen=True, slots=True)
class Availability:
    """What decisions and calls know of the servers.

    `unavailable`, `drifted` and `pending` are as in `Facts`; asking the server again would not
    change those in `closed` and `unpinned`. `catalog` includes the cards of servers that need no
    pins and have answered; it is the router's own where there are none.
    """

    catalog: Catalog
    unavailable: Pairs = ()
    drifted: Drifts = ()
    closed: Pairs = ()
    unpinned: Drifts = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KnownAvailability:
    """What is known at `changes` of the servers (`Servers.changes`), until `until_ns` at most."""

    availability: Availability
    changes: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class _NoListing:
    reason: str
    at_ns: int
    until_ns: int
    times: int
    is_pending: bool


class Servers:
    """The tool servers of one catalog, with the pins that were read for it.

    Safe for many threads and tasks.

    `approved` names servers whose pins are newer than their last list: such a list does not count
    as drift, and is read again before a call.
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
        self._remote = tuple(
            s for s in catalog.servers.values() if s.traits.is_remote and s.enabled
        )
        self._named = frozenset(
            tool for bundle in catalog.bundles.values() for tool in bundle.tools
        )
        self._globs: dict[str, set[str]] = {}
        for pattern in (
            pattern for bundle in catalog.bundles.values() for pattern in bundle.patterns
        ):
            self._globs.setdefault(pattern.partition(".")[0], set()).add(pattern)
        self._review()
        self._held_servers: dict[str, KnownAvailability] = {}
        self._failed: dict[tuple[str, str], _NoListing] = {}
        self._marks = 0
        self._inspected: dict[tuple[str, str], int] = {}
        self._reported: set[tuple[str, ...]] = set()
        self._lock = threading.Lock()

    def _review(self) -> None:
        """Compute what follows from the pins alone."""
        pins = self._pins
        self._reviewed = {s.name: pins[s.name].reviewed(s) for s in self._remote if s.name in pins}
        self._unpinned = drifted_among(
            sorted(self._named), {s.name: self._usable_cards(s, None) for s in self._remote}
        )

    def narrow(self, newer: Mapping[str, Pins]) -> None:
        """Withdraw the tools that newer pins do not hold, or hold in another form.

        Nothing is added.
        """
        with self._lock:
            self._pins = {
                name: narrow_pins(pins, newer.get(name)) for name, pins in self._pins.items()
            }
            self._review()
            self._marks += 1

    @property
    def sessions(self) -> ToolServers:
        return self._sessions

    # --- what may be used now ---------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """How often what is known of the servers has changed."""
        return self._sessions.changes + self._marks if self._remote else 0

    def availability(self, principal: str = "") -> Availability:
        """Return what is known now, without contacting a server.

        The same object while nothing changed.
        """
        return self.known_availability(principal).availability

    def known_availability(self, principal: str) -> KnownAvailability:
        """Return what `availability` does, and for how long it holds."""
        cached = self._held_servers.get(principal)
        changes = self.changes
        if (
            cached is not None
            and cached.changes == changes
            and self._clock.monotonic_ns() < cached.until_ns
        ):
            return cached
        with self._lock:
            cached = self._make_availability(principal, changes, cached)
            if len(self._held_servers) >= _MAX_PRINCIPALS:
                self._held_servers.clear()
            self._held_servers[principal] = cached
        return cached

    def _make_availability(
        self, principal: str, changes: int, before: KnownAvailability | None
    ) -> KnownAvailability:
        now_ns = self._clock.monotonic_ns()
        scope = Scope(principal=principal)
        status = {row.server: row for row in self._sessions.status(scope=scope)}
        listings = {s.name: self._known_listing(s.name, scope) for s in self._remote}
        by_server = {s.name: self._usable_cards(s, listings[s.name]) for s in self._remote}
        closed = []
        passing = []
        pending = []
        again = [row.again_s for row in status.values() if row.again_s is not None]
        until_ns = now_ns + int(min(again) * 1e9) if again else _NEVER
        for server in self._remote:
            reason, ends_ns = self._why_closed(server, status.get(server.name), now_ns)
            if reason:
                closed.append((server.name, reason))
            else:
                reason, ends_ns = self._why_empty(
                    server, listings[server.name], by_server[server.name], principal, now_ns
                )
                passing += [(server.name, reason)] if reason else []
                mark = self._failed.get((server.name, principal))
                pending += (
                    [server.name]
                    if mark is not None and mark.is_pending and mark.reason is reason
                    else []
                )
            until_ns = min(until_ns, ends_ns)
        live = [cards for name, cards in by_server.items() if name not in self._pins]
        availability = Availability(
            catalog=with_cards(self._catalog, live),
            unavailable=tuple(sorted((*closed, *passing))),
            drifted=tuple(_explain(drifted_among(sorted(self._named), by_server), listings)),
            closed=tuple(closed),
            unpinned=self._unpinned,
            pending=tuple(pending),
        )
        self._report_drift(
            availability.drifted, before.availability.drifted if before is not None else ()
        )
        if before is not None and _is_same(before.availability, availability):
            availability = before.availability
        return KnownAvailability(availability, changes, until_ns)

    def _known_listing(self, name: str, scope: Scope) -> Listing | None:
        """Return the server's last list, where it can be compared with the pins."""
        listing = self._sessions.known(name, scope=scope)
        if listing is None or listing.listed_ns < self._approved_ns.get(name, 0):
            return None
        return listing

    def _usable_cards(self, server: Server, listing: Listing | None) -> UsableCards:
        admitted = listing.admitted if listing is not None else None
        return usable(
            self._pins.get(server.name),
            admitted,
            server,
            self._setting,
            self._reviewed.get(server.name),
        )

    @staticmethod
    def _why_closed(server: Server, status: ServerStatus | None, now_ns: int) -> tuple[str, int]:
        """Return why the server can't be used at all, and until when."""
        if status is None:
            return f"nothing here speaks {server.transport}", _NEVER
        if status.circuit == "open":
            return "it kept failing and is left alone for a while", now_ns + int(
                status.retry_in_s * 1e9
            )
        return status.reason, _NEVER

    def _why_empty(
        self,
        server: Server,
        listing: Listing | None,
        usable: UsableCards,
        principal: str,
        now_ns: int,
    ) -> tuple[str, int]:
        """Return why no tool of the server can be shown, as far as is known, and until when."""
        failed = self._failed.get((server.name, principal))
        if failed is not None and now_ns < failed.until_ns:
            has_listed_since = listing is not None and listing.listed_ns > failed.at_ns
            if not has_listed_since:
                return failed.reason, failed.until_ns
        if usable.open or usable.drifted or self._is_wanted(server, usable.cards):
            return "", _NEVER
        if usable.cards:
            return f"none of its {len(usable.cards)} tools is one that a bundle names", _NEVER
        count = 0
        if listing is not None:
            count = len(listing.rejected) + len(listing.admitted.refused)
        if count:
            return f"it lists no tool that can be used ({count} refused)", _NEVER
        return "it lists no tools", _NEVER

    def _is_wanted(self, server: Server, cards: Iterable[str]) -> bool:
        """Return whether a bundle holds one of the tools; else the server's globs would show an
        empty bundle.
        """
        globs = self._globs.get(server.name, ())
        return any(
            name in self._named or any(matches(glob, name) for glob in globs) for name in cards
        )

    def _report_drift(self, drifted: Drifts, before: Drifts) -> None:
        """Report new drift of servers that have pins.

        Servers without pins are reported where they are shown.
        """
        for server in sorted(self._pins):
            rows = _of_server(drifted, server)
            if not rows or rows == _of_server(before, server):
                continue
            tools = [row.tool for row in rows[:20]]
            self._diagnostics.event(
                "warning", "server.drifted", server=server, tools=tools, count=len(rows)
            )

    # --- contact ----------------------------------------------------------------------------------

    def is_verified(self, name: str, scope: Scope) -> bool:
        """Return whether `verify` would ask no server and change nothing."""
        key = (name, scope.principal)
        listing = self._sessions.fresh(name, scope=scope) if key not in self._failed else None
        if listing is None or listing.changed or listing.listed_ns < self._approved_ns.get(name, 0):
            return False
        return self._inspected.get(key) == listing.listed_ns

    async def verify(self, name: str, scope: Scope) -> None:
        """Get a list that still holds before a call, so that `availability` is right about the
        server. A failure is in `availability`, never raised.
        """
        server = self._catalog.servers[name]
        timeout_s = server.timeout_s or self._catalog.settings.limits.call_timeout_s
        if server.connect_s is not None:
            timeout_s = max(timeout_s, server.connect_s)
        is_older = (
            self._known_listing(name, scope) is None
            and self._sessions.known(name, scope=scope) is not None
        )
        was_away = any(
            (row.server, row.circuit) == (name, "half_open")
            for row in self._sessions.status(scope=scope)
        )
        listing = await self._list(server, scope, timeout_s, fresh=is_older or was_away)
        for _ in range(2):  # one may have been under way that was begun before the change
            if listing is None or not listing.changed:
                break
            listing = await self._list(server, scope, timeout_s, fresh=True)
        if (
            listing is not None
            and self._inspected.get(key := (name, scope.principal)) != listing.listed_ns
        ):
            if len(self._inspected) >= _MAX_PRINCIPALS:
                self._inspected.clear()
            self._inspected[key] = listing.listed_ns
            await asyncio.to_thread(self._inspect_texts, server, listing.admitted)

    async def discover(
        self, names: Iterable[str], scope: Scope, wait_s: float = DISCOVERY_S
    ) -> None:
        """Ask servers that need no pins for their tools before tools are shown.

        Lists that are old are read again in the background. A server that sets `connect_s` is
        waited for that long where it is more than `wait_s`.
        """
        loop = asyncio.get_running_loop()
        servers = list(self._discoverable(names, scope))
        if servers:
            with contextlib.suppress(ToolFailure):  # then each server's list says why there is none
                await self._sessions.prepare()
        began = loop.time()
        listings: dict[asyncio.Task[Listing | None], Server] = {}
        slow_starters = set()
        for server in servers:
            allowed_s = max(wait_s, server.connect_s or 0.0)
            task = loop.create_task(self._list(server, scope, allowed_s, fresh=False))
            listings[task] = server
            if allowed_s > wait_s:
                slow_starters.add(task)
        try:
            silent = await _wait_together(listings.keys() - slow_starters, wait_s)
            if slow_starters:  # each ends by itself, after its own seconds
                await asyncio.wait(slow_starters)
        finally:
            for task in listings:
                task.cancel()
        waited_s = loop.time() - began
        for task, server in listings.items():
            key = server.name, scope.principal
            if task in silent:  # its list is read on, and shown as soon as it is there
                reason = f"it is still being asked for its tools, after {waited_s:.1f} s"
                self._mark(key, reason, is_pending=True)
            elif (
                mark := self._failed.get(key)
            ) is not None:  # what failed long before the others counts from now on
                self._failed[key] = replace(
                    mark, until_ns=mark.until_ns + self._clock.monotonic_ns() - mark.at_ns
                )
                self._marks += 1

    def is_discoverable(self, names: Iterable[str], scope: Scope) -> bool:
        """Return whether `discover` would ask a server, if only through the cache."""
        return next(self._discoverable(names, scope), None) is not None

    def _discoverable(self, names: Iterable[str], scope: Scope) -> Iterator[Server]:
        closed = {name for name, _ in self.availability(scope.principal).unavailable}
        for name in sorted({*names} - closed):
            server = self._catalog.servers.get(name)
            if server is None or server not in self._remote:
                continue
            is_listed = self._sessions.known(name, scope=scope) is not None
            if is_listed or self._usable_cards(server, None).open:
                yield server

    async def _list(
        self, server: Server, scope: Scope, timeout_s: float, *, fresh: bool
    ) -> Listing | None:
        """Return the list; None where it did not come in time.

        It is then read on for the next caller.
        """
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
            is_first = self._sessions.known(server.name, scope=scope) is None
            self._mark(
                key, f"it gave no list of its tools within {timeout_s:g} s", is_pending=is_first
            )
            return None
        if self._failed.pop(key, None) is not None:
            self._marks += 1
        return listing

    def _inspect_texts(self, server: Server, admitted: Admitted) -> None:
        """Report each unreviewed tool whose text addresses the model, once.

        Takes milliseconds a tool and decides nothing.
        """
        # Routing loads no warning light.
        from bundle_router.core.servers.pins.compare import compare
        from bundle_router.core.servers.warning_light import Neighbourhood
        from bundle_router.core.servers.warning_light.inspect import lights

        comparison = compare(self._pins.get(server.name), admitted, server)
        if comparison.clean:
            return
        everyone = Neighbourhood((*self._catalog.cards.values(), *admitted.cards.values()))
        for light in lights(
            replace(admitted, tools=admitted.tools[:MAX_INSPECTED]), comparison, everyone
        ):
            findings = [
                f"{finding.rule} at {finding.where}: {finding.seen}"
                for finding in light.verdict.findings[:3]
            ]
            if (report := (server.name, light.tool, *findings)) not in self._reported:
                if len(self._reported) >= _MAX_REPORTED:
                    self._reported.clear()
                self._reported.add(report)
                self._diagnostics.event(
                    "warning", "tool.suspicious", server=server.name, tool=light.tool, said=findings
                )

    def _mark(self, key: tuple[str, str], reason: str, *, is_pending: bool = False) -> None:
        now_ns = self._clock.monotonic_ns()
        if len(self._failed) >= _MAX_PRINCIPALS:
            self._failed = {
                mark_key: mark for mark_key, mark in self._failed.items() if now_ns < mark.until_ns
            }
        last_mark = self._failed.get(key)
        times = last_mark.times + (now_ns >= last_mark.until_ns) if last_mark is not None else 1
        again_s = min(
            AGAIN_S[min(times, len(AGAIN_S)) - 1], self._catalog.settings.cache.capabilities_ttl_s
        )
        until_ns = now_ns + int(again_s * 1e9)
        self._failed[key] = _NoListing(reason, now_ns, until_ns, times, is_pending)
        self._marks += 1


async def _wait_together(
    listings: Collection[asyncio.Task[Listing | None]], wait_s: float
) -> set[asyncio.Task[Listing | None]]:
    """Wait for lists for `wait_s` at most; once some are there, for the others as long again.

    Return those that are still silent.
    """
    began = asyncio.get_running_loop().time()
    silent = set(listings)
    patience_s = wait_s
    while silent:
        finished, silent = await asyncio.wait(
            silent, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not finished:
            break
        if any(task.result() is not None for task in finished):
            waited_s = asyncio.get_running_loop().time() - began
            patience_s = max(waited_s, PATIENCE_S)
    return silent


def _explain(drifted: Drifts, known: Mapping[str, Listing | None]) -> Iterator[Drift]:
    """Yield what drifted, with what the servers' lists say of it.

    Codes and texts here are our own, not a server's.
    """
    listed_tools: dict[str, set[str]] = {}
    refusals: dict[str, dict[str, str]] = {}
    cuts: dict[str, str] = {}
    for server in {row.server for row in drifted}:
        listing = known[server]
        if listing is None:
            continue
        listed_tools[server] = {tool.card.tool for tool in listing.admitted.tools}
        refusals[server] = dict(listing.rejected)
        for refusal in listing.admitted.refused:
            refusals[server][refusal.name] = refusal.code
        cuts[server] = listing.cut
    for row in drifted:
        is_listed = row.tool in listed_tools.get(row.server, ())
        if row.tool == WHOLE_SERVER or row.server not in listed_tools or is_listed:
            yield row
        elif row.tool in refusals[row.server]:
            yield replace(row, code="not_admitted", why=refusals[row.server][row.tool])
        else:
            yield replace(row, code="not_listed", why=cuts[row.server])


def _is_same(one: Availability, other: Availability) -> bool:
    """Return whether both say the same.

    Catalogs are compared by their cards, since nothing else in them can differ.
    """
    if (one.unavailable, one.drifted, one.closed) != (
        other.unavailable,
        other.drifted,
        other.closed,
    ):
        return False
    return one.catalog is other.catalog or one.catalog.cards == other.catalog.cards


class MachineFacts:
    """Reads the machine's capabilities and what is known of the servers (None: all servers are
    local). `transports` are those that this installation can speak.
    """

    def __init__(
        self,
        catalog: Catalog,
        servers: Servers | None,
        capabilities: Capabilities,
        clock: Clock,
        redactor: Redactor,
        transports: Collection[str],
    ) -> None:
        self._catalog = catalog
        self._servers = servers
        self._everything = KnownAvailability(Availability(catalog), 0, _NEVER)
        self._capabilities = capabilities
        self._clock = clock
        self._present: tuple[frozenset[str], int] = (frozenset(), 0)
        self._redactor = redactor
        self._transports = transports
        self._facts: dict[str, tuple[KnownAvailability, int, Facts]] = {}
        self._capability_names = tuple(
            sorted(
                {
                    f"env:{name}"
                    for bundle in catalog.bundles.values()
                    for name in bundle.requires_env
                }
                | {
                    f"binary:{name}"
                    for bundle in catalog.bundles.values()
                    for name in bundle.requires_binary
                }
                | {
                    f"env:{name}"
                    for server in catalog.servers.values()
                    for name in server.env_names
                }
            )
        )

    def known_availability(self, principal: str) -> KnownAvailability:
        """Return what is known of the servers now, and for how long it holds."""
        if self._servers is not None:
            return self._servers.known_availability(principal)
        return self._everything

    def facts(self, principal: str = "") -> Facts:
        """Return the present capabilities. The same object while nothing changed."""
        cached = self._facts.get(principal)
        servers = self._servers
        now_ns = self._clock.monotonic_ns()
        if (
            cached is not None
            and now_ns < cached[1]
            and (servers is None or servers.changes == cached[0].changes)
        ):
            return cached[2]
        known_availability = self.known_availability(principal)
        if now_ns >= self._present[1]:
            self._present = self._capabilities.present(self._capability_names)
        present, until_ns = self._present
        if (
            cached is not None
            and cached[0].availability is known_availability.availability
            and cached[2].capabilities == present
        ):
            facts = cached[2]
        else:
            rows = dict(known_availability.availability.unavailable)
            rows |= self._unavailable_rows(present)
            # Redacted here and not only in the record: a decision is taken again from what was
            # recorded.
            reasons = tuple(
                (name, self._redactor.redact(reason)) for name, reason in sorted(rows.items())
            )
            facts = Facts(
                present,
                unavailable=reasons,
                drifted=known_availability.availability.drifted,
                pending=known_availability.availability.pending,
            )
        if len(self._facts) >= _MAX_PRINCIPALS:
            self._facts.clear()
        until_ns = min(known_availability.until_ns, until_ns)
        self._facts[principal] = known_availability, until_ns, facts
        return facts

    def _unavailable_rows(self, present: frozenset[str]) -> Iterator[tuple[str, str]]:
        for server in self._catalog.servers.values():
            if not server.enabled:
                continue
            missing = [name for name in server.env_names if f"env:{name}" not in present]
            if server.transport not in self._transports:
                yield server.name, f"this version does not speak {server.transport}"
            elif missing:
                yield server.name, f"its credential {missing[0]} is not set"


def _of_server(drifts: Drifts, server: str) -> list[Drift]:
    return [row for row in drifts if row.server == server]
