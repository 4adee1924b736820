"""OAuth from a person's login to calls that nobody attends: a real issuer, a guarded server and the
verb, over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import stat
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from bundle_router.adapters.mcp import McpSessions, open_mcp_sessions
from bundle_router.adapters.mcp.authorization import Authorization
from bundle_router.adapters.mcp.faults import ServerFault
from bundle_router.adapters.mcp.oauth import may_leave_for
from bundle_router.adapters.mcp.receiver import Receiver
from bundle_router.adapters.mcp.tokens import TokenFile
from bundle_router.core.servers.transport.tool_servers import EVERYONE
from bundle_router.testing import FakeClock

from tests.command_line import watch
from tests.ports import free_port
from tests.service.conftest import listening_ports

COMMAND = "bundle-router login s"


def browse(url: str) -> None:
    """What a browser does with the address: goes there, and where it is sent from there."""
    with urllib.request.urlopen(url, timeout=300) as response:
        response.read()


class Desk:
    """A project whose one server wants to be authorized, its issuer, and somebody who types
    commands.
    """

    def __init__(self, project: Any, bench: Any, issuer: Any, server: Any, data: Path) -> None:
        self.project, self.bench, self.issuer, self.server, self.data = (
            project,
            bench,
            issuer,
            server,
            data,
        )

    @property
    def folder(self) -> Path:
        return self.data / "bundle-router" / "tokens"

    def log_in(
        self,
        *words: str,
        code: int = 0,
        open_it: Callable[[str], None] = browse,
        before: tuple[str, ...] = (),
    ) -> tuple[str, str]:
        """Types the command and opens the address it prints, if it prints one; its standard output
        and error.
        """

        def read(line: str) -> None:
            if line.strip().startswith(("http://", "https://")):
                open_it(line.strip())

        status, out, err = watch(
            self.project.root, "login", *(words or ("s",)), on_line=read, before=before
        )
        assert status == code, out + err
        return out, err

    def authorize(self) -> None:
        """A login without the command: what most tests begin with."""

        class Person(Receiver):
            async def show(self, url: str) -> None:
                await super().show(url)
                asyncio.get_running_loop().run_in_executor(None, browse, url)

        async def main() -> None:
            person = Person(lambda url: None)
            sessions = self.sessions(Authorization(self.folder, person))
            try:
                await sessions.definitions("s")
            finally:
                await sessions.close()
                person.close()

        asyncio.run(asyncio.wait_for(main(), 300))

    def sessions(self, authorization: Authorization | None = None) -> McpSessions:
        server = self.bench.http(self.server, auth="oauth")
        return open_mcp_sessions(
            {"s": server},
            clock=FakeClock(),
            diagnostics=self.bench.events,
            authorization=authorization,
        )

    def run_out(self) -> None:
        """Has the tokens be of yesterday."""
        TokenFile(self.folder, self.server.url, "").write(until=time.time() - 86_400)


@pytest.fixture
def desk(
    project: Any, bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    data = tmp_path / "data"
    monkeypatch.setenv("XDG_DATA_HOME", str(data))
    with bench.issuers.Issuer() as issuer, bench.faults.serving() as server:
        project.http(server.url, tools='tools = ["s.echo", "s.sleep"]', auth="oauth")
        open_to_all = server.RequestHandlerClass
        project.pin()
        server.RequestHandlerClass = bench.issuers.guarded_by(issuer, open_to_all)
        server.seen.clear()
        yield Desk(project, bench, issuer, server, data)


def refused(decision: Any) -> str:
    """Why the decision leaves the bundle out."""
    (row,) = [row for row in decision.left_out if row.id == "faults"]
    assert row.code == "server_unavailable"
    return str(row.detail)


async def call(sessions: McpSessions, tool: str = "echo", **given: Any) -> Any:
    return await sessions.call("s", tool, given, timeout_s=60.0, scope=EVERYONE)


def test_a_server_says_which_command_opens_it_and_is_open_to_a_running_router_after_it(
    desk: Desk,
) -> None:
    with desk.project.open() as router:
        assert COMMAND in refused(router.route_sync(desk.project.step("before")))
        assert desk.server.seen == [], "it is not asked without a token"

        out, err = desk.log_in()
        assert out == "s: authorized; it lists 13 tools\n"
        assert f"{desk.issuer.url}/authorize?" in err

        deadline = time.monotonic() + 300
        while "faults" not in router.route_sync(desk.project.step("after")).bundle_ids:
            assert time.monotonic() < deadline
        assert router.call_sync("after", "s.echo", {"text": "hello"}).text == "hello"
    assert desk.issuer.grants() == ["authorization_code"]
    (_, _, _, token) = next(row for row in desk.issuer.requests if row[1] == "/token")
    assert token["resource"] == desk.server.url


def test_no_request_to_an_issuer_or_its_server_holds_a_login_of_netrc(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password hunter2\ndefault login me password x\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    desk.authorize()
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        assert router.call_sync("r", "s.echo", {"text": "first"}).ok
    held = [
        value
        for _, _, headers, _ in desk.issuer.requests
        for name, value in headers.items()
        if name.lower() == "authorization"
    ]
    assert (held, len(desk.issuer.requests) >= 3) == ([], True)


def test_tokens_are_for_their_owner_alone_and_stand_in_no_record(
    desk: Desk, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desk.authorize()
    (kept,) = [path for path in desk.folder.iterdir() if path.suffix == ".json"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.folder.stat().st_mode) == 0o700
    given = desk.issuer.secrets
    assert len(given) == 2
    assert all(secret in kept.read_text() for secret in given)
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        assert router.call_sync("r", "s.echo", {"text": "first"}).ok
        for secret in sorted(given):
            assert router.call_sync("r", "s.echo", {"text": f"I was sent {secret}."}).ok
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "runs").rglob("*.json*") if path.is_file()
    )
    shown = "".join(capfd.readouterr())
    assert b"I was sent [redacted:token:s]." in written
    assert not [secret for secret in given if secret.encode() in written or secret in shown]


def test_tools_that_read_files_do_not_read_tokens_even_where_the_workspace_holds_them(
    desk: Desk,
) -> None:
    desk.authorize()
    (desk.project.config / "routes.toml").write_text(
        '[[routes]]\nname = "all"\nbundles = ["repo.readonly"]\n'
    )
    (kept,) = [path for path in desk.folder.iterdir() if path.suffix == ".json"]
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        relative = str(kept.relative_to(desk.project.root))
        result = router.call_sync("r", "repo.read_file", {"path": relative})
        assert result.outcome != "ok"
        assert "access_token" not in result.text


def test_tokens_are_renewed_once_by_all_who_need_them_at_the_same_time(desk: Desk) -> None:
    """The issuer ends everything when a refresh token comes twice."""
    desk.authorize()
    desk.run_out()

    async def main() -> list[Any]:
        both = [desk.sessions(), desk.sessions()]
        try:
            calls = [call(sessions, text=str(number)) for number in range(8) for sessions in both]
            return await asyncio.gather(*calls)
        finally:
            for sessions in both:
                await sessions.close()

    results = asyncio.run(asyncio.wait_for(main(), 300))
    assert {result.outcome for result in results} == {"ok"}
    assert desk.issuer.grants() == ["authorization_code", "refresh_token"]


def test_a_call_that_ends_while_its_token_is_renewed_loses_no_authorization(desk: Desk) -> None:
    """The issuer has taken the refresh token by then, and takes it once."""
    desk.authorize()

    async def main() -> Any:
        sessions = desk.sessions()
        try:
            assert (await call(sessions, text="x")).outcome == "ok"
            desk.run_out()
            desk.issuer.answers.clear()
            ended = asyncio.create_task(call(sessions, text="y"))
            await desk.bench.until(desk.issuer.refreshed.is_set)
            ended.cancel()
            await desk.bench.until(lambda: not sessions.status()[0].running)
            desk.issuer.answers.set()
            return await call(sessions, text="z")
        finally:
            desk.issuer.answers.set()
            await sessions.close()

    assert asyncio.run(asyncio.wait_for(main(), 300)).outcome == "ok"
    assert desk.issuer.grants() == ["authorization_code", "refresh_token"]


def test_a_large_answer_is_whole_where_its_token_was_renewed_first(desk: Desk) -> None:
    desk.authorize()

    async def main() -> list[Any]:
        sessions = desk.sessions()
        try:
            first = await call(sessions, text="x")
            desk.run_out()
            return [first, await call(sessions, text="x" * 400_000)]
        finally:
            await sessions.close()

    first, large = asyncio.run(asyncio.wait_for(main(), 300))
    assert (first.outcome, large.outcome) == ("ok", "ok")
    assert sum(len(block.text) for block in large.blocks) == 400_000
    assert desk.issuer.grants() == ["authorization_code", "refresh_token"]


@pytest.mark.parametrize(
    "issued",
    [
        {"access_token": ""},
        {"access_token": "a\r\nx-admin: 1"},
        {"access_token": "tökén"},
        {"access_token": "a b"},
        {"expires_in": 10**400},
    ],
)
def test_a_token_that_no_request_can_carry_is_neither_kept_nor_sent(
    desk: Desk, issued: dict[str, Any]
) -> None:
    desk.issuer.issued = issued
    _, err = desk.log_in(code=4)
    assert "the authorization failed" in err
    assert keeps_nothing(desk)
    desk.issuer.issued = {}
    desk.authorize()
    desk.run_out()
    desk.issuer.issued = issued

    async def main() -> Any:
        sessions = desk.sessions()
        try:
            return await call(sessions, text="x")
        finally:
            await sessions.close()

    result = asyncio.run(asyncio.wait_for(main(), 300))
    assert (result.outcome, result.code) == ("unavailable", "unauthorized")
    assert COMMAND in result.blocks[0].text


def test_a_token_that_was_taken_back_is_renewed_and_the_call_made_once(desk: Desk) -> None:
    desk.authorize()
    desk.issuer.revoke()
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        assert router.call_sync("r", "s.echo", {"text": "x"}).ok
    assert desk.server.faults.calls == 1
    assert desk.issuer.grants() == ["authorization_code", "refresh_token"]


def test_an_authorization_that_was_withdrawn_needs_the_command_again(desk: Desk) -> None:
    desk.authorize()
    desk.issuer.revoke(refreshes=True)
    asked = len(desk.issuer.requests)
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        result = router.call_sync("r", "s.echo", {"text": "x"})
        assert (result.outcome, result.code) == ("unavailable", "server_unavailable")
        assert COMMAND in result.text
    with desk.project.open() as router:
        assert COMMAND in refused(router.route_sync(desk.project.step("again")))
    assert {path for _, path, _, _ in desk.issuer.requests[asked:]} == {"/token"}, (
        "nobody was there to be asked"
    )
    desk.authorize()
    with desk.project.open() as router:
        router.route_sync(desk.project.step("third"))
        assert router.call_sync("third", "s.echo", {"text": "x"}).ok


def test_a_token_that_can_not_be_renewed_makes_its_server_unavailable_when_it_runs_out(
    desk: Desk,
) -> None:
    desk.issuer.refreshable = False
    desk.authorize()
    with desk.project.open() as router:
        assert "faults" in router.route_sync(desk.project.step("fresh")).bundle_ids
    desk.run_out()
    with desk.project.open() as router:
        why = refused(router.route_sync(desk.project.step("old")))
    assert "ran out" in why
    assert COMMAND in why


@pytest.mark.parametrize("gone", [False, True])
def test_an_issuer_in_trouble_costs_the_call_and_not_the_authorization(
    desk: Desk, gone: bool
) -> None:
    desk.authorize()
    desk.run_out()
    file = TokenFile(desk.folder, desk.server.url, "")
    issuer = file.read("issuer")
    desk.issuer.token_status = 503
    if gone:
        file.write(issuer={**issuer, "token_endpoint": f"http://127.0.0.1:{free_port()}/token"})

    async def main() -> tuple[Any, Any]:
        sessions = desk.sessions()
        try:
            failed = await call(sessions, text="x")
            desk.issuer.token_status = 200
            file.write(issuer=issuer)
            return failed, await call(sessions, text="x")
        finally:
            await sessions.close()

    failed, worked = asyncio.run(asyncio.wait_for(main(), 300))
    assert (failed.outcome, failed.code) == ("unavailable", "unauthorized")
    assert worked.outcome == "ok"


def test_a_call_that_hangs_holds_up_no_other(desk: Desk) -> None:
    desk.authorize()

    async def main() -> None:
        sessions = desk.sessions()
        try:
            assert (await call(sessions, text="x")).outcome == "ok"
            slow = asyncio.create_task(call(sessions, "sleep", s=15))
            await desk.bench.until(lambda: desk.server.faults.calls == 2)
            assert (await asyncio.wait_for(call(sessions, text="meanwhile"), 300)).outcome == "ok"
            slow.cancel()
        finally:
            await sessions.close()

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_token_is_sent_to_the_server_it_was_issued_for_and_to_nobody_else(desk: Desk) -> None:
    desk.authorize()
    with desk.bench.faults.serving() as other:
        desk.server.redirect_to = f"http://127.0.0.1:{other.server_port}"

        async def main() -> None:
            sessions = desk.sessions()
            try:
                assert (await call(sessions, text="x")).outcome != "ok"
            finally:
                await sessions.close()

        asyncio.run(asyncio.wait_for(main(), 300))
        elsewhere = repr(other.seen) + repr(
            [(path, headers) for _, path, headers, _ in desk.issuer.requests]
        )
    assert not [secret for secret in desk.issuer.secrets if secret in elsewhere]


def test_a_client_that_was_registered_by_hand_is_who_we_are(desk: Desk) -> None:
    port = free_port()
    desk.issuer.registers = False
    desk.issuer.clients["by-hand"] = [f"http://127.0.0.1:{port}/callback"]
    desk.project.http(
        desk.server.url, tools='tools = ["s.echo", "s.sleep"]', auth="oauth", client_id="by-hand"
    )
    desk.log_in("s", "--port", str(port))
    desk.run_out()
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        assert router.call_sync("r", "s.echo", {"text": "x"}).ok
    assert {
        fields["client_id"] for _, path, _, fields in desk.issuer.requests if path == "/token"
    } == {"by-hand"}


def test_a_second_login_begins_anew_only_when_it_is_told_to_forget(desk: Desk) -> None:
    desk.log_in()
    out, err = desk.log_in()
    assert "authorized before" in out
    assert "http" not in err
    assert desk.log_in("s", "--forget")[0] == "s: forgotten\n"
    assert desk.log_in("s", "--forget")[0] == "s: nothing was kept\n"
    assert not [path for path in desk.folder.iterdir() if path.suffix == ".json"]
    out, err = desk.log_in("s", "--json")
    assert json.loads(out) == {
        "server": "s",
        "principal": "",
        "authorized": True,
        "asked": True,
        "tools": 13,
    }
    assert "/authorize?" in err


def test_a_principal_authorizes_for_itself(desk: Desk) -> None:
    desk.log_in("s", "--principal", "ann b")
    with desk.project.open() as router:
        assert "faults" in router.route_sync(desk.project.step("a", principal="ann b")).bundle_ids
        assert COMMAND + " --principal ben" in refused(
            router.route_sync(desk.project.step("b", principal="ben"))
        )
        assert COMMAND in refused(router.route_sync(desk.project.step("c")))
        assert router.call_sync("a", "s.echo", {"text": "x"}).ok


def test_a_login_that_is_declined_or_that_nobody_answers_keeps_what_there_was(
    desk: Desk, leap: Any
) -> None:
    desk.authorize()
    (kept,) = [path for path in desk.folder.iterdir() if path.suffix == ".json"]
    desk.issuer.revoke(refreshes=True)
    before = kept.read_text()
    desk.issuer.denies = "access_denied"
    _, err = desk.log_in(code=4)
    assert "the authorization was declined (access_denied)" in err
    _, err = desk.log_in("s", "--timeout", "59", code=4, open_it=lambda url: leap())
    assert "within 59 s" in err
    assert json.loads(before)["client"] == json.loads(kept.read_text())["client"]


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ({"denies": "access_denied"}, "the authorization was declined (access_denied)"),
        ({"token_status": 503}, "the authorization failed (its issuer says: temporarily_un"),
        ({"admits": lambda *_: False}, "it refuses the token that its issuer gave for it"),
    ],
    ids=["declined", "no token", "refused token"],
)
def test_a_person_is_asked_once_by_a_login_that_fails(
    desk: Desk, trouble: dict[str, Any], why: str
) -> None:
    vars(desk.issuer).update(trouble)
    _, err = desk.log_in(code=4)
    assert err.count("/authorize?") == 1
    assert why in err


@pytest.mark.parametrize(
    ("path", "refusal", "sentence"),
    [
        (
            "/register",
            {"error": "invalid_redirect_uri", "error_description": "https\x1b[2J only"},
            "its issuer says: invalid_redirect_uri, https [2J only; register a public client",
        ),
        (
            "/token",
            {"error": "invalid_client", "error_description": "a secret is missing"},
            "invalid_client, a secret is missing; no client secret is ever sent: register",
        ),
        (
            "/token",
            {"error": "invalid_grant", "error_description": "the redirect differs"},
            "(its issuer says: invalid_grant, the redirect differs)",
        ),
    ],
)
def test_a_login_that_the_issuer_refuses_says_its_words_and_the_way_out(
    desk: Desk, path: str, refusal: dict[str, str], sentence: str
) -> None:
    desk.issuer.refusals[path] = refusal
    _, err = desk.log_in(code=4)
    assert sentence in err
    assert ("`client_id`" in err) is (refusal["error"] != "invalid_grant")


@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ({}, "Authorized. You can close this page and go back to the terminal."),
        ({"token_status": 400}, "Not authorized. The terminal says why."),
        ({"admits": lambda *_: False}, "Not authorized. The terminal says why."),
        ({"denies": "access_denied"}, "Not authorized. The terminal says why."),
    ],
    ids=["authorized", "no token", "refused token", "declined"],
)
def test_the_page_in_the_browser_says_how_the_login_ended(
    desk: Desk, trouble: dict[str, Any], sentence: str
) -> None:
    vars(desk.issuer).update(trouble)
    pages: list[bytes] = []

    def read(url: str) -> None:
        with urllib.request.urlopen(url, timeout=300) as response:
            pages.append(response.read())

    def open_it(url: str) -> None:
        reading.append(threading.Thread(target=read, args=(url,)))
        reading[0].start()

    reading: list[threading.Thread] = []
    desk.log_in(code=4 if trouble else 0, open_it=open_it)
    reading[0].join()
    assert f"<p>{sentence}</p>".encode() in pages[0]


@pytest.mark.parametrize("refreshable", [True, False])
@pytest.mark.parametrize("lives_s", [0, -5])
def test_a_token_without_a_lifetime_is_good_until_it_is_refused(
    desk: Desk, lives_s: int, refreshable: bool
) -> None:
    desk.issuer.lives_s, desk.issuer.refreshable = lives_s, refreshable
    out, err = desk.log_in()
    assert out == "s: authorized; it lists 13 tools\n"
    assert err.count("/authorize?") == 1
    with desk.project.open() as router:
        router.route_sync(desk.project.step())
        assert router.call_sync("r", "s.echo", {"text": "x"}).ok
    assert desk.issuer.grants() == ["authorization_code"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("nobody",), "there is no server 'nobody'"),
        (("repo",), "'repo' is local"),
        (("plain",), "has no auth = 'oauth'"),
        (("s", "--timeout", "0"), "--timeout must be above 0"),
        (("s", "--timeout", "nan"), "--timeout must be above 0"),
        (("s", "--port", "99999"), "0 to 65535"),
    ],
)
def test_what_can_not_be_authorized_is_a_bad_request(
    desk: Desk, words: tuple[str, ...], why: str
) -> None:
    more = f'\n[servers.plain]\nurl = "{desk.server.url}"\n'
    desk.project.http(desk.server.url, tools='tools = ["s.echo"]', auth="oauth", more=more)
    _, err = desk.log_in(*words, code=3)
    assert why in err


# --- S-16 -----------------------------------------------------------------------------------------

PAYLOADS = (
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "file:///etc/passwd",
    "$(touch pwned)",
    "-flag",
    "--exec=/bin/sh",
    "https://$(touch pwned)/",
    "https://login.example/$(touch${IFS}pwned)",
    "https://login.example/`touch pwned`",
    "https://login.example/';touch pwned;'",
    "https://me:secret@login.example/",
    "http://login.example/authorize",
    "a:$(touch pwned)?response_type=code",
    "https://login.example/\x1b]8;;http://evil\x07",
)


@contextmanager
def traced(folder: Path) -> Iterator[tuple[tuple[str, ...], Callable[[], list[str]]]]:
    """The start of a command line that is watched, and the programs that were started since."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed, so nothing can say that no process was started")
    log = folder / "execve.log"

    def started() -> list[str]:
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return [line for line in lines if "execve" in line and "= 0" in line]

    yield (
        (strace, "--seccomp-bpf", "-f", "-qq", "-e", "trace=execve,execveat", "-o", str(log)),
        started,
    )


