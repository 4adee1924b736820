"""What a tool of an unknown server is guessed to do, and how good guesses are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.values import Trust
from bundle_router.review.library import Guess, guess
from bundle_router.workbench.library_reader import read_library


def guessed(
    name: str,
    description: str = "",
    properties: dict[str, Any] | None = None,
    hints: dict[str, bool] | None = None,
    trust: Trust = "untrusted",
) -> Guess:
    definition = {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties or {}},
        "annotations": hints or {},
    }
    admitted = admit(Server("s", "stdio", command="x", trust=trust), [definition], "")
    return guess(admitted.tools[0], trusted=trust == "trusted")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("get_issue", "read"),
        ("listPullRequests", "read"),
        ("API-get-user", "read"),
        ("get_run", "read"),
        ("create_issue", "write"),
        ("addComment", "write"),
        ("comment", "write"),
        ("deleteTicket", "risky"),
        ("send_message", "risky"),
        ("get_and_delete_ticket", "risky"),
        ("run_query", "run"),
        ("browser_evaluate", "run"),
        ("frobnicate", "write"),
    ],
)
def test_the_strictest_verb_of_a_name_counts(name: str, kind: str) -> None:
    assert guessed(name).kind == kind


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("Lists issues.", "read"),
        ("Lists issues and saves them to a file.", "write"),
        ("This tool deletes issues.", "risky"),
        ("Lists issues. The export is overwritten.", "risky"),
        ("Gets it. This can't be undone.", "risky"),
    ],
)
def test_a_description_makes_a_reading_name_stricter(description: str, kind: str) -> None:
    assert guessed("get_issues", description).kind == kind


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"id": {"type": "string"}}, "read"),
        ({"sql": {"type": "string"}}, "run"),
        ({"output_path": {"type": "string"}}, "write"),
        ({"clear": {"type": "boolean"}}, "risky"),
        ({"include": {"type": "boolean"}}, "read"),
        ({"action": {"enum": ["list", "delete"]}}, "risky"),
        ({"filter": {"type": "object", "properties": {"force": {"type": "boolean"}}}}, "risky"),
        ({"action": {"anyOf": [{"const": "list"}, {"const": "create"}]}}, "write"),
    ],
)
def test_parameters_make_a_reading_name_stricter(properties: dict[str, Any], kind: str) -> None:
    assert guessed("get_issues", "Gets issues.", properties).kind == kind


def test_a_hint_to_read_only_counts_of_no_untrusted_server_and_never_against_a_verb() -> None:
    hints = {"readOnlyHint": True}
    assert guessed("tickets", hints=hints).kind == "write"
    assert guessed("delete_ticket", hints=hints, trust="trusted").kind == "risky"
    assert guessed("get_ticket", hints={"readOnlyHint": False}).kind == "write"
    assert guessed("get_ticket", hints={"destructiveHint": True}).kind == "risky"


def test_long_names_of_parameters_cost_no_more_than_their_number() -> None:
    endless = "A" * 60_000
    properties = {endless: {"type": "boolean"}, "action": {"enum": [endless]}}
    assert guessed("get_ticket", properties=properties) == Guess(
        "get_ticket", "read", "'get' in its name"
    )


def test_of_real_tools_that_the_tests_have_none_that_changes_something_is_guessed_to_read(
    real_servers: list[dict[str, Any]],
) -> None:
    kinds = {(s.server, tool.name): kind for s in read_library() for kind, tool in s.tools()}
    cells: Counter[tuple[str, str]] = Counter()
    for listed in real_servers:
        server = Server(listed["server"], "stdio", command="x")
        for tool in admit(server, listed["tools"], "").tools:
            kind = kinds[listed["server"], tool.card.tool]
            cells[guess(tool, trusted=False).kind, kind] += 1
    assert sum(cells.values()) == 72
    dangerous = {cell: n for cell, n in cells.items() if cell[0] == "read" and cell[1] != "read"}
    assert dangerous == {}
    assert cells["read", "read"] >= 25
