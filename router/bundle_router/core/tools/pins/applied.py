"""A catalog with the cards of tool servers in it: what pins, or a server's own list, let it say of its tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bundle_router.core.catalog import Bundle, Catalog, Server
from bundle_router.core.models.patterns import matches
from bundle_router.core.tools.pins.reviewed import Pins
from bundle_router.core.tools.pins.usable import Usable, usable


def pinned(catalog: Catalog, pins: Mapping[str, Pins]) -> Catalog:
    """Return the catalog with the cards of the pins that its servers may be used by. Contacts nobody: pins are what is
    known.

    Raises VolatileError, and nothing that config was checked for.
    """
    known = (usable(pins[name], None, catalog.servers[name], "required") for name in pins if name in catalog.servers)
    return with_cards(catalog, known)


def with_cards(catalog: Catalog, known: Iterable[Usable]) -> Catalog:
    """Return the catalog with the cards of what is usable added, and globs over these servers expanded."""
    cards = {name: card for one in known for name, card in one.cards.items()}
    if not cards:
        return catalog
    by_server: dict[str, list[str]] = {}
    for name, card in sorted(cards.items()):
        by_server.setdefault(card.server, []).append(name)
    bundles = {id_: _expanded(bundle, by_server, catalog.servers) for id_, bundle in catalog.bundles.items()}
    return replace(catalog, bundles=bundles, cards={**catalog.cards, **cards})


def _expanded(bundle: Bundle, by_server: Mapping[str, list[str]], servers: Mapping[str, Server]) -> Bundle:
    """Return the bundle with the tools its globs cover. They stay globs besides: the server may list more."""
    found = {
        name
        for pattern in bundle.patterns
        if (server := servers.get(pattern.partition(".")[0])) is not None and server.trust == "trusted"
        for name in by_server.get(server.name, ())
        if matches(pattern, name)
    }
    return replace(bundle, tools=tuple(sorted({*bundle.tools, *found}))) if found - {*bundle.tools} else bundle