def test_no_address_of_a_server_is_opened_by_a_process_and_a_strange_one_is_not_even_shown(
    desk: Desk, tmp_path: Path
) -> None:
    with traced(tmp_path) as (before, started):
        probe = subprocess.run([*before, "true"], capture_output=True, check=False)
        if probe.returncode != 0:
            pytest.skip("strace may not trace here")
        desk.issuer.overrides["authorization_endpoint"] = PAYLOADS[7]
        _, err = desk.log_in(code=4, before=before)
        assert "pwned" not in err
        assert len(started()) == 1, "Python itself"
        desk.issuer.overrides.clear()
        desk.log_in(before=before)
        assert len(started()) == 1, "Python itself"


def test_an_issuers_document_of_a_megabyte_is_not_read(desk: Desk) -> None:
    desk.issuer.overrides["scopes_supported"] = ["x"] * 200_000
    _, err = desk.log_in(code=4)
    assert "65,536 bytes" in err


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("field", ["authorization_endpoint", "token_endpoint"])
def test_a_strange_address_among_an_issuers_is_put_before_nobody(
    desk: Desk, payload: str, field: str
) -> None:
    desk.issuer.overrides[field] = payload
    shown: list[str] = []

    class Person:
        redirect_uri = "http://127.0.0.1:9/callback"

        async def show(self, url: str) -> None:
            shown.append(url)

        async def answer(self) -> tuple[str, str | None, str | None]:
            raise ServerFault("unauthorized", "the authorization was declined")

        async def finish(self, is_authorized: bool) -> None:
            assert not is_authorized

    async def main() -> Any:
        sessions = open_mcp_sessions(
            {"s": desk.bench.http(desk.server, auth="oauth")},
            clock=FakeClock(),
            diagnostics=desk.bench.events,
            authorization=Authorization(desk.folder, Person()),
        )
        try:
            return await sessions.call("s", "echo", {"text": "x"}, timeout_s=1.0)
        finally:
            await sessions.close()

    result = asyncio.run(asyncio.wait_for(main(), 300))
    assert result.outcome in ("unavailable", "timeout")
    assert all(
        re.fullmatch(r"(https://login\.example|http://127\.0\.0\.1:\d+)/[^\s$`'\"()<>{}\\]*", url)
        for url in shown
    )
    assert not (desk.project.root / "pwned").exists()


