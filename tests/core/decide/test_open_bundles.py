"""Bundles that hold globs over servers nobody has asked yet: judged like tools, explained like
tools.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from bundle_router.core.catalog import Bundle, Catalog, Policy, Route, Server
from bundle_router.core.decide.decide import decide
from bundle_router.core.decide.plans import Plans
from bundle_router.core.records.explanation import explain
from bundle_router.core.values import CODES, Activation, Code, Decision, Facts, Step
from bundle_router.testing import fake_router, small_catalog

STEP = Step(run_id="r", workflow="w", role="r", step="s")
ALL = Policy("all", allow=("*",))
HUB = Bundle("hub", "x", (), patterns=("gh.*",), servers=("gh",), effects=("read",))


def decided(
    bundles: dict[str, Bundle], policy: Policy, *servers: Server, facts: Facts | None = None
) -> Decision:
    made = small_catalog(
        bundles, routes=[Route("all", bundles=("it",))], policies=[policy], servers=servers
    )
    taken = decide(Plans(made), facts or Facts(), Activation(), STEP)
    assert isinstance(taken, Decision)
    return taken


def gh(**changes: object) -> Server:
    return replace(Server("gh", "streamable-http", "trusted", url="https://x.example"), **changes)  # type: ignore[arg-type]  # a table


IT = replace(HUB, id="it")


@pytest.mark.parametrize(
    ("bundle", "policy", "servers", "facts", "code"),
    [
        pytest.param(IT, ALL, [gh()], Facts(), None, id="permitted"),
        pytest.param(IT, ALL, [gh(enabled=False)], Facts(), "disabled", id="server disabled"),
        pytest.param(IT, ALL, [], Facts(), "disabled", id="server not configured"),
        pytest.param(IT, ALL, [gh(exclude=("*",))], Facts(), "disabled", id="server excludes all"),
        pytest.param(IT, ALL, [gh(include=("get_*",))], Facts(), None, id="what is included is known later"),
        pytest.param(replace(IT, enabled=False), ALL, [gh()], Facts(), "disabled", id="bundle disabled"),
        pytest.param(IT, replace(ALL, deny=("it",)), [gh()], Facts(), "policy_denied", id="bundle denied"),
        pytest.param(IT, replace(ALL, deny=("tool:gh.*",)), [gh()], Facts(), "policy_denied", id="all tools denied"),
        pytest.param(IT, replace(ALL, deny=("tool:*",)), [gh()], Facts(), "policy_denied", id="every tool denied"),
        pytest.param(IT, replace(ALL, deny=("tool:gh.?",)), [gh()], Facts(), None, id="some tools denied"),
        pytest.param(IT, replace(ALL, deny=("tool:gh.get",)), [gh()], Facts(), None, id="one tool denied"),
        pytest.param(IT, Policy("p", allow=("tool:gh.get",)), [gh()], Facts(), "not_allowed", id="one tool allowed"),
        pytest.param(IT, Policy("p", allow=("tool:gh.?",)), [gh()], Facts(), "not_allowed", id="some tools allowed"),
        pytest.param(IT, Policy("p", allow=("tool:gh.*",)), [gh()], Facts(), None, id="all tools allowed"),
        pytest.param(IT, replace(ALL, min_trust="trusted"), [gh(trust="untrusted")], Facts(), "trust_too_low",
                     id="trust"),
        pytest.param(IT, replace(ALL, effects=("write",)), [gh()], Facts(), "effect_not_allowed", id="effects"),
        pytest.param(IT, ALL, [gh(trust="untrusted")], Facts(), "allowlist_required", id="a stranger's glob"),
        pytest.param(replace(IT, requires_env=("T",)), ALL, [gh()], Facts(), "capability_missing", id="variable"),
        pytest.param(IT, ALL, [gh()], Facts(unavailable=(("gh", "down"),)), "server_unavailable", id="server away"),
    ],
)  # fmt: skip
def test_a_glob_over_a_server_meets_every_test_that_a_tool_meets(
    bundle: Bundle, policy: Policy, servers: list[Server], facts: Facts, code: Code | None
) -> None:
    decision = decided({"it": bundle}, policy, *servers, facts=facts)
    assert decision.bundle_ids == ([] if code else ["it"])
    assert [row.code for row in decision.left_out if row.tool is None] == ([code] if code else [])
    if code:
        made = small_catalog(
            {"it": bundle},
            routes=[Route("all", bundles=("it",))],
            policies=[policy],
            servers=servers,
        )
        told = explain(made, facts, Activation(), STEP, "it")
        assert (told.shown, told.chains[0].code) == (False, code)
        assert not any("server ''" in check.detail for check in told.chains[0].checks)


def test_a_denied_part_takes_its_globs_out_of_what_is_composed_of_it() -> None:
    whole = Bundle(
        "it", "x", ("repo.read",), bundles=("middle",), patterns=("gh.*",), effects=("read",)
    )
    middle = Bundle("middle", "x", (), bundles=("hub",), patterns=("gh.*",), effects=("read",))
    decision = decided(
        {"it": whole, "middle": middle, "hub": HUB}, replace(ALL, deny=("bundle:hub",)), gh()
    )
    assert decision.bundle_ids == ["it"]
    assert [(row.tool, row.code) for row in decision.left_out] == [("gh.*", "policy_denied")]
    alone = replace(whole, tools=())
    refused = decided(
        {"it": alone, "middle": middle, "hub": HUB}, replace(ALL, deny=("bundle:hub",)), gh()
    )
    assert refused.bundle_ids == []
    assert "which 'it' is composed of" in refused.left_out[0].detail


def test_a_bundle_with_nothing_in_it_is_judged_as_a_whole() -> None:
    empty = Bundle("it", "x", (), effects=("exec",))
    assert decided({"it": empty}, ALL).bundle_ids == ["it"]
    for policy, code in [
        (replace(ALL, deny=("it",)), "policy_denied"),
        (replace(ALL, effects=("read",)), "effect_not_allowed"),
        (Policy("p", allow=("other",)), "not_allowed"),
    ]:
        assert [row.code for row in decided({"it": empty}, policy).left_out] == [code]


@pytest.mark.parametrize("has_seen", [True, False])
def test_the_chain_shows_every_test_in_the_order_of_the_closed_list(has_seen: bool) -> None:
    """The test of rows with `seen` is among them where there is such a row."""
    policies = [ALL, Policy("later", deny=("*",), seen=("private",))] if has_seen else [ALL]
    expected = list(CODES[: CODES.index("not_mapped") + 1])
    if not has_seen:
        expected.remove("tainted")
    for bundle in (IT, Bundle("it", "x", ("gh.get",), effects=("read",)), Bundle("it", "x", ())):
        router = fake_router(
            small_catalog(
                {"it": bundle},
                servers=[gh()],
                routes=[Route("all", bundles=("it",))],
                policies=policies,
            )
        )
        (chain,) = router.explain(STEP, "it").chains
        assert [check.code for check in chain.checks] == expected
        assert all(check.passed for check in chain.checks)


def many_parts(count: int) -> Catalog:
    parts = {f"p{n}": [f"s.t{n}_{k}" for k in range(10)] for n in range(count)}
    tools = tuple(sorted(tool for part in parts.values() for tool in part))
    whole = Bundle("it", "x", tools, bundles=tuple(parts), effects=("read",))
    return small_catalog({**parts, "it": whole}, routes=[Route("all", bundles=("it",))])


def test_a_denied_part_among_many_takes_out_its_own_tools_and_no_others() -> None:
    made = many_parts(500)
    narrowed = replace(made, policies=(Policy("p", allow=("*",), deny=("bundle:p0", "p1")),))
    taken = decide(Plans(narrowed), Facts(), Activation(), STEP)
    assert isinstance(taken, Decision)
    assert taken.exposure.tools == 4_980
    assert len(taken.left_out) == 20
