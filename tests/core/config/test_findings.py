"""One mistake in a config is one finding, with what to write and carets under what is meant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from bundle_router.core.catalog import Card
from bundle_router.core.config import ConfigFile
from bundle_router.core.config.problem_report import excerpt_lines
from bundle_router.review.lint import check

SOUND = {
    "bundles.toml": (
        '[bundles."own.read"]\ndescription = "Read."\ntools = ["repo.read_file"]\neffects ='
        ' ["read"]\n'
    ),
    "routes.toml": '[[routes]]\nname = "r"\nrole = "triager"\nbundles = ["own.read"]\n',
    "policy.toml": '[[policies]]\nname = "p"\nrole = "triager"\nallow = ["bundle:own.read"]\n',
}


@pytest.mark.parametrize(
    ("text", "message", "suggestion", "marked"),
    [
        (
            '[[bundles]]\nid = "own.read"\n',
            "is a table of named tables",
            "write [bundles.NAME]",
            "bundles",
        ),
        (
            "[bundles.own.read]\ntools = ['repo.read_file']\n",
            "unknown key 'read'",
            '[bundles."own.read"]',
            "read",
        ),
        (
            '[bundle."own.read"]\ndescription = "Read."\n',
            "unknown key 'bundle'",
            "did you mean 'bundles'?",
            "bundle",
        ),
        (
            "bundles = 'own.read'\n",
            "must be a table",
            "write [bundles] on a line of its own",
            "bundles",
        ),
        (
            SOUND["bundles.toml"] + "mde = 'meta'\n",
            "unknown key 'mde'",
            "did you mean 'mode'?",
            "mde",
        ),
        (
            SOUND["bundles.toml"] + "requires = { envs = ['A'] }\n",
            "unknown key 'envs'",
            "did you mean 'env'?",
            "envs",
        ),
        (SOUND["bundles.toml"] + "always = True\n", "not valid TOML", "write true", "True"),
        (SOUND["bundles.toml"] + "mode = meta\n", "not valid TOML", "put text in quotes", "meta"),
        ('{"mcpServers": {}}\n', "not valid TOML", "`bundle-router import`", "{"),
    ],
)
def test_one_mistake_is_one_finding(
    text: str, message: str, suggestion: str, marked: str, cards: Mapping[str, Card]
) -> None:
    files = [
        ConfigFile(
            "servers.toml",
            "servers.toml",
            '[servers.repo]\ntransport = "local"\ntrust = "trusted"\n',
        )
    ]
    files += [
        ConfigFile(name, name, kept) for name, kept in {**SOUND, "bundles.toml": text}.items()
    ]
    (problem,) = (found for found in check(files, cards=cards) if found.level == "error")
    assert message in problem.message
    assert suggestion in problem.suggestion
    shown, carets = excerpt_lines(problem, text.split("\n"))
    assert shown[carets.index("^") : carets.rindex("^") + 1] == marked


def test_a_secret_in_place_of_its_name_is_not_repeated(cards: Mapping[str, Card]) -> None:
    (problem,) = check(
        [ConfigFile("router.toml", "router.toml", '[records]\nkey = "hunter2"\n')], cards=cards
    )
    assert "'${NAME}'" in problem.message
    assert "hunter2" not in str(problem)


def test_a_table_that_stands_twice_goes_under_the_first_where_it_is_no_list(
    cards: Mapping[str, Card],
) -> None:
    text = "[limits]\nmax_tools = 5\n\n[limits]\nmax_result_chars = 9000\n"
    (problem,) = check([ConfigFile("router.toml", "router.toml", text)], cards=cards)
    assert "twice" in problem.message
    assert problem.suggestion == "put all of its keys under the first [limits]"