# --- S-36: one authorization server in the place of another ---------------------------------------


def keeps_nothing(desk: Desk) -> bool:
    return not [
        path for path in desk.folder.rglob("*.json") if json.loads(path.read_text()).get("tokens")
    ]


def mixed_up(desk: Desk, other: Any) -> None:
    """The server's own issuer shows the page of an honest one, for clients that it registered there
    before.
    """
    other.clients = {f"client-{number}": AnyRedirect() for number in range(1, 4)}
    desk.issuer.overrides["authorization_endpoint"] = other.url + "/authorize"


class AnyRedirect(list[str]):
    """RFC 8252 has an issuer take any port of 127.0.0.1."""

    def __contains__(self, uri: object) -> bool:
        return str(uri).startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("honest_names_itself", "says_that_it_does"),
    [(True, True), (True, False), (False, True), (False, False)],
)
def test_the_code_of_an_honest_issuer_is_not_taken_to_one_that_shows_its_page(
    desk: Desk, honest_names_itself: bool, says_that_it_does: bool
) -> None:
    with desk.bench.issuers.Issuer() as honest:
        mixed_up(desk, honest)
        honest.names_itself = honest_names_itself
        desk.issuer.overrides["authorization_response_iss_parameter_supported"] = says_that_it_does
        _, err = desk.log_in(code=4)
        assert "the authorization failed" in err
        assert {path for _, path, _, _ in honest.requests} == {"/authorize"}, (
            "a person was there, and gave a code"
        )
        assert "/token" not in [path for _, path, _, _ in desk.issuer.requests]
    assert keeps_nothing(desk)


