"""`bundle-router examples`: what a model writes, shown as a difference and added after a yes."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
from bundle_router.testing.upstream import ScriptedServer, says, status

from tests.command_line import Shell

needs_model = pytest.mark.skipif(
    find_spec("litellm") is None or find_spec("instructor") is None,
    reason="needs the extra bundle-router[model]",
)
WISHES = ["will it rain in Berlin", "Acme forecast for Paris", "how hot is it outside"]
ANSWER = json.dumps({"examples": WISHES, "words": {"de": ["Wetter"]}})
SERVERS = '[servers.acme]\nurl = "https://acme.example/mcp"\n'
BUNDLES = """# mine
[bundles.weather]
description = "Weather: forecasts of rain and heat"  # the line
tools = ["acme.get_forecast"]
effects = ["read"]

[bundles.tides]
description = "Times of high and low tide"
examples = ["high tide in Bristol", "when is it low tide", "tides for the weekend"]
tools = ["acme.get_tides"]
effects = ["read"]
"""
ADDED = """examples = [
  # Written by openai/gpt-4o-mini on {day} (bundle-router examples).
  "will it rain in Berlin",
  "Acme forecast for Paris",
  "how hot is it outside",
]
words = [
  # Written by openai/gpt-4o-mini on {day} (bundle-router examples).
  "Wetter",
]
"""


def settings(server: ScriptedServer) -> str:
    return (
        '[search]\nlanguages = ["de"]\n'
        f'[model]\nnames = ["openai/gpt-4o-mini"]\nbase_url = "{server.base_url}"\n'
    )


@needs_model
def test_what_was_shown_is_added_after_a_yes_and_no_model_is_asked_again(shell: Shell) -> None:
    with ScriptedServer([says(ANSWER)]) as server:
        shell.write(servers=SERVERS, bundles=BUNDLES, router=settings(server))
        path = shell.folder / "config" / "bundles.toml"
        shown = shell("examples").stdout
        assert '+  "will it rain in Berlin",' in shown
        assert "nothing was written: --yes adds just this" in shown
        assert path.read_text() == BUNDLES

        said = shell("examples", "--yes").stdout
        assert "added to config/bundles.toml" in said
        assert len(server.requests) == 1
    written = path.read_text()
    day = written.partition("gpt-4o-mini on ")[2][:10]
    line = '"Weather: forecasts of rain and heat"  # the line\n'
    assert written == BUNDLES.replace(line, line + ADDED.format(day=day))
    assert shell.json("search", "Wetter morgen")["ranked"][0]["id"] == "weather"
    changes = (shell.folder / "config" / "changes.jsonl").read_text()
    assert json.loads(changes)["reason"] == "examples written by openai/gpt-4o-mini"
    assert "at least 3 examples" in shell("examples").stdout


@needs_model
def test_what_is_not_done_is_named_with_the_reason(shell: Shell) -> None:
    with ScriptedServer([status(401)]) as server:
        shell.write(servers=SERVERS, bundles=BUNDLES, router=settings(server))
        said = shell("examples", "--all", code=4).stdout
    assert "tides: nothing to add: auth" in said
    assert "about no other bundle, either (auth): weather" in said
    assert "1 call, $0.000000 as far as prices are known" in said


@needs_model
def test_a_limit_that_can_not_hold_is_refused_and_the_default_is_none_for_a_free_model(
    shell: Shell,
) -> None:
    with ScriptedServer([says(ANSWER)]) as server:
        free = settings(server).replace("gpt-4o-mini", "of-our-own")
        shell.write(servers=SERVERS, bundles=BUNDLES, router=free)
        said = shell("examples", "--max-cost", "1", code=3).stderr
        assert "the price of openai/of-our-own is unknown" in said
        assert len(server.requests) == 0
        assert shell.json("examples")["calls"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("examples",), "no model is configured, which could write examples"),
        (("examples", "storms"), "unknown bundle 'storms'"),
        (("examples", "docs.fetch"), "is not declared in this folder's bundles.toml"),
    ],
)
def test_what_can_not_be_done_is_said_in_a_sentence(
    shell: Shell, words: tuple[str, ...], message: str
) -> None:
    shell.write(servers=SERVERS, bundles=BUNDLES)
    assert message in shell(*words, code=3).stderr


def test_without_a_config_folder_there_is_nothing_to_add_to(shell: Shell) -> None:
    assert "there is no config folder" in shell("examples", code=3).stderr


def test_check_names_the_bundles_that_lack_examples_and_fails_for_none(shell: Shell) -> None:
    shell.write(servers=SERVERS, bundles=BUNDLES)
    assert "weather has fewer than 3 examples" in shell("check").stdout


@pytest.mark.parametrize(
    ("bundles", "router", "advised"),
    [
        (17, "# as shipped", False),
        (18, "# as shipped", True),
        (18, '[search.embeddings]\nmodel = "openai/text-embedding-3-small"\n', False),
        (18, '[fallback]\norder = ["default"]\n', False),
    ],
)
def test_check_recommends_embeddings_for_many_bundles_that_words_alone_find(
    shell: Shell, bundles: int, router: str, advised: bool
) -> None:
    """Three of the shipped bundles may be picked by search, too."""
    table = (
        '[bundles."own{number}"]\ndescription = "Looks at part {number} of a house"\n'
        'tools = ["repo.read_file"]\neffects = ["read"]\n'
    )
    tables = [table.format(number=number) for number in range(bundles)]
    shell.write(bundles="".join(tables), router=router)
    said = shell("check").stdout
    assert ("with a local embedding model" in said) is advised
