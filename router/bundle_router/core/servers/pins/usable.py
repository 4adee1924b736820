"""The tools of a server that may be listed, found and called, one set for all three; and a catalog
with their cards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from bundle_router.core.catalog import Bundle, Card, Catalog, Server
from bundle_router.core.values import WHOLE_SERVER, Drift
from bundle_router.core.values.patterns import matches

if TYPE_CHECKING:
    from bundle_router.core.servers.admission.admitted import Admitted
    from bundle_router.core.servers.pins.reviewed import Pins

PinSetting = Literal["required", "trusted-may-skip"]
"""`required`: no use without a pin.

`trusted-may-skip`: a trusted server without a pin file is used as it is.
"""


@dataclass(frozen=True, slots=True)
class UsableCards:
    """`cards` by canonical name may be used; `drifted` are the tools that exist and may not (for
    `Facts.drifted`), or `"*"` if none may: the server has no pins, or differs from the review.
    `open` says that unknown tools are not drift, because the server needs no pins and has not been
    asked.
    """

    cards: Mapping[str, Card] = field(default_factory=dict)
    drifted: tuple[Drift, ...] = ()
    open: bool = False


def usable(
    pins: Pins | None,
    admitted: Admitted | None,
    server: Server,
    setting: PinSetting,
    reviewed: Admitted | None = None,
) -> UsableCards:
    """Return the tools of one server that may be used now.

    `admitted=None`: it has not been contacted, so its pins apply.

    `reviewed` is `pins.reviewed(server)` if the caller has cached it. Raises VolatileError.
    """
    if pins is None:
        return _unpinned_cards(admitted, server, setting)

    # Needed where a server is pinned.
    from bundle_router.core.servers.admission.identity import volatile_paths
    from bundle_router.core.servers.pins.compare import server_differences

    if server_differences(pins, admitted, server, volatile_paths(server.volatile)):
        return UsableCards(drifted=(Drift(server.name, WHOLE_SERVER),))

    if reviewed is None:
        reviewed = pins.reviewed(server)
    cards = {tool.card.name: tool.card for tool in reviewed.tools}
    names = set(pins.names)
    if admitted is not None:
        live = {tool.card.tool: tool.card.sha256 for tool in admitted.tools}
        names |= live.keys()
        cards = {name: card for name, card in cards.items() if live.get(card.tool) == card.sha256}
    drifted = sorted(names - {card.tool for card in cards.values()})
    return UsableCards(cards, tuple(Drift(server.name, tool) for tool in drifted))


def _unpinned_cards(admitted: Admitted | None, server: Server, setting: PinSetting) -> UsableCards:
    free = not server.traits.is_remote or (
        setting == "trusted-may-skip" and server.trust == "trusted"
    )
    if not free:
        return UsableCards(drifted=(Drift(server.name, WHOLE_SERVER),))
    return UsableCards(open=True) if admitted is None else UsableCards(dict(admitted.cards))


def drifted_among(tools: Iterable[str], by_server: Mapping[str, UsableCards]) -> tuple[Drift, ...]:
    """Return the rows of `Facts.drifted` among the canonical names in the config.

    An unreviewed tool is drift like a changed one. Servers that are not in `by_server` (the local
    ones) are not judged. A server that drifted as a whole is one row.
    """
    rows = {row for cards in by_server.values() for row in cards.drifted}
    for name in tools:
        server, _, tool = name.partition(".")
        usable_cards = by_server.get(server)
        if usable_cards is None or usable_cards.open or name in usable_cards.cards:
            continue
        if Drift(server, WHOLE_SERVER) not in rows:
            rows.add(Drift(server, tool))
    return tuple(sorted(rows, key=lambda row: (row.server, row.tool)))


def with_pinned_cards(catalog: Catalog, pins: Mapping[str, Pins]) -> Catalog:
    """Return the catalog with the cards of usable pins. Contacts nobody, because pins are known.

    Raises VolatileError, and nothing that config was checked for.
    """
    by_server = (
        usable(pins[name], None, catalog.servers[name], "required")
        for name in pins
        if name in catalog.servers
    )
    return with_cards(catalog, by_server)


def with_cards(catalog: Catalog, known: Iterable[UsableCards]) -> Catalog:
    """Return the catalog with the usable cards added, and globs over these servers expanded."""
    cards = {name: card for one in known for name, card in one.cards.items()}
    if not cards:
        return catalog
    by_server: dict[str, list[str]] = {}
    for name, card in sorted(cards.items()):
        by_server.setdefault(card.server, []).append(name)
    bundles = {
        id_: _expand_globs(bundle, by_server, catalog.servers)
        for id_, bundle in catalog.bundles.items()
    }
    return replace(catalog, bundles=bundles, cards={**catalog.cards, **cards})


def _expand_globs(
    bundle: Bundle, by_server: Mapping[str, list[str]], servers: Mapping[str, Server]
) -> Bundle:
    """Return the bundle with the tools of its globs.

    The globs stay too, because the server may list more.
    """
    names = {
        name
        for pattern in bundle.patterns
        if (server := servers.get(pattern.partition(".")[0])) is not None
        and server.trust == "trusted"
        for name in by_server.get(server.name, ())
        if matches(pattern, name)
    }
    if names - {*bundle.tools}:
        return replace(bundle, tools=tuple(sorted({*bundle.tools, *names})))
    return bundle