def test_an_issuer_that_does_not_name_itself_is_heard_from_its_own_page(desk: Desk) -> None:
    desk.issuer.names_itself = False
    desk.issuer.overrides["authorization_response_iss_parameter_supported"] = False
    assert desk.log_in()[0].startswith("s: authorized")


def through(honest: Any, planted: str) -> Callable[[str], None]:
    """A browser that the server's own page sends on to an honest one, with a redirect that has
    `iss` in it already.
    """

    def go(url: str) -> None:
        given = dict(parse_qsl(urlsplit(url).query))
        given["redirect_uri"] += f"?{urlencode({'iss': planted})}"
        browse(f"{honest.url}/authorize?{urlencode(given)}")

    return go


def test_an_answer_that_names_two_issuers_is_that_of_neither(desk: Desk) -> None:
    with desk.bench.issuers.Issuer() as honest:
        mixed_up(desk, honest)
        desk.issuer.overrides.clear()
        _, err = desk.log_in(code=4, open_it=through(honest, desk.issuer.url))
        assert "the authorization was declined" in err
        assert {path for _, path, _, _ in honest.requests} == {"/authorize"}, (
            "a person was there, and gave a code"
        )
        assert "/token" not in [path for _, path, _, _ in desk.issuer.requests]
    assert keeps_nothing(desk)


