"""Which bundles examples are written for."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bundle_router.core.catalog import Bundle, Catalog

ENOUGH: Final = 3
"""Examples of a bundle from which on none are missed."""


def pickable_bundles(catalog: Catalog, ids: Collection[str]) -> list[Bundle]:
    """Return the bundles of these ids that search and models may pick."""
    bundles = catalog.bundles.values()
    return [
        bundle
        for bundle in bundles
        if bundle.id in ids and bundle.enabled and bundle.selectable and not bundle.always
    ]


def lacking_examples(catalog: Catalog, ids: Collection[str]) -> list[Bundle]:
    """Return those of `pickable_bundles` with fewer than `ENOUGH` examples."""
    bundles = pickable_bundles(catalog, ids)
    return [bundle for bundle in bundles if len(bundle.examples) < ENOUGH]


def lacking_line(catalog: Catalog, ids: Collection[str]) -> str:
    """Return which bundles have too few examples for search; empty if none, or nothing searches."""
    order = catalog.settings.fallback.order
    bundles = lacking_examples(catalog, ids)
    if not bundles or not {"search", "shortlist"} & {*order}:
        return ""
    names = ", ".join(bundle.id for bundle in bundles[:5])
    ellipsis = " …" if len(bundles) > 5 else ""
    verb = "has" if len(bundles) == 1 else "have"
    return (
        f"{names}{ellipsis} {verb} fewer than {ENOUGH} examples, by which search finds a bundle"
        " (bundle-router examples)"
    )
