"""Other programs' settings become config: valid, untrusted, without secrets, over nothing that is
there.

`tests/data/cards/clients/*.expected` hold what is written; `UPDATE_GOLDEN=1 pytest tests/review/imports`
writes them anew.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from bundle_router.core.catalog import Server
from bundle_router.core.config.config_text import from_bytes
from bundle_router.core.config.resolve import resolve
from bundle_router.core.servers.admission.admit import admit
from bundle_router.core.servers.pins.reviewed import approve
from bundle_router.review.imports import ImportProblem, import_clients, read_clients
from bundle_router.workbench.library_reader import read_library
from hypothesis import given
from hypothesis import strategies as st

CLIENTS = Path(__file__).parents[2] / "data" / "cards" / "clients"
NAMES = sorted(path.name for path in CLIENTS.iterdir() if path.suffix in (".json", ".toml"))
SECRETS = ("ghp_", "secretpw", "abcdefabcdef1234567890", "api_key=abc", "k-1", "abc-def-123")


def _errors(servers: str, bundles: str) -> list[str]:
    files = [
        from_bytes("servers.toml", "servers.toml", servers.encode() or b"#\n", "project"),
        from_bytes("bundles.toml", "bundles.toml", bundles.encode() or b"#\n", "project"),
        from_bytes("routes.toml", "routes.toml", b"#\n", "project"),
        from_bytes("policy.toml", "policy.toml", b"#\n", "project"),
        from_bytes("router.toml", "router.toml", b"#\n", "project"),
    ]
    return [
        str(problem) for problem in resolve(files, {}).report.problems() if problem.level == "error"
    ]


def _imported(name: str) -> Any:
    text = (CLIENTS / name).read_text(encoding="utf-8")
    return import_clients(text, name, servers={"repo", "docs", "workspace"})


@pytest.mark.parametrize("name", NAMES)
def test_each_form_becomes_the_config_that_is_expected(name: str) -> None:
    found = _imported(name)
    notes = "".join(f"- {note}\n" for note in found.notes)
    text = (
        f"{found.servers}\n=== bundles\n{found.bundles}\n=== notes\n{notes}\n==="
        f" set\n{' '.join(found.variables)}\n"
    )
    golden = CLIENTS / f"{name}.expected"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_valid_config_and_untrusted(name: str) -> None:
    found = _imported(name)
    assert _errors(found.servers, found.bundles) == []
    assert all(
        row["trust"] == "untrusted" for row in tomllib.loads(found.servers)["servers"].values()
    )
    assert all(
        row["mode"] == "meta" for row in tomllib.loads(found.bundles).get("bundles", {}).values()
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_secret_is_written_or_said(name: str) -> None:
    found = _imported(name)
    everything = found.servers + found.bundles + " ".join(found.notes)
    assert not [secret for secret in SECRETS if secret in everything]


def test_importing_twice_adds_nothing() -> None:
    first = _imported("mcp.json")
    again = import_clients(
        (CLIENTS / "mcp.json").read_text(encoding="utf-8"),
        "mcp.json",
        servers={*first.names, "repo"},
        bundles=(),
    )
    assert (again.servers, again.bundles) == ("", "")
    assert sum("exists already" in note for note in again.notes) == len(first.names) + 1


def test_a_bundle_that_exists_is_left_as_it_is() -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x", "alwaysAllow": ["t"]}}})
    found = import_clients(text, "x.json", bundles={"thirdparty.a"})
    assert found.bundles == ""
    assert any("exists already" in note for note in found.notes)


def test_definitions_that_were_reviewed_here_before_give_its_bundles(
    definitions: list[dict[str, Any]],
) -> None:
    reviewed = admit(Server("a", "stdio", command="x"), definitions, "")
    pins = approve(Server("a", "stdio", command="x"), reviewed)
    text = json.dumps({"mcpServers": {"a": {"command": "x", "disabledTools": ["read"]}}})
    found = import_clients(text, "x.json", pins={"a": pins}.get)
    bundles = tomllib.loads(found.bundles)["bundles"]
    assert {id_: bundle["tools"] for id_, bundle in bundles.items()} == {"a.risky": ["a.send"]}
    again = import_clients(text, "x.json", pins={"a": pins}.get, bundles={"a.risky"})
    assert again.bundles == ""
    assert "a: bundle 'a.risky' exists already and was left as it is" in again.notes


def test_pinned_definitions_that_the_library_knows_bring_its_bundles(
    real_servers: list[dict[str, Any]],
) -> None:
    (listed,) = [row for row in real_servers if row["server"] == "time"]
    server = Server("clock", "stdio", command="x")
    pins = approve(server, admit(server, listed["tools"], listed["instructions"]))
    text = json.dumps({"mcpServers": {"clock": {"command": "x"}}})
    found = import_clients(
        text, "x.json", pins={"clock": pins}.get, library=read_library(), languages=["de"]
    )
    (bundle,) = tomllib.loads(found.bundles)["bundles"].values()
    assert bundle["tools"] == ["clock.convert_time", "clock.get_current_time"]
    assert bundle["effects"] == ["read"]
    assert "'time' of the library, revision 2" in found.bundles


def test_one_variable_never_stands_for_two_values() -> None:
    servers = {
        name: {"command": "x", "env": {"API_TOKEN": f"value-{name}"}} for name in ("one", "two")
    }
    found = import_clients(json.dumps({"mcpServers": servers}), "x.json")
    assert found.variables == ("API_TOKEN", "TWO_API_TOKEN")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "x.json"),
        ("{", "x.json"),
        ("[]", "x.json"),
        ("{}", "x.json"),
        ("[" * 100_000, "x.json"),
        ("a = [", "x.toml"),
        ("a." * 20_000 + "a = 1", "x.toml"),
        ('{"mcpServers": {}}', "x.json"),
        ('{"mcpServers": []}', "x.json"),
        (json.dumps({"mcpServers": {f"s{n}": {} for n in range(201)}}), "x.json"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_files_name(text: str, name: str) -> None:
    with pytest.raises(ImportProblem, match=f"^{name}:"):
        read_clients(text, name)


_words = st.text(max_size=12) | st.sampled_from(
    [
        "Authorization",
        "API_KEY",
        "${X}",
        "$Y",
        "Bearer abc",
        "https://a.example/mcp",
        "--token",
        "\x1b[0m",
    ]
)
_entries = st.fixed_dictionaries(
    {},
    optional={
        "command": _words,
        "url": _words,
        "args": st.lists(_words | st.integers(), max_size=3),
        "env": st.dictionaries(_words, _words, max_size=3),
        "headers": st.dictionaries(_words, _words, max_size=3),
        "alwaysAllow": st.lists(_words, max_size=3),
        "timeout": st.integers() | st.floats() | st.just(10**400) | _words,
    },
)


@given(st.dictionaries(_words, _entries, min_size=1, max_size=3))
def test_whatever_stands_there_what_is_written_is_valid(servers: dict[str, Any]) -> None:
    found = import_clients(json.dumps({"mcpServers": servers}), "x.json")
    assert _errors(found.servers, found.bundles) == []


def test_servers_whose_tools_are_not_known_are_said_at_once_with_the_command_that_lists_them() -> (
    None
):
    addresses = {name: {"url": f"https://{name}.example.com/mcp"} for name in ("b", "c")}
    text = json.dumps({"mcpServers": {"a": {"command": "prog"}, **addresses}})
    assert [note for note in import_clients(text, "x.json").notes if "lists them" in note] == [
        (
            "a: no tools are known, so the bundle is a comment: `bundle-router pin --development a`"
            " lists them"
        ),
        "b, c: no tools are known, so the bundle is a comment: `bundle-router pin b c` lists them",
    ]
