"""The sticky set, value by value: what each of its operations gives, by the rules of
`core/decide/activation.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from bundle_router.core.decide.activation import (
    CallEffect,
    apply,
    ask_for,
    is_unused_offer,
    rename_bundles,
    resume_activation,
    touch,
)
from bundle_router.core.values import Activation, AskedTool, Entry, Reason


def entry(id_: str, used: int = 1, origin: Reason = "mapped", place: int = 0, **more: Any) -> Entry:
    return Entry(
        id_, origin, used, more.get("inherited", False), place, tuple(more.get("tools", ()))
    )


def holding(*entries: Entry) -> Activation:
    return Activation(entries)


def tools_of(shown: Mapping[str, Sequence[str]]) -> Any:
    return lambda id_: shown.get(id_, (f"s.{id_}",))


def test_a_call_makes_its_bundle_the_last_that_was_used() -> None:
    assert touch(holding(entry("a", 1)), "a") == holding(entry("a", 2))
    assert touch(holding(entry("a", 3), entry("b", 5)), "a") == holding(
        entry("a", 6), entry("b", 5)
    )
    assert touch(holding(entry("a", 3)), "nowhere") == holding(entry("a", 3))


def test_a_tool_that_is_asked_for_has_its_place_for_good_and_its_use_of_now() -> None:
    before = holding(
        entry("a", 4, place=1, tools=[AskedTool("s.one", 3, 2)]), entry("b", 5, place=2)
    )
    after = ask_for(before, "a", ("s.one", "s.two", "s.three"))
    tools = [AskedTool("s.one", 3, 6), AskedTool("s.two", 4, 6), AskedTool("s.three", 5, 6)]
    assert after == holding(entry("a", 6, place=1, tools=tools), entry("b", 5, place=2))
    assert ask_for(before, "nowhere", ("s.one",)) == before


def test_a_run_that_is_gone_on_with_has_what_its_calls_made_of_it() -> None:
    tools = [AskedTool("s.one", 1, 1), AskedTool("s.two", 2, 1)]
    before = holding(entry("a", 1, tools=tools), entry("b", 1, place=3))
    assert resume_activation(before, [CallEffect("a", "s.two"), CallEffect("b")]) == holding(
        entry("a", 3, tools=[tools[0], AskedTool("s.two", 2, 3)]), entry("b", 1, place=3)
    )
    assert resume_activation(before, [CallEffect("a", "s.three")]) == holding(
        entry("a", 2, tools=tools), entry("b", 1, place=3)
    )
    assert resume_activation(before, [CallEffect(joined=(("b", "s.three"),))]) == holding(
        entry("a", 1, tools=tools), entry("b", 2, place=3, tools=[AskedTool("s.three", 4, 2)])
    )


def test_bundles_that_became_one_keep_the_better_origin_the_latest_use_and_the_earliest_place() -> (
    None
):
    def together(one: Entry, other: Entry) -> Entry:
        (merged,) = rename_bundles(holding(one, other), lambda id_: "new").entries
        return merged

    assert together(entry("a"), entry("b", origin="always")).origin == "mapped"
    assert together(entry("a", origin="model"), entry("b", origin="always")).origin == "always"
    assert together(entry("a", place=7), entry("b", place=2)).place == 2
    mine = [AskedTool("s.same", 5, 9), AskedTool("s.last", 8, 1)]
    theirs = [AskedTool("s.same", 6, 3), AskedTool("s.first", 1, 4)]
    assert together(entry("a", tools=mine), entry("b", tools=theirs)).tools == (
        AskedTool("s.first", 1, 4), AskedTool("s.same", 5, 9), AskedTool("s.last", 8, 1),
    )  # fmt: skip


def test_what_a_step_needs_gets_a_use_and_places_in_a_row() -> None:
    first = apply(Activation(), [("b", "mapped"), ("a", "always")], tools_of({}), 24).after
    assert first == holding(entry("a", 1, "always", 1), entry("b", 1, "mapped", 0))
    then = apply(
        first,
        [("c", "mapped"), ("b", "mapped"), ("d", "mapped"), ("e", "mapped")],
        tools_of({}),
        24,
    ).after
    assert [(e.id, e.used, e.place) for e in then.entries] == [
        ("a", 1, 1), ("b", 2, 0), ("c", 2, 2), ("d", 2, 3), ("e", 2, 4),
    ]  # fmt: skip


OFFERED = entry("offered", 0, "shortlist", 4)


def test_an_offer_is_there_without_a_use_and_leaves_unless_it_was_used() -> None:
    offered = apply(Activation(), [("a", "shortlist")], tools_of({}), 24).after
    assert offered == holding(entry("a", 0, "shortlist"))
    assert [
        is_unused_offer(one) for one in (OFFERED, entry("x", 0), entry("x", 1, "shortlist"))
    ] == [
        True,
        False,
        False,
    ]
    kept = holding(OFFERED, entry("used", 2, "shortlist", 5))
    assert apply(kept, [], tools_of({}), 24).after == holding(entry("used", 2, "shortlist", 5))


@pytest.mark.parametrize(
    ("known", "reason", "then"),
    [
        (
            entry("a", 1, "mapped", inherited=True),
            "shortlist",
            entry("a", 1, "mapped", inherited=True),
        ),
        (entry("a", 1, "search", inherited=True), "shortlist", entry("a", 1, "search")),
        (entry("a", 1, "shortlist", inherited=True), "search", entry("a", 4, "search")),
        (entry("a", 1, "search", inherited=True), "model", entry("a", 4, "search")),
        (entry("a", 1, "mapped", inherited=True), "model", entry("a", 1, "mapped", inherited=True)),
        (entry("a", 1, "search", inherited=True), "mapped", entry("a", 4, "mapped")),
        (entry("a", 1, "mapped", inherited=True), "always", entry("a", 4, "mapped")),
    ],
)
def test_being_needed_again_is_a_use_for_what_the_mapping_brings_in(
    known: Entry, reason: Reason, then: Entry
) -> None:
    other = entry("b", 3, place=1)
    assert apply(holding(known, other), [("a", reason)], tools_of({}), 24).after == holding(
        then, other
    )


def test_all_that_was_picked_stays_where_it_pushes_nothing_out_that_is_trusted() -> None:
    picked = apply(Activation(), [("x", "mapped"), ("y", "model"), ("z", "model")], tools_of({}), 2)
    assert (picked.after.ids, picked.evicted) == (("x", "y", "z"), ())


def test_tools_that_go_are_told_of_the_bundles_that_stay_in_the_order_they_were_asked_for() -> None:
    before = holding(
        entry(
            "a",
            9,
            tools=[
                AskedTool("s.late", 6, 2),
                AskedTool("read_artifact", 7, 2),
                AskedTool("s.kept", 8, 8),
            ],
        ),
        entry("b", 9, tools=[AskedTool("s.early", 2, 2)]),
        entry("c", 9),
        entry("gone", 1, "model", tools=[AskedTool("s.with_it", 1, 1)]),
    )
    without = dict.fromkeys(("a", "b", "c"), ())
    applied = apply(before, [], tools_of({**without, "gone": ("s.1", "s.2")}), 1)
    assert applied.evicted == ("gone",)
    assert applied.evicted_tools == (("b", "s.early"), ("a", "s.late"))
    assert [entry.tools for entry in applied.after.entries] == [
        (AskedTool("s.kept", 8, 8),),
        (),
        (),
    ]


def test_a_cap_of_nothing_keeps_no_tool_that_was_asked_for() -> None:
    before = holding(entry("a", tools=[AskedTool("s.one", 1, 1)]), entry("b"))
    applied = apply(before, [("a", "mapped"), ("b", "mapped")], tools_of({"a": (), "b": ()}), 0)
    assert [entry.tools for entry in applied.after.entries] == [(), ()]


def test_the_routers_own_tools_do_not_count() -> None:
    before = holding(
        entry("a", 2, tools=[AskedTool("read_artifact", 1, 1)]), entry("b", 1, "model")
    )
    applied = apply(before, [], tools_of({"a": (), "b": ("s.b",)}), 1)
    assert applied.after.ids == ("a", "b")


def test_what_text_brings_in_beside_the_mapped_never_displaces_a_mapped_bundle() -> None:
    """With the pick, the mapped bundle of before has no room at this step: it stays all the same,
    and the pick does not.
    """
    applied = apply(
        holding(entry("before", 1)),
        [("mapped", "mapped"), ("picked", "search")],
        tools_of({}),
        cap=2,
    )
    assert [one.id for one in applied.after.entries] == ["before", "mapped"]
    assert applied.aside == {"before"}
    assert applied.evicted == ()