def test_a_page_that_is_told_two_redirects_is_shown_to_nobody(desk: Desk) -> None:
    with desk.bench.issuers.Issuer() as honest:
        mixed_up(desk, honest)
        honest.names_itself = False
        planted = urlencode(
            {"redirect_uri": f"http://127.0.0.1:9/callback?{urlencode({'iss': desk.issuer.url})}"}
        )
        desk.issuer.overrides["authorization_endpoint"] += f"?{planted}&_="
        _, err = desk.log_in(code=4)
        assert "is not safe to open" in err
        assert honest.requests == []


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_an_issuer_that_does_not_say_it_knows_s256_is_shown_to_nobody(
    desk: Desk, methods: Any
) -> None:
    desk.issuer.overrides["code_challenge_methods_supported"] = methods
    _, err = desk.log_in(code=4)
    assert "S256" in err
    assert not {"/authorize", "/token"} & {path for _, path, _, _ in desk.issuer.requests}


def test_an_answer_of_an_earlier_login_or_of_another_servers_ends_no_login(
    desk: Desk, leap: Any
) -> None:
    """Their codes are good still: nobody redeemed them."""
    kept: list[dict[str, str]] = []

    def first(url: str) -> None:
        kept.append(dict(parse_qsl(urlsplit(url).query)))
        leap()

    with desk.bench.issuers.Issuer() as other:
        other.clients = {f"client-{number}": AnyRedirect() for number in range(1, 4)}
        desk.log_in("s", "--timeout", "59", code=4, open_it=first)

        def second(url: str) -> None:
            given = dict(parse_qsl(urlsplit(url).query))
            assert {given["state"], given["code_challenge"]}.isdisjoint(kept[0].values())
            stale = {
                **given,
                "state": kept[0]["state"],
                "code_challenge": kept[0]["code_challenge"],
            }
            for issuer in (desk.issuer, other):
                with pytest.raises(urllib.error.HTTPError, match="400"):
                    browse(f"{issuer.url}/authorize?{urlencode(stale)}")
            browse(url)
            with pytest.raises(OSError, match=r"400|refused"):
                browse(url)

        desk.log_in(open_it=second)
        assert other.grants() == []
    (exchanged,) = [fields for _, path, _, fields in desk.issuer.requests if path == "/token"]
    assert len(exchanged["code_verifier"]) >= 43


