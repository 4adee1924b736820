"""One mistake in a config is one finding, with what to write and carets under what is meant."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from bundle_router.core.catalog import Card
from bundle_router.core.config import ConfigFile
from bundle_router.core.config.problem_report import excerpt_lines
from bundle_router.core.config.syntax_problems import header_names
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
    assert problem.message == "[limits] stands a second time"
    assert problem.suggestion == "line 1 has the first one: put all of its keys there"


# --- texts that are no TOML --------------------------------------------------------------------

HEAD = '# ours\n[[routes]]\nname = "a"\n'

MISTAKES = [
    (
        'role = "x"\nname = "b"\n',
        (5, 1),
        "name stands a second time in this table (line 3 has the first one: delete one of the two)",
    ),
    (
        'bundles = [\n  "x",\n]\nbundles = [\n  "y",\n]\n',
        (7, 1),
        "bundles stands a second time in this table (line 4 has the first one: delete one of the"
        " two)",
    ),
    (
        "[routes]\n",
        (4, 1),
        "[routes] stands a second time (write [[routes]] for each of several)",
    ),
    (
        '<<<<<<< HEAD\nrole = "x"\n=======\nrole = "y"\n>>>>>>> theirs\n',
        (4, 1),
        "this is a marker of a merge conflict (keep what is right of the two sides, and delete the"
        " lines with <<<<<<<, ======= and >>>>>>>)",
    ),
    (
        "role = “x”\n",
        (4, 8),
        "“ is a typographic quote (write the straight one: \"text\" or 'text')",
    ),
    (
        'bundles = [\n  "a" # one, two\n\n  "b"\n]\n',
        (5, 5),
        "a comma is missing after this (write , between two items)",
    ),
    (
        'bundles = ["a" "b"]\n',
        (4, 14),
        "a comma is missing after this (write , between two items)",
    ),
    (
        'bundles = ["a",\n\n[[routes]]\nname = "b"\n',
        (4, 1),
        "the list of bundles does not end (write ] after its last item)",
    ),
    (
        'bundles = ["a [["\n',
        (4, 1),
        "the list of bundles does not end (write ] after its last item)",
    ),
    (
        "role: x\n",
        (4, 5),
        "not valid TOML: expected '=' after a key in a key/value pair (write = in place of :)",
    ),
    (
        "role\n",
        (4, 5),
        "not valid TOML: expected '=' after a key in a key/value pair (a line is a key, =, and its"
        " value; a table begins with [name])",
    ),
    ("role = \n", (4, 8), "not valid TOML: invalid value (write a value after =)"),
    (
        'role = "a" "b"\n',
        (4, 12),
        "not valid TOML: expected newline or end of document after a statement (one key a line; a"
        ' quote inside "…" is written \\")',
    ),
    (
        'role = "C:\\Work"\n',
        (4, 13),
        "not valid TOML: unescaped '\\' in a string (a backslash inside \"…\" is written twice;"
        " inside '…' once)",
    ),
]


@pytest.mark.parametrize(("text", "place", "said"), MISTAKES)
def test_a_mistake_is_said_where_it_is_with_what_to_do(
    text: str, place: tuple[int, int], said: str, cards: Mapping[str, Card]
) -> None:
    files = [ConfigFile("routes.toml", "routes.toml", HEAD + text)]
    (problem,) = check(files, cards=cards)
    assert f"{problem.message} ({problem.suggestion})" == said
    assert (problem.line, problem.column) == place


def test_the_first_table_of_a_name_is_named(cards: Mapping[str, Card]) -> None:
    text = '[bundles."a.b"]\ndescription = "A"\n\n[ bundles . "a.b" ]  # again\ntools = []\n'
    (problem,) = check([ConfigFile("bundles.toml", "bundles.toml", text)], cards=cards)
    assert problem.message == '[ bundles . "a.b" ] stands a second time'
    assert problem.suggestion == "line 1 has the first one: put all of its keys there"
    assert problem.line == 4


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "[search]\n#[model]\nnames = []\n",
            "it is a key of [model]; line 2, its header, is a comment: take the # from it",
        ),
        (
            "# [search.calibration]\n# what else\nlabels = 3\n",
            "it is a key of [search.calibration]; line 1, its header, is a comment: take the # from"
            " it",
        ),
        ("#[model]\n[search]\nnames = []\n", "it is a key of [model]"),
        ("#[model]\n#[cache]\nnames = []\n", "known here:"),
    ],
)
def test_a_key_of_a_table_that_is_a_comment_is_told_from_an_unknown_one(
    text: str, advice: str, cards: Mapping[str, Card]
) -> None:
    (problem,) = check([ConfigFile("router.toml", "router.toml", text)], cards=cards)
    assert problem.message == f"unknown key '{'labels' if 'labels' in text else 'names'}'"
    if advice.startswith("it is") and ";" in advice:
        assert problem.suggestion == advice
    else:
        assert problem.suggestion.startswith(advice)
        assert "comment" not in problem.suggestion


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("[[routes]]", ("routes",)),
        ('[bundles."a.b"] # x', ("bundles", "a.b")),
        ("name = 1", None),
        ("[broken", None),
    ],
)
def test_the_names_of_a_header(line: str, names: tuple[str, ...] | None) -> None:
    assert header_names(line) == names
