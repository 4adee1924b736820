"""Who may do what at the service: scopes, principals, addresses, browsers (S-01 to S-04, S-38)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bundle_router import Router, Step, StepPolicy
from bundle_router.errors import RequestError
from bundle_router.service import AccessTokens, ServiceAddress, serve
from bundle_router.service.http import NOTHING
from bundle_router.service.refusals import RefusalApp

from tests.command_line import run

pytest.importorskip("prometheus_client", reason="the service needs the 'service' extra")

STEP = {"run_id": "r", "workflow": "w", "role": "r", "step": "both"}
ROUTE, CALL, REVIEW, ALICE, BOB, OLD = (
    f"{name}-{'x' * 40}" for name in ("route", "call", "rev", "alice", "bob", "old")
)
ENTRIES = (
    (ROUTE, ["route"], "", ""),
    (CALL, ["call"], "", ""),
    (REVIEW, ["review"], "", ""),
    (ALICE, ["route", "call", "review"], "alice", ""),
    (BOB, ["route", "call", "review"], "bob", ""),
    (OLD, ["route", "call", "review", "edit"], "", "expires = 2020-01-01T00:00:00Z\n"),
)


def token_file(folder: Path, entries: Any = ENTRIES) -> AccessTokens:
    text = "".join(
        f"[tokens.{token.partition('-')[0]}]\nsha256 ="
        f" '{hashlib.sha256(token.encode()).hexdigest()}'\nscopes = {scopes}\nprincipal ="
        f" '{principal}'\n{more}"
        for token, scopes, principal, more in entries
    )
    path = folder / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)
    return AccessTokens(path)


REQUESTS: tuple[tuple[str, str, Any, str], ...] = (
    ("POST", "/v1/route", STEP, "route"),
    ("GET", "/v1/bundles", None, "route"),
    ("GET", "/v1/runs", None, "review"),
    ("POST", "/v1/runs/r/close", None, "route"),
    ("GET", "/v1/runs/r/tools", None, "call"),
    ("POST", "/v1/runs/r/call", {"name": "kit.echo"}, "call"),
    ("POST", "/v1/runs/r/missed", {"name": "x"}, "call"),
    ("GET", f"/v1/runs/r/artifacts/{'0' * 64}", None, "call"),
    ("GET", f"/v1/runs/r/media/{'0' * 64}", None, "call"),
    ("GET", "/v1/runs/r", None, "review"),
    ("POST", "/mcp/runs/r", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, "call"),
)


def test_every_route_wants_a_token_with_its_scope(site: Any) -> None:
    good = ((ROUTE, {"route"}), (CALL, {"call"}), (REVIEW, {"review"}))

    async def work(_router: Any, endpoint: Any) -> None:
        for token, scopes in (*good, (OLD, None), ("wrong" * 9, None)):
            async with site.http(endpoint, token=token) as http:
                for method, path, body, scope in REQUESTS:
                    answer = (
                        await http.request(method, path, json=body)
                        if body
                        else await http.request(method, path)
                    )
                    if scopes is None:
                        assert answer.status_code == 401, (token, path)
                    else:
                        assert (answer.status_code == 403) is (scope not in scopes), (
                            token,
                            path,
                            answer.text,
                        )

    site.serve_all(work, tokens=token_file(site.folder))


def test_who_is_not_let_in_is_told_what_to_do_and_no_page_answers_a_program(site: Any) -> None:
    asked: dict[str, tuple[str, str, dict[str, Any], int, str]] = {
        "another host": (
            "POST",
            "/v1/route",
            {"headers": {"host": "evil.example"}},
            421,
            "wrong_host",
        ),
        "another origin": (
            "POST",
            "/v1/route",
            {"headers": {"origin": "http://evil.example"}},
            403,
            "wrong_origin",
        ),
        "another site": (
            "GET",
            "/openapi.json",
            {"headers": {"sec-fetch-site": "cross-site"}},
            403,
            "wrong_origin",
        ),
        "no token": ("POST", "/v1/route", {"headers": {"authorization": ""}}, 401, "unauthorized"),
        "too much": (
            "POST",
            "/v1/route",
            {"json": " " * 2_000},
            413,
            "too_large",
        ),
        "an unknown method": ("DELETE", "/v1/route", {}, 405, "method_not_allowed"),
        "a method of a run": ("PUT", "/v1/runs/r/call", {}, 405, "method_not_allowed"),
        "a method of a probe": ("POST", "/metrics", {}, 405, "method_not_allowed"),
        "an unknown place": ("GET", "/v1/nothing", {}, 404, "not_found"),
    }

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=CALL) as http:  # it may see no page
            for name, (method, path, sent, status, code) in asked.items():
                answer = await http.request(method, path, **sent)
                assert (answer.status_code, answer.json()["code"]) == (status, code), name
                assert answer.json()["advice"], name
                assert ("allow" in answer.headers) is (status == 405), name

    bounds = "[service]\nmax_body_bytes = 1024\n"
    site.serve_all(work, bounds, pages=RefusalApp(NOTHING), tokens=token_file(site.folder))


def test_a_token_that_the_verb_made_opens_what_it_says_and_is_kept_nowhere(site: Any) -> None:
    def made(name: str, *words: str, code: int = 0) -> str:
        done = run(site.folder, "token", name, "--tokens", "tokens.toml", *words, code=code)
        assert bool(done.stdout) is not bool(code)
        return (done.stdout if not code else done.stderr).strip()

    token = made("engine", "--scope", "route", "--expires", "2999-01-31")
    late = made(
        "late", "--scope", "route", "--principal", 'al"ice', "--expires", "2020-01-31T00:00:00Z"
    )
    assert "already has a token 'late'" in made("late", "--scope", "call", code=3)
    assert "is not a time" in made("soon", "--scope", "call", "--expires", "soon", code=3)
    assert "tokens.x y" in made("x y", "--scope", "call", code=3)
    path = site.folder / "tokens.toml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(secret in path.read_text(encoding="utf-8") for secret in (token, late))
    assert [row.caller.principal for row in AccessTokens(path).read()] == ["", 'al"ice']

    async def work(_router: Any, endpoint: Any) -> None:
        for held, wanted in ((token, [200, 403]), (late, [401, 401])):
            async with site.http(endpoint, token=held) as http:
                answers = [
                    await http.post("/v1/route", json=STEP),
                    await http.get("/v1/runs/r/tools"),
                ]
                assert [answer.status_code for answer in answers] == wanted

    site.serve_all(work, tokens=AccessTokens(path))


def test_a_token_of_a_principal_speaks_for_that_one_alone(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ALICE) as alice, site.http(endpoint, token=BOB) as bob:
            mine = {**STEP, "run_id": "mine"}
            assert (await alice.post("/v1/route", json=mine)).status_code == 200
            assert site.records("mine", "routing.jsonl")[0]["principal"] == "alice"
            refused = await alice.post("/v1/route", json={**mine, "principal": "bob"})
            assert (refused.status_code, refused.json()["code"]) == (403, "wrong_principal")
            for method, path, body, _ in REQUESTS[4:]:
                sent = {"json": body} if body else {}
                own = await alice.request(
                    method, path.replace("/r", "/mine", 2).replace("/mineuns", "/runs"), **sent
                )
                others = await bob.request(
                    method, path.replace("/r", "/mine", 2).replace("/mineuns", "/runs"), **sent
                )
                assert others.status_code == 404, path
                assert "unknown_run" in others.text or "has no decision yet" in others.text, path
                assert own.status_code != 403
            for step in (mine, {**STEP, "run_id": "child", "parent_run_id": "mine"}):
                assert (await bob.post("/v1/route", json=step)).json()["code"] == "unknown_run"
            assert not (site.folder / "runs" / "child").exists()
            assert (await alice.get("/v1/runs")).json()["code"] == "wrong_principal"

    site.serve_all(work, tokens=token_file(site.folder))


@pytest.mark.parametrize("branch", ["", "b"])
def test_a_run_of_two_principals_is_there_for_neither(site: Any, branch: str) -> None:
    """Whoever has its newest step would else have what the other one's decisions, artifacts and
    sessions hold.
    """

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ALICE) as alice, site.http(endpoint, token=BOB) as bob:
            async with site.http(endpoint, token=ROUTE) as engine:
                step = {**STEP, "run_id": "mixed", "principal": "alice"}
                first = (await engine.post("/v1/route", json=step)).json()["decision_id"]
                assert (await alice.get("/v1/runs/mixed/tools")).status_code == 200
                step |= {"principal": "bob", "branch": branch}
                assert (await engine.post("/v1/route", json=step)).status_code == 200
            for person in (bob, alice):
                answers = [
                    await person.get("/v1/runs/mixed/tools", params={"decision": first}),
                    await person.post(
                        "/v1/runs/mixed/call", json={"name": "kit.echo", "decision": first}
                    ),
                    await person.get("/v1/runs/mixed/tools"),
                    await person.get(f"/v1/runs/mixed/artifacts/{'0' * 64}"),
                    await person.post(
                        "/mcp/runs/mixed", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}
                    ),
                    await person.post(
                        "/v1/route", json={**STEP, "run_id": "below", "parent_run_id": "mixed"}
                    ),
                    await person.post("/v1/route", json={**STEP, "run_id": "mixed"}),
                ]
                assert [answer.status_code for answer in answers] == [404] * 7
            assert site.records("mixed") == []

    mixed = '[runs]\nprincipals = "mixed"\n'
    site.serve_all(work, mixed, tokens=token_file(site.folder))


def test_a_run_serves_one_principal_where_the_config_says_nothing(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ROUTE) as engine:
            step = {**STEP, "run_id": "hers", "principal": "alice"}
            assert (await engine.post("/v1/route", json=step)).status_code == 200
            for other in ({"principal": "bob"}, {"principal": ""}):
                for place in ({}, {"run_id": "below", "parent_run_id": "hers"}):
                    refused = await engine.post("/v1/route", json={**step, **other, **place})
                    assert (refused.status_code, refused.json()["code"]) == (400, "refused")
                    assert "has steps for another" in refused.json()["detail"]
            assert len(site.records("hers", "routing.jsonl")) == 1

    site.serve_all(work, tokens=token_file(site.folder))


def test_tokens_follow_their_file_and_a_broken_one_changes_nothing(
    site: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.02)

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ALICE) as alice, site.http(endpoint) as whole:
            token_file(site.folder, ENTRIES[:3])
            while (await alice.get("/openapi.json")).status_code != 401:
                pass
            (site.folder / "tokens.toml").write_text(
                "[tokens.x]\nsha256 = 'secret-in-the-wrong-place'\n"
            )
            while not (said := (await whole.get("/readyz")).json()["config"]["problems"]):
                pass
            assert "tokens.x.sha256" in said[0]
            assert "secret-in-the-wrong-place" not in said[0]
            async with site.http(endpoint, token=CALL) as http:
                assert (await http.get("/v1/runs/r/tools")).status_code == 200

    site.serve_all(work, tokens=token_file(site.folder))
    err = capfd.readouterr().err
    assert "tokens.refused" in err
    assert "secret-in-the-wrong-place" not in err


def test_a_token_added_while_the_service_runs_counts_at_once(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 3600)
    reads: list[int] = []

    class Counted(AccessTokens):
        def read(self) -> Any:
            reads.append(1)
            return super().read()

    async def work(_router: Any, endpoint: Any) -> None:
        async with (
            site.http(endpoint, token="late-" + "x" * 40) as late,
            site.http(endpoint, token=ALICE) as alice,
        ):
            assert [(await late.get("/openapi.json")).status_code for _ in range(50)] == [401] * 50
            assert len(reads) == 1  # strangers have the file looked at, and not read
            token_file(site.folder, [("late-" + "x" * 40, ["route"], "", "")])
            assert (await late.get("/openapi.json")).status_code == 200
            assert (await alice.get("/openapi.json")).status_code == 401
        assert len(reads) == 2

    token_file(site.folder)
    site.serve_all(work, tokens=Counted(site.folder / "tokens.toml"))


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("[tokens]\n", 0o600, "names no token yet"),
        ("[tokens.a]\nsha256='x'\nscopes=['call']\n", 0o600, "tokens.a.sha256"),
        (f"[tokens.a]\nsha256='{'0' * 64}'\nscopes=['all']\n", 0o600, "tokens.a.scopes.0"),
        (f"[tokens.a]\nsha256='{'0' * 64}'\nscopes=[]\n", 0o600, "tokens.a.scopes"),
        (f"[tokens.a]\nsha256='{'0' * 64}'\nscopes=['call']\ntoken='x'\n", 0o600, "tokens.a.token"),
        ("[tokens", 0o600, "not TOML"),
        (f"[tokens.a]\nsha256='{'0' * 64}'\nscopes=['call']\n", 0o622, "written by others"),
    ],
)
def test_a_token_file_that_is_none_is_refused(
    tmp_path: Path, text: str, mode: int, why: str
) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(RequestError, match=why):
        AccessTokens(path).read()


@pytest.mark.parametrize(
    ("address", "has_tokens", "why"),
    [
        (ServiceAddress("0.0.0.0"), False, "token file"),
        (ServiceAddress("0.0.0.0", without_tls=True), False, "token file"),
        (ServiceAddress("::"), True, "needs TLS"),
        (ServiceAddress("10.0.0.1"), True, "needs TLS"),
        (ServiceAddress("localhost"), True, "not an IP address"),
        (ServiceAddress(certificate="c.pem"), True, "certificate and its key"),
        (
            ServiceAddress(certificate="c.pem", private_key="k.pem"),
            True,
            "can't use the certificate",
        ),
    ],
)
def test_an_address_that_others_reach_needs_tokens_and_tls(
    address: ServiceAddress, has_tokens: bool, why: str
) -> None:
    with pytest.raises(RequestError, match=why):
        address.refuse_open(has_tokens=has_tokens)


def test_it_listens_for_others_with_tls_and_answers_to_its_names_alone(site: Any) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    served = authority.issue_cert("router.example", "127.0.0.1")
    certificate, key = site.folder / "cert.pem", site.folder / "key.pem"
    served.cert_chain_pems[0].write_to_path(certificate)
    served.private_key_pem.write_to_path(key)
    address = ServiceAddress("0.0.0.0", 0, ("router.example:8443",), str(certificate), str(key))

    async def work(_router: Any, endpoint: Any) -> None:
        assert endpoint.base == "https://router.example:8443"
        context = ssl.create_default_context()
        authority.configure_trust(context)
        for host, status in (
            ("router.example:8443", 200),
            (f"127.0.0.1:{endpoint.port}", 200),
            ("evil.example", 421),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port, ssl=context)
            sent = (
                f"GET /openapi.json HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer"
                f" {CALL}\r\n\r\n"
            )
            writer.write(sent.encode())
            assert int((await reader.readline()).split()[1]) == status, host
            writer.close()
            await writer.wait_closed()

    site.serve_all(work, address=address, tokens=token_file(site.folder))


async def page(scope: Any, _receive: Any, send: Any) -> None:
    """Pages that say who asks."""
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-security-policy", b"default-src 'self'"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": scope["user"].name.encode()})


def test_a_browser_signs_in_with_a_token_and_its_cookie_is_for_pages_alone(site: Any) -> None:
    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token="") as browser:
            assert (await browser.get("/")).status_code == 401
            for asked, led in (
                ("/", "/sign-in"),
                ("/runs/r", "/sign-in?to=/runs/r"),
                ("//evil/x", "/sign-in"),
            ):
                as_browser = await browser.get(
                    endpoint.base + asked, headers={"Accept": "text/html,*/*;q=0.8"}
                )
                assert (as_browser.status_code, as_browser.headers["location"]) == (303, led)
            assert (
                'value="/runs/r"' in (await browser.get("/sign-in", params={"to": "/runs/r"})).text
            )
            for to in ("//evil.example/x", "https://evil.example", '/"><script>', "/a?b"):
                assert "hidden" not in (await browser.get("/sign-in", params={"to": to})).text
            back = await browser.post("/sign-in", data={"token": REVIEW, "to": "/runs/r"})
            assert back.headers["location"] == "/runs/r"
            browser.cookies.clear()
            assert "<form" in (await browser.get("/sign-in")).text
            assert (await browser.post("/sign-in", data={"token": "wrong"})).status_code == 401
            let_in = await browser.post(
                "/sign-in", data={"token": REVIEW}, headers={"Origin": endpoint.base}
            )
            assert (let_in.status_code, let_in.headers["location"]) == (303, "/")
            cookie = let_in.headers["set-cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
            assert REVIEW not in cookie
            shown = await browser.get("/runs/r")
            assert (shown.text, shown.headers["content-security-policy"]) == (
                "rev",
                "default-src 'self'",
            )
            for path in ("/v1/runs/r/tools", "/metrics", "/openapi.json", "/mcp/runs/r"):
                assert (await browser.get(path)).status_code == 401, path
            forged = {"data": {"token": REVIEW}, "headers": {"Origin": "http://evil.example"}}
            assert (await browser.post("/sign-in", **forged)).status_code == 403
            await browser.post("/sign-out")
            assert (await browser.get("/")).status_code == 401
        async with site.http(endpoint, token=CALL) as http:
            assert (await http.get("/")).status_code == 403
        async with site.http(endpoint, token="") as browser:
            refused = await browser.post("/sign-in", data={"token": CALL})
            assert (refused.status_code, "needs the scope" in refused.text) == (403, True)
            assert (await browser.get("/")).status_code == 401

    site.serve_all(work, pages=page, tokens=token_file(site.folder))


def test_a_cookie_is_good_no_longer_than_its_token(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle_router.service.reloading.LOOK_S", 0.05)
    late = f"late-{'x' * 40}"
    kept, gone = ENTRIES[2], (ROUTE, ["review"], "", "")
    tokens = token_file(
        site.folder, (kept, gone, (late, ["review"], "", "expires = 2999-01-01T00:00:00Z\n"))
    )

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token="") as first, site.http(endpoint, token="") as second:
            third = await asyncio.gather(
                *(
                    browser.post("/sign-in", data={"token": token})
                    for browser, token in ((first, ROUTE), (second, late))
                )
            )
            assert [answer.status_code for answer in third] == [303, 303]
            assert [(await browser.get("/")).status_code for browser in (first, second)] == [
                200,
                200,
            ]
            token_file(
                site.folder, (kept, (late, ["review"], "", "expires = 2020-01-01T00:00:00Z\n"))
            )
            for browser in (first, second):
                while (answer := await browser.get("/")).status_code == 200:
                    pass
                assert answer.status_code == 401

    site.serve_all(work, pages=page, tokens=tokens)


def test_a_token_file_that_became_a_pipe_or_a_device_is_refused_and_not_waited_for(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tokens.toml"
    os.mkfifo(path, 0o600)
    writer = os.open(
        path, os.O_RDWR
    )  # or an open that waits would wait for ever, and the test with it
    os.write(writer, b"[tokens]")
    try:
        with pytest.raises(RequestError, match="is not a file of tokens"):
            AccessTokens(path).read()
    finally:
        os.close(writer)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(RequestError, match="is not a file of tokens"):
        AccessTokens(path).read()


def test_a_token_of_a_principal_sees_no_page_as_pages_show_the_runs_of_all(site: Any) -> None:
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=ALICE) as alice:
            assert (
                await alice.post("/v1/route", json={**STEP, "run_id": "mine"})
            ).status_code == 200
        async with site.http(endpoint, token=BOB) as bob, site.http(endpoint, token="") as browser:
            refused = await browser.post("/sign-in", data={"token": BOB})
            assert (refused.status_code, "one principal" in refused.text) == (403, True)
            for path in (
                "/",
                "/runs.json",
                "/runs/mine",
                "/runs/mine/0",
                "/steps",
                "/calls",
                "/search?q=both",
                "/config",
            ):
                answer = await bob.get(path)
                assert (answer.status_code, answer.json()["code"]) == (403, "wrong_principal"), path
                assert (await browser.get(path)).status_code == 401, path
            form = {"token": "x", "needed": "kit.some"}
            assert (await bob.post("/runs/mine/0/label", data=form)).status_code == 403

    with service_pages(PageSources(site.folder / "runs", config=site.folder / "config")) as made:
        site.serve_all(work, pages=made, tokens=token_file(site.folder))


def test_an_address_or_form_that_is_too_much_is_refused_and_no_fault_of_ours(site: Any) -> None:
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    fields = "&".join(f"a{number}=1" for number in range(501))
    paths = (
        "/runs",
        "/steps",
        "/search",
        "/compare",
        "/config",
        "/config/compare",
        "/parts/runs",
        "/runs/r/0/array",
    )
    long = [
        f"/runs/r/{'9' * digits}{more}"
        for digits in (16, 30, 5_000)
        for more in ("", ".json", "/array", "/why/x")
    ]
    form = {"content-type": "application/x-www-form-urlencoded"}

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http, site.http(endpoint, token="") as stranger:
            asked = [http.get(f"{path}?{fields}") for path in paths] + [
                http.get(path) for path in long
            ]
            asked += [http.post(f"/runs/r/{'9' * 30}/label", data={"token": "x"})]
            assert {(await one).status_code for one in asked} <= {400, 403, 404}
            posted = [("/runs/r/0/label", http), ("/config/save", http), ("/sign-in", stranger)]
            for path, sender in posted:
                assert (await sender.post(path, content=fields, headers=form)).status_code == 413, (
                    path
                )

    with service_pages(PageSources(site.folder / "runs", config=site.folder / "config")) as made:
        site.serve_all(work, pages=made)


def test_the_config_pages_read_for_review_and_write_for_edit_alone(site: Any) -> None:
    """S-04 over the service itself: a token of each scope, through the gate, at every address of
    the config.
    """
    from bundle_router.service.pages.service_pages import PageSources, service_pages

    edit = "edit-" + "x" * 40
    both = "both-" + "x" * 40
    entries = ((ROUTE, ["route"], "", ""), (CALL, ["call"], "", ""), (REVIEW, ["review"], "", ""),
               (edit, ["edit"], "", ""), (both, ["review", "edit"], "", ""))  # fmt: skip
    routes = site.folder / "config" / "routes.toml"
    before = routes.read_text(encoding="utf-8")

    async def work(_router: Any, endpoint: Any) -> None:
        own = {"Origin": endpoint.base}
        for token, may_read in (
            (ROUTE, False),
            (CALL, False),
            (REVIEW, True),
            (edit, False),
            (both, True),
        ):
            async with site.http(endpoint, token=token) as http:
                for path in (
                    "/config",
                    "/config.json",
                    "/config/changes",
                    "/config/schema/routes.schema.json",
                    "/",
                ):
                    assert ((await http.get(path)).status_code == 200) is may_read, (token, path)
                page = (await http.get("/config", params={"file": "routes.toml"})).text
                form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
                form["text"] = before + "# by a token\n"
                for path in ("/config/check", "/config/preview", "/config/save", "/config/undo"):
                    answer = await http.post(path, data=form, headers=own)
                    assert (answer.status_code != 403) is (token == both), (token, path)
                    if token == both and path == "/config/preview":
                        (form["compared"],) = re.findall(
                            r'name="compared" value="([^"]*)"', answer.text
                        )
                stranger = {**own, "Origin": "http://elsewhere.example"}
                assert (
                    await http.post("/config/save", data=form, headers=stranger)
                ).status_code == 403
        async with site.http(endpoint, token=both) as http:
            change, *_ = (await http.get("/config/changes.json")).json()["changes"]
            assert change["by"] == "both"

    sources = PageSources(
        site.folder / "runs", config=site.folder / "config", local={"kit": site.kit.tools}
    )
    with service_pages(sources) as made:
        site.serve_all(work, pages=made, tokens=token_file(site.folder, entries))
    assert routes.read_text(encoding="utf-8") == before  # saved, and undone


def test_no_body_can_name_a_process_an_address_or_a_folder_outside(
    site: Any, tmp_path: Path
) -> None:
    keys = {
        "command": "/bin/sh",
        "args": ["-c", "touch pwned"],
        "transport": "stdio",
        "url": "http://127.0.0.1:1/",
    }

    async def work(_router: Any, endpoint: Any) -> None:
        async with site.http(endpoint) as http:
            for key, value in {
                **keys,
                "mcpServers": {"x": keys},
                "config": "/etc",
                "store": "postgresql://x",
            }.items():
                for path, body in (("/v1/route", STEP), ("/v1/runs/r/call", {"name": "kit.echo"})):
                    assert (await http.post(path, json={**body, key: value})).status_code == 422, (
                        path,
                        key,
                    )
            for folder in ("/", "/etc", "..", "../..", "/var/tmp"):
                answer = await http.post(
                    "/v1/route", json={**STEP, "run_id": "w", "workspace": folder}
                )
                assert (answer.status_code, answer.json()["code"]) == (400, "refused"), folder
        assert not (site.folder / "runs" / "w").exists()

    site.serve_all(work)


def test_no_token_is_kept_or_shown(site: Any, capfd: pytest.CaptureFixture[str]) -> None:
    async def work(_router: Any, endpoint: Any) -> str:
        async with site.http(endpoint, token=ALICE) as http:
            await http.post("/v1/route", json={**STEP, "run_id": "mine"})
        return str(endpoint.key)

    key = site.serve_all(work, '[log]\ndiagnostics = "debug"\n', tokens=token_file(site.folder))
    kept = "".join(path.read_text() for path in (site.folder / "runs").rglob("*.json*"))
    said = "".join(capfd.readouterr())
    assert json.loads(said.splitlines()[-1])["event"]
    for token in (ALICE, key):
        assert token not in kept + said


def test_no_tool_reads_or_changes_what_the_service_is_kept_by(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.md").write_text("sha256 and PRIVATE KEY are words\n")
    served = trustme.CA().issue_cert("127.0.0.1")
    served.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    served.private_key_pem.write_to_path(folder / "key.pem")
    files = ("tokens.toml", "key.pem", "cert.pem")
    tokens, step = (
        token_file(folder),
        Step(run_id="r", workflow="feature", role="implementer", step="edit"),
    )
    kept = {name: (folder / name).read_bytes() for name in files}
    address = ServiceAddress("127.0.0.1", 0, (), str(folder / "cert.pem"), str(folder / "key.pem"))

    async def work() -> None:
        async with Router.open("config", runs=tmp_path / "runs", workspace=folder) as router:
            await router.route(step)
            for name in files:
                read = await router.call("r", "repo.read_file", {"path": name})
                assert read.ok is (name != "key.pem"), "a private key is shown to nobody"
            async with serve(router, tokens=tokens, address=address):
                for name in files:
                    read = await router.call("r", "repo.read_file", {"path": name})
                    forged = {
                        "path": name,
                        "content": "[tokens.mine]\n",
                        "expected_sha256": sha256_of(kept[name]),
                    }
                    written = await router.call("r", "workspace.write_file", forged)
                    assert (read.code, written.code) == ("hidden", "protected"), name
                found = await router.call("r", "repo.ripgrep", {"pattern": "sha256|PRIVATE KEY"})
                listed = await router.call("r", "repo.list_dir", {"path": "."})
                assert "notes.md" in listed.text
                assert not any(name in found.text + listed.text for name in files)
                shown = await router.call(
                    "r", "workspace.exec", {"binary": "python", "args": ["-m", "pytest", "-q"]}
                )
                assert "1 passed" in shown.text

    (folder / "test_it.py").write_text(
        "import pathlib\n\ndef test_it():\n    found = [pathlib.Path(name).read_bytes() for name"
        f" in {files!r} if pathlib.Path(name).exists()]\n    assert not any(b'sha256' in text or"
        " b'PRIVATE KEY' in text for text in found)\n"
    )
    asyncio.run(work())
    assert {name: (folder / name).read_bytes() for name in files} == kept


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


EDITS: dict[str, Any] = {
    "taken out": lambda first, other: [other],
    "expired": lambda first, other: [(*first[:3], "expires = 2020-01-01T00:00:00Z\n"), other],
    "without its scope": lambda first, other: [(CALL, ["route"], "", ""), other],
    "somebody's": lambda first, other: [(*first[:2], "bob", ""), other],
}
MODERN: dict[str, Any] = {
    f"io.modelcontextprotocol/{key}": value
    for key, value in (("protocolVersion", "2026-07-28"), ("clientCapabilities", {}))
}
LISTEN = {"notifications": {"toolsListChanged": True}, "_meta": MODERN}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "x", "version": "1"},
}


def message(method: str, params: Any = None, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params or {}, **more}


async def listening(
    http: Any, path: str, stack: contextlib.AsyncExitStack
) -> list[AsyncIterator[str]]:
    """The lines of a stream of each era."""
    old = {"accept": "application/json, text/event-stream"}
    begun = await http.post(path, json=message("initialize", HELLO, id=1), headers=old)
    old |= {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    await http.post(path, json=message("notifications/initialized"), headers=old)
    new = {**old, "mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
    asked = message("subscriptions/listen", LISTEN, id=1)
    streams = (
        http.stream("GET", path, headers=old),
        http.stream("POST", path, json=asked, headers=new),
    )
    return [(await stack.enter_async_context(stream)).aiter_lines() for stream in streams]


@pytest.mark.parametrize("of", ["a run", "the token"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_stream_says_nothing_more_and_ends_once_its_token_would_not_open_it(
    site: Any, edit: str, of: str
) -> None:
    rows = (CALL, ["route", "call"], "", ""), (BOB, ["route", "call"], "bob", "")
    path, tokens = ("/mcp/runs/r" if of == "a run" else "/mcp"), token_file(site.folder, rows)

    async def work(router: Any, endpoint: Any) -> None:
        async with site.http(endpoint, token=CALL) as http, contextlib.AsyncExitStack() as stack:
            streams = await listening(http, path, stack)
            (run_id,) = [
                run.name for run in (site.folder / "runs").glob("r" if of == "a run" else "mcp-*")
            ]
            await router.route(site.step(run_id=run_id, policy=StepPolicy(deny=("tool:kit.wait",))))
            for lines in streams:
                while "tools/list_changed" not in await anext(lines):
                    pass
            token_file(site.folder, [*EDITS[edit](*rows), (REVIEW, ["review"], "", "")])
            known = {"authorization": f"Bearer {REVIEW}"}
            while (await http.get(path, headers=known)).status_code == 401:  # noqa: ASYNC110 - it looks at files
                await asyncio.sleep(0.05)
            await router.route(site.step(run_id=run_id, policy=StepPolicy(deny=("tool:kit.*",))))
            for lines in streams:
                assert not [line async for line in lines if "data" in line], (
                    "the stream ends without another"
                )

    site.serve_all(work, tokens=tokens)