def test_metadata_in_the_name_of_another_issuer_shows_a_person_nothing(desk: Desk) -> None:
    with desk.bench.issuers.Issuer() as honest:
        desk.issuer.overrides["issuer"] = honest.url
        _, err = desk.log_in(code=4)
        assert "/authorize" not in err
        assert honest.requests == []
    assert {path for _, path, _, _ in desk.issuer.requests} == {
        "/.well-known/oauth-authorization-server"
    }


def spelled(desk: Desk, before: bytes, after: bytes) -> None:
    """Has the server's own document, which names its issuer, spell something otherwise."""
    guarded = desk.server.RequestHandlerClass

    class Other(guarded):  # type: ignore[misc, valid-type]  # a module loaded by its path
        def answer(self, status: int, body: bytes, *rest: Any, **more: Any) -> None:
            super().answer(status, body.replace(before, after), *rest, **more)

    desk.server.RequestHandlerClass = Other


@pytest.mark.parametrize("is_spelled_by_server", [True, False])
@pytest.mark.parametrize("is_spelled_by_issuer", [True, False])
def test_an_issuer_without_a_path_is_the_same_with_and_without_its_slash(
    desk: Desk, is_spelled_by_server: bool, is_spelled_by_issuer: bool
) -> None:
    """In the server's word for it, in its metadata, and (without the slash here) in its answer."""
    named = json.dumps(desk.issuer.url).encode()
    if is_spelled_by_server:
        spelled(desk, named, named[:-1] + b'/"')
    if is_spelled_by_issuer:
        desk.issuer.overrides["issuer"] = desk.issuer.url + "/"
    assert desk.log_in()[0].startswith("s: authorized")


