"""Which results may be reused, under what key, for how long, and what invalidates them. Pure.

Rules:
1. Only if the operator set a lifetime (`reuse` of a server), only for trusted servers, and only for
   tools that our bundles declare read-only: a server's own claims do not count.
2. A result belongs to the exact tool, by its card's digest, and to the exact arguments. It belongs
   to one principal, and to one run unless the operator sets `across_runs`; a local tool's also to
   the folder it worked in.
3. A call that may change something invalidates the results of its place, at its beginning and at
   its end: those of its server and, for processes and local tools, those of all of them, because
   they share this machine's files.
4. Bounded in entries and in bytes; the least recently used is dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bundle_router.core.catalog import Catalog, Reuse
from bundle_router.core.results.shaping import ShapedResult
from bundle_router.core.values.canonical import digest_of
from bundle_router.core.values.patterns import first_match, matches

MAX_ENTRIES: Final = 1_024
MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRY_BYTES: Final = 4 * 1024 * 1024
HERE: Final = "this machine"
"""The place of local tools and processes. No server can have this name."""

_CHANGES: Final = frozenset(("write", "exec"))


@dataclass(frozen=True, slots=True)
class ReusableCall:
    """The parts of a call that determine its result.

    `arguments` are as requested, with artifact handles; `where` is the folder of a local tool.
    """

    tool: str
    arguments: Mapping[str, Any]
    principal: str
    run_id: str
    where: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CachedResult:
    """A reusable result, and the id of the call that gave it."""

    shaped: ShapedResult
    call_id: str
    until_ns: int

    @property
    def bytes(self) -> int:
        """The memory that it takes at most: four bytes a character, where one of them is no
        ASCII.
        """
        text = self.shaped.text
        return len(text) * (1 if text.isascii() else 4) + sum(
            len(blob.data) for blob in self.shaped.blobs
        )


def may_repeat(catalog: Catalog, tool: str) -> bool:
    """Return whether repeating a call is harmless: the operator says so, or the reviewed definition
    of a trusted server (`idempotentHint`), or the tool can only read.
    """
    name, _, short = tool.partition(".")
    server = catalog.servers.get(name)
    if server is None:
        return False
    card = catalog.cards.get(tool)
    hinted = card is not None and card.idempotent
    return (
        hinted
        or any(matches(pattern, short) for pattern in server.idempotent)
        or is_read_only(catalog, tool)
    )


def is_read_only(catalog: Catalog, tool: str) -> bool:
    """Return whether the tool can only read.

    Its effects are those that all bundles with it declare; a tool in no bundle counts as changing
    things.
    """
    holders = [frozenset(bundle.effects) for bundle in catalog.bundles_with(tool)]
    effects = frozenset.intersection(*holders) if holders else frozenset(_CHANGES)
    return "read" in effects and not effects & _CHANGES


def reuse_of(catalog: Catalog, tool: str) -> Reuse | None:
    """Return how results of the tool may be reused, or None."""
    name, _, short = tool.partition(".")
    server = catalog.servers.get(name)
    if server is None or server.trust != "trusted":
        return None
    if tool not in catalog.cards:
        return None

    for row in server.reuse:
        if first_match(row.tools, short) is None:
            continue
        if row.ttl_s > 0 and is_read_only(catalog, tool):
            return row
        return None
    return None


def place_of(catalog: Catalog, tool: str) -> str:
    """Return the place that a call to the tool may change, and that its results depend on."""
    name = tool.partition(".")[0]
    return HERE if catalog.servers[name].traits.here else name


def key_of(catalog: Catalog, call: ReusableCall, reuse: Reuse) -> str:
    """Return the cache key of a call's result."""
    owners = [call.principal, *([] if reuse.across_runs else [call.run_id])]
    return digest_of(
        [call.tool, catalog.cards[call.tool].sha256, call.arguments, owners, list(call.where)]
    )


def may_keep(shaped: ShapedResult, call_id: str, until_ns: int) -> CachedResult | None:
    """Return the entry of a successful call; None for a result that is too large or looks like a
    failure.
    """
    result = CachedResult(shaped, call_id, until_ns)
    if not shaped.flags and result.bytes <= MAX_ENTRY_BYTES:
        return result
    return None


class ResultCache:
    """The cached results. For one thread at a time."""

    def __init__(self, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._rows: OrderedDict[str, tuple[str, CachedResult]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: str, now_ns: int) -> CachedResult | None:
        """Return the result if it has not expired."""
        row = self._rows.get(key)
        if row is None:
            return None
        if now_ns >= row[1].until_ns:
            self._drop(key)
            return None
        self._rows.move_to_end(key)
        return row[1]

    def put(self, key: str, place: str, kept: CachedResult) -> None:
        self._drop(key)
        self._rows[key] = (place, kept)
        self.bytes += kept.bytes
        while len(self._rows) > self._max_entries or self.bytes > self._max_bytes:
            self._drop(next(iter(self._rows)))

    def empty(self, place: str) -> None:
        """Drop all results of the place."""
        for key in [key for key, (other, _) in self._rows.items() if other == place]:
            self._drop(key)

    def _drop(self, key: str) -> None:
        row = self._rows.pop(key, None)
        self.bytes -= row[1].bytes if row is not None else 0
