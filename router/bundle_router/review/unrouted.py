"""Lines for the command line: bundles that no route, search or model can bring in, and steps that
no route covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bundle_router.core.catalog import Bundle, Catalog
from bundle_router.core.exposure.placing import may_be_offered
from bundle_router.core.values.patterns import first_match


def unpickable_line(catalog: Catalog) -> str:
    """Return how many bundles only a route can bring in, why, and which of them no route names;
    empty if none. A bundle that its config keeps for a route (`selectable = false`), and that a
    route names, is as it was meant to be, and does not count.
    """
    enabled = [
        bundle for bundle in catalog.bundles.values() if bundle.enabled and not bundle.always
    ]
    bundles = _unpickable_bundles(catalog, enabled)
    unrouted = _unrouted_ids(catalog, bundles)
    bundles = [bundle for bundle in bundles if bundle.selectable or bundle.id in unrouted]
    if not bundles:
        return ""

    reasons = " or ".join(_reasons(catalog, bundles))
    text = f"{len(bundles)} of {len(enabled)} bundles can only be picked by a route: {reasons}"
    if not unrouted:
        return text
    ellipsis = " …" if len(unrouted) > 5 else ""
    return f"{text}; no route names {', '.join(unrouted[:5])}{ellipsis}"


def _searches(catalog: Catalog) -> bool:
    order = catalog.settings.fallback.order
    return "search" in order or "shortlist" in order


def _asks_model(catalog: Catalog) -> bool:
    return "model" in catalog.settings.fallback.order and bool(catalog.settings.model.names)


def _is_offered(catalog: Catalog, bundle: Bundle) -> bool:
    return _searches(catalog) and may_be_offered(catalog, bundle)


def _unpickable_bundles(catalog: Catalog, enabled: Sequence[Bundle]) -> list[Bundle]:
    asks_model = _asks_model(catalog)
    return [
        bundle
        for bundle in enabled
        if not bundle.selectable or not (asks_model or _is_offered(catalog, bundle))
    ]


def _reasons(catalog: Catalog, bundles: Sequence[Bundle]) -> Iterator[str]:
    """Yield why neither search nor a model may pick the bundles."""
    selectable = [bundle for bundle in bundles if bundle.selectable]
    if len(selectable) < len(bundles):
        yield "it is not selectable"

    if not _searches(catalog):
        yield "[fallback] order has no search"
    elif not all(_is_offered(catalog, bundle) for bundle in bundles):
        yield "[search] offer withholds it"

    if selectable and not _asks_model(catalog):
        yield "no model is configured"


def _unrouted_ids(catalog: Catalog, bundles: Sequence[Bundle]) -> list[str]:
    """Return the bundles that no route names, nor brings in as a part of one that it names."""
    routed = {*catalog.settings.fallback.default}
    for route in catalog.routes:
        routed.update(route.bundles)

    parts: list[str] = []
    for id_ in routed:
        if id_ in catalog.bundles:
            parts.extend(catalog.bundles[id_].bundles)

    return [
        bundle.id
        for bundle in bundles
        if bundle.id not in routed and not first_match(parts, bundle.id)
    ]


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
