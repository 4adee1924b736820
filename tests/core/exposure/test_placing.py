"""Where permitted tools stand: in the array, behind search, or behind `call_tool`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Server
from bundle_router.core.decide.activation import Room, apply, ask_for
from bundle_router.core.exposure.meta_tools.definitions import EXECUTE, meta_names
from bundle_router.core.exposure.meta_tools.descriptions import VisibleTools, found_text
from bundle_router.core.exposure.placements import Placement
from bundle_router.core.exposure.placing import ShownBundle, needs_ranking, place
from bundle_router.core.values import MODES, Activation, Mode
from bundle_router.testing import small_catalog
from hypothesis import given
from hypothesis import strategies as st

TOOLS = tuple(f"s.{name}" for name in "abcdef")


def bundle(id_: str, tools: Iterable[str], mode: Mode = "direct", **more: Any) -> Bundle:
    return Bundle(id_, f"{id_} tools", tuple(sorted(tools)), effects=("read",), mode=mode, **more)


def catalog_of(
    *bundles: Bundle, servers: Iterable[Server] = (), tokens: Mapping[str, int] | None = None
) -> Catalog:
    made = small_catalog({one.id: one for one in bundles}, servers=servers)
    cards = {
        name: replace(card, tokens=(tokens or {}).get(name, 10))
        for name, card in made.cards.items()
    }
    return replace(made, cards=cards)


def held(catalog: Catalog) -> list[ShownBundle]:
    return [ShownBundle(one, one.tools) for one in catalog.bundles.values()]


def names(placement: Placement) -> dict[str, list[str]]:
    return {
        where: [row.name for row in placement.placed[where]]
        for where in ("direct", "deferred", "meta")
    }


def active(*ids: str) -> Activation:
    return apply(Activation(), [(id_, "mapped") for id_ in ids], lambda _: (), 24).after


@pytest.mark.parametrize("mode", ["direct", "deferred", "meta"])
def test_the_bundles_mode_says_where_its_tools_are(mode: Mode) -> None:
    catalog = catalog_of(bundle("one", TOOLS, mode))
    placement = place(catalog, held(catalog), Activation())
    assert names(placement) == {"direct": [], "deferred": [], "meta": []} | {mode: list(TOOLS)}
    assert placement.behind == (mode != "direct")


@pytest.mark.parametrize("mode", MODES)
def test_whatever_the_mode_its_tools_can_be_reached(mode: Mode) -> None:
    catalog = catalog_of(bundle("one", TOOLS, mode))
    placement = place(catalog, held(catalog), Activation())
    assert [(where, row.name) for where, row in placement.rows()] == [
        (mode, tool) for tool in TOOLS
    ]
    traits, names_given = MODES[mode], meta_names(placement)[0]
    assert (EXECUTE in names_given) == traits.by_program
    assert ("call_tool" in names_given) == (not traits.in_array and not traits.by_program)
    answer = found_text(VisibleTools(catalog, placement, {}), TOOLS[:1])
    assert answer.tools == (TOOLS[:1] if traits.may_join and not traits.in_array else ()), (
        "what is found joins"
    )


def test_an_untrusted_servers_tools_are_behind_meta_tools_whatever_the_bundle_says() -> None:
    catalog = catalog_of(
        bundle("mixed", ["bad.x", "s.a"]),
        servers=[Server("bad", "local", "untrusted"), Server("s", "local", "trusted")],
    )
    assert names(place(catalog, held(catalog), Activation())) == {
        "direct": ["s.a"],
        "deferred": [],
        "meta": ["bad.x"],
    }
    asked = ask_for(active("mixed"), "mixed", ["bad.x"])
    assert names(place(catalog, held(catalog), asked))["meta"] == ["bad.x"], (
        "asking does not bring its text in either"
    )


def test_a_tool_is_where_the_most_open_of_its_bundles_has_it() -> None:
    catalog = catalog_of(bundle("all", TOOLS, "deferred"), bundle("few", TOOLS[:2]))
    found = names(place(catalog, held(catalog), Activation()))
    assert found == {"direct": list(TOOLS[:2]), "deferred": list(TOOLS[2:]), "meta": []}


def test_a_tool_whose_definition_is_not_known_yet_waits() -> None:
    catalog = catalog_of(bundle("one", ["s.a", "s.b"]))
    catalog = replace(catalog, cards={"s.a": catalog.cards["s.a"]})
    assert names(place(catalog, held(catalog), Activation())) == {
        "direct": ["s.a"],
        "deferred": ["s.b"],
        "meta": [],
    }


def test_a_bundle_over_its_budget_shows_companions_then_what_ranks_best_and_defers_the_rest() -> (
    None
):
    catalog = catalog_of(bundle("big", TOOLS, max_tokens=30, companions=("s.f",)))
    everything = held(catalog)
    assert needs_ranking(catalog, everything) == frozenset(TOOLS)
    placement = place(catalog, everything, Activation(), ranked=["s.d", "s.b", "s.a"])
    assert names(placement) == {
        "direct": ["s.b", "s.d", "s.f"],
        "deferred": ["s.a", "s.c", "s.e"],
        "meta": [],
    }
    unranked = names(place(catalog, everything, Activation()))["direct"]
    assert unranked == ["s.a", "s.b", "s.f"], (
        "without a ranking by name, so that it is the same every time"
    )


def test_a_definition_too_large_for_the_rest_of_the_budget_keeps_out_no_smaller_one() -> None:
    catalog = catalog_of(bundle("big", TOOLS[:3], max_tokens=25), tokens={"s.b": 20})
    assert names(place(catalog, held(catalog), Activation()))["direct"] == ["s.a", "s.c"]


def test_a_bundle_within_its_budget_needs_no_ranking() -> None:
    catalog = catalog_of(
        bundle("one", TOOLS, max_tokens=60), bundle("two", TOOLS, "meta", max_tokens=1)
    )
    assert needs_ranking(catalog, held(catalog)) == frozenset()


def test_what_was_asked_for_joins_the_array_at_its_end() -> None:
    catalog = catalog_of(bundle("far", TOOLS[3:], "deferred"), bundle("near", TOOLS[:3]))
    asked = ask_for(active("far", "near"), "far", ["s.f", "s.d"])
    placement = place(catalog, held(catalog), asked)
    assert names(placement) == {
        "direct": ["s.a", "s.b", "s.c", "s.f", "s.d"],
        "deferred": ["s.e"],
        "meta": [],
    }
    assert placement.activated == {"s.f", "s.d"}
    assert placement.behind


def test_the_steps_budget_holds_for_what_was_asked_for_too_and_the_latest_comes_first() -> None:
    catalog = catalog_of(bundle("far", TOOLS, "deferred"))
    asked = ask_for(ask_for(active("far"), "far", ["s.a", "s.b"]), "far", ["s.c"])
    placement = place(catalog, held(catalog), asked, room=Room(tokens=20))
    assert sum(row.tokens for row in placement.direct) <= 20
    assert "s.c" in names(placement)["direct"]


def test_the_array_only_grows_at_its_end_while_steps_add_bundles_in_any_order() -> None:
    one, two, three = (
        bundle("one", TOOLS[:2]),
        bundle("two", TOOLS[2:4]),
        bundle("three", TOOLS[4:], "deferred"),
    )
    catalog = catalog_of(one, two, three)
    shown: list[str] = []
    activation = Activation()
    for needed in (["two"], ["three", "two"], ["one", "three", "two"]):
        activation = apply(activation, [(id_, "mapped") for id_ in needed], lambda _: (), 24).after
        if "three" in needed:
            activation = ask_for(activation, "three", ["s.e"])
        now = names(
            place(
                catalog,
                [ShownBundle(catalog.bundles[id_], catalog.bundles[id_].tools) for id_ in needed],
                activation,
            )
        )
        assert now["direct"][: len(shown)] == shown
        shown = now["direct"]
    assert shown == ["s.c", "s.d", "s.e", "s.a", "s.b"]


def test_between_steps_the_tools_asked_for_longest_ago_go_first() -> None:
    activation = active("far")
    for tool in TOOLS[:4]:
        activation = ask_for(activation, "far", [tool])
    activation = ask_for(activation, "far", ["s.a"])
    after = apply(activation, [("far", "mapped")], lambda _: (), 2).after
    assert {asked.name for asked in after.entries[0].tools} == {"s.a", "s.d"}


def test_asking_for_tools_of_a_bundle_that_is_not_active_changes_nothing() -> None:
    assert ask_for(active("near"), "far", ["s.a"]) == active("near")


modes: st.SearchStrategy[Mode] = st.sampled_from(("direct", "deferred", "meta"))


@given(st.data())
def test_every_permitted_tool_has_exactly_one_place_and_budgets_hold(data: st.DataObject) -> None:
    made = [
        bundle(f"b{n}", data.draw(st.sets(st.sampled_from(TOOLS), min_size=1)), data.draw(modes),
               max_tokens=data.draw(st.none() | st.integers(1, 80)))
        for n in range(data.draw(st.integers(1, 3)))
    ]  # fmt: skip
    tokens = {tool: data.draw(st.integers(1, 40)) for tool in TOOLS}
    catalog = catalog_of(*made, tokens=tokens)
    activation = active(*(one.id for one in made))
    for one in made:
        activation = ask_for(
            activation, one.id, data.draw(st.lists(st.sampled_from(one.tools), max_size=3))
        )
    room = Room(
        data.draw(st.just(inf) | st.integers(0, 6)), data.draw(st.just(inf) | st.integers(0, 100))
    )
    ranked = data.draw(st.permutations(TOOLS))
    placement = place(catalog, held(catalog), activation, room=room, ranked=ranked)
    placed = [
        row.name
        for where in (placement.direct, placement.deferred, placement.by_name)
        for row in where
    ]
    assert sorted(placed) == sorted({tool for one in made for tool in one.tools})
    assert len(placement.direct) <= room.tools
    assert sum(row.tokens for row in placement.direct) <= room.tokens
    for one in made:
        mine = [
            row
            for row in placement.direct
            if row.bundle == one.id and row.name not in placement.activated
        ]
        assert one.max_tokens is None or sum(row.tokens for row in mine) <= one.max_tokens
    assert placement == place(catalog, held(catalog), activation, room=room, ranked=ranked)
