"""Lines for the command line: bundles that no route, search or model can bring in, and steps that no route covers."""

from __future__ import annotations

from collections.abc import Mapping

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.models.patterns import first_match
from bundle_router.core.tools.exposure.placing import may_be_offered


def unpickable_line(catalog: Catalog) -> str:
    """Return how many bundles only a route can bring in, why, and which of them no route names; empty if none."""
    order = catalog.settings.fallback.order
    asks_model = "model" in order and bool(catalog.settings.model.names)
    searches = "search" in order or "shortlist" in order
    enabled = [bundle for bundle in catalog.bundles.values() if bundle.enabled and not bundle.always]

    def is_unpickable(bundle: Bundle) -> bool:
        if not bundle.selectable:
            return True
        return not asks_model and not (searches and may_be_offered(catalog, bundle))

    bundles = [bundle for bundle in enabled if is_unpickable(bundle)]
    if not bundles:
        return ""
    reasons = {
        "it is not selectable": any(not bundle.selectable for bundle in bundles),
        "[search] offer withholds it": searches and any(not may_be_offered(catalog, bundle) for bundle in bundles),
        "[fallback] order has no search": not searches,
        "no model is configured": not asks_model and any(bundle.selectable for bundle in bundles),
    }
    why = " or ".join(reason for reason, holds in reasons.items() if holds)
    routed = {id_ for route in catalog.routes for id_ in route.bundles} | {*catalog.settings.fallback.default}
    lost = [b.id for b in bundles if b.id not in routed and not _is_part(catalog, b, routed)]
    text = f"{len(bundles)} of {len(enabled)} bundles can only be picked by a route: {why}"
    return f"{text}; no route names {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}" if lost else text


def _is_part(catalog: Catalog, bundle: Bundle, routed: set[str]) -> bool:
    """Return whether a routed bundle is composed of this one."""
    return any(first_match(catalog.bundles[id_].bundles, bundle.id) for id_ in routed if id_ in catalog.bundles)


def unrouted_line(by_source: Mapping[str, int]) -> str:
    """Return how many decisions no route settled, and what did; empty if routes settled all."""
    total = sum(by_source.values())
    others = {source: number for source, number in sorted(by_source.items()) if source != "mapping" and number}
    if not others:
        return ""
    unrouted = sum(others.values())
    by = ", ".join(f"{source} {number:,}" for source, number in others.items())
    return f"{unrouted:,} of {total:,} steps ({unrouted / total:.0%}) were settled by no route: {by}"
