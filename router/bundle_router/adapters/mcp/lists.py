"""Tool lists: read page by page within bounds, cached, and read once for all concurrent callers.

The cache key is server and principal, because a server may list different tools for different
principals.

Rules:
1. A fresh list is returned from the cache. A stale one is returned too, while one refresh runs.
2. `tools/list_changed` makes a list stale at once, whatever its lifetime.
3. A refresh that began before such a notice does not make the list fresh, because it may have read
   the old list.
4. A failed refresh keeps the last list, stale, and is retried after `RETRY_S` at the earliest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from bundle_router.adapters.mcp.connection import Connection
from bundle_router.adapters.mcp.faults import RpcError, ServerFault
from bundle_router.adapters.mcp.pool import CLOSED
from bundle_router.adapters.workers import run_in_turn
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admitted import Admitted
from bundle_router.core.servers.transport.bounds import Bounds, lifetime_s
from bundle_router.core.servers.transport.list_pages import Pages
from bundle_router.core.servers.transport.pass_through import Client
from bundle_router.core.servers.transport.tool_servers import Listing, Scope
from bundle_router.core.values.canonical import PIECE, budget_left
from bundle_router.ports import Clock, Diagnostics

Key = tuple[str, str]
"""Server and principal."""
RETRY_S: Final = 5.0
State = Literal["absent", "fresh", "stale"]


@dataclass(frozen=True, slots=True)
class Freshness:
    """Until when a list is fresh (`until_ns`; None without a list), and how many change notices
    came (`changes`).
    """

    until_ns: int | None = None
    retry_ns: int = 0
    changes: int = 0

    def state(self, now_ns: int) -> State:
        if self.until_ns is None:
            return "absent"
        if now_ns < self.until_ns:
            return "fresh"
        return "stale"

    def may_refresh(self, now_ns: int) -> bool:
        return now_ns >= self.retry_ns

    def after_listing(self, now_ns: int, lifetime_s: float, changes_before: int) -> Freshness:
        """Return the state after reading a list.

        `changes_before` is `changes` when the reading began.
        """
        lifetime_ns = int(lifetime_s * 1e9) if changes_before == self.changes else 0
        return Freshness(now_ns + lifetime_ns, now_ns, self.changes)

    def after_change(self, now_ns: int) -> Freshness:
        """Return the state after a change notice."""
        until = None if self.until_ns is None else min(self.until_ns, now_ns)
        return Freshness(until, now_ns, self.changes + 1)

    def failed(self, now_ns: int) -> Freshness:
        """Return the state after a failed refresh."""
        return replace(self, retry_ns=now_ns + int(RETRY_S * 1e9))


@dataclass(slots=True)
class CachedList:
    """The cached state of one list.

    Values are replaced, never mutated, so that other threads may read them.
    """

    freshness: Freshness = field(default_factory=Freshness)
    listing: Listing | None = None
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seen_changes: int = 0
    """Number of change notices when the reading of the listing began."""
    reading: asyncio.Task[Listing] | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether a change notice came after the reading of the listing began."""
        return self.seen_changes != self.freshness.changes


