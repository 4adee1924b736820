"""OAuth against a server that is its own authorization server: who gets a token, who is shown what,
what is kept.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from bundle_router.adapters.mcp import McpSessions
from bundle_router.adapters.mcp.authorization import Authorization
from bundle_router.adapters.mcp.receiver import is_safe_to_show
from bundle_router.adapters.mcp.tokens import TokenFile, default_folder
from bundle_router.core.servers.transport.tool_servers import Scope


class Person:
    """Opens what is shown and comes back with a code."""

    redirect_uri = "http://127.0.0.1:9/callback"

    def __init__(self) -> None:
        self.shown: list[str] = []

    async def show(self, url: str) -> None:
        self.shown.append(url)

    async def answer(self) -> tuple[str, str | None, str | None]:
        return "the-code", parse_qs(urlsplit(self.shown[-1]).query)["state"][0], None

    async def finish(self, is_authorized: bool) -> None:
        """Nobody looks at a page here."""


@contextmanager
def guarded(bench: Any) -> Iterator[Any]:
    """The fault server, which wants a token and gives out `t-1`, `t-2`, … Its `login` is the
    authorization address.
    """

    class Handler(bench.faults.Handler):  # type: ignore[misc]  # a module loaded by its path
        def do_GET(self) -> None:
            self.server.heard.append(dict(self.headers))
            here = f"http://127.0.0.1:{self.server.server_port}"
            base = f"http://127.0.0.1:{self.server.issuer.server_port}"
            documents = {
                "/.well-known/oauth-protected-resource/mcp": {
                    "resource": here + "/mcp",
                    "authorization_servers": [base],
                },
                "/.well-known/oauth-authorization-server": {
                    "issuer": base,
                    "authorization_endpoint": self.server.login or base + "/authorize",
                    "token_endpoint": base + "/token",
                    "registration_endpoint": base + "/register",
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none"],
                },
            }
            found = documents.get(self.path)
            self.answer(200 if found else 404, json.dumps(found).encode())

        def do_POST(self) -> None:
            self.server.heard.append(dict(self.headers))
            if self.path == "/mcp":
                if self.headers.get("authorization") in [
                    f"Bearer {token}" for token in self.server.valid
                ]:
                    super().do_POST()
                else:
                    self.rfile.read(int(self.headers["content-length"]))
                    self.answer(401, b"", extra={"www-authenticate": "Bearer"})
                return
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            if self.path == "/register":
                self.answer(201, json.dumps({**json.loads(body), "client_id": "us"}).encode())
                return
            self.server.asked.append({name: values[0] for name, values in parse_qs(body).items()})
            if self.server.refuses:
                self.answer(self.server.refuses, b'{"error": "invalid_grant"}')
                return
            self.server.issued += 1
            self.server.valid.append(f"t-{self.server.issued}")
            token = {
                "access_token": self.server.valid[-1],
                "token_type": "Bearer",
                "refresh_token": "r-1",
            }
            self.answer(200, json.dumps({**token, "expires_in": 3600}).encode())

    with bench.faults.serving() as server:
        server.RequestHandlerClass, server.issuer, server.heard = Handler, server, []
        server.refuses = 0
        server.issued, server.valid, server.asked, server.login = 0, [], [], ""
        yield server


def test_a_person_authorizes_once_and_the_token_is_kept_privately_for_that_server(
    bench: Any, tmp_path: Path
) -> None:
    person = Person()
    folder = tmp_path / "state" / "tokens"

    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"

    with guarded(bench) as server:
        bench.run(
            main, bench.http(server, auth="oauth"), authorization=Authorization(folder, person)
        )
        assert len(person.shown) == 1
        assert [asked["grant_type"] for asked in server.asked] == ["authorization_code"]
        assert server.asked[0]["resource"] == server.url

        (kept,) = folder.iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert json.loads(kept.read_text())["tokens"]["access_token"] == "t-1"

        bench.run(main, bench.http(server, auth="oauth"), authorization=Authorization(folder))
        assert len(server.asked) == 1
        assert "t-1" not in repr(bench.events.rows)

    with guarded(bench) as other:
        other.valid = ["t-1"]

        async def refused(sessions: McpSessions) -> None:
            assert (await bench.call(sessions, "echo", text="x")).code == "unauthorized"

        bench.run(refused, bench.http(other, auth="oauth"), authorization=Authorization(folder))
        assert all(
            "authorization" not in {name.lower() for name in headers}
            for _, _, headers in other.seen
        )


def test_tokens_that_ran_out_are_refreshed_without_a_person_even_after_a_restart(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert bench.said(await bench.call(sessions, "echo", text="hello")) == "hello"

    with guarded(bench) as server:
        bench.run(
            main,
            bench.http(server, auth="oauth"),
            authorization=Authorization(tmp_path / "t", Person()),
        )
        TokenFile(tmp_path / "t", server.url, "").write(until=1.0)
        before = len(server.asked)
        bench.run(
            main, bench.http(server, auth="oauth"), authorization=Authorization(tmp_path / "t")
        )
        assert {asked["grant_type"] for asked in server.asked[before:]} == {"refresh_token"}
        assert server.asked[-1]["refresh_token"] == "r-1"


def test_a_token_that_is_no_longer_taken_and_can_not_be_replaced_is_unauthorized(
    bench: Any, tmp_path: Path
) -> None:
    async def refused(sessions: McpSessions) -> None:
        result = await bench.call(sessions, "echo", text="x")
        assert (result.outcome, result.code) == ("unavailable", "unauthorized")

    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    with guarded(bench) as server:
        bench.run(
            main,
            bench.http(server, auth="oauth"),
            authorization=Authorization(tmp_path / "t", Person()),
        )
        server.valid.clear()
        server.refuses = 400
        bench.run(
            refused, bench.http(server, auth="oauth"), authorization=Authorization(tmp_path / "t")
        )


def test_principals_have_tokens_of_their_own(bench: Any, tmp_path: Path) -> None:
    async def main(sessions: McpSessions) -> None:
        assert (
            await bench.call(sessions, "echo", text="x", scope=Scope(principal="ann"))
        ).outcome == "ok"

    async def other(sessions: McpSessions) -> None:
        assert (
            await bench.call(sessions, "echo", text="x", scope=Scope(principal="ben"))
        ).code == "unauthorized"

    with guarded(bench) as server:
        bench.run(
            main,
            bench.http(server, auth="oauth"),
            authorization=Authorization(tmp_path / "t", Person()),
        )
        bench.run(
            other, bench.http(server, auth="oauth"), authorization=Authorization(tmp_path / "t")
        )


@pytest.mark.parametrize(
    "login", ["http://login.example/authorize", "https://me:secret@login.example/"]
)
def test_an_address_that_nobody_should_open_is_shown_to_nobody(
    bench: Any, tmp_path: Path, login: str
) -> None:
    person = Person()

    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).code == "unauthorized"

    with guarded(bench) as server:
        server.login = login
        bench.run(
            main,
            bench.http(server, auth="oauth"),
            authorization=Authorization(tmp_path / "t", person),
        )
    assert person.shown == []


def test_a_configured_header_stays_with_its_server_while_another_issues_the_tokens(
    bench: Any, tmp_path: Path
) -> None:
    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).outcome == "ok"

    with guarded(bench) as server, guarded(bench) as issuer:
        server.issuer, server.valid = issuer, issuer.valid
        entry = replace(bench.http(server, auth="oauth"), headers=(("X-Key", "k-1"),))
        bench.run(main, entry, authorization=Authorization(tmp_path / "t", Person()))
        assert issuer.asked
        assert "k-1" not in repr(issuer.heard)
        assert "k-1" in repr(server.heard)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://login.example/authorize?x=1", True),
        ("http://127.0.0.1:8000/authorize", True),
        ("http://localhost/authorize", True),
        ("http://login.example/", False),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("file:///etc/passwd", False),
        ("--flag", False),
        ("https://x/$(touch${IFS}y)", False),
        ("https://x/`id`", False),
        ("https://x/'", False),
        ("https://x/a b", False),
        ("vbscript:x", False),
        ("//x/authorize", False),
        ("https://x/\x1b[2J", False),
        ("https://x/\N{RIGHT-TO-LEFT OVERRIDE}", False),
        ("https://me@x/", False),
        ("https://[bad/", False),
        ("", False),
    ],
)
def test_what_may_be_put_before_a_person(url: str, safe: bool) -> None:
    assert is_safe_to_show(url) is safe


def test_a_server_that_has_no_such_authorization_is_asked_for_none(
    bench: Any, tmp_path: Path
) -> None:
    person = Person()

    async def main(sessions: McpSessions) -> None:
        assert (await bench.call(sessions, "echo", text="x")).code == "unauthorized"

    with guarded(bench) as server:
        bench.run(main, bench.http(server), authorization=Authorization(tmp_path / "t", person))
    assert person.shown == []
    assert not (tmp_path / "t").exists()


def test_a_token_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    file = TokenFile(tmp_path, "https://x/mcp", "")
    file.write(tokens={"a": 1})
    assert file.read("tokens") == {"a": 1}
    (kept,) = tmp_path.iterdir()
    kept.chmod(0o644)
    assert file.read("tokens") is None
    kept.chmod(0o600)
    kept.write_text(json.dumps({"server": "https://y/mcp", "tokens": {"a": 1}}))
    assert file.read("tokens") is None


def test_tokens_are_kept_in_the_users_data_folder(tmp_path: Path) -> None:
    assert default_folder({"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "bundle-router" / "tokens"
    assert (
        default_folder({"XDG_DATA_HOME": "relative"})
        == Path.home() / ".local/share/bundle-router/tokens"
    )