def test_a_resource_is_the_same_with_and_without_its_slash(desk: Desk) -> None:
    named = json.dumps(desk.server.url).encode()
    spelled(desk, b'"resource": ' + named, b'"resource": ' + named[:-1] + b'/"')
    desk.issuer.admits = lambda header, resource: header is not None
    assert desk.log_in()[0].startswith("s: authorized")


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("https://a.example", "https://a.example/", True),
        ("https://a.example/", "https://a.example", True),
        ("https://a.example/x", "https://a.example/x/", False),
        ("https://a.example", "https://b.example/", False),
        ("https://a.example", "http://a.example/", False),
        ("https://a.example", "https://a.example//", False),
        ("", "/", False),
    ],
)
def test_which_spellings_name_the_same_issuer(one: str, other: str, is_same: bool) -> None:
    from bundle_router.adapters.mcp.oauth import names_same_issuer

    assert names_same_issuer(one, other) is is_same


def test_a_server_that_speaks_for_another_resource_is_asked_for_no_token(desk: Desk) -> None:
    guarded = desk.server.RequestHandlerClass

    class Other(guarded):  # type: ignore[misc, valid-type]  # a module loaded by its path
        def answer(self, status: int, body: bytes, **more: Any) -> None:
            super().answer(
                status, body.replace(desk.server.url.encode(), b"https://bank.example/mcp"), **more
            )

    desk.server.RequestHandlerClass = Other
    _, err = desk.log_in(code=4)
    assert "/authorize" not in err
    assert desk.issuer.requests == []


