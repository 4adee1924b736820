"""The verdict on one bundle: what each test of policy looks at, and the words it says it in. And
conditions on arguments: what each operator holds, fails, and can't decide.
"""

from __future__ import annotations

from typing import Any

import pytest
from bundle_router import load_catalog
from bundle_router.core.catalog import Bundle, Catalog, Policy, Server, TaintStatement
from bundle_router.core.catalog.conditions import (
    OPERATORS,
    condition_fault,
    evaluate,
    evaluate_all,
)
from bundle_router.core.catalog.config_tables import Condition
from bundle_router.core.decide.ceiling import ceiling_of, may_call_untrusted_in_code
from bundle_router.core.decide.policy import checks, constituents, verdict
from bundle_router.core.values import Address, Drift, Facts, Grant, Trust
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


# --- conditions on arguments ----------------------------------------------------------------------

DOCS = Condition("/path", below="docs")
HOSTS = Condition("/url", host_in=("ok.example", "api.example:8443"))
MAIL = Condition("/to", domain_in=("acme.example",))
LIMIT = Condition("/amount", at_most=500)
FLOOR = Condition("/amount", at_least=500)
EURO = Condition("/currency", is_="EUR")
PLAN = Condition("/plan", in_=("free", 2, True))

HOLD: dict[str, tuple[Condition, dict[str, Any]]] = {
    "a path below": (DOCS, {"path": "docs/x.md"}),
    "a path deep below": (DOCS, {"path": "docs/a/b/c"}),
    "a path with plain dots": (DOCS, {"path": "./docs/./x"}),
    "a folder of two names": (Condition("/path", below="docs/en/"), {"path": "docs/en/x"}),
    "the folder of all": (Condition("/path", below="."), {"path": "x"}),
    "a host": (HOSTS, {"url": "https://ok.example/a?b#c"}),
    "a host in capitals": (HOSTS, {"url": "HTTPS://OK.Example"}),
    "the usual port": (HOSTS, {"url": "https://ok.example:443/"}),
    "a port that is listed": (HOSTS, {"url": "https://api.example:8443/"}),
    "a name in its own letters": (
        Condition("/url", host_in=("xn--bcher-kva.example",)),
        {"url": "https://bücher.example/"},
    ),
    "a mail address": (MAIL, {"to": "a.b+c@ACME.example"}),
    "the bound itself": (LIMIT, {"amount": 500}),
    "the other bound itself": (FLOOR, {"amount": 500.0}),
    "a number below": (LIMIT, {"amount": -0.5}),
    "a text": (EURO, {"currency": "EUR"}),
    "a number of another spelling": (PLAN, {"plan": 2.0}),
    "a truth value": (PLAN, {"plan": True}),
    "every item": (Condition("/items/*/price", at_most=5), {"items": [{"price": 5}, {"price": 1}]}),
    "one item": (Condition("/items/1", is_="b"), {"items": ["a", "b"]}),
    "a name with a slash and a tilde": (Condition("/a~1b~0c", is_=1), {"a/b~c": 1}),
    "an empty name": (Condition("/", is_=1), {"": 1}),
}
FAIL: dict[str, tuple[Condition, dict[str, Any]]] = {
    "another folder": (DOCS, {"path": "src/x"}),
    "the folder itself": (DOCS, {"path": "docs/"}),
    "a name that begins like it": (DOCS, {"path": "docs2/x"}),
    "another host": (HOSTS, {"url": "https://evil.example/ok.example"}),
    "a host below": (HOSTS, {"url": "https://a.ok.example/"}),
    "a port that is not listed": (HOSTS, {"url": "https://ok.example:8443/"}),
    "another alphabet": (HOSTS, {"url": "https://оk.example/"}),
    "another domain": (MAIL, {"to": "a@acme.example.evil.test"}),
    "a number above": (LIMIT, {"amount": 500.01}),
    "a huge number": (LIMIT, {"amount": 10**400}),
    "a number that floats can't tell apart": (
        Condition("/amount", at_most=2**53),
        {"amount": 2**53 + 1},
    ),
    "another case": (EURO, {"currency": "eur"}),
    "a text with a blank": (EURO, {"currency": "EUR "}),
    "1 where 2 and true are listed": (PLAN, {"plan": 1}),
    "no item": (Condition("/items/*", is_="a"), {"items": ["b", "c"]}),
}
UNDECIDABLE: dict[str, tuple[Condition, dict[str, Any]]] = {
    "a path upwards": (DOCS, {"path": "docs/../../etc/x"}),
    "another case of the folder": (DOCS, {"path": "DOCS/x"}),
    "a backslash": (DOCS, {"path": "docs\\x"}),
    "no path": (DOCS, {}),
    "a number for a path": (DOCS, {"path": 7}),
    "a list for a path": (DOCS, {"path": ["docs/x"]}),
    "an absolute path": (DOCS, {"path": "/docs/x"}),
    "a drive": (DOCS, {"path": "C:docs/x"}),
    "a NUL": (DOCS, {"path": "docs/x\0.md"}),
    "a line break": (DOCS, {"path": "docs/x\ny"}),
    "dots that are encoded": (DOCS, {"path": "docs/%2E%2e/x"}),
    "fullwidth dots": (DOCS, {"path": "docs/．．/x"}),
    "dots and a blank": (DOCS, {"path": "docs/.. /x"}),
    "half a character": (DOCS, {"path": "docs/\ud800"}),
    "user info": (HOSTS, {"url": "https://ok.example@evil.example/"}),
    "no https": (HOSTS, {"url": "http://ok.example/"}),
    "no scheme": (HOSTS, {"url": "//ok.example/"}),
    "a backslash in a URL": (HOSTS, {"url": "https://ok.example\\@evil.example/"}),
    "a tab in a URL": (HOSTS, {"url": "https://ok.exa\tmple/"}),
    "an address": (HOSTS, {"url": "https://127.0.0.1/"}),
    "a bracketed address": (HOSTS, {"url": "https://[::1]/"}),
    "a fullwidth host": (HOSTS, {"url": "https://ｏk.example/"}),
    "a port of no number": (HOSTS, {"url": "https://ok.example:4 3/"}),
    "a display name": (MAIL, {"to": "A <a@acme.example>"}),
    "two addresses": (MAIL, {"to": "a@acme.example,b@evil.test"}),
    "two signs": (MAIL, {"to": "a@evil.test@acme.example"}),
    "no domain": (MAIL, {"to": "a"}),
    "a number as text": (LIMIT, {"amount": "5"}),
    "a truth value for a number": (LIMIT, {"amount": True}),
    "no number": (LIMIT, {"amount": float("nan")}),
    "null": (EURO, {"currency": None}),
    "a secret": (EURO, {"currency": "[redacted:env:TOKEN]"}),
    "a text with a secret in it": (DOCS, {"path": "docs/[redacted:named-secret]/x"}),
    "1 for true": (Condition("/x", is_=True), {"x": 1}),
    "true for 1": (Condition("/x", is_=1), {"x": True}),
    "an empty list": (Condition("/items/*", is_="a"), {"items": []}),
    "an empty list in a list": (Condition("/i/*/*", is_="a"), {"i": [["a"], []]}),
    "some items": (Condition("/items/*", is_="a"), {"items": ["a", "b"]}),
    "an item of another type": (Condition("/items/*", is_="a"), {"items": ["a", 1]}),
    "an item that is absent": (Condition("/items/*/n", is_="a"), {"items": [{"n": "a"}, {}]}),
    "every item of an object": (Condition("/items/*", is_="a"), {"items": {"n": "a"}}),
    "an item past the end": (Condition("/items/1", is_="a"), {"items": ["a"]}),
    "an item before the start": (Condition("/items/-1", is_="a"), {"items": ["a"]}),
    "an item with a zero before": (Condition("/items/00", is_="a"), {"items": ["a"]}),
    "a part of a text": (Condition("/x/0", is_="a"), {"x": "a"}),
}


