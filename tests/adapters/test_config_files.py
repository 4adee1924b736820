"""Config on disk: the shipped default, a project's folder over it, the scaffold, and the schemas
for editors.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # ships no type information
import pytest
from bundle_router.adapters.config_files import fingerprint, read_config, shipped_folder
from bundle_router.adapters.config_files.scaffolding import scaffold
from bundle_router.adapters.local import cards_of
from bundle_router.core.catalog import Card
from bundle_router.core.config import FILE_NAMES, from_bytes, load
from bundle_router.core.config.resolve import ResolvedConfig, resolve
from bundle_router.core.config.written_forms import schema, schema_texts
from bundle_router.core.decide.ceiling import ceiling_of
from bundle_router.core.decide.policy import verdict
from bundle_router.core.values import Address, Facts
from bundle_router.errors import ConfigError, RequestError
from bundle_router.local_tools.workspace.grammar import Accepted, match, problems
from bundle_router.review.lint import check
from bundle_router.wiring.shipped import shipped_cards

from tests.definitions import shipped_servers

ROLES = ("planner", "researcher", "implementer", "verifier", "reviewer")

# --- the shipped default --------------------------------------------------------------------------


def test_the_shipped_config_has_nothing_wrong_dead_or_risky(cards: Mapping[str, Card]) -> None:
    assert [
        str(problem) for problem in check(read_config(), cards=cards, check_binary=problems)
    ] == []


def test_only_implementers_and_verifiers_reach_what_writes_or_runs(
    cards: Mapping[str, Card],
) -> None:
    catalog = load(read_config(), cards=cards)
    facts = Facts(capabilities=frozenset({"env:GITHUB_TOKEN"}))
    strong = {
        bundle.id for bundle in catalog.bundles.values() if {"exec", "write"} & {*bundle.effects}
    }
    assert strong == {"workspace.exec"}
    for workflow in ("feature", "bugfix", "anything"):
        for role in (*ROLES, "stranger"):
            ceiling = ceiling_of(catalog, Address((workflow, role, "any")), None, ())
            permitted = {
                id_ for id_ in catalog.bundles if verdict(catalog, ceiling, facts, id_).permitted
            }
            assert ("workspace.exec" in permitted) == (role in ("implementer", "verifier"))
            assert permitted or role == "stranger"
            assert not (permitted & strong and "thirdparty.github" in permitted)


def test_both_workflows_have_a_route_for_every_role_that_policy_lets_through(
    cards: Mapping[str, Card],
) -> None:
    catalog = load(read_config(), cards=cards)
    assert {(route.workflow[0], route.role[0]) for route in catalog.routes} == {
        (workflow, role) for workflow in ("feature", "bugfix") for role in ROLES
    }
    facts = Facts(capabilities=frozenset({"env:GITHUB_TOKEN"}))
    for route in catalog.routes:
        ceiling = ceiling_of(catalog, Address((route.workflow[0], route.role[0], "any")), None, ())
        assert all(verdict(catalog, ceiling, facts, id_).permitted for id_ in route.bundles)


@pytest.mark.parametrize(
    ("line", "accepted"),
    [
        ("-m pytest", True),
        ("-m pytest -q -x --maxfail=3 tests/test_a.py::TestB::test_c[x-1]", True),
        ("-m pytest -k name tests", True),
        ("-m pytest -p plugin", False),
        ("-m pytest --rootdir=/", False),
        ("-m pytest ../elsewhere", False),
        ("-m unittest -v tests.test_a", True),
        ("-m ruff check --fix src", True),
        ("-m pip install x", False),
        ("-c print()", False),
        ("", False),
    ],
)
def test_the_shipped_python_rule_takes_tests_and_checks_and_nothing_else(
    line: str, accepted: bool, cards: Mapping[str, Card]
) -> None:
    (rule,) = load(read_config(), cards=cards).local.binaries
    assert isinstance(match(rule, line.split()), Accepted) == accepted


# --- reading --------------------------------------------------------------------------------------


def test_a_project_folder_lies_over_the_shipped_one(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    (tmp_path / "router.toml").write_text("[activation]\nmax_tools = 7\n")
    files = read_config(tmp_path)
    assert {(file.layer, file.name) for file in files} == {
        *(("shipped", name) for name in FILE_NAMES),
        ("project", "router.toml"),
    }
    catalog = load(files, cards=cards)
    assert catalog.settings.activation.max_tools == 7
    assert "repo.readonly" in catalog.bundles


def test_the_shipped_folder_itself_is_loaded_once_under_whatever_name(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    link = tmp_path / "config"
    link.symlink_to(shipped_folder())
    files = read_config(link)
    assert sorted(file.name for file in files) == sorted(FILE_NAMES)
    assert load(files, cards=cards).revision == load(read_config(), cards=cards).revision


def test_a_file_that_changed_is_another_config_and_one_that_stayed_is_the_same(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    bundle = (
        '[bundles."{}"]\ndescription = "Here."\ntools = ["repo.read_file"]\neffects = ["read"]\n'
    )

    def resolved(text: str) -> ResolvedConfig:
        (tmp_path / "bundles.toml").write_text(text, encoding="utf-8")
        return resolve(read_config(tmp_path), cards)

    once, again, changed = (resolved(bundle.format(name)) for name in ("a.b", "a.b", "a.c"))
    assert again.catalog.revision == once.catalog.revision != changed.catalog.revision
    assert "a.b" not in changed.catalog.bundles
    wrong = [resolved(bundle.format("a.b") + "tols = 1\n").report.problems() for _ in range(2)]
    assert wrong[0] == wrong[1] != []


def test_folders_that_cannot_be_a_config_are_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "router.toml").write_text("#\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rotes.toml").write_text("#\n")
    for path, said in [
        ("missing", "missing: does not exist (create one with `bundle-router init`"),
        ("router.toml", "router.toml: is not a folder (name the folder that holds it)"),
        ("empty", "empty: holds none of the config files (they are servers.toml,"),
        ("other", "other: holds none of the config files"),
    ]:
        with pytest.raises(ConfigError) as caught:
            read_config(tmp_path / path)
        assert str(caught.value.problems[0]).startswith(f"{tmp_path}/{said}")


def test_files_that_cannot_be_read_are_reported_with_the_rest(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    os.mkfifo(tmp_path / "servers.toml")
    (tmp_path / "bundles.toml").mkdir()
    (tmp_path / "routes.toml").symlink_to(tmp_path / "nowhere")
    (tmp_path / "policy.toml").write_bytes(b"")
    (tmp_path / "router.toml").write_text("[limitz]\n")
    (tmp_path / "rooter.toml").write_text("[")
    said = [
        str(problem).removeprefix(f"{tmp_path}/")
        for problem in check(read_config(tmp_path), cards=cards)
    ]
    assert said == [
        "servers.toml: can't be read: it is not a regular file",
        "bundles.toml: can't be read: is a directory",
        "routes.toml: can't be read: no such file or directory",
        (
            "policy.toml: is empty: it may be half written (write a comment in it, or delete it"
            " before a start to use the shipped one)"
        ),
        "router.toml:1: limitz: unknown key 'limitz' (did you mean 'limits'?)",
        (
            "rooter.toml: is not a file of the config and is not read (did you mean 'router.toml'?)"
            " [stray-file]"
        ),
    ]


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("route.toml",), "did you mean 'routes.toml', which is missing?"),
        (("routes.yaml",), "the config is TOML: write routes.toml"),
        (("router.toml", "rooter.toml"), "did you mean 'router.toml'?"),
        (("values.yaml", "changes.json"), ""),
    ],
)
def test_a_file_that_was_meant_for_the_config_is_named(
    names: tuple[str, ...], advice: str, tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    (tmp_path / "servers.toml").write_text("# ours\n")
    for name in names:
        (tmp_path / name).write_text("# ours\n")
    stray = [found for found in check(read_config(tmp_path), cards=cards) if found.rule]
    assert [found.suggestion for found in stray if found.rule == "stray-file"] == (
        [advice] if advice else []
    )


def test_files_that_change_while_the_folder_is_read_are_read_again(tmp_path: Path) -> None:
    """The writer strikes at the worst moment: policy.toml has been read, router.toml is about to
    be.
    """

    def write(number: int) -> None:
        for name in ("policy.toml", "router.toml"):
            (tmp_path / name).write_text(f"# {number}\n")

    write(1)
    with on_opening(tmp_path / "router.toml", [lambda: write(2)]):
        files = read_config(tmp_path)
    assert [file.text for file in files if file.layer == "project"] == ["# 2\n", "# 2\n"]


def test_a_folder_that_never_keeps_still_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text("# 0\n")
    strikes: list[Callable[[], object]] = [
        partial(path.write_text, f"# {number}\n") for number in range(1, 50)
    ]
    with (
        on_opening(path, strikes),
        pytest.raises(ConfigError, match="keeps changing while it is read"),
    ):
        read_config(tmp_path)


_strikes: dict[str, list[Callable[[], object]]] = {}


def _strike(event: str, arguments: tuple[object, ...]) -> None:
    waiting = _strikes.get(str(arguments[0])) if event == "open" and _strikes else None
    if waiting:
        _strikes[str(arguments[0])] = []  # what the strike itself opens is not struck
        waiting.pop(0)()
        _strikes[str(arguments[0])] = waiting


@cache
def watch_openings() -> None:
    """Have `_strike` told of each file that is opened.

    There is no taking it away again, and it costs every import.
    """
    sys.addaudithook(_strike)


@contextmanager
def on_opening(path: Path, strikes: list[Callable[[], object]]) -> Iterator[None]:
    """Runs the next of the strikes each time the file is about to be opened."""
    watch_openings()
    _strikes[str(path)] = strikes
    try:
        yield
    finally:
        _strikes.clear()


def test_the_fingerprint_changes_with_the_text_and_with_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text("# one\n")
    before = fingerprint(read_config(tmp_path))
    path.touch()
    assert fingerprint(read_config(tmp_path)) == before
    path.write_text("# two\n")
    assert fingerprint(read_config(tmp_path)) != before


# --- the scaffold ---------------------------------------------------------------------------------


def test_the_scaffold_passes_check_and_changes_nothing_until_it_is_edited(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    written = scaffold(tmp_path)
    assert {one.state for one in written} == {"written"}
    files = read_config(tmp_path / "config")
    assert [str(problem) for problem in check(files, cards=cards, check_binary=problems)] == []
    assert load(files, cards=cards).revision == load(read_config(), cards=cards).revision


def test_the_scaffold_never_overwrites_and_says_what_it_kept(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    mine = tmp_path / "config" / "routes.toml"
    mine.write_text("# mine\n")
    states = {Path(one.path).name: one.state for one in scaffold(tmp_path)}
    assert mine.read_text() == "# mine\n"
    assert states["routes.toml"] == "kept"
    assert states["policy.toml"] == "written"
    assert {one.state for one in scaffold(tmp_path)} == {"kept"}


def test_the_scaffold_says_when_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("a file\n")
    with pytest.raises(RequestError, match="config"):
        scaffold(tmp_path)


def test_uncommenting_an_entry_of_the_scaffold_takes_it_over(
    tmp_path: Path, cards: Mapping[str, Card]
) -> None:
    scaffold(tmp_path)
    for name in ("servers.toml", "bundles.toml", "router.toml"):
        path = tmp_path / "config" / name
        path.write_text(re.sub(r"(?m)^(\s*)#(?![ :\n])", r"\1", path.read_text()))
        assert tomllib.loads(path.read_text()) == tomllib.loads(
            (shipped_folder() / name).read_text()
        )
    files = read_config(tmp_path / "config")
    assert load(files, cards=cards).revision == load(read_config(), cards=cards).revision


# --- schemas --------------------------------------------------------------------------------------


def shipped_data(name: str) -> dict[str, Any]:
    return tomllib.loads((shipped_folder() / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILE_NAMES)
def test_the_schema_accepts_the_shipped_file_and_refuses_an_unknown_key_at_every_level(
    name: str,
) -> None:
    validator = jsonschema.Draft7Validator(schema(name))
    validator.check_schema(schema(name))
    data = shipped_data(name)
    assert list(validator.iter_errors(data)) == []
    assert not validator.is_valid({**data, "unknwon": 1})
    for key, value in data.items():
        if isinstance(value, list):
            assert not validator.is_valid({**data, key: [{**value[0], "unknwon": 1}]})
        elif name == "router.toml" or key in ("docs", "repo"):
            assert not validator.is_valid({**data, key: {**value, "unknwon": 1}})
        else:
            first = next(iter(value))
            assert not validator.is_valid({**data, key: {first: {**value[first], "unknwon": 1}}})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("policy.toml", "[[policies]]\nname = 'p'\nallow = []\n"),
        ("policy.toml", "[[policies]]\nname = 'p'\nrole = 'x'\n"),
        ("policy.toml", "[[policies]]\nname = 'p'\nrole = '{a,b}'\ndeny = ['*']\n"),
        ("policy.toml", "[[policies]]\nname = 'p'\nrole = ['a', 'a']\ndeny = ['*']\n"),
        ("policy.toml", "[[policies]]\nname = 'p'\ndeny = ['*', '*']\n"),
        ("policy.toml", "[[policies]]\nname = 'p'\neffects = []\n"),
        ("routes.toml", "[[routes]]\nname = 'r'\nrole = 'x'\n"),
        ("routes.toml", "[[routes]]\nname = 'r'\nrole = []\nbundles = []\n"),
        ("routes.toml", "[[routes]]\nname = 'r'\nstep = ['[ab]*']\nbundles = []\n"),
        ("routes.toml", "[[routes]]\nname = 'r'\nask = []\n"),
        ("bundles.toml", "[bundles.x]\ndescription = 'x'\n"),
        ("bundles.toml", "[bundles.x]\ndescription = 'x'\ntools = ['repo.read_file']\n"),
        ("bundles.toml", "[bundles.x]\ntools = ['repo.read_file']\neffects = ['read']\n"),
    ],
)
def test_what_a_schema_can_say_it_says_where_check_does(
    name: str, text: str, cards: Mapping[str, Card]
) -> None:
    shipped = (
        read_config()
        if name == "bundles.toml"
        else [file for file in read_config() if file.name != name]
    )
    said = check([*shipped, from_bytes(name, name, text.encode(), "project")], cards=cards)
    assert name in {problem.file for problem in said if problem.level == "error"}
    assert not jsonschema.Draft7Validator(schema(name)).is_valid(tomllib.loads(text))


@pytest.mark.parametrize("name", FILE_NAMES)
def test_every_key_says_in_words_what_it_is_for(name: str) -> None:
    def keys_without_words(node: Any, path: str) -> list[str]:
        found = []
        for key, value in node.get("properties", {}).items():
            found += [] if value.get("description") else [f"{path}.{key}"]
        for definition, value in node.get("definitions", {}).items():
            found += keys_without_words(value, definition)
        return found

    assert keys_without_words(schema(name), name) == []


def test_the_schemas_beside_the_shipped_files_are_those_of_this_version() -> None:
    for path, text in schema_texts().items():
        assert (shipped_folder() / path).read_text(encoding="utf-8") == text, (
            f"{path} is stale: run .ci/generate"
        )


def test_the_cards_that_are_shipped_are_those_of_the_tools() -> None:
    shipped = {
        name: replace(card, tokens=0, counted=True) for name, card in shipped_cards().items()
    }
    made = {
        name: replace(card, tokens=0, counted=True)
        for name, card in cards_of(shipped_servers()).items()
    }
    assert shipped == made, "cards.json is stale: run .ci/generate"
    assert all(card.tokens > 20 for card in shipped_cards().values())


@pytest.mark.parametrize("name", FILE_NAMES)
def test_each_shipped_file_names_its_schema_in_the_first_line(name: str) -> None:
    first = (shipped_folder() / name).read_text(encoding="utf-8").split("\n", 1)[0]
    assert first.startswith("#:schema ./")
    assert (shipped_folder() / first.removeprefix("#:schema ")).is_file()
