"""Lines for the command line: bundles that no route, search or model can bring in, and steps that
no route covers.
"""

from __future__ import annotations

from collections.abc import Mapping

from bundle_router.core.catalog import Catalog
from bundle_router.core.exposure.placing import may_be_offered
from bundle_router.core.values.patterns import first_match


def unpickable_line(catalog: Catalog) -> str:
    """Return how many bundles only a route can bring in, why, and which of them no route names;
    empty if none.
    """
    order = catalog.settings.fallback.order
    asks_model = "model" in order and bool(catalog.settings.model.names)
    searches = "search" in order or "shortlist" in order
    enabled = [
        bundle for bundle in catalog.bundles.values() if bundle.enabled and not bundle.always
    ]
    offered = {bundle.id for bundle in enabled if searches and may_be_offered(catalog, bundle)}
    bundles = [b for b in enabled if not (b.selectable and (asks_model or b.id in offered))]
    if not bundles:
        return ""
    reasons = {
        "it is not selectable": any(not bundle.selectable for bundle in bundles),
        "[search] offer withholds it": searches and any(b.id not in offered for b in bundles),
        "[fallback] order has no search": not searches,
        "no model is configured": not asks_model and any(bundle.selectable for bundle in bundles),
    }
    why = " or ".join(reason for reason, holds in reasons.items() if holds)
    routed = {id_ for route in catalog.routes for id_ in route.bundles} | {
        *catalog.settings.fallback.default
    }
    parts = [
        part for id_ in routed if id_ in catalog.bundles for part in catalog.bundles[id_].bundles
    ]
    lost = [b.id for b in bundles if b.id not in routed and not first_match(parts, b.id)]
    text = f"{len(bundles)} of {len(enabled)} bundles can only be picked by a route: {why}"
    if lost:
        return f"{text}; no route names {', '.join(lost[:5])}{' …' if len(lost) > 5 else ''}"
    return text


def unrouted_line(by_source: Mapping[str, int]) -> str:
    """Return how many decisions no route settled, and what did; empty if routes settled all."""
    total = sum(by_source.values())
    unrouted = total - by_source.get("mapping", 0)
    by = ", ".join(
        f"{source} {n:,}" for source, n in sorted(by_source.items()) if source != "mapping" and n
    )
    if by:
        share = f"{unrouted:,} of {total:,} steps ({unrouted / total:.0%})"
        return f"{share} were settled by no route: {by}"
    return ""
