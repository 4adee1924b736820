"""The lines that say what no route, search or model can bring in, and what lacks examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Catalog, OfferSettings, Route
from bundle_router.review.example_writing.candidates import lacking_line, pickable_bundles
from bundle_router.review.unrouted import unpickable_line, unrouted_line

from tests.engine.selecting.catalogs import BUNDLES, catalog

ORDER = ("search", "model", "shortlist", "default")


def with_route(of: Catalog) -> Catalog:
    return replace(of, routes=(Route("run", bundles=("shell.run",)),))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"order": ORDER}, ""),
        (
            {"order": ORDER, "offer": OfferSettings(execute="none")},
            (
                "1 of 5 bundles can only be picked by a route: [search] offer withholds it or no"
                " model is configured"
            ),
        ),
        (
            {"order": ("default",)},
            (
                "5 of 5 bundles can only be picked by a route: [fallback] order has no search or no"
                " model is configured; no route names docs.fetch, issues.write, repo.readonly,"
                " strangers.mail"
            ),
        ),
        (  # as its config means it: kept for a route, and a route names it
            {
                "order": ORDER,
                "bundles": tuple(replace(row, selectable=row.id != "shell.run") for row in BUNDLES),
            },
            "",
        ),
        (
            {"order": ORDER, "bundles": (replace(BUNDLES[0], selectable=False), *BUNDLES[1:])},
            (
                "1 of 5 bundles can only be picked by a route: it is not selectable; no route names"
                " repo.readonly"
            ),
        ),
    ],
)
def test_what_only_a_route_can_pick_is_said_in_one_line(
    settings: dict[str, Any], line: str
) -> None:
    assert unpickable_line(with_route(catalog(**settings))) == line


@pytest.mark.parametrize(
    ("sources", "line"),
    [
        ({}, ""),
        ({"mapping": 7}, ""),
        (
            {"mapping": 6, "shortlist": 2, "search": 1, "none": 0},
            "3 of 9 steps (33%) were settled by no route: search 1, shortlist 2",
        ),
    ],
)
def test_the_share_of_steps_without_a_route_is_said_in_one_line(
    sources: dict[str, int], line: str
) -> None:
    assert unrouted_line(sources) == line


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
