"""The library of bundles as it is shipped: its form, and digests of definitions that are at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundle_router.review.library import (
    KINDS,
    LibraryProblem,
    LibraryServer,
    library_server,
)
from bundle_router.review.library.recognition import library_digest

FOLDER = Path(__file__).resolve().parents[3] / "bundles" / "library"
FILES = sorted(FOLDER.glob("*.toml"))
TEXT = """\
schema = "bundle-router.library/1"
revision = 1
server = "mail"
package = "mail-server"
registry = "npm"
versions = ["1.0"]
read_on = 2026-11-29
licence = "MIT"

[bundles.read]
description = "Read mail."
avoid = "Not for sending."
examples = ["one", "two", "three", "four", "five", "six"]
words.de = ["Post"]

[[bundles.read.tools]]
name = "get"
effects = ["read", "network"]
clause = "Reads one message"
sha256 = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
"""


@pytest.fixture(scope="module")
def library() -> list[LibraryServer]:
    """Every file of the folder: each is checked by its form as it is read."""
    return [library_server(path.read_text(encoding="utf-8"), path.name) for path in FILES]


def test_every_file_can_be_read_and_no_two_have_the_same_definition(
    library: list[LibraryServer],
) -> None:
    tools = [tool for server in library for _, tool in server.tools()]
    assert (len(library), len(tools)) == (53, 1_642)
    assert len({tool.sha256 for tool in tools}) == 1_642


def test_bundles_stand_from_the_mildest_kind_and_their_tools_by_name(
    library: list[LibraryServer],
) -> None:
    for server in library:
        assert list(server.bundles) == [kind for kind in KINDS if kind in server.bundles]
        for bundle in server.bundles.values():
            names = [tool.name for tool in bundle.tools]
            assert names == sorted(names)


def test_each_bundle_has_key_words_in_german_french_and_spanish(
    library: list[LibraryServer],
) -> None:
    languages = {tuple(bundle.words) for server in library for bundle in server.bundles.values()}
    assert languages == {("de", "fr", "es")}


def test_a_milder_clause_stands_only_where_the_readers_differed(
    library: list[LibraryServer],
) -> None:
    with_two = [t for server in library for _, t in server.tools() if t.milder_clause is not None]
    assert all(tool.differed for tool in with_two)
    assert with_two


def test_digests_are_those_of_the_definitions_that_the_tests_have(
    library: list[LibraryServer], real_servers: list[dict[str, Any]]
) -> None:
    servers = {server.server: server for server in library}
    digests = {(s.server, tool.name): tool.sha256 for s in library for _, tool in s.tools()}
    compared = 0
    for listed in real_servers:
        server = servers[listed["server"]]
        for definition in listed["tools"]:
            instructions = listed.get("instructions") or ""
            found = library_digest(definition, instructions, server.varies)
            assert digests[server.server, definition["name"]] == found
            compared += 1
    assert compared == 72


def test_what_decides_about_a_merge_a_command_and_a_read_is_where_it_belongs(
    library: list[LibraryServer],
) -> None:
    kinds = {(s.server, tool.name): kind for s in library for kind, tool in s.tools()}
    assert kinds["github-ref", "merge_pull_request"] == "risky"
    assert kinds["filesystem", "write_file"] == "risky"
    assert kinds["desktop-commander", "start_process"] == "run"
    assert kinds["github-ref", "list_issues"] == "read"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"read", "network"', '"read", "write"', "tool 'get' of 'read' has the effect 'write'"),
        ("[bundles.read", "[bundles.write", "tool 'get' of 'write' lacks the effect 'write'"),
        ('"read", "network"', '"network", "read"', "are not in the order read, write"),
        ('"six"]', '"one"]', "an example of 'read' stands there twice"),
        (', "six"]', "]", "at least 6 items"),
        ('["Post"]', "[]", "at least 1 item"),
        ('clause = "Reads', f'clause = "{"x" * 120}', "at most 120 characters"),
        ("licence =", "seen = 1\nlicence =", "seen: Extra inputs are not permitted"),
        ('server = "mail"', 'server = "post"', "is 'post', and names another file"),
        ('"MIT"', '"MIT"\nvaries = ["weather"]', "varies.*'time zone'"),
        ("[bundles.read]", "[bundles.read", "mail.toml: "),
        ('"Reads one message"', '"Reads\\none"', "is not one line of printable text"),
    ],
)
def test_a_file_of_another_form_is_refused_and_says_where(
    before: str, after: str, message: str
) -> None:
    assert before in TEXT
    with pytest.raises(LibraryProblem, match=f".*{message}"):
        library_server(TEXT.replace(before, after), "mail.toml")


def test_a_tool_that_stands_in_two_bundles_is_refused() -> None:
    twice = TEXT + TEXT[TEXT.index("[[bundles") :]
    with pytest.raises(LibraryProblem, match="tool 'get' stands there twice"):
        library_server(twice, "mail.toml")


def test_the_text_without_changes_is_a_library_file() -> None:
    server = library_server(TEXT, "mail.toml")
    assert [(kind, tool.name) for kind, tool in server.tools()] == [("read", "get")]
    assert server.source == "mail-server 1.0 (npm), read on 2026-11-29"
    assert json.loads(server.model_dump_json())["server"] == "mail"