@pytest.mark.parametrize("case", HOLD)
def test_holds(case: str) -> None:
    assert evaluate(*HOLD[case]).outcome == "holds"


@pytest.mark.parametrize("case", FAIL)
def test_fails(case: str) -> None:
    assert evaluate(*FAIL[case]).outcome == "fails"


@pytest.mark.parametrize("case", UNDECIDABLE)
def test_can_not_be_decided(case: str) -> None:
    assert evaluate(*UNDECIDABLE[case]).outcome == "undecidable"


def test_arguments_that_are_no_object_can_not_be_decided() -> None:
    assert evaluate(LIMIT, [500]).outcome == "undecidable"


def test_conditions_together_hold_where_all_hold() -> None:
    both = (LIMIT, EURO)
    assert evaluate_all((), {}) == "holds"
    assert evaluate_all(both, {"amount": 1, "currency": "EUR"}) == "holds"
    assert evaluate_all(both, {"amount": 1}) == "undecidable"
    assert evaluate_all(both, {"currency": "USD"}) == "fails"


def test_a_finding_says_why_without_the_value() -> None:
    found = evaluate(LIMIT, {"amount": 123_456})
    assert found.detail == "/amount is not as at_most 500 asks"
    assert evaluate(EURO, {}).detail == "/currency is absent"


