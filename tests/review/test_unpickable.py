"""The line that says what no route, search or model can bring in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from bundle_router.core.catalog import Catalog, OfferSettings, Route
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
