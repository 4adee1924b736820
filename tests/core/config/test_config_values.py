"""What valid config becomes: overlay, composition, defaults, and the rules of lint as a list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bundle_router.core.catalog import Card, Route
from bundle_router.core.config import ConfigFile, load
from bundle_router.core.config.config_text import Layer
from bundle_router.core.decide.reach import shadowing_routes
from bundle_router.core.values import Address
from bundle_router.errors import Problem
from bundle_router.review.lint import RULES, check
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples

SERVERS = """
[servers.repo]
transport = "local"
trust = "trusted"
exclude = ["git_*"]

[servers.wiki]
url = "https://wiki.example.com/mcp"
trust = "trusted"
headers = { Authorization = "Bearer ${WIKI_TOKEN}", X-Site = "main" }

[servers.strangers]
url = "https://strangers.example.com/mcp"
headers = { X-Api-Key = "${A_KEY}${B_KEY}" }
"""
BUNDLES = """
[bundles.code]
description = "Code."
tools = ["repo.*", "repo.read_file", "repo.git_log"]
effects = ["read"]
requires = { binary = ["rg"] }
aliases = ["source"]

[bundles.wiki]
description = "The wiki."
tools = ["wiki.get_*", "wiki.search"]
effects = ["network", "read"]
requires = { env = ["WIKI_TOKEN"] }

[bundles.strangers]
description = "Strangers."
tools = ["strangers.ask"]
effects = ["network"]

[bundles.both]
description = "Code and the wiki."
bundles = ["wiki", "source"]

