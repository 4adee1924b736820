"""What each setting of each program becomes, or why it is left out, row by row."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from bundle_router.review.imports import import_clients


def imported(
    entry: dict[str, Any] | str, name: str = ".mcp.json"
) -> tuple[dict[str, Any], str, tuple[str, ...]]:
    """Return the server `s` that the entry becomes, the notes and the variables to set."""
    text = entry if isinstance(entry, str) else json.dumps({"mcpServers": {"s": entry}})
    found = import_clients(text, name)
    servers = tomllib.loads(found.servers).get("servers", {})
    return servers.get("s", {}), "\n".join(found.notes), found.variables


PROGRAM = {"command": "node", "args": ["a.js"]}
REMOTE = {"url": "https://h.example/mcp"}

TIMEOUTS: dict[str, tuple[str, dict[str, Any], float | None, str]] = {
    "Cline": ("cline_mcp_settings.json", {"timeout": 300}, 300, ""),
    "Cline's longest": ("cline_mcp_settings.json", {"timeout": 3600}, 3600, ""),
    "Cline, copied from Gemini": ("cline_mcp_settings.json", {"timeout": 600_000}, 600, ""),
    "Roo Code": ("mcp_settings.json", {"timeout": 3600}, 3600, ""),
    "Roo Code in a project": ("mcp.json", {"timeout": 1800, "alwaysAllow": []}, 1800, ""),
    "Gemini CLI": ("settings.json", {"timeout": 600_000}, 600, ""),
    "Gemini CLI, short": ("settings.json", {"timeout": 3000}, 3, ""),
    "Gemini CLI, copied from Cline": ("settings.json", {"timeout": 60}, 60, "read as seconds"),
    "Codex": ("x.toml", {"tool_timeout_sec": 45}, 45, ""),
    "Codex, short": ("x.toml", {"tool_timeout_sec": 0.5}, 0.5, ""),
    "too long": ("settings.json", {"timeout": 10_000_000}, None, "longer than 3,600 s"),
    "Codex, too long": ("x.toml", {"tool_timeout_sec": 4000}, None, "longer than 3,600 s"),
    "no number": ("settings.json", {"timeout": "60s"}, None, "no number above 0"),
    "a boolean": ("settings.json", {"timeout": True}, None, "no number above 0"),
    "nothing": ("settings.json", {"timeout": 0}, None, "no number above 0"),
}


@pytest.mark.parametrize("who", TIMEOUTS)
def test_a_timeout_is_in_the_unit_of_its_program(who: str) -> None:
    name, more, seconds, said = TIMEOUTS[who]
    text: dict[str, Any] | str = {**PROGRAM, **more}
    if name.endswith(".toml"):
        text = f'[mcp_servers.s]\ncommand = "x"\ntool_timeout_sec = {more["tool_timeout_sec"]}\n'
    server, notes, _ = imported(text, name)
    assert server.get("timeout_s") == seconds
    assert said in notes
    assert bool(said) == ("timeout" in notes)


@pytest.mark.parametrize(
    ("written", "seconds", "said"),
    [
        ("startup_timeout_sec = 90", 90, ""),
        ("startup_timeout_ms = 20000", 20, ""),
        ("startup_timeout_sec = 0", None, "startup_timeout_sec is no number above 0"),
        ("startup_timeout_sec = 4000", None, "startup_timeout_sec is longer than 3,600 s"),
    ],
)
def test_codex_says_how_long_a_start_may_take(
    written: str, seconds: float | None, said: str
) -> None:
    server, notes, _ = imported(f'[mcp_servers.s]\ncommand = "x"\n{written}\n', "config.toml")
    assert server.get("connect_s") == seconds
    assert said in notes


VALUES: dict[str, tuple[Any, str | None, str, tuple[str, ...]]] = {
    # written: (what becomes of it, what is said, the variables to set)
    "Claude Code's variable": ("${REGION}", "${REGION}", "", ("REGION",)),
    "its default": ("${REGION:-eu}", "${REGION}", "falls back to was left out", ("REGION",)),
    "an empty default": ("${REGION:-}", "${REGION}", "falls back to was left out", ("REGION",)),
    "Cursor's variable": ("${env:REGION}", "${REGION}", "", ("REGION",)),
    "Gemini CLI's variable": ("$REGION", "${REGION}", "", ("REGION",)),
    "two of them": ("$REGION-$ZONE", "${REGION}-${ZONE}", "", ("REGION", "ZONE")),
    "VS Code's question": ("${input:my-id}", "${MY_ID}", "asks for it", ("MY_ID",)),
    "a plugin's question": ("${user_config.key}", "${KEY}", "asks for it", ("KEY",)),
    "Windsurf's file": ("${file:/run/k}", "${V}", "set V to the text of the file '/run/k'", ("V",)),
    "the project": ("${workspaceFolder}/a", "./a", "", ()),
    "Claude Code's project": ("${CLAUDE_PROJECT_DIR:-.}/a", "./a", "", ()),
    "Gemini CLI's project": ("${workspacePath}", ".", "", ()),
    "the home folder": ("${userHome}/x", "${HOME}/x", "", ("HOME",)),
    "a separator": ("a${/}b${pathSeparator}c", "a/b/c", "", ()),
    "a folder's name": ("${workspaceFolderBasename}", None, "which only the program knows", ()),
    "an editor's command": ("${command:x.y}", None, "which only the program knows", ()),
    "an editor's setting": ("${config:x.y}", None, "which only the program knows", ()),
    "a plugin's folder": ("${CLAUDE_PLUGIN_ROOT}/x", None, "the folder of a plugin", ()),
    "an extension's folder": ("${extensionPath}", None, "the folder of a plugin", ()),
    "a placeholder": ("{{zone}}", "{{zone}}", "'{{zone}}'", ()),
    "Windows' variable": ("%ZONE%", "%ZONE%", "'%ZONE%'", ()),
    "true": (True, "true", "", ()),
    "false": (False, "false", "", ()),
    "a whole number": (3, "3", "", ()),
    "a whole float": (5.0, "5", "", ()),
    "a float": (0.5, "0.5", "", ()),
    "null": (None, None, "", ()),
    "a list": (["a"], None, "only the first 200 that are text", ()),
}


@pytest.mark.parametrize("what", VALUES)
def test_a_value_of_env_and_of_headers(what: str) -> None:
    written, expected, said, variables = VALUES[what]
    server, notes, to_set = imported({**PROGRAM, "env": {"V": written}})
    assert server.get("env", {}).get("V") == expected
    assert said in notes
    assert to_set == variables
    header, header_notes, _ = imported({**REMOTE, "headers": {"V": written}})
    assert header.get("headers", {}).get("V") == expected
    assert said in header_notes


def test_a_credential_that_is_a_reference_stays_it() -> None:
    server, notes, variables = imported(
        {**REMOTE, "headers": {"Authorization": "Bearer $GITHUB_PAT"}}, "settings.json"
    )
    assert server["headers"] == {"Authorization": "Bearer ${GITHUB_PAT}"}
    assert variables == ("GITHUB_PAT",)
    assert "to the value that stands at" not in notes


def test_a_dollar_inside_a_password_is_no_reference() -> None:
    server, notes, variables = imported({**PROGRAM, "env": {"DB_PASSWORD": "pa$WORD"}})
    assert server["env"] == {"DB_PASSWORD": "${DB_PASSWORD}"}
    assert variables == ("DB_PASSWORD",)
    assert "set DB_PASSWORD to the value that stands at" in notes


ADDRESSES: dict[str, tuple[str, str | None, bool, str]] = {
    # written: (address here, whether it is on, what is said)
    "a default": (
        "${API:-https://a.example}/mcp",
        "https://a.example/mcp",
        True,
        "the default of ${API:-https://a.example} stands there",
    ),
    "a default in the middle": (
        "https://${HOST:-a.example}/mcp",
        "https://a.example/mcp",
        True,
        "the default of",
    ),
    "a reference": ("https://${HOST}/mcp", None, False, "refers to ${HOST}, and an address can't"),
    "the whole": ("${API}/mcp", None, False, "refers to ${API}, and an address can't"),
    "Gemini's": ("https://$HOST/mcp", None, False, "refers to $HOST, and an address can't"),
    "an editor's": ("https://a/${config:x}", None, False, "refers to ${config:x}"),
    "a parameter": (
        "https://a.example/mcp?key=${KEY}&team=blue",
        "https://a.example/mcp?team=blue",
        False,
        "its address referred to a variable",
    ),
    "a credential": (
        "https://a.example/mcp?api_key=abc",
        "https://a.example/mcp",
        False,
        "its address held a credential",
    ),
    "a user": (
        "https://u:p@a.example/mcp",
        "https://a.example/mcp",
        False,
        "its address held a credential",
    ),
    "a fragment": (
        "https://a.example/mcp#tools",
        "https://a.example/mcp",
        True,
        "its address had a fragment",
    ),
    "a dense path": (
        "https://a.example/a1b2c3d4e5f6a7b8c9d0e1/mcp",
        None,
        False,
        "holds what looks like a credential in its path",
    ),
    "another scheme": ("wss://a.example/mcp", None, False, "is not an http or https address"),
    "no address": ("https://[a", None, False, "is not an http or https address"),
}


@pytest.mark.parametrize("what", ADDRESSES)
def test_an_address_is_taken_over_or_left_out_with_the_true_reason(what: str) -> None:
    written, url, is_on, said = ADDRESSES[what]
    server, notes, _ = imported({"url": written})
    assert server.get("url") == url
    assert said in notes
    assert ("credential" in notes) == ("credential" in said)
    if url is not None:
        assert server.get("enabled", True) is is_on


ARGUMENTS: dict[str, tuple[str, Any, list[str] | None, bool, str]] = {
    "a plugin's folder": (
        "node",
        ["${CLAUDE_PLUGIN_ROOT}/s.js"],
        ["TAKEN-OUT/s.js"],
        False,
        "${CLAUDE_PLUGIN_ROOT} (the folder of a plugin, which is not known here)",
    ),
    "a variable": ("node", ["--k=${K}"], ["--k=TAKEN-OUT"], False, "its arguments refer to ${K}"),
    "Gemini's variable": ("node", ["--k=$K"], ["--k=TAKEN-OUT"], False, "refer to $K"),
    "a shell's variable": ("/bin/sh", ["-c", "echo $K"], ["-c", "echo $K"], True, ""),
    "a default": ("node", ["--p=${P:-80}"], ["--p=80"], True, "the default of ${P:-80}"),
    "a secret by default": (
        "node",
        ["--token", "${T:-abc}"],
        ["--token", "TAKEN-OUT"],
        False,
        "argument 2 held a secret",
    ),
    "the project": ("node", ["${workspaceFolder}/a"], ["./a"], True, "folder is '.' here"),
    "true": ("node", ["--x", True], ["--x", "true"], True, ""),
    "a text": ("node", "-y x", None, True, "args are no list"),
    "a list in it": ("node", ["a", ["b"]], ["a"], True, "args: only the first 200"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_an_argument_is_taken_over_or_taken_out_with_the_true_reason(what: str) -> None:
    command, written, args, is_on, said = ARGUMENTS[what]
    server, notes, _ = imported({"command": command, "args": written})
    assert server.get("args") == args
    assert server.get("enabled", True) is is_on
    assert said in notes


def test_a_command_that_refers_to_something_is_left_out_with_that_reason() -> None:
    server, notes, _ = imported({"command": "${CLAUDE_PLUGIN_ROOT}/bin/s"})
    assert server == {}
    assert "its command refers to ${CLAUDE_PLUGIN_ROOT}, and a command can't do so here" in notes


@pytest.mark.parametrize(
    ("written", "is_on"),
    [("/srv/x", False), ("sub", False), (".", True), ("${workspaceFolder}", True), ("./", True)],
)
def test_a_program_that_starts_elsewhere_is_switched_off(written: str, is_on: bool) -> None:
    server, notes, _ = imported({**PROGRAM, "cwd": written})
    assert server.get("enabled", True) is is_on
    assert ("starts in the folder" in notes) is not is_on


LOGINS: dict[str, tuple[dict[str, Any], str | None, str]] = {
    "Claude Code": (
        {"oauth": {"clientId": "cid-1", "callbackPort": 3118}},
        "cid-1",
        "`bundle-router login s --port 3118`",
    ),
    "Gemini CLI": (
        {"oauth": {"enabled": True, "clientId": "cid-1", "scopes": ["x"]}},
        "cid-1",
        "left out: scopes",
    ),
    "Cursor": (
        {"auth": {"CLIENT_ID": "cid-1", "CLIENT_SECRET": "abc", "scopes": ["x"]}},
        "cid-1",
        "a client's secret can't be given here",
    ),
    "without a client": ({"oauth": {}}, None, "`bundle-router login s`"),
    "a switch": ({"oauth": True}, None, "`bundle-router login s`"),
    "a word": ({"auth": "oauth"}, None, "`bundle-router login s`"),
    "a reference": ({"oauth": {"clientId": "${CID}"}}, None, "set client_id"),
}


@pytest.mark.parametrize("who", LOGINS)
def test_a_login_over_oauth_is_taken_over(who: str) -> None:
    more, client_id, said = LOGINS[who]
    server, notes, _ = imported({**REMOTE, **more})
    assert (server["auth"], server.get("client_id")) == ("oauth", client_id)
    assert said in notes
    assert "abc" not in notes
    assert "equivalent" not in notes


@pytest.mark.parametrize("more", [{"oauth": False}, {"oauth": {"enabled": False}}])
def test_a_login_that_is_switched_off_is_none(more: dict[str, Any]) -> None:
    server, notes, _ = imported({**REMOTE, **more})
    assert "auth" not in server
    assert "OAuth" not in notes


def test_a_header_with_a_credential_comes_before_a_login() -> None:
    entry = {**REMOTE, "oauth": {"clientId": "c"}, "headers": {"authorization": "Bearer ${T}"}}
    server, notes, _ = imported(entry)
    assert "auth" not in server
    assert server["headers"] == {"authorization": "Bearer ${T}"}
    assert "has a header Authorization, so its OAuth settings were left out" in notes


def test_of_a_key_that_stands_twice_the_last_is_taken_and_said() -> None:
    text = (
        '{"mcpServers": {"s": {"command": "old"}, "s": {"command": "new", "env": {"A": "1", "A":'
        ' "2"}}}}'
    )
    server, notes, _ = imported(text)
    assert (server["command"], server["env"]) == ("new", {"A": "2"})
    assert ".mcp.json: 's' stands twice in one table" in notes
    assert ".mcp.json: 'A' stands twice in one table" in notes


def test_a_header_in_two_spellings_is_one_header() -> None:
    server, notes, _ = imported({**REMOTE, "headers": {"X-Team": "a", "x-team": "b"}})
    assert server["headers"] == {"x-team": "b"}
    assert "header 'x-team' stands twice" in notes


def test_two_servers_with_one_name_here_are_told_apart_from_one_that_exists() -> None:
    text = json.dumps({"mcpServers": {"S": {"command": "one"}, "s": {"command": "two"}}})
    server, notes, _ = imported(text)
    assert server["command"] == "one"
    assert "mcpServers.s would have the same name here as one before it" in notes
    assert "exists already" not in notes


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [("stdio", "command", "the address was left out"), ("http", "url", "the command was left out")],
)
def test_of_a_command_and_an_address_the_type_decides(kind: str, key: str, said: str) -> None:
    server, notes, _ = imported({**PROGRAM, **REMOTE, "type": kind})
    assert key in server
    assert said in notes