@pytest.mark.parametrize(
    ("server", "named", "asked"),
    [
        ("http://127.0.0.1:1/mcp", "http://localhost:2/x", True),
        ("http://127.0.0.1:1/mcp", "https://login.example/x", True),
        ("http://127.0.0.1:1/mcp", "http://login.example/x", False),
        ("http://127.0.0.1:1/mcp", "http://169.254.169.254/x", False),
        ("http://127.0.0.1:1/mcp", "https://[fe80::1]/x", False),
        ("https://tools.example/mcp", "https://login.example/x", True),
        ("https://tools.example/mcp", "https://127.0.0.1/x", False),
        ("https://tools.example/mcp", "https://169.254.169.254/x", False),
        ("https://tools.example/mcp", "http://[::ffff:127.0.0.1]/x", False),
        ("https://tools.example/mcp", "http://2130706433/x", False),
    ],
)
def test_a_flow_asks_this_machine_or_its_link_only_for_a_server_that_is_there(
    server: str, named: str, asked: bool
) -> None:
    assert may_leave_for(named, server) == asked


def test_a_server_that_moves_to_another_issuer_takes_no_token_of_the_first_with_it(
    desk: Desk,
) -> None:
    desk.log_in()
    given = desk.issuer.secrets
    with desk.bench.issuers.Issuer() as other:
        desk.server.RequestHandlerClass = desk.bench.issuers.guarded_by(
            other, desk.server.RequestHandlerClass.__base__
        )
        desk.server.seen.clear()
        desk.run_out()
        with desk.project.open() as router:
            router.route_sync(desk.project.step())
            router.call_sync("r", "s.echo", {"text": "x"})
        desk.log_in()
        heard = repr([(path, headers, fields) for _, path, headers, fields in other.requests])
        renewed = desk.issuer.secrets - given
        assert not [secret for secret in given if secret in heard]
        assert not [secret for secret in renewed if secret in heard]
        assert other.grants() == ["authorization_code"]
        assert [
            fields["client_id"] for _, path, _, fields in other.requests if path == "/token"
        ] == ["client-1"]


# --- the redirect ---------------------------------------------------------------------------------


async def said(port: int, sent: bytes, *, half_closed: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        if half_closed:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(), 300)
    finally:
        writer.close()


def test_only_the_redirect_with_the_right_state_ends_the_wait() -> None:
    async def main() -> None:
        person = Receiver(lambda url: None)
        port = int(person.redirect_uri.rpartition(":")[2].partition("/")[0])
        await person.show("https://login.example/authorize?state=right&x=1")
        answer = asyncio.create_task(person.answer())
        good = f"GET /callback?code=c&state=right&iss=i HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
        for wrong, status in (
            (good.replace("right", "wrong"), b"400"),
            (good.replace("state=right", "x=1"), b"400"),
            (good.replace("state=right", "state=right&state=right"), b"400"),
            (good.replace("state=right", "state="), b"400"),
            (good.replace("code=c&state=right", "error=access_denied&state=wrong"), b"400"),
            (good.replace("/callback", "/other"), b"404"),
            (good.replace("GET", "POST"), b"404"),
            (good.replace(f"127.0.0.1:{port}", f"evil.example:{port}"), b"421"),
            (good.replace("Host", "X-Host"), b"421"),
            (good.replace("\r\n\r\n", f"\r\nHost: 127.0.0.1:{port}\r\n\r\n"), b"421"),
            (good.replace("code=c", "&".join(f"a{i}=1" for i in range(99))), b"400"),
            ("\x00\xff" * 40_000, b"400"),
            ("GET", b""),
        ):
            answered = await said(port, wrong.encode("latin-1"))
            assert answered[9:12] == status, wrong[:80]
            assert b"right" not in answered
            assert not answer.done()
        reading = asyncio.create_task(said(port, good.encode(), half_closed=False))
        assert await asyncio.wait_for(answer, 300) == ("c", "right", "i")
        assert (await said(port, good.encode()))[9:12] == b"400"
        assert port in listening_ports()
        assert not reading.done(), "nobody knows yet how it ends"
        await person.finish(True)
        page = await reading
        assert page.startswith(b"HTTP/1.1 200")
        assert b"default-src 'none'" in page
        assert b"<p>Authorized. " in page
        assert port not in listening_ports()

    asyncio.run(asyncio.wait_for(main(), 300))


def test_the_redirect_is_awaited_on_loopback_alone() -> None:
    async def main() -> None:
        person = Receiver(lambda url: None)
        port = int(person.redirect_uri.rpartition(":")[2].partition("/")[0])
        await person.show("https://login.example/authorize?state=s")
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.2", port)
        await person.finish(False)

    asyncio.run(asyncio.wait_for(main(), 300))


def test_nothing_is_open_after_a_flow_that_never_showed_anything() -> None:
    person = Receiver(lambda url: None)
    port = int(person.redirect_uri.rpartition(":")[2].partition("/")[0])
    person.close()
    assert port not in listening_ports()