[bundles.all]
description = "Everything."
bundles = ["both", "strangers"]
tools = ["repo.ripgrep"]
effects = ["exec"]
"""
ROUTES = """
[[routes]]
name = "first"
role = "writer"
bundles = ["wiki", "source", "code"]
ask = ["source", "st*"]
"""
POLICY = """
[[policies]]
name = "all"
role = ["writer", "w?"]
allow = ["bundle:source", "tool:repo.*"]
effects = ["exec", "read"]
"""


def file(name: str, text: str, layer: Layer = "project") -> ConfigFile:
    return ConfigFile(name, f"{layer}/{name}", text, layer)


FILES = [
    file("servers.toml", SERVERS),
    file("bundles.toml", BUNDLES),
    file("routes.toml", ROUTES),
    file("policy.toml", POLICY),
]


def test_composition_unites_tools_effects_and_requirements_and_takes_the_lowest_trust(
    cards: Mapping[str, Card],
) -> None:
    catalog = load(FILES, cards=cards)
    code, both, everything = (catalog.bundles[id_] for id_ in ("code", "both", "all"))
    assert code.tools == ("repo.git_log", "repo.list_dir", "repo.read_file", "repo.ripgrep")
    assert both.tools == (*code.tools, "wiki.search")
    assert both.patterns == ("wiki.get_*",)
    assert both.bundles == ("wiki", "code")
    assert both.effects == ("read", "network")
    assert (both.requires_env, both.requires_binary) == (("WIKI_TOKEN",), ("rg",))
    assert (both.trust, both.mode) == ("trusted", "direct")
    assert everything.servers == ("repo", "strangers", "wiki")
    assert everything.effects == ("read", "exec", "network")
    assert (everything.trust, everything.mode) == ("untrusted", "meta")


def test_globs_leave_out_what_the_server_excludes_and_names_stay_for_policy_to_refuse(
    cards: Mapping[str, Card],
) -> None:
    catalog = load(FILES, cards=cards)
    assert "repo.git_diff" not in catalog.bundles["code"].tools
    assert "repo.git_log" in catalog.bundles["code"].tools
    assert "repo.git_log" not in catalog.cards
    assert not any(card.server == "docs" for card in catalog.cards.values())


def test_old_ids_are_followed_in_routes_asks_policies_and_compositions(
    cards: Mapping[str, Card],
) -> None:
    catalog = load(FILES, cards=cards)
    assert catalog.routes[0].bundles == ("wiki", "code")
    assert catalog.routes[0].ask == ("code", "st*")
    assert catalog.policies[0].allow == ("bundle:code", "tool:repo.*")
    assert catalog.policies[0].effects == ("read", "exec")


def test_the_environment_variables_that_hold_secrets_are_named(cards: Mapping[str, Card]) -> None:
    catalog = load(FILES, cards=cards)
    assert catalog.servers["wiki"].env_names == ("WIKI_TOKEN",)
    assert catalog.servers["strangers"].env_names == ("A_KEY", "B_KEY")


def test_servers_and_bundles_merge_by_id_router_by_key_and_the_rest_is_replaced_whole(
    cards: Mapping[str, Card],
) -> None:
    shipped = [
        file("servers.toml", SERVERS, "shipped"),
        file("bundles.toml", BUNDLES, "shipped"),
        file("routes.toml", ROUTES, "shipped"),
        file("policy.toml", POLICY + "[docs]\nhosts = ['docs.python.org']\n", "shipped"),
        file(
            "router.toml",
            "[limits]\nrecent_steps = 1\nmax_result_chars = 500\n[log]\nredact_env = ['A']\n",
            "shipped",
        ),
    ]
    project = [
        file(
            "bundles.toml",
            "[bundles.code]\ndescription = 'Ours.'\ntools = ['repo.ripgrep']\neffects = ['read']\n",
        ),
        file("policy.toml", "[[policies]]\nname = 'ours'\ndeny = ['*']\n"),
        file("router.toml", "[limits]\nrecent_steps = 2\n[log]\nredact_env = ['B']\n"),
    ]
    # `source`, the old id of `code`, went with the entry it stood in; so those that use it are
    # wrong now.
    lines = [str(problem) for problem in check([*shipped, *project], cards=cards)]
    assert len(lines) == 3
    assert all("unknown bundle 'source'" in line and line.startswith("shipped/") for line in lines)

    project[0] = file("bundles.toml", project[0].text + "aliases = ['source']\n")
    catalog = load([*shipped, *project], cards=cards)
    assert catalog.bundles["code"].description == "Ours."
    assert catalog.bundles["code"].requires_binary == ()
    assert "wiki" in catalog.bundles
    assert [policy.name for policy in catalog.policies] == ["ours"]
    assert catalog.local.docs_hosts == ()
    assert [route.name for route in catalog.routes] == ["first"]
    assert (catalog.settings.limits.recent_steps, catalog.settings.limits.max_result_chars) == (
        2,
        500,
    )
    assert catalog.settings.log.redact_env == ("B",)


def test_order_in_files_matters_only_where_it_is_meaning(cards: Mapping[str, Card]) -> None:
    blocks = BUNDLES.strip().split("\n\n")
    reordered = [FILES[0], file("bundles.toml", "\n\n".join(reversed(blocks))), *FILES[2:]]
    assert load(reordered, cards=cards).revision == load(FILES, cards=cards).revision


def test_what_a_checker_of_binaries_says_is_reported_at_the_rule(cards: Mapping[str, Card]) -> None:
    text = POLICY + "\n[[binaries]]\nname = 'a'\npath = '/bin/a'\nforms = [{}]\n"
    files = [*FILES[:3], file("policy.toml", text)]
    (problem,) = check(files, cards=cards, check_binary=lambda rule: [f"{rule.name} is wrong"])
    assert str(problem) == "project/policy.toml:8: binaries[0]: a is wrong"


def test_a_small_file_cannot_describe_a_large_catalog(cards: Mapping[str, Card]) -> None:
    def wide_bundle(index: int) -> str:
        tools = ",".join(f"'wiki.t{index}-{number}'" for number in range(500))
        return f"[bundles.w{index}]\ndescription='w'\neffects=['read']\ntools=[{tools}]\n"

    wide = "".join(wide_bundle(index) for index in range(10))
    parts = ",".join(f"'w{i}'" for i in range(10))
    many = "".join(f"[bundles.m{i}]\ndescription='m'\nbundles=[{parts}]\n" for i in range(200))
    problems = check([FILES[0], file("bundles.toml", wide + many)], cards=cards)
    assert [problem.message for problem in problems] == [
        "holds too many tools: the limit is 250,000 in all bundles"
    ]


def test_a_long_chain_of_compositions_needs_no_stack(cards: Mapping[str, Card]) -> None:
    chain = "".join(f"[bundles.c{i}]\ndescription='c'\nbundles=['c{i + 1}']\n" for i in range(3000))
    end = "[bundles.c3000]\ndescription='c'\ntools=['wiki.a']\neffects=['read']\n"
    assert load([FILES[0], file("bundles.toml", chain + end)], cards=cards).bundles["c0"].tools == (
        "wiki.a",
    )


# --- lint -----------------------------------------------------------------------------------------


def test_every_rule_of_lint_is_shown_by_a_case() -> None:
    cases = Path(__file__).parents[2] / "data" / "config"
    said = "".join(path.read_text(encoding="utf-8") for path in cases.glob("*/problems.txt"))
    assert [word for word in (*RULES, "stray-file") if f"[{word}]" not in said] == []


def words(problems: list[Problem]) -> set[str]:
    return {problem.rule for problem in problems}


def test_lint_speaks_of_shipped_entries_only_when_there_is_nothing_else(
    cards: Mapping[str, Card],
) -> None:
    shipped = [ConfigFile(one.name, f"shipped/{one.name}", one.text, "shipped") for one in FILES]
    assert "excluded-tool" in words(check(shipped, cards=cards))
    assert check([*shipped, file("router.toml", "# nothing of ours\n")], cards=cards) == []


names = st.sampled_from(["a", "b", "ab", "abc", "a*", "*b", "a?", "?", "*", "a*c"])
fields = st.lists(names, max_size=2, unique=True).map(tuple)
routes = st.lists(
    st.builds(Route, name=st.just("r"), workflow=fields, role=fields, step=fields), max_size=8
)


@examples(300)
@given(
    routes, st.tuples(*[st.sampled_from(["a", "b", "ab", "abc", "ac", "zb", "q"])] * 3).map(Address)
)
def test_a_route_called_unreachable_never_matches_before_the_one_that_hides_it(
    rows: list[Route], address: Address
) -> None:
    for index, earlier in shadowing_routes(rows).items():
        assert earlier < index
        assert not rows[index].covers(address) or rows[earlier].covers(address)


def test_a_repeated_route_is_called_unreachable() -> None:
    row = Route("r", ("feature", "bugfix"), ("a", "b"), ())
    assert shadowing_routes([row, Route("other", ("x",)), row]) == {2: 0}


def test_what_a_model_refuses_can_be_left_out_for_all_or_for_one(cards: Mapping[str, Card]) -> None:
    text = (
        '[model]\nnames = ["openai/a", "openai/b"]\nmax_output_tokens = "none"\n'
        '[model.options."openai/b"]\nmax_output_tokens = 500\ntemperature = "none"\n'
    )
    one, other = load(
        [ConfigFile("router.toml", "router.toml", text)], cards=cards
    ).settings.model.choices
    assert (one.max_output_tokens, one.temperature) == ("none", 0.0)
    assert (other.max_output_tokens, other.temperature) == (500, "none")
