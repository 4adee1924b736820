"""Secrets that are called as names (S-46): redacted whole, before anything takes a name apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step
from bundle_router.errors import RequestError

from tests.command_line import run

CONFIG = Path(__file__).parents[2] / "config"
WORD = "4nT9xV2mK4pL8nR3"
TOKENS = {
    "sendgrid": f"SG.{WORD}4nT9xV.{WORD}{WORD}4nT9xV2mK4p",
    "vault": "hvs." + WORD * 6,
    "google": "ya29." + WORD * 7,
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + WORD * 2 + "4nT9xV2mK4p",
    "doppler": f"dp.pt.{WORD}{WORD}4nT9xV2mK4p",
    "discord": "MTE4NjQ1Nzg5MDEyMzQ1Njc4OQ.GkL2Qw.7TzCgYIARAAGBASNwF4nT9xV2mK4pL8",
    "github installation": f"ghs_{WORD}_{WORD}.{WORD}-{WORD}",
    "gitlab": f"glwt-{WORD}{WORD}.01.0f9e8d7c6",
    "google express": "AQ.Ab8" + WORD * 3,
    "without a dot": "ghp_" + WORD * 2 + "kL9x",
}
SPELLINGS = {
    "bare": "{}",
    "for Claude Code": "mcp__{}",
    "for Claude Code, of a server": "mcp__repo__{}",
    "of a server": "repo.{}",
    "of a server, as shown": "repo__{}",
    "as a server": "{}.read_file",
    "between spaces": " {} ",
}
FOUND_IN_TEXT = ("bare", "of a server", "between spaces")
"""Spellings in which free text (the arguments of `call_tool`) is redacted, too: not a token within
a word (security/runs.md).
"""


def step(**changes: Any) -> Step:
    base = {"run_id": "r", "workflow": "feature", "role": "reviewer", "step": "review"}
    return Step.model_validate(base | changes)


def stray_parts(token: str, folder: Path) -> list[str]:
    """Return the files beneath a folder that hold a token, or what follows its first dot."""
    parts = {token.encode(), token.partition(".")[2].encode() or token.encode()}
    return sorted(
        {
            path.name
            for path in folder.rglob("*")
            if path.is_file() and any(part in path.read_bytes() for part in parts)
        }
    )


def test_a_secret_that_is_called_as_a_tool_stands_in_no_record_index_or_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    shown: list[str] = []
    with Router.open(CONFIG, runs=runs, workspace=tmp_path) as router:
        router.route_sync(step())
        for kind, token in TOKENS.items():
            for spelling, form in SPELLINGS.items():
                name = form.format(token)
                results = [router.call_sync("r", name, {}), router.missed_sync("r", name)]
                if spelling in FOUND_IN_TEXT:
                    results += [
                        router.call_sync("r", "call_tool", {"name": name, "arguments": {}}),
                        router.call_sync("r", "search_tools", {"query": f"select:{name}"}),
                        router.call_sync("r", "get_tool_details", {"name": name}),
                    ]
                for result in results:
                    assert not result.ok, (kind, spelling)
                    if token in result.text + result.tool:
                        shown.append(f"{kind}, {spelling}: {result.tool}")
    assert shown == []
    printed = [*capsys.readouterr()]
    for words in (["show", "r"], ["stats"], ["list"], ["index"], ["verify"]):
        done = run(tmp_path, "runs", *words, "--runs", runs)
        printed += [done.stdout, done.stderr]
    (tmp_path / "output").write_text("".join(printed), encoding="utf-8")
    stray = {kind: stray_parts(token, tmp_path) for kind, token in TOKENS.items()}
    assert {kind: files for kind, files in stray.items() if files} == {}


def test_a_name_that_is_too_long_is_redacted_before_it_is_cut(tmp_path: Path) -> None:
    token = TOKENS["vault"]
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(step())
        for before in range(160, 200, 4):
            router.call_sync("r", "x" * before + " " + token, {})
    assert b"hvs.4nT9xV" not in b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    )


QUOTED: tuple[tuple[str, str | None], ...] = (
    ("list_tools", "bundle"),
    ("search_tools", None),
    ("call_tool", None),
    ("read_artifact", "uri"),
    ("search_artifact", "uri"),
    ("repo.ripgrep", "pattern"),
    ("docs.fetch", "url"),
)
"""Calls whose failure quotes the caller: the tool, and the argument (None: the argument's name)."""


@pytest.mark.parametrize(("tool", "argument"), QUOTED)
def test_no_message_quotes_a_secret_up_to_the_place_where_the_quote_is_cut(
    tmp_path: Path, tool: str, argument: str | None
) -> None:
    tokens = (TOKENS["vault"], "key_" + "0f9e8d7c6b5a4938" * 8)
    opening = "([" if tool == "repo.ripgrep" else ""
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=tmp_path) as router:
        for number, token in enumerate(tokens):
            router.route_sync(step(run_id=f"r{number}"))
            for before in range(0, 320, 12):
                quoted = opening + "x" * before + " " * (before > 0) + token
                arguments: dict[str, Any] = {argument or quoted: quoted, "pattern": quoted}
                if argument is not None and tool not in ("search_artifact", "repo.ripgrep"):
                    del arguments["pattern"]
                assert not router.call_sync(f"r{number}", tool, arguments).text.startswith("{")
    stored = [path.read_bytes() for path in tmp_path.rglob("*.jsonl")]
    assert stored
    for token in tokens:
        assert not any(token[:24].encode() in part for part in stored)


FIXED_FIELDS = (
    "run_id",
    "parent_run_id",
    "principal",
    "key",
    "branch",
    "parent_decision_id",
    "workspace",
)
"""Fields of a step that records keep as they are."""


@pytest.mark.parametrize("kind", TOKENS)
def test_no_message_quotes_a_secret_that_stands_for_a_run_or_a_decision(
    tmp_path: Path, kind: str
) -> None:
    token = TOKENS[kind]
    with Router.open(CONFIG, runs=tmp_path / "runs", workspace=tmp_path) as router:
        router.route_sync(step())
        attempts: dict[str, Callable[[], object]] = {
            "call": partial(router.call_sync, token, "x", {}),
            "tools": partial(router.tools_sync, token),
            "close": partial(router.close_run_sync, token),
            "artifact": partial(router.artifact, token, "0" * 64),
            "decision of a call": partial(router.call_sync, "r", "x", {}, decision=token),
            "decision of tools": partial(router.tools_sync, "r", decision=token),
            "key of a call": partial(router.call_sync, "r", "x", {}, key=token),
        }
        for field in FIXED_FIELDS:
            attempts[field] = partial(router.route_sync, step(**{field: token}))
        quoted = []
        for what, attempt in attempts.items():
            with pytest.raises(RequestError) as refused:
                attempt()
            if token in f"{refused.value} {refused.value.advice}":
                quoted.append(what)
        assert quoted == []
    assert stray_parts(token, tmp_path) == []
