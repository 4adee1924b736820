"""Which bundles lack examples, and the line that says so."""

from __future__ import annotations

from dataclasses import replace

from bundle_router.core.catalog import Catalog
from bundle_router.review.example_writing.candidates import lacking_line, pickable_bundles

from tests.engine.selecting.catalogs import BUNDLES, catalog

THREE = ("one", "two", "three")


def ids(of: Catalog) -> list[str]:
    return [bundle.id for bundle in pickable_bundles(of, of.bundles)]


def test_what_nothing_may_pick_needs_no_examples() -> None:
    off = (
        replace(BUNDLES[0], enabled=False),
        replace(BUNDLES[1], selectable=False),
        replace(BUNDLES[2], always=True),
    )
    assert ids(catalog(bundles=(*off, *BUNDLES[3:]))) == ["shell.run", "strangers.mail"]


def test_the_line_names_the_projects_own_bundles_that_lack_examples() -> None:
    full = replace(BUNDLES[1], examples=THREE)
    of = catalog(bundles=(BUNDLES[0], full, *BUNDLES[2:]))
    assert lacking_line(of, ("docs.fetch", "repo.readonly")) == (
        "repo.readonly has fewer than 3 examples, by which search finds a bundle"
        " (bundle-router examples)"
    )
    assert lacking_line(of, of.bundles).startswith("issues.write, repo.readonly, shell.run,")
    assert lacking_line(of, ("docs.fetch",)) == ""


def test_where_nothing_searches_nothing_is_said() -> None:
    of = catalog(order=("model", "default"))
    assert lacking_line(of, of.bundles) == ""
