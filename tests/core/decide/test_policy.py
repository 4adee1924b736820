"""The verdict on one bundle: what each test of policy looks at, and the words it says it in."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Policy, Server
from bundle_router.core.decide.ceiling import ceiling_of, may_call_untrusted_in_code
from bundle_router.core.decide.policy import checks, constituents, verdict
from bundle_router.core.values import Address, Drift, Facts, Grant
from bundle_router.core.values.patterns import Targets, covers, is_glob, is_selected, matches
from bundle_router.testing import small_catalog

AT = Address(("w", "r", "s"))
ALL = Policy("all", allow=("*",))
GH = Server("gh", "streamable-http", "untrusted", url="https://x.example")
HUB = Bundle(
    "hub", "x", ("gh.get",), servers=("gh",), effects=("read",), mode="meta", trust="untrusted"
)


def catalog(*policies: Policy, server: Server = GH, **bundles: Bundle) -> Catalog:
    return small_catalog(
        {"hub": HUB, **bundles}, policies=list(policies) or [ALL], servers=[server]
    )


def judged(
    made: Catalog, id_: str = "hub", facts: Facts | None = None, grants: tuple[Grant, ...] = ()
) -> Any:
    return verdict(made, ceiling_of(made, AT, None, grants), facts or Facts(), id_)


def test_a_bundle_is_permitted_with_its_tools_and_an_unknown_one_is_said_to_be() -> None:
    assert (judged(catalog()).permitted, judged(catalog()).tools) == (True, ("gh.get",))
    assert judged(catalog(), "nowhere").code == "unknown_bundle"


def test_a_server_that_differs_as_a_whole_from_its_pins_has_no_tools() -> None:
    found = judged(catalog(), facts=Facts(drifted=(Drift("gh", "*"),)))
    assert (found.code, found.detail[:27]) == ("pin_drift", "server 'gh' has no pins, or")
    assert judged(catalog(), facts=Facts(drifted=(Drift("gh", "other"),))).permitted


@pytest.mark.parametrize(
    ("drift", "detail"),
    [
        (Drift("gh", "get"), "gh.get differs from its pin, or has none"),
        (Drift("gh", "get", "not_listed"), "server 'gh' does not list it now"),
        (
            Drift("gh", "get", "not_listed", "it was cut"),
            "server 'gh' does not list it now: it was cut",
        ),
        (
            Drift("gh", "get", "not_admitted", "x"),
            "server 'gh' lists it in a form that is not admitted: x",
        ),
    ],
)
def test_a_tool_that_is_not_as_it_was_reviewed_is_left_out_with_the_reason(
    drift: Drift, detail: str
) -> None:
    found = judged(catalog(), facts=Facts(drifted=(drift,)))
    assert (found.code, found.detail) == (drift.code, detail)


def test_only_what_a_server_includes_is_there() -> None:
    included = Server(
        "gh", "streamable-http", "untrusted", url="https://x.example", include=("get*",)
    )
    assert judged(catalog(server=included)).permitted
    other = Server(
        "gh", "streamable-http", "untrusted", url="https://x.example", include=("list*",)
    )
    assert judged(catalog(server=other)).detail == "server 'gh' does not include it"


def test_a_policy_without_a_least_trust_asks_for_none() -> None:
    assert judged(catalog(ALL, Policy("some", allow=("*",), min_trust="untrusted"))).permitted
    found = judged(catalog(ALL, Policy("high", min_trust="trusted")))
    assert found.detail == "policy 'high' asks for trusted servers, this is untrusted"


def test_a_bundle_without_tools_is_judged_by_what_is_said_of_bundles() -> None:
    empty = Bundle("empty", "x", ())
    some = Policy("some", allow=("bundle:other", "tool:gh.get"), deny=("tool:gh.put",))
    made = catalog(some, empty=empty)
    assert judged(made, "empty").detail == "policy 'some' does not allow it"
    assert [
        check.code
        for check in checks(made, ceiling_of(made, AT, None, ()), Facts(), empty)
        if not check.passed
    ] == ["not_allowed"]
    denied = catalog(ALL, Policy("no tools", allow=("*",), deny=("tool:gh.put",)), empty=empty)
    assert judged(denied, "empty").permitted


def test_a_check_that_fails_says_why_and_one_that_passes_says_nothing() -> None:
    made = catalog(Policy("none", allow=("other",)))
    said = {
        c.code: c.detail
        for c in checks(made, ceiling_of(made, AT, None, ()), Facts(), HUB, "gh.get")
    }
    assert said["not_allowed"] == "policy 'none' does not allow it"
    assert said["policy_denied"] == ""


def test_parts_are_counted_once_all_the_way_down_and_those_that_are_gone_are_none() -> None:
    a, b = Bundle("a", "x", ("s.a",)), Bundle("b", "x", ("s.b",), bundles=("a", "gone"))
    whole = Bundle("whole", "x", ("s.w",), bundles=("a", "b", "gone"))
    made = catalog(a=a, b=b, whole=whole)
    assert sorted(part.id for part in constituents(made, whole)) == ["a", "b"]
    deep = {
        f"d{n}": Bundle(f"d{n}", "x", ("s.d",), bundles=(f"d{n + 1}", f"d{n + 1}"))
        for n in range(40)
    }
    made = small_catalog({**deep})
    assert len(constituents(made, deep["d0"])) == 39, "not once for every way that leads to it"


def test_a_layer_that_denies_nothing_stands_before_one_that_does() -> None:
    made = catalog(ALL, Policy("late", allow=("*",), deny=("bundle:hub",)))
    assert judged(made).detail == "policy 'late' denies 'hub'"


def test_ancestors_are_named_by_how_far_up_they_are() -> None:
    made = catalog(Policy("w", workflow=("w",), allow=("*",)))
    grants = tuple(Grant(Address((workflow, "r", "s"))) for workflow in ("p1", "p2", "p3"))
    assert ceiling_of(made, AT, None, grants).ungranted == (
        "p1/r/s of the parent run", "p2/r/s of the ancestor run 2 levels up", "p3/r/s of the ancestor run 3 levels up",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "ancestor", "may"),
    [
        ([None], None, False),
        ([True, None], None, True),
        ([True, False], None, False),
        ([False], None, False),
        ([], None, False),
        ([True], [True], True),
        ([True], [None], False),
        ([True], [True, False], False),
        ([None], [True], False),
    ],
)
def test_a_program_may_call_strangers_where_a_row_says_so_and_none_says_no_for_every_ancestor_too(
    rows: list[bool | None], ancestor: list[bool | None] | None, may: bool
) -> None:
    here = [
        Policy(f"here {n}", workflow=("w",), untrusted_in_code=says) for n, says in enumerate(rows)
    ]
    above = [
        Policy(f"above {n}", workflow=("p",), untrusted_in_code=says)
        for n, says in enumerate(ancestor or ())
    ]
    grants = () if ancestor is None else (Grant(Address(("p", "r", "s"))),)
    assert may_call_untrusted_in_code(catalog(*here, *above), AT, grants) is may


@pytest.mark.parametrize(
    ("include", "exclude", "is_in"),
    [
        (None, (), True),
        (("b",), (), False),
        (("a*",), (), True),
        (("a*",), ("ab",), False),
        (None, ("a*",), False),
    ],
)
def test_a_name_is_selected_by_two_lists(
    include: tuple[str, ...] | None, exclude: tuple[str, ...], is_in: bool
) -> None:
    assert is_selected("ab", include, exclude) is is_in


def test_globs_are_of_stars_and_question_marks_and_cover_themselves() -> None:
    assert [is_glob(text) for text in ("a*", "a?", "a[b]")] == [True, True, False]
    assert (matches("*", "a\nb"), matches("a?c", "abc"), matches("[ab]", "a")) == (
        True,
        True,
        False,
    )
    assert (covers("a?b", "a?b"), covers("a*", "a?b"), covers("a?b", "a*b")) == (True, True, False)
    assert Targets.parse(["tool", "tool:x", "bundle:tool"]) == Targets(("tool", "tool"), ("x",))