def test_every_operator_is_a_key_and_has_cases() -> None:
    tried = {case[0].operator for case in (*HOLD.values(), *FAIL.values())}
    assert tried == set(OPERATORS)
    everything = Condition(
        "/x", is_=1, in_=(1,), at_most=1, at_least=1, below="x", host_in=("x",), domain_in=("x",)
    )
    assert everything.operators == OPERATORS


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (Condition("amount", is_=1), "'amount' is no JSON Pointer"),
        (Condition("", is_=1), "'' is no JSON Pointer"),
        (Condition("/a~2", is_=1), "is no JSON Pointer"),
        (Condition("/a"), "has no operator: a condition has exactly one of is, in, at_most"),
        (Condition("/a", is_=1, below="x"), "has is and below: a condition has exactly one of"),
        (Condition("/a", below="../x"), "below can't be compared: leads out of its folder"),
        (Condition("/a", below="/x"), "below can't be compared: is no plain relative path"),
        (Condition("/a", host_in=("https://x.example",)), "host_in can't be compared"),
        (Condition("/a", host_in=("x.example:",)), "has a port that is no number"),
        (Condition("/a", host_in=("x.example:http",)), "has a port that is no number"),
        (Condition("/a", domain_in=("@x.example",)), "domain_in can't be compared"),
        (Condition("/items/*/a~1b", in_=("x", 2)), None),
    ],
)
def test_a_condition_that_can_not_be_meant_is_refused(
    condition: Condition, words: str | None
) -> None:
    fault = condition_fault(condition)
    assert fault is None if words is None else words in (fault or "")


# --- where arguments go ---------------------------------------------------------------------------


def of_network(id_: str, *tools: str, parts: tuple[str, ...] = ()) -> Bundle:
    """Return a bundle with the effect `network`."""
    return Bundle(id_, "x", tools, servers=("gh",), effects=("read", "network"), bundles=parts)


def stated(*rows: TaintStatement, trust: Trust = "trusted") -> Server:
    """Return the server with these statements."""
    return Server("gh", "streamable-http", trust, url="https://x.example", taints=rows)


@pytest.mark.parametrize(
    ("server", "returns", "sends"),
    [
        (stated(trust="untrusted"), {"untrusted"}, {"outside"}),
        (stated(), set(), set()),
        (stated(TaintStatement(returns=("private",))), {"private"}, set()),
        (stated(TaintStatement(returns=()), trust="untrusted"), set(), {"outside"}),
        (stated(TaintStatement(sends=()), trust="untrusted"), {"untrusted"}, set()),
        (stated(TaintStatement(("put",), sends=()), trust="untrusted"), {"untrusted"}, {"outside"}),
        (
            stated(
                TaintStatement(("ge*",), returns=("private",)),
                TaintStatement(("get",), returns=("secret",)),
            ),
            {"private", "secret"},
            set(),
        ),
    ],
)
def test_what_is_stated_of_a_tool_replaces_what_is_inferred_of_that_alone(
    server: Server, returns: set[str], sends: set[str]
) -> None:
    statements = catalog(server=server).statements
    assert ({*statements.returns("gh.get")}, {*statements.sends("gh.get")}) == (returns, sends)


def test_the_tools_that_a_bundle_of_the_network_names_itself_send_outside() -> None:
    net = of_network("net", "gh.fetch", "gh.get", parts=("hub",))
    statements = catalog(server=stated(), net=net).statements
    assert statements.sends("gh.fetch") == {"outside"}
    assert statements.sends("gh.get") == set()  # `hub` names it, and has no network


def test_of_a_glob_everything_is_taken_that_may_hold_of_one_of_its_tools() -> None:
    rows = (TaintStatement(("get_secret",), returns=("private",), sends=("outside",)),)
    statements = catalog(server=stated(*rows)).statements
    assert statements.returns("gh.get_*") == {"private"}
    assert statements.sends("gh.get_*") == {"outside"}
    assert statements.returns("gh.get_other") == set()


def test_a_denied_sink_takes_out_the_tools_that_send_there_whichever_bundle_holds_them() -> None:
    policies = (ALL, Policy("nothing leaves", deny=("sends:out*",)))
    both = Bundle("both", "x", ("gh.get", "gh.put"), servers=("gh",), effects=("read",))
    server = stated(TaintStatement(("put",), sends=("outside",)))
    found = judged(catalog(*policies, server=server, both=both), "both")
    assert found.tools == ("gh.get",)
    assert [(row.tool, row.code, row.detail) for row in found.refused] == [
        ("gh.put", "policy_denied", "policy 'nothing leaves' denies 'sends:out*'")
    ]


def test_an_allowed_sink_allows_the_tools_that_send_there_and_no_glob() -> None:
    policy = Policy("only what leaves", allow=("sends:outside",))
    both = Bundle(
        "both", "x", ("gh.get", "gh.put"), patterns=("gh.*",), servers=("gh",), effects=("read",)
    )
    server = stated(TaintStatement(("put",), sends=("outside",)))
    found = judged(catalog(policy, server=server, both=both), "both")
    assert (found.tools, found.patterns) == (("gh.put",), ())
    assert {row.code for row in found.refused} == {"not_allowed"}


def test_the_shipped_docs_return_what_strangers_wrote_and_send_nowhere() -> None:
    shipped = load_catalog(None)
    names = ("docs.fetch", "repo.read_file", "workspace.exec", "github.issue_read")
    said = {
        name: (sorted(shipped.statements.returns(name)), sorted(shipped.statements.sends(name)))
        for name in names
    }
    assert said == {
        "docs.fetch": (["untrusted"], []),
        "repo.read_file": ([], []),
        "workspace.exec": ([], []),
        "github.issue_read": (["untrusted"], ["outside"]),
    }