class Lists:
    """The tool lists of all servers.

    `read` returns a server's listing and `ttlMs`; `admit` admits its tools in a thread. All on one
    loop, except `fresh` and `known`. `note_change` is called whenever `known` may have changed.
    """

    def __init__(
        self,
        read: Callable[[Server, Scope], Awaitable[tuple[Listing, float | None]]],
        clock: Clock,
        diagnostics: Diagnostics,
        admit: Callable[[Server, Listing], Admitted],
        note_change: Callable[[], None],
    ) -> None:
        self._note_change = note_change
        self._admit = admit
        self._read = read
        self._clock = clock
        self._diagnostics = diagnostics
        self._entries: dict[Key, CachedList] = {}

    def known(self, server: str, principal: str) -> CachedList | None:
        """Return the list that was read last, however old. Any thread may call this."""
        return self._entries.get((server, principal))

    def fresh(self, server: str, principal: str) -> Listing | None:
        """Return the listing if it is fresh. Any thread may call this."""
        entry = self._entries.get((server, principal))
        is_fresh = (
            entry is not None and entry.freshness.state(self._clock.monotonic_ns()) == "fresh"
        )
        return entry.listing if entry is not None and is_fresh else None

    async def get(self, server: Server, scope: Scope, *, fresh: bool) -> Listing:
        """Return the listing; a stale one while a new one is read.

        Without one, raises what reading raises.
        """
        entry = self._entries.setdefault((server.name, scope.principal), CachedList())
        now = self._clock.monotonic_ns()
        state = entry.freshness.state(now)
        if entry.listing is not None and not fresh:
            if state == "fresh":
                return entry.listing
            if entry.reading is None and entry.freshness.may_refresh(now):
                self._begin(server, scope, entry)
            return replace(entry.listing, stale=True, changed=entry.is_outdated)
        reading = entry.reading or self._begin(server, scope, entry)
        await asyncio.wait((reading,))
        if reading.cancelled():
            raise ServerFault("closed", CLOSED)
        listing = reading.result()
        return replace(listing, changed=True) if entry.is_outdated else listing

    def _begin(self, server: Server, scope: Scope, entry: CachedList) -> asyncio.Task[Listing]:
        entry.reading = asyncio.get_running_loop().create_task(self._refresh(server, scope, entry))
        entry.reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return entry.reading

    async def _refresh(self, server: Server, scope: Scope, entry: CachedList) -> Listing:
        changes = entry.freshness.changes
        try:
            listing, ttl_ms = await self._read(server, scope)
            listing = replace(
                listing, admitted=await self._admit_listing(server, listing, entry.listing)
            )
        except Exception as error:
            entry.freshness = entry.freshness.failed(self._clock.monotonic_ns())
            if entry.listing is not None:
                entry.listing = replace(entry.listing, stale=True, error=str(error))
            self._note_change()
            raise
        finally:
            entry.reading = None
        now = self._clock.monotonic_ns()
        entry.schemas = _schemas_in(listing, "inputSchema")
        entry.outputs = _schemas_in(listing, "outputSchema")
        entry.seen_changes = changes
        entry.listing = replace(listing, listed_ns=now)
        self._note_change()
        entry.freshness = entry.freshness.after_listing(
            now, lifetime_s(server.transport, server.ttl_s, ttl_ms), changes
        )
        for name, why in listing.rejected[:20]:
            self._diagnostics.event(
                "warning", "tool.rejected", server=server.name, tool=name, reason=why
            )
        if listing.cut:
            self._diagnostics.event("warning", "list.cut", server=server.name, reason=listing.cut)
        return entry.listing

    async def _admit_listing(
        self, server: Server, listing: Listing, before: Listing | None
    ) -> Admitted:
        """Return the admitted definitions of a list.

        Only a changed list is admitted anew, in a thread.
        """
        if before is not None and (before.tools, before.instructions) == (
            listing.tools,
            listing.instructions,
        ):
            return before.admitted
        admitted = await asyncio.to_thread(self._admit, server, listing)
        for row in admitted.refused[:20]:
            reason = f"{row.code}: {row.detail}"
            self._diagnostics.event(
                "warning", "tool.rejected", server=server.name, tool=row.name, reason=reason
            )
        return admitted

    def changed(self, server: Server, principal: str | None) -> None:
        """Note that a server's list has changed, for one principal or (None) for all."""
        for (name, owner), entry in self._entries.items():
            if name == server.name and principal in (None, owner):
                entry.freshness = entry.freshness.after_change(self._clock.monotonic_ns())
                self._note_change()

    async def close(self) -> None:
        """Cancel the reads in progress."""
        reading = [entry.reading for entry in self._entries.values() if entry.reading is not None]
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def read_pages(
    connection: Connection, server: str, bounds: Bounds, client: Client | None
) -> tuple[Listing, float | None]:
    """Return all pages of a list, read within `bounds.list_s`.

    Raises ServerFault, also for a refusal.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + bounds.list_s
    pages = Pages(bounds)
    params: dict[str, Any] = {}
    try:
        while True:
            page = await connection.request(
                "tools/list", params, deadline - loop.time(), None, client
            )
            adding = partial(pages.add, page)
            is_small = budget_left(page, PIECE) >= 0
            cursor = adding() if is_small else await run_in_turn("taken_apart", adding)
            if cursor is None:
                break
            params = {"cursor": cursor}
    except RpcError as error:
        raise ServerFault(
            "protocol_error", f"the server refused to list its tools (code {error.code})"
        ) from error
    except ServerFault as fault:
        if fault.kind != "timeout" or not pages.tools:
            raise
        pages.cut = f"the server did not finish its list within {bounds.list_s:g} s"
    identity = connection.identity
    listing = Listing(
        server=server,
        tools=tuple(pages.tools.values()),
        instructions=identity.instructions,
        name=identity.name,
        version=identity.version,
        protocol=identity.protocol,
        rejected=tuple(pages.rejected),
        cut=pages.cut,
        begins_with_handshake=connection.begins_with_handshake,
    )
    return listing, pages.ttl_ms


def _schemas_in(listing: Listing, key: str) -> dict[str, Mapping[str, Any]]:
    """Return the schemas that tools have under a key, by the tools' names."""
    schemas = {str(tool["name"]): tool.get(key) for tool in listing.tools}
    return {name: schema for name, schema in schemas.items() if isinstance(schema, Mapping)}
